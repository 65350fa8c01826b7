//! The C types of the driver's interface, as types that safe code can use.

use crate::status::{Failure, INVALID_VALUE};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// The place where a function writes a result.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes `value`; an error if the pointer is null.
    pub(crate) fn set(&self, value: T) -> Result<(), Failure> {
        if self.0.is_null() {
            return Err(INVALID_VALUE.into());
        }
        // SAFETY: the caller of the driver passes a place for a `T`.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Writes `value` unless the pointer is null.
    pub(crate) fn set_if_wanted(&self, value: T) {
        let _ = self.set(value);
    }

    /// The pointer itself.
    pub(crate) fn pointer(&self) -> *mut T {
        self.0
    }
}

impl Out<c_char> {
    /// Writes a text that ends with 0; an error if there are fewer than its bytes.
    pub(crate) fn set_text(&self, text: &str, room: usize) -> Result<(), Failure> {
        if self.0.is_null() || room <= text.len() {
            return Err(INVALID_VALUE.into());
        }
        let to = self.0.cast::<u8>();
        // SAFETY: the caller of the driver passes room for `room` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), to, text.len());
            to.add(text.len()).write(0);
        }
        Ok(())
    }
}

/// A struct that a function reads.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// The value; an error if the pointer is null.
    pub(crate) fn get(&self) -> Result<T, Failure> {
        if self.0.is_null() {
            return Err(INVALID_VALUE.into());
        }
        // SAFETY: the caller of the driver passes a valid `T`.
        Ok(unsafe { self.0.read() })
    }

    /// The array of `n` values.
    pub(crate) fn get_array(&self, n: usize) -> Result<Vec<T>, Failure> {
        if n == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(INVALID_VALUE.into());
        }
        // SAFETY: the caller of the driver passes `n` valid values.
        Ok(unsafe { std::slice::from_raw_parts(self.0, n) }.to_vec())
    }
}

/// A text that a function reads.
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    pub(crate) fn get(&self) -> Result<String, Failure> {
        if self.0.is_null() {
            return Err(INVALID_VALUE.into());
        }
        // SAFETY: the caller of the driver passes a string that ends with 0.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_str().map_err(|_| INVALID_VALUE)?.to_string())
    }
}

/// The pointers to a kernel's arguments.
#[derive(Copy, Clone)]
#[repr(transparent)]
pub struct Arguments(pub(crate) *mut *mut c_void);

impl Arguments {
    /// Copies `size` bytes of argument `index`.
    pub(crate) fn copy(self, index: usize, to: &mut [u8]) -> Result<(), Failure> {
        if self.0.is_null() {
            return Err(INVALID_VALUE.into());
        }
        // SAFETY: the caller of the driver passes a pointer for each parameter of the kernel, to a value of its
        // size.
        unsafe {
            let from = *self.0.add(index) as *const u8;
            if from.is_null() {
                return Err(INVALID_VALUE.into());
            }
            std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len());
        }
        Ok(())
    }
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`
#[allow(missing_docs)]
#[derive(Copy, Clone)]
#[repr(C)]
pub struct KernelNodeParams {
    pub func: usize,
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared: c_uint,
    pub params: Arguments,
    pub extra: *mut *mut c_void,
    pub kern: usize,
    pub ctx: usize,
}

/// `CUmemAccessDesc`
#[allow(missing_docs)]
#[derive(Copy, Clone)]
#[repr(C)]
pub struct PoolAccess {
    pub kind: c_int,
    pub device: c_int,
    pub flags: c_int,
}
