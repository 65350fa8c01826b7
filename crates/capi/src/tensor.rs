//! Tensors that cross the border.

use crate::status::{Failure, KilnStatus, call, deref, free, give, hand_over, invalid, list};
use kiln_package::{Buffer, DType};
use std::ffi::c_void;

/// An element type. The numbers never change.
#[repr(C)]
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum KilnDType {
    /// A byte, 0 or 1.
    KILN_BOOL = 0,
    /// 8 bits, unsigned.
    KILN_U8 = 1,
    /// 8 bits, signed.
    KILN_I8 = 2,
    /// 16 bits, signed.
    KILN_I16 = 3,
    /// 32 bits, signed.
    KILN_I32 = 4,
    /// 64 bits, signed.
    KILN_I64 = 5,
    /// 16 bits, unsigned.
    KILN_U16 = 6,
    /// 32 bits, unsigned.
    KILN_U32 = 7,
    /// 64 bits, unsigned.
    KILN_U64 = 8,
    /// IEEE half precision.
    KILN_F16 = 9,
    /// The upper half of a `KILN_F32`.
    KILN_BF16 = 10,
    /// IEEE single precision.
    KILN_F32 = 11,
    /// IEEE double precision.
    KILN_F64 = 12,
    /// A float of 8 bits, OCP's E4M3.
    KILN_F8_E4M3 = 13,
    /// A float of 8 bits, OCP's E5M2.
    KILN_F8_E5M2 = 14,
    /// A float of 8 bits, E4M3 without infinities and -0.
    KILN_F8_E4M3FNUZ = 15,
    /// A float of 8 bits, E5M2 without infinities and -0.
    KILN_F8_E5M2FNUZ = 16,
}

/// A tensor of the caller: row-major and contiguous.
#[repr(C)]
#[derive(Copy, Clone, Debug)]
pub struct KilnView {
    /// Its elements, of any alignment.
    pub data: *mut c_void,
    /// The number of bytes.
    pub bytes: usize,
    /// Its element type, a `KilnDType`.
    pub dtype: i32,
    /// The number of dims.
    pub rank: u32,
    /// Its extents, outermost first.
    pub shape: *const i64,
}

/// A tensor of the library.
pub struct KilnTensor(pub(crate) Buffer);

impl KilnDType {
    pub(crate) fn from_dtype(dtype: DType) -> KilnDType {
        ALL[DType::ALL.iter().position(|d| *d == dtype).unwrap_or(0)]
    }
}

/// In the order of [`DType::ALL`].
const ALL: [KilnDType; 17] = [
    KilnDType::KILN_BOOL,
    KilnDType::KILN_U8,
    KilnDType::KILN_I8,
    KilnDType::KILN_I16,
    KilnDType::KILN_I32,
    KilnDType::KILN_I64,
    KilnDType::KILN_U16,
    KilnDType::KILN_U32,
    KilnDType::KILN_U64,
    KilnDType::KILN_F16,
    KilnDType::KILN_BF16,
    KilnDType::KILN_F32,
    KilnDType::KILN_F64,
    KilnDType::KILN_F8_E4M3,
    KilnDType::KILN_F8_E5M2,
    KilnDType::KILN_F8_E4M3FNUZ,
    KilnDType::KILN_F8_E5M2FNUZ,
];

fn dtype(number: i32) -> Result<DType, Failure> {
    let index = ALL.iter().position(|d| *d as i32 == number);
    let dtype = index.map(|index| DType::ALL[index]);
    dtype.ok_or_else(|| invalid(format!("there is no dtype {number}")))
}

/// A copy of a tensor of the caller.
///
/// # Safety
/// Its pointers are valid for the sizes that it states.
pub(crate) unsafe fn copy_in(view: &KilnView) -> Result<Buffer, Failure> {
    let dtype = dtype(view.dtype)?;
    // SAFETY: the caller guarantees it.
    let shape = unsafe { list(view.shape, view.rank as usize, "the shape")? };
    // SAFETY: the caller guarantees it.
    let bytes = unsafe { list(view.data.cast::<u8>(), view.bytes, "the data")? };
    Ok(Buffer::from_bytes(dtype, shape, bytes)?)
}

/// Copies a tensor into the caller's, which must have its dtype, rank, shape and number of bytes.
///
/// # Safety
/// The view's pointers are valid for the sizes that it states, and the data is not used by anyone else meanwhile.
pub(crate) unsafe fn copy_out(from: &Buffer, to: &KilnView, what: &str) -> Result<(), Failure> {
    // SAFETY: the caller guarantees it.
    let shape = unsafe { list(to.shape, to.rank as usize, "the shape")? };
    let bytes = from.bytes()?;
    let fits = dtype(to.dtype)? == from.dtype() && shape == from.shape() && to.bytes == bytes.len();
    if !fits {
        let (dtype, is) = (from.dtype(), from.shape());
        let text = format!("output `{what}` is {dtype}{is:?} of {} bytes", bytes.len());
        return Err(Failure(KilnStatus::KILN_VALUE, text));
    }
    if !bytes.is_empty() && to.data.is_null() {
        return Err(invalid("the data is null"));
    }
    // SAFETY: there is memory for all the bytes, and it is not the library's.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.data.cast(), bytes.len()) };
    Ok(())
}

/// Makes a tensor of the library with a copy of the caller's elements.
///
/// # Safety
/// `from` points to a view, whose pointers are valid for the sizes that it states; `to` points to memory for a
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_tensor_new(
    from: *const KilnView,
    to: *mut *mut KilnTensor,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        unsafe { hand_over(to, || Ok(KilnTensor(copy_in(deref(from, "the view")?)?))) }
    })
}

/// Describes a tensor. The pointers point to the library's memory, may only be read, and stay valid until the tensor
/// is freed.
///
/// # Safety
/// `tensor` is one of the library's; `to` points to memory for a view.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_tensor_view(
    tensor: *const KilnTensor,
    to: *mut KilnView,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        let KilnTensor(tensor) = unsafe { deref(tensor, "the tensor")? };
        let bytes = tensor.bytes()?;
        let view = KilnView {
            data: bytes.as_ptr().cast_mut().cast(),
            bytes: bytes.len(),
            dtype: KilnDType::from_dtype(tensor.dtype()) as i32,
            rank: tensor.shape().len() as u32,
            shape: tensor.shape().as_ptr(),
        };
        // SAFETY: the caller guarantees it.
        unsafe { give(to, view, "the result") }
    })
}

/// Frees a tensor.
///
/// # Safety
/// It is null, or one of the library's that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_tensor_free(tensor: *mut KilnTensor) {
    // SAFETY: the caller guarantees it; the library makes handles by `Box::into_raw`.
    unsafe { free(tensor) };
}
