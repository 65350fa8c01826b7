//! The CUDA driver's functions.

use super::library::{Search, functions, symbol, variable};
use crate::error::{Error, Result};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

/// An opaque object of the driver.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Handle(pub *mut c_void);

// SAFETY: the driver's objects may be used from any thread that has their context current.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    pub(super) const NULL: Handle = Handle(std::ptr::null_mut());
}

/// An address in a device's memory.
pub(super) type Address = u64;

pub(super) const OUT_OF_MEMORY: c_int = 2;
pub(super) const NO_BINARY_FOR_GPU: c_int = 209;
pub(super) const NOT_READY: c_int = 600;

/// `CUDA_KERNEL_NODE_PARAMS`: a launch in a graph.
#[repr(C)]
pub(super) struct KernelNode {
    pub(super) function: Handle,
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared: c_uint,
    pub(super) parameters: *mut *mut c_void,
    pub(super) extra: *mut *mut c_void,
    /// Instead of `function`; null.
    pub(super) kernel: Handle,
    /// Null: the current one.
    pub(super) context: Handle,
}

functions! {
    /// What is used of the driver, under the names that its header gives to CUDA 12 and later.
    Functions {
        init = "cuInit"(c_uint);
        version = "cuDriverGetVersion"(*mut c_int);
        error_name = "cuGetErrorName"(c_int, *mut *const c_char);
        error_string = "cuGetErrorString"(c_int, *mut *const c_char);
        device_count = "cuDeviceGetCount"(*mut c_int);
        device_get = "cuDeviceGet"(*mut c_int, c_int);
        device_name = "cuDeviceGetName"(*mut c_char, c_int, c_int);
        device_attribute = "cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
        device_memory = "cuDeviceTotalMem_v2"(*mut usize, c_int);
        context_retain = "cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
        context_set = "cuCtxSetCurrent"(Handle);
        context_synchronize = "cuCtxSynchronize"();
        memory_info = "cuMemGetInfo_v2"(*mut usize, *mut usize);
        pool_default = "cuDeviceGetDefaultMemPool"(*mut Handle, c_int);
        pool_set = "cuMemPoolSetAttribute"(Handle, c_int, *mut c_void);
        pool_get = "cuMemPoolGetAttribute"(Handle, c_int, *mut c_void);
        pool_trim = "cuMemPoolTrimTo"(Handle, usize);
        memory_alloc = "cuMemAllocAsync"(*mut Address, usize, Handle);
        memory_free = "cuMemFreeAsync"(Address, Handle);
        host_alloc = "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
        host_free = "cuMemFreeHost"(*mut c_void);
        upload = "cuMemcpyHtoDAsync_v2"(Address, *const c_void, usize, Handle);
        download = "cuMemcpyDtoHAsync_v2"(*mut c_void, Address, usize, Handle);
        copy = "cuMemcpyDtoDAsync_v2"(Address, Address, usize, Handle);
        copy_between = "cuMemcpyPeerAsync"(Address, Handle, Address, Handle, usize, Handle);
        fill = "cuMemsetD8Async"(Address, u8, usize, Handle);
        stream_create = "cuStreamCreate"(*mut Handle, c_uint);
        stream_destroy = "cuStreamDestroy_v2"(Handle);
        stream_wait = "cuStreamWaitEvent"(Handle, Handle, c_uint);
        stream_synchronize = "cuStreamSynchronize"(Handle);
        graph_create = "cuGraphCreate"(*mut Handle, c_uint);
        graph_add_kernel = "cuGraphAddKernelNode_v2"(*mut Handle, Handle, *const Handle, usize, *const KernelNode);
        graph_set_kernel = "cuGraphExecKernelNodeSetParams_v2"(Handle, Handle, *const KernelNode);
        graph_instantiate = "cuGraphInstantiateWithFlags"(*mut Handle, Handle, u64);
        graph_launch = "cuGraphLaunch"(Handle, Handle);
        graph_destroy = "cuGraphDestroy"(Handle);
        graph_exec_destroy = "cuGraphExecDestroy"(Handle);
        event_create = "cuEventCreate"(*mut Handle, c_uint);
        event_destroy = "cuEventDestroy_v2"(Handle);
        event_record = "cuEventRecord"(Handle, Handle);
        event_query = "cuEventQuery"(Handle);
        event_elapsed = "cuEventElapsedTime"(*mut f32, Handle, Handle);
        event_synchronize = "cuEventSynchronize"(Handle);
        module_load = "cuModuleLoadData"(*mut Handle, *const c_void);
        module_unload = "cuModuleUnload"(Handle);
        module_function = "cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
        function_set = "cuFuncSetAttribute"(Handle, c_int, c_int);
        launch = "cuLaunchKernel"(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
    }
}

/// `cuFuncGetParamInfo`: place and size of a function's parameter of this number.
type ParameterInfo = unsafe extern "C" fn(Handle, usize, *mut usize, *mut usize) -> c_int;

/// A driver that the program named.
static NAMED: OnceLock<PathBuf> = OnceLock::new();

/// Names the driver's file, in place of the system's: for tests on a driver of their own. Gives whether it is
/// the one that is used, which another one may be already.
pub fn set_driver(path: impl Into<PathBuf>) -> bool {
    let path = path.into();
    *NAMED.get_or_init(|| path.clone()) == path
}

/// The opened driver, initialised.
pub(super) struct Driver {
    pub(super) functions: Functions,
    /// What tells the parameters of a function, which drivers before CUDA 12.4 lack.
    pub(super) parameter: Option<ParameterInfo>,
    /// Number of devices that `CUDA_VISIBLE_DEVICES` leaves.
    pub(super) devices: u32,
    _library: Library,
}

impl Driver {
    /// The version of CUDA that it supports, major and minor.
    pub(super) fn version(&self) -> Result<(u32, u32)> {
        let mut version = 0;
        // SAFETY: the place is writable.
        let status = unsafe { (self.functions.version)(&mut version) };
        self.check("cuDriverGetVersion", status)?;
        Ok((version as u32 / 1000, version as u32 % 1000 / 10))
    }

    /// The driver of this machine: `KILN_CUDA_DRIVER` (a file) or [`set_driver`]'s, else the system's. Looked
    /// for once.
    ///
    /// # Errors
    /// [`Error::Cuda`], listing the places and why each failed.
    pub(super) fn get() -> Result<&'static Driver> {
        static FOUND: OnceLock<Result<Driver>> = OnceLock::new();
        FOUND
            .get_or_init(Driver::find)
            .as_ref()
            .map_err(Error::clone)
    }

    fn find() -> Result<Driver> {
        let given = variable("KILN_CUDA_DRIVER").map(PathBuf::from);
        let given = given.or_else(|| NAMED.get().cloned());
        let usual = if cfg!(windows) {
            &["nvcuda.dll"][..]
        } else {
            &[
                "libcuda.so.1",
                "libcuda.so",
                "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
                "/usr/lib64/libcuda.so.1",
                "/usr/lib/wsl/lib/libcuda.so.1",
            ]
        };
        // A driver that was named is the only one: another in its place would be a surprise.
        let candidates = match given {
            Some(path) => vec![path],
            None => usual.iter().map(PathBuf::from).collect(),
        };
        let mut search = Search::default();
        for path in candidates {
            let Some(library) = search.open(&path) else {
                continue;
            };
            match Functions::load(&library) {
                Ok(functions) => return Driver::start(functions, library),
                Err(why) => search.failed(&path, format!("{why}; it may be older than CUDA 12")),
            }
        }
        Err(search.error(
            "the CUDA driver",
            "install NVIDIA's driver, or set KILN_CUDA_DRIVER to its libcuda",
        ))
    }

    fn start(functions: Functions, library: Library) -> Result<Driver> {
        // SAFETY: the type is the one that NVIDIA documents for this name.
        let parameter = unsafe { symbol(&library, "cuFuncGetParamInfo") }.ok();
        let mut driver = Driver {
            functions,
            parameter,
            devices: 0,
            _library: library,
        };
        // SAFETY: initialising has no preconditions.
        driver.check("cuInit", unsafe { (driver.functions.init)(0) })?;
        let mut count = 0;
        // SAFETY: the place is writable.
        let status = unsafe { (driver.functions.device_count)(&mut count) };
        driver.check("cuDeviceGetCount", status)?;
        driver.devices = count.max(0) as u32;
        Ok(driver)
    }

    /// The bytes of each parameter of a function; `None` if there are more than `most`, or the driver does not tell.
    pub(super) fn parameters(&self, function: Handle, most: usize) -> Option<Vec<usize>> {
        let get = self.parameter?;
        let mut sizes = Vec::new();
        loop {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: the function is loaded and both places are writable.
            if unsafe { get(function, sizes.len(), &mut offset, &mut size) } != 0 {
                return Some(sizes);
            }
            if sizes.len() == most {
                return None;
            }
            sizes.push(size);
        }
    }

    /// An error unless `status` says success.
    pub(super) fn check(&self, called: &str, status: c_int) -> Result<()> {
        match status {
            0 => Ok(()),
            status => Err(Error::Cuda(format!("{called}: {}", self.describe(status)))),
        }
    }

    fn describe(&self, status: c_int) -> String {
        let text = |get: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text = std::ptr::null();
            // SAFETY: the place is writable; what is written is a static string or null.
            let known = unsafe { get(status, &mut text) } == 0 && !text.is_null();
            if !known {
                return None;
            }
            // SAFETY: as above.
            let text = unsafe { CStr::from_ptr(text) };
            Some(text.to_string_lossy().into_owned())
        };
        let name = text(self.functions.error_name).unwrap_or_else(|| format!("error {status}"));
        match text(self.functions.error_string) {
            Some(meaning) if meaning != name => format!("{name} ({meaning})"),
            _ => name,
        }
    }
}
