//! Tensors from and to other libraries, in DLPack's structures.

use crate::dlpack_abi::*;
use crate::status::{Failure, KilnStatus, call, deref, hand_over, invalid, list};
use crate::tensor::KilnTensor;
use kiln_package::memory::{ALIGN, Lender, Storage};
use kiln_package::{Buffer, DType};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

/// The flag of a tensor that may only be read.
const READ_ONLY: u64 = 1;
/// The maximum number of dims of a tensor from another library.
const MAX_DIMS: usize = 64;
/// DLPack's code of host memory.
const CPU: i32 = 1;

/// The version of tensors for other libraries.
const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 0 };

/// A managed tensor of either version.
trait Managed: Sized + 'static {
    fn tensor(&self) -> &DLTensor;
    /// Frees the tensor by its deleter.
    ///
    /// # Safety
    /// `this` belongs to its producer, and was not freed.
    unsafe fn delete(this: *mut Self);
    /// The reason for refusing the tensor, if any.
    fn refused(&self) -> Option<String> {
        None
    }
}

impl Managed for DLManagedTensor {
    fn tensor(&self) -> &DLTensor {
        &self.dl_tensor
    }

    unsafe fn delete(this: *mut Self) {
        // SAFETY: the caller guarantees it.
        unsafe {
            if let Some(deleter) = (*this).deleter {
                deleter(this);
            }
        }
    }
}

impl Managed for DLManagedTensorVersioned {
    fn tensor(&self) -> &DLTensor {
        &self.dl_tensor
    }

    unsafe fn delete(this: *mut Self) {
        // SAFETY: the caller guarantees it.
        unsafe {
            if let Some(deleter) = (*this).deleter {
                deleter(this);
            }
        }
    }

    fn refused(&self) -> Option<String> {
        let DLPackVersion { major, minor } = self.version;
        (major != VERSION.major)
            .then(|| format!("the tensor is of DLPack {major}.{minor}, and this library reads 1.x"))
    }
}

/// The owner of a tensor of another library, which frees it.
struct Borrowed<M: Managed> {
    managed: *mut M,
    data: *const u8,
    len: usize,
}

// SAFETY: DLPack lets a tensor be used and freed on any thread.
unsafe impl<M: Managed> Send for Borrowed<M> {}
// SAFETY: the bytes are only read.
unsafe impl<M: Managed> Sync for Borrowed<M> {}

impl<M: Managed> Lender for Borrowed<M> {
    fn bytes(&self) -> &[u8] {
        match self.len {
            0 => &[],
            // SAFETY: the bytes are the tensor's, which stays where it is until it is freed. Its producer promised that
            // they are not written meanwhile.
            len => unsafe { std::slice::from_raw_parts(self.data, len) },
        }
    }
}

impl<M: Managed> Drop for Borrowed<M> {
    fn drop(&mut self) {
        // SAFETY: the tensor was handed over, and is not read any more.
        unsafe { M::delete(self.managed) };
    }
}

fn dtype(dl_dtype: DLDataType) -> Result<DType, Failure> {
    let DLDataType { code, bits, lanes } = dl_dtype;
    let matching = DType::ALL.into_iter().find(|d| {
        let t = dl_type(*d);
        (t.code, t.bits, t.lanes) == (code, bits, lanes)
    });
    let text = || format!("there is no dtype of kind {code} with {bits} bits in {lanes} lanes");
    matching.ok_or_else(|| Failure(KilnStatus::KILN_VALUE, text()))
}

fn dl_type(dtype: DType) -> DLDataType {
    let code = match dtype {
        DType::Bool => 6,
        DType::BF16 => 4,
        DType::F8E4M3 => 10,
        DType::F8E4M3FNUZ => 11,
        DType::F8E5M2 => 12,
        DType::F8E5M2FNUZ => 13,
        d if d.is_float() => 2,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 1,
        _ => 0,
    };
    DLDataType {
        code,
        bits: 8 * dtype.size() as u8,
        lanes: 1,
    }
}

/// Row-major strides.
fn strides(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1i64; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i].saturating_mul(shape[i].max(1));
    }
    strides
}

/// Takes over a tensor: used in place if it is row-major and aligned, else copied.
///
/// # Safety
/// `managed` is null, or a tensor that is not written until it is freed.
unsafe fn take_over<M: Managed>(managed: *mut M) -> Result<Buffer, Failure> {
    // SAFETY: the caller guarantees it.
    let source = unsafe { deref(managed.cast_const(), "the tensor")? };
    let value = |text: String| Failure(KilnStatus::KILN_VALUE, text);
    if let Some(why) = source.refused() {
        return Err(value(why));
    }
    let t = source.tensor();
    if t.device.device_type != CPU {
        return Err(value(format!(
            "the tensor is on a device of type {}, and only memory of the processor (1) is read",
            t.device.device_type
        )));
    }
    let dtype = dtype(t.dtype)?;
    let rank = usize::try_from(t.ndim).ok().filter(|n| *n <= MAX_DIMS);
    let rank = rank.ok_or_else(|| invalid(format!("a tensor can't have {} dims", t.ndim)))?;
    // SAFETY: the caller guarantees it.
    let shape = unsafe { list(t.shape.cast_const(), rank, "the shape")? };
    let len = shape.iter().try_fold(dtype.size(), |n, d| {
        n.checked_mul(usize::try_from(*d).ok()?)
    });
    let len = len.filter(|n| *n <= isize::MAX as usize);
    let len = len.ok_or_else(|| value(format!("there is no tensor of shape {shape:?}")))?;
    if len > 0 && t.data.is_null() {
        return Err(invalid("the data is null"));
    }
    let steps = match t.strides.is_null() {
        true => strides(shape),
        // SAFETY: the caller guarantees it.
        false => unsafe { list(t.strides.cast_const(), rank, "the strides")? }.to_vec(),
    };
    let dense = strides(shape);
    let row_major = len == 0 || (0..rank).all(|i| shape[i] == 1 || steps[i] == dense[i]);
    let data = t
        .data
        .cast::<u8>()
        .cast_const()
        .wrapping_add(t.byte_offset as usize);
    if row_major && len > 0 && data.addr().is_multiple_of(ALIGN) {
        let borrowed = Arc::new(Borrowed { managed, data, len });
        let lent =
            Storage::lent(&borrowed, 0..len).and_then(|s| Buffer::from_storage(dtype, shape, s));
        return lent.map_err(|e| {
            // The caller keeps the tensor.
            if let Some(last_owner) = Arc::into_inner(borrowed) {
                std::mem::forget(last_owner);
            }
            e.into()
        });
    }
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(len).is_err() {
        let text = format!("a copy of {len} bytes can't be allocated");
        return Err(Failure(KilnStatus::KILN_MEMORY, text));
    }
    if len > 0 {
        // SAFETY: the caller guarantees that the strides lead to elements of the tensor.
        unsafe { gather(&mut bytes, data, dtype.size(), (shape, &steps)) };
    }
    let buffer = Buffer::from_bytes(dtype, shape, &bytes)?;
    // SAFETY: the tensor was handed over, and all its elements are copied.
    unsafe { M::delete(managed) };
    Ok(buffer)
}

/// Copies elements in row-major order.
///
/// # Safety
/// There is an element of `size` bytes at every index.
unsafe fn gather(to: &mut Vec<u8>, from: *const u8, size: usize, (shape, steps): (&[i64], &[i64])) {
    match (shape, steps) {
        ([n, shape @ ..], [step, steps @ ..]) => (0..*n).for_each(|i| {
            let skip = i.wrapping_mul(*step).wrapping_mul(size as i64);
            // SAFETY: the caller guarantees it for the elements at this index.
            unsafe {
                gather(
                    to,
                    from.wrapping_offset(skip as isize),
                    size,
                    (shape, steps),
                )
            };
        }),
        // SAFETY: the caller guarantees it.
        _ => to.extend_from_slice(unsafe { std::slice::from_raw_parts(from, size) }),
    }
}

/// The memory behind a tensor for another library.
struct Exported {
    shape: Vec<i64>,
    strides: Vec<i64>,
    /// The library's memory, unless there is a copy of it.
    _buffer: Option<Buffer>,
    copy: Vec<u64>,
}

/// Describes a tensor for another library. With `copies` its memory is a copy, which the library may write.
fn export_parts(buffer: &Buffer, copies: bool) -> Result<(DLTensor, *mut c_void), Failure> {
    let bytes = buffer.bytes()?;
    let mut exported = Box::new(Exported {
        shape: buffer.shape().to_vec(),
        strides: strides(buffer.shape()),
        _buffer: (!copies).then(|| buffer.clone()),
        copy: Vec::new(),
    });
    let mut data = bytes.as_ptr().cast_mut();
    if copies {
        let words = bytes.len().div_ceil(8);
        if exported.copy.try_reserve_exact(words).is_err() {
            let text = format!("a copy of {} bytes can't be allocated", bytes.len());
            return Err(Failure(KilnStatus::KILN_MEMORY, text));
        }
        exported.copy.resize(words, 0);
        data = exported.copy.as_mut_ptr().cast();
        // SAFETY: the words have room for the bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), data, bytes.len()) };
    }
    if bytes.is_empty() {
        data = null_mut();
    }
    let tensor = DLTensor {
        data: data.cast(),
        device: DLDevice {
            device_type: CPU,
            device_id: 0,
        },
        ndim: exported.shape.len() as i32,
        dtype: dl_type(buffer.dtype()),
        shape: exported.shape.as_mut_ptr(),
        strides: exported.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    Ok((tensor, Box::into_raw(exported).cast()))
}

/// # Safety
/// The tensor was made by this library for another one, and was not freed.
unsafe extern "C" fn delete(this: *mut DLManagedTensor) {
    call(|| {
        // SAFETY: the caller guarantees it; both boxes were made with the tensor.
        unsafe {
            drop(Box::from_raw((*this).manager_ctx.cast::<Exported>()));
            drop(Box::from_raw(this));
        }
        Ok(())
    });
}

/// # Safety
/// As [`delete`].
unsafe extern "C" fn delete_versioned(this: *mut DLManagedTensorVersioned) {
    call(|| {
        // SAFETY: the caller guarantees it; both boxes were made with the tensor.
        unsafe {
            drop(Box::from_raw((*this).manager_ctx.cast::<Exported>()));
            drop(Box::from_raw(this));
        }
        Ok(())
    });
}

/// Makes a tensor of the library from one of another library, which is handed over. Its `deleter` is called after the
/// last use; until then it must not be written. It is used in place if it is row-major and aligned to 64 bytes, else
/// copied and freed at once. After an error it still belongs to the caller.
///
/// # Safety
/// `from` points to a tensor whose pointers are valid for the sizes that it states; `to` points to memory for a
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_tensor_from_dlpack(
    from: *mut DLManagedTensor,
    to: *mut *mut KilnTensor,
) -> KilnStatus {
    // SAFETY: the caller guarantees it.
    unsafe { from_managed(from, to) }
}

/// The same for a tensor of DLPack 1.x.
///
/// # Safety
/// As of `kiln_tensor_from_dlpack`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_tensor_from_dlpack_versioned(
    from: *mut DLManagedTensorVersioned,
    to: *mut *mut KilnTensor,
) -> KilnStatus {
    // SAFETY: the caller guarantees it.
    unsafe { from_managed(from, to) }
}

/// # Safety
/// As [`kiln_tensor_from_dlpack`].
unsafe fn from_managed<M: Managed>(from: *mut M, to: *mut *mut KilnTensor) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        unsafe { hand_over(to, || Ok(KilnTensor(take_over(from)?))) }
    })
}

/// Makes a tensor for another library, with a copy of the elements that it may write. Its `deleter` frees it.
///
/// # Safety
/// `tensor` is one of the library's; `to` points to memory for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_tensor_to_dlpack(
    tensor: *const KilnTensor,
    to: *mut *mut DLManagedTensor,
) -> KilnStatus {
    let managed = |dl_tensor, manager_ctx| DLManagedTensor {
        dl_tensor,
        manager_ctx,
        deleter: Some(delete),
    };
    // SAFETY: the caller guarantees it.
    unsafe { to_managed(tensor, to, true, managed) }
}

/// Makes a tensor of DLPack 1.0 for another library, without a copy: its flags say that it may only be read. The
/// library's tensor may be freed before it. Its `deleter` frees it.
///
/// # Safety
/// As of `kiln_tensor_to_dlpack`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_tensor_to_dlpack_versioned(
    tensor: *const KilnTensor,
    to: *mut *mut DLManagedTensorVersioned,
) -> KilnStatus {
    let managed = |dl_tensor, manager_ctx| DLManagedTensorVersioned {
        version: VERSION,
        manager_ctx,
        deleter: Some(delete_versioned),
        flags: READ_ONLY,
        dl_tensor,
    };
    // SAFETY: the caller guarantees it.
    unsafe { to_managed(tensor, to, false, managed) }
}

/// # Safety
/// As [`kiln_tensor_to_dlpack`].
unsafe fn to_managed<M>(
    tensor: *const KilnTensor,
    to: *mut *mut M,
    copies: bool,
    managed: impl FnOnce(DLTensor, *mut c_void) -> M,
) -> KilnStatus {
    call(|| {
        // SAFETY: the caller guarantees it.
        let KilnTensor(buffer) = unsafe { deref(tensor, "the tensor")? };
        let make = || {
            let (tensor, context) = export_parts(buffer, copies)?;
            Ok(managed(tensor, context))
        };
        // SAFETY: the caller guarantees it.
        unsafe { hand_over(to, make) }
    })
}
