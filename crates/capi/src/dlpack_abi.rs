//! DLPack's structures, as in its C header: versions 0.8 and 1.x.

use std::ffi::c_void;

/// The location of a tensor.
#[repr(C)]
#[derive(Copy, Clone, Debug)]
pub struct DLDevice {
    /// 1 for host memory.
    pub device_type: i32,
    /// The number of the device.
    pub device_id: i32,
}

/// An element type.
#[repr(C)]
#[derive(Copy, Clone, Debug)]
pub struct DLDataType {
    /// Its kind: 0 signed integers, 1 unsigned integers, 2 floats, 4 bf16, 6 bools, 10 to 13 floats of 8 bits.
    pub code: u8,
    /// The number of bits.
    pub bits: u8,
    /// The number of lanes of an element, 1 here.
    pub lanes: u16,
}

/// A tensor.
#[repr(C)]
#[derive(Copy, Clone, Debug)]
pub struct DLTensor {
    /// Its memory.
    pub data: *mut c_void,
    /// The device of the memory.
    pub device: DLDevice,
    /// The number of dims.
    pub ndim: i32,
    /// Its element type.
    pub dtype: DLDataType,
    /// Its extents.
    pub shape: *mut i64,
    /// Its strides in elements; null for row-major.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// A tensor with its deleter.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// A pointer for the producer's use.
    pub manager_ctx: *mut c_void,
    /// Frees it; called once.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// A version of the structures.
#[repr(C)]
#[derive(Copy, Clone, Debug)]
pub struct DLPackVersion {
    /// The major version; another one has another layout.
    pub major: u32,
    /// The minor version; later ones add meanings.
    pub minor: u32,
}

/// A tensor with its deleter, of version 1.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// The version.
    pub version: DLPackVersion,
    /// A pointer for the producer's use.
    pub manager_ctx: *mut c_void,
    /// Frees it; called once.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// Bit 0: it may only be read.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}
