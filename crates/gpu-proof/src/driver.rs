//! The few functions of the CUDA driver that the proof calls itself: running a kernel given as PTX, and copies.

use crate::Failed;
use cudarc::driver::{result, sys};
use kiln_gpu_emulator::{Argument, Vector};
use std::ffi::{CString, c_void};
use std::ptr::null_mut;

/// The driver that the engine has opened, with the context of the first device.
pub(crate) struct Driver(());

/// Memory of the device.
pub(crate) struct Array(sys::CUdeviceptr);

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: allocated by `Array::new`; what used it has been waited for.
        let _ = unsafe { result::free_sync(self.0) };
    }
}

impl Array {
    /// Memory of so many bytes, whatever they are.
    pub(crate) fn new(bytes: usize) -> Result<Array, Failed> {
        // SAFETY: whoever makes an array fills it before reading.
        Ok(Array(unsafe { result::malloc_sync(bytes.max(1)) }?))
    }
}

impl Array {
    fn address(&self) -> u64 {
        self.0
    }
}

impl Driver {
    /// Makes the context of the first device current.
    pub(crate) fn open() -> Result<Driver, Failed> {
        kiln_runtime::cuda::Device::get(0)?;
        // SAFETY: the engine has opened and initialised the driver, and found the device.
        unsafe { result::ctx::set_current(result::primary_ctx::retain(0)?)? };
        Ok(Driver(()))
    }

    /// The version of CUDA that the driver knows, such as 13.0.
    pub(crate) fn version(&self) -> Result<String, Failed> {
        let mut version = 0;
        // SAFETY: the place is writable.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
        Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
    }

    /// The multiprocessors of the first device.
    pub(crate) fn multiprocessors(&self) -> Result<i32, Failed> {
        let count = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        // SAFETY: there is a first device.
        Ok(unsafe { result::device::get_attribute(0, count) }?)
    }

    /// The highest clock of its multiprocessors in Hz.
    pub(crate) fn clock(&self) -> Result<f64, Failed> {
        let kilohertz = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE;
        // SAFETY: there is a first device.
        Ok(1e3 * f64::from(unsafe { result::device::get_attribute(0, kilohertz) }?))
    }

    pub(crate) fn synchronize(&self) -> Result<(), Failed> {
        Ok(result::ctx::synchronize()?)
    }

    /// A function that copies `bytes` on the device `times` times, and waits.
    pub(crate) fn copier(
        &self,
        bytes: usize,
    ) -> Result<impl Fn(usize) -> Result<(), Failed> + '_, Failed> {
        let (from, to) = (Array::new(bytes)?, Array::new(bytes)?);
        // `address` makes the closure own the arrays, of which it would capture the field alone.
        Ok(move |times| {
            for _ in 0..times {
                // SAFETY: both arrays hold so many bytes, and live until the wait is over.
                unsafe {
                    result::memcpy_dtod_async(to.address(), from.address(), bytes, null_mut())
                }?;
            }
            self.synchronize()
        })
    }

    /// The bytes of a vector's outputs, one after the other.
    pub(crate) fn outputs(&self, vector: &Vector) -> Result<Vec<u8>, Failed> {
        let text = CString::new(vector.ptx)?;
        // SAFETY: the text ends in a zero byte.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
        let name = CString::new(vector.kernel.as_str())?;
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(module, name) }?;
        if vector.dynamic_shared > 0 {
            let (bytes, shared) = (
                vector.dynamic_shared as i32,
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            );
            // SAFETY: the function is loaded.
            unsafe { result::function::set_function_attribute(function, shared, bytes) }?;
        }
        let (mut arrays, mut parameters) = (Vec::new(), Vec::new());
        for argument in &vector.arguments {
            match argument {
                Argument::Number(bytes) => parameters.push(bytes.clone()),
                Argument::Array { bytes, output } => {
                    let array = Array::new(bytes.len())?;
                    // SAFETY: the array holds so many bytes.
                    unsafe { result::memcpy_htod_sync(array.0, bytes) }?;
                    parameters.push(array.0.to_le_bytes().to_vec());
                    arrays.push((array, bytes.len(), output.is_some()));
                }
            }
        }
        let mut pointers: Vec<*mut c_void> = parameters
            .iter_mut()
            .map(|p| p.as_mut_ptr().cast())
            .collect();
        let ([x, y, z], block) = (vector.grid, (vector.block, 1, 1));
        let (shared, stream) = (vector.dynamic_shared, null_mut());
        // SAFETY: the kernel takes these parameters, and the arrays are as large as it expects.
        unsafe {
            result::launch_kernel(function, (x, y, z), block, shared, stream, &mut pointers)
        }?;
        self.synchronize()?;
        let mut outputs = Vec::new();
        for (array, len, _) in arrays.iter().filter(|a| a.2) {
            let mut bytes = vec![0u8; *len];
            // SAFETY: the place is writable and as long as the array.
            unsafe { result::memcpy_dtoh_sync(&mut bytes, array.0) }?;
            outputs.extend(bytes);
        }
        // SAFETY: nothing of the module runs any more.
        unsafe { result::module::unload(module) }?;
        Ok(outputs)
    }
}
