//! The few functions of the CUDA driver that the proof calls itself: running a kernel given as PTX, and copies.

use crate::Failed;
use kiln_gpu_emulator::{Argument, Vector};
use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;

type Handle = *mut c_void;

macro_rules! functions {
    ($($field:ident = $name:literal ($($arg:ty),*);)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }
        impl Functions {
            fn load(library: &Library) -> Result<Functions, Failed> {
                Ok(Functions {
                    // SAFETY: the type is the one that NVIDIA documents for this name.
                    $($field: unsafe { *library.get($name)? },)*
                })
            }
        }
    };
}

functions! {
    version = b"cuDriverGetVersion"(*mut c_int);
    attribute = b"cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
    context_retain = b"cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
    context_set = b"cuCtxSetCurrent"(Handle);
    synchronize = b"cuCtxSynchronize"();
    module_load = b"cuModuleLoadData"(*mut Handle, *const c_void);
    module_unload = b"cuModuleUnload"(Handle);
    function = b"cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
    function_set = b"cuFuncSetAttribute"(Handle, c_int, c_int);
    allocate = b"cuMemAlloc_v2"(*mut u64, usize);
    free = b"cuMemFree_v2"(u64);
    upload = b"cuMemcpyHtoD_v2"(u64, *const c_void, usize);
    download = b"cuMemcpyDtoH_v2"(*mut c_void, u64, usize);
    copy = b"cuMemcpyDtoDAsync_v2"(u64, u64, usize, Handle);
    launch = b"cuLaunchKernel"(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
}

/// The driver that the engine uses, with the context of the first device.
pub(crate) struct Driver {
    functions: Functions,
    _library: Library,
}

/// Memory of the device.
struct Array<'d>(&'d Driver, u64);

impl Drop for Array<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated by `Driver::allocate`; what used it has been waited for.
        unsafe { (self.0.functions.free)(self.1) };
    }
}

const MAX_DYNAMIC_SHARED: c_int = 8;

fn check(what: &str, status: c_int) -> Result<(), Failed> {
    match status {
        0 => Ok(()),
        code => Err(format!("{what} gives error {code}").into()),
    }
}

impl Driver {
    /// Opens the driver that `KILN_CUDA_DRIVER` names, else the system's. The engine has opened it before.
    pub(crate) fn open() -> Result<Driver, Failed> {
        let named = std::env::var_os("KILN_CUDA_DRIVER").filter(|v| !v.is_empty());
        let path = named.map_or_else(|| PathBuf::from("libcuda.so.1"), PathBuf::from);
        // SAFETY: the driver's initialisers have no preconditions.
        let library = unsafe { Library::new(path)? };
        let functions = Functions::load(&library)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the engine initialised the driver; the place is writable.
        unsafe {
            let status = (functions.context_retain)(&mut context, 0);
            check("cuDevicePrimaryCtxRetain", status)?;
            check("cuCtxSetCurrent", (functions.context_set)(context))?;
        }
        Ok(Driver {
            functions,
            _library: library,
        })
    }

    /// The version of CUDA that the driver knows, such as 13.0.
    pub(crate) fn version(&self) -> String {
        let mut version = 0;
        // SAFETY: the place is writable.
        unsafe { (self.functions.version)(&mut version) };
        format!("{}.{}", version / 1000, version % 1000 / 10)
    }

    /// An attribute of the first device, by the driver's number.
    pub(crate) fn attribute(&self, which: c_int) -> i32 {
        let mut value = 0;
        // SAFETY: the place is writable.
        unsafe { (self.functions.attribute)(&mut value, which, 0) };
        value
    }

    fn allocate(&self, bytes: usize) -> Result<Array<'_>, Failed> {
        let mut address = 0;
        // SAFETY: the place is writable.
        let status = unsafe { (self.functions.allocate)(&mut address, bytes.max(1)) };
        check("cuMemAlloc", status)?;
        Ok(Array(self, address))
    }

    pub(crate) fn synchronize(&self) -> Result<(), Failed> {
        // SAFETY: a context is current.
        check("cuCtxSynchronize", unsafe {
            (self.functions.synchronize)()
        })
    }

    /// A function that copies `bytes` on the device `times` times, and waits.
    pub(crate) fn copier(
        &self,
        bytes: usize,
    ) -> Result<impl Fn(usize) -> Result<(), Failed> + '_, Failed> {
        let (from, to) = (self.allocate(bytes)?, self.allocate(bytes)?);
        Ok(move |times| {
            for _ in 0..times {
                let null = std::ptr::null_mut();
                // SAFETY: both arrays hold so many bytes, and live until the wait is over.
                let status = unsafe { (self.functions.copy)(to.1, from.1, bytes, null) };
                check("cuMemcpyDtoDAsync", status)?;
            }
            self.synchronize()
        })
    }

    /// The bytes of a vector's outputs, one after the other.
    pub(crate) fn outputs(&self, vector: &Vector) -> Result<Vec<u8>, Failed> {
        let f = &self.functions;
        let text = CString::new(vector.ptx)?;
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the text ends in a zero byte; the place is writable.
        let status = unsafe { (f.module_load)(&mut module, text.as_ptr().cast()) };
        check("cuModuleLoadData", status)?;
        let name = CString::new(vector.kernel.as_str())?;
        // SAFETY: the module is loaded, the name ends in a zero byte, the place is writable.
        let status = unsafe { (f.function)(&mut function, module, name.as_ptr()) };
        check("cuModuleGetFunction", status)?;
        if vector.dynamic_shared > 0 {
            let bytes = vector.dynamic_shared as c_int;
            // SAFETY: the function is loaded.
            let status = unsafe { (f.function_set)(function, MAX_DYNAMIC_SHARED, bytes) };
            check("cuFuncSetAttribute", status)?;
        }
        let (mut arrays, mut parameters) = (Vec::new(), Vec::new());
        for argument in &vector.arguments {
            match argument {
                Argument::Number(bytes) => parameters.push(bytes.clone()),
                Argument::Array { bytes, output } => {
                    let array = self.allocate(bytes.len())?;
                    // SAFETY: the array holds so many bytes.
                    let status = unsafe { (f.upload)(array.1, bytes.as_ptr().cast(), bytes.len()) };
                    check("cuMemcpyHtoD", status)?;
                    parameters.push(array.1.to_le_bytes().to_vec());
                    arrays.push((array, bytes.len(), output.is_some()));
                }
            }
        }
        let mut places: Vec<*mut c_void> = parameters
            .iter_mut()
            .map(|p| p.as_mut_ptr().cast())
            .collect();
        let [x, y, z] = vector.grid;
        let (null, shared) = (std::ptr::null_mut(), vector.dynamic_shared);
        // SAFETY: the kernel takes these parameters, and the arrays are as large as it expects.
        let status = unsafe {
            let places = places.as_mut_ptr();
            let nothing = std::ptr::null_mut();
            (f.launch)(
                function,
                x,
                y,
                z,
                vector.block,
                1,
                1,
                shared,
                null,
                places,
                nothing,
            )
        };
        check("cuLaunchKernel", status)?;
        self.synchronize()?;
        let mut outputs = Vec::new();
        for (array, len, _) in arrays.iter().filter(|a| a.2) {
            let mut bytes = vec![0u8; *len];
            // SAFETY: the place is writable and as long as the array.
            let status = unsafe { (f.download)(bytes.as_mut_ptr().cast(), array.1, *len) };
            check("cuMemcpyDtoH", status)?;
            outputs.extend(bytes);
        }
        // SAFETY: nothing of the module runs any more.
        unsafe { (f.module_unload)(module) };
        Ok(outputs)
    }
}
