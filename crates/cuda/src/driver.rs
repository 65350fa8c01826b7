//! The CUDA driver, opened and called through cudarc's declarations of its functions.

use super::cudarc::driver::DriverError;
use super::library::{Api, variable};
use kiln_base::DType;
use kiln_kernel::error::{Error, Result};
use kiln_plan::cuda::{Boxes, Path};
use std::path::PathBuf;
use std::sync::OnceLock;
use sys::CUresult;

/// cudarc's declarations.
pub(super) mod sys {
    pub(crate) use crate::cudarc::driver::sys::*;

    /// The time between two events. cudarc declares only its successor, which drivers before CUDA 12.8 lack.
    ///
    /// # Safety
    /// As for every function of the driver: the pointer is to writable memory, and the events are alive.
    #[allow(non_snake_case)]
    pub(crate) unsafe fn cuEventElapsedTime(
        milliseconds: *mut f32,
        start: CUevent,
        end: CUevent,
    ) -> CUresult {
        type Elapsed = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;
        // SAFETY: the type is the one that NVIDIA documents for this name; the rest as for this function.
        unsafe {
            let elapsed = culib().get::<Elapsed>("cuEventElapsedTime");
            elapsed.map_or(CUresult::CUDA_ERROR_NOT_FOUND, |elapsed| {
                elapsed(milliseconds, start, end)
            })
        }
    }
}

/// An address in a device's memory.
pub(super) type Address = sys::CUdeviceptr;

/// A handle of the driver.
#[derive(Copy, Clone)]
pub(super) struct Object<T>(pub(super) *mut T);

// SAFETY: the driver's objects may be used from any thread that has their context current.
unsafe impl<T> Send for Object<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Object<T> {}

/// Calls a function of the driver, which [`Driver::get`] has opened. A status other than success is a [`Failure`].
#[cfg(feature = "cudarc")]
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        $crate::driver::Failure::unless_success(
            stringify!($function),
            $crate::driver::sys::$function($($argument),*),
        )
    };
}
#[cfg(not(feature = "cudarc"))]
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        $crate::driver::Failure::unless_success(
            stringify!($function),
            $crate::driver::sys::CUresult::CUDA_ERROR_NOT_INITIALIZED,
        )
    };
}
pub(super) use call;

/// Every function that is called. Drivers of CUDA 12.0 have all of them, under these names.
const FUNCTIONS: &[&str] = &[
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetDefaultMemPool",
    "cuDeviceGetName",
    "cuDeviceGetPCIBusId",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphAddChildGraphNode",
    "cuGraphAddKernelNode_v2",
    "cuGraphCreate",
    "cuGraphDestroy",
    "cuGraphExecChildGraphNodeSetParams",
    "cuGraphExecDestroy",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAccess",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyPeerAsync",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuTensorMapEncodeIm2col",
    "cuTensorMapEncodeTiled",
];

/// The function that returns the parameters of a kernel; drivers before CUDA 12.4 lack it.
const PARAMETERS: &str = "cuFuncGetParamInfo";

/// A call that the driver refused.
pub(super) struct Failure {
    function: &'static str,
    pub(super) status: CUresult,
}

impl Failure {
    pub(super) fn unless_success(
        function: &'static str,
        status: CUresult,
    ) -> std::result::Result<(), Failure> {
        match status {
            CUresult::CUDA_SUCCESS => Ok(()),
            status => Err(Failure { function, status }),
        }
    }

    /// The error, with a description of the attempt that failed.
    pub(super) fn of(self, attempted: &str) -> Error {
        let error = DriverError(self.status);
        let name = error.error_name().map(|n| n.to_string_lossy());
        let name = name.unwrap_or_else(|_| format!("error {}", self.status as u32).into());
        Error::Cuda(match error.error_string().map(|m| m.to_string_lossy()) {
            Ok(meaning) if meaning != name => format!("{attempted}: {name} ({meaning})"),
            _ => format!("{attempted}: {name}"),
        })
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        let function = failure.function;
        failure.of(function.trim_end_matches("_v2"))
    }
}

/// A driver that the program named.
static NAMED: OnceLock<PathBuf> = OnceLock::new();

/// Sets the file of the driver, in place of the system's: for tests with a driver of their own. Returns true if it is
/// the one in use; another may have been set before.
pub fn set_driver(path: impl Into<PathBuf>) -> bool {
    let path = path.into();
    *NAMED.get_or_init(|| path.clone()) == path
}

/// The driver of this machine, or the error of the search.
static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();

/// The opened driver, initialised.
pub(super) struct Driver {
    /// Number of devices that `CUDA_VISIBLE_DEVICES` leaves.
    pub(super) devices: u32,
    /// The file that it was loaded from.
    pub(super) path: PathBuf,
    /// True if the driver can return the parameters of a kernel.
    pub(super) has_parameter_info: bool,
}

impl Driver {
    /// The version of CUDA that it supports, major and minor.
    pub(super) fn version(&self) -> Result<(u32, u32)> {
        let mut version = 0;
        // SAFETY: the pointer is to writable memory.
        unsafe { call!(cuDriverGetVersion(&mut version)) }?;
        Ok((version as u32 / 1000, version as u32 % 1000 / 10))
    }

    /// The driver of this machine: `KILN_CUDA_DRIVER` (a file) or [`set_driver`]'s, otherwise the system's. Searched
    /// for once.
    ///
    /// # Errors
    /// [`Error::Cuda`], listing the places and the reason that each failed.
    pub(super) fn get() -> Result<&'static Driver> {
        DRIVER
            .get_or_init(Driver::find)
            .as_ref()
            .map_err(Error::clone)
    }

    /// The driver, if it has been opened before.
    pub(super) fn opened() -> Option<&'static Driver> {
        DRIVER.get()?.as_ref().ok()
    }

    fn find() -> Result<Driver> {
        let named = variable("KILN_CUDA_DRIVER").map(PathBuf::from);
        let named = named.or_else(|| NAMED.get().cloned());
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
        // A named driver has no fallback.
        let candidates = match &named {
            Some(path) => vec![path.clone()],
            None => usual.iter().map(PathBuf::from).collect(),
        };
        let api = Api {
            name: "the CUDA driver",
            hint: "install NVIDIA's driver, or set KILN_CUDA_DRIVER to its libcuda",
            variable: "KILN_CUDA_DRIVER",
            file: "libcuda.so",
            functions: FUNCTIONS,
            is_present: sys::is_culib_present,
            library: sys::culib,
        };
        let path = api.open(candidates.into_iter(), named.as_deref())?;
        // SAFETY: initialising has no preconditions.
        unsafe { call!(cuInit(0)) }.map_err(|failure| match failure.status {
            CUresult::CUDA_ERROR_STUB_LIBRARY => Error::Cuda(format!(
                "{} is the CUDA toolkit's stub of the driver: take its folder out of LD_LIBRARY_PATH",
                path.display()
            )),
            _ => failure.into(),
        })?;
        let mut count = 0;
        // SAFETY: the pointer is to writable memory.
        unsafe { call!(cuDeviceGetCount(&mut count)) }?;
        Ok(Driver {
            devices: count.max(0) as u32,
            path,
            has_parameter_info: api.has(PARAMETERS),
        })
    }

    /// The bytes of each parameter of a function; `None` if there are more than `max`, or the driver can't return
    /// them.
    pub(super) fn parameters(&self, function: sys::CUfunction, max: usize) -> Option<Vec<usize>> {
        if !self.has_parameter_info {
            return None;
        }
        let mut sizes = Vec::new();
        loop {
            let (mut offset, mut size) = (0, 0);
            let i = sizes.len();
            // SAFETY: the driver has this function, the kernel is loaded and both pointers are to writable memory.
            if unsafe { call!(cuFuncGetParamInfo(function, i, &mut offset, &mut size)) }.is_err() {
                return Some(sizes);
            }
            if i == max {
                return None;
            }
            sizes.push(size);
        }
    }
}

/// The words of a tensor map.
pub(super) const MAP: usize = 16;

/// The tensor map of memory with elements of a dtype. Copies permute the 16-byte chunks in rows of 128 bytes, and round
/// f32 to TF32 if `rounds_to_tf32`. Extents (in elements) and strides (in bytes) begin with the contiguous dimension,
/// which has no stride.
pub(super) fn encode_tensor_map(
    (dtype, rounds_to_tf32): (DType, bool),
    address: Address,
    [extents, strides]: [&[u64]; 2],
    boxes: &Boxes,
) -> std::result::Result<[u64; MAP], Failure> {
    use sys::CUtensorMapDataType_enum::*;
    assert!(extents.len() <= 5 && strides.len() + 1 == extents.len());
    // Elements are copied unchanged, so only their size matters.
    let kind = match dtype.size() {
        _ if rounds_to_tf32 => CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
        1 => CU_TENSOR_MAP_DATA_TYPE_UINT8,
        2 => CU_TENSOR_MAP_DATA_TYPE_UINT16,
        4 => CU_TENSOR_MAP_DATA_TYPE_UINT32,
        _ => CU_TENSOR_MAP_DATA_TYPE_UINT64,
    };
    let (mut map, mut steps) = (sys::CUtensorMap { opaque: [0; MAP] }, [1u32; 5]);
    let (rank, address) = (extents.len() as u32, address as *mut std::ffi::c_void);
    let (extents, strides) = (extents.as_ptr(), strides.as_ptr());
    let interleave = sys::CUtensorMapInterleave_enum::CU_TENSOR_MAP_INTERLEAVE_NONE;
    let swizzle = sys::CUtensorMapSwizzle_enum::CU_TENSOR_MAP_SWIZZLE_128B;
    let promotion = sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
    let fill = sys::CUtensorMapFloatOOBfill_enum::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
    match boxes {
        Boxes::Tiled(boxes) => {
            assert_eq!(boxes.len(), rank as usize);
            let boxes: Vec<u32> = boxes.iter().map(|n| u32::from(*n)).collect();
            // SAFETY: the arrays have at least as many numbers as there are dimensions, the strides one fewer, as was
            // asserted. The map is written to memory of its type. The address is not read.
            unsafe {
                call!(cuTensorMapEncodeTiled(
                    &mut map,
                    kind,
                    rank,
                    address,
                    extents,
                    strides,
                    boxes.as_ptr(),
                    steps.as_ptr(),
                    interleave,
                    swizzle,
                    promotion,
                    fill,
                ))
            }
        }
        Boxes::Im2col(im2col) => {
            assert_eq!(im2col.paths.len() + 2, rank as usize);
            let corners = |corner: fn(&Path) -> i16| -> Vec<i32> {
                im2col.paths.iter().map(|p| i32::from(corner(p))).collect()
            };
            let (lower, upper) = (corners(|p| p.lower), corners(|p| p.upper));
            for (step, path) in steps[1..].iter_mut().zip(&im2col.paths) {
                *step = u32::from(path.step);
            }
            // SAFETY: as above; corners have a number for each of the dimensions but two.
            unsafe {
                call!(cuTensorMapEncodeIm2col(
                    &mut map,
                    kind,
                    rank,
                    address,
                    extents,
                    strides,
                    lower.as_ptr(),
                    upper.as_ptr(),
                    u32::from(im2col.channels),
                    u32::from(im2col.pixels),
                    steps.as_ptr(),
                    interleave,
                    swizzle,
                    promotion,
                    fill,
                ))
            }
        }
    }?;
    Ok(map.opaque)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_called_function_is_listed() {
        let mut called = BTreeSet::from(["cuGetErrorName".into(), "cuGetErrorString".into()]);
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let text = std::fs::read_to_string(&path).unwrap();
                called.extend(super::super::library::calls(&text, "cu"));
            }
        }
        called.remove(PARAMETERS);
        let listed = FUNCTIONS.iter().map(|f| f.to_string()).collect();
        assert_eq!(called, listed);
    }
}
