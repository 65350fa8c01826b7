//! DLPack's structures, as its C header has them: versions 0.8 and 1.x.

use std::ffi::c_void;

/// Where a tensor is.
#[repr(C)]
#[derive(Copy, Clone, Debug)]
pub struct DLDevice {
    /// 1 for the memory of the processor.
    pub device_type: i32,
    /// Its number.
    pub device_id: i32,
}

/// An element type.
#[repr(C)]
#[derive(Copy, Clone, Debug)]
pub struct DLDataType {
    /// Its kind: 0 integers, 1 without a sign, 2 floats, 4 bf16, 6 bools.
    pub code: u8,
    /// Bits of a number.
    pub bits: u8,
    /// Numbers of an element, 1 here.
    pub lanes: u16,
}

/// A tensor.
#[repr(C)]
#[derive(Copy, Clone, Debug)]
pub struct DLTensor {
    /// Its memory.
    pub data: *mut c_void,
    /// Where that is.
    pub device: DLDevice,
    /// How many dims it has.
    pub ndim: i32,
    /// Its element type.
    pub dtype: DLDataType,
    /// Its extents.
    pub shape: *mut i64,
    /// Its strides in elements; row-major where null.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// A tensor with what frees it.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// Its maker's.
    pub manager_ctx: *mut c_void,
    /// Frees it; called once.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// A version of the structures.
#[repr(C)]
#[derive(Copy, Clone, Debug)]
pub struct DLPackVersion {
    /// Others have another layout.
    pub major: u32,
    /// Larger ones say more.
    pub minor: u32,
}

/// A tensor with what frees it, of version 1.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// The version.
    pub version: DLPackVersion,
    /// Its maker's.
    pub manager_ctx: *mut c_void,
    /// Frees it; called once.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// Bit 0: it is only read.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}
