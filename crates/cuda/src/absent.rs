//! A substitute for cudarc in builds without the feature `cuda`: the names that the engine refers to. No library is
//! opened then, so nothing here is called.

#![allow(non_camel_case_types, non_snake_case)]

pub mod driver {
    use std::ffi::CStr;

    pub struct DriverError(pub sys::CUresult);

    impl DriverError {
        pub fn error_name(&self) -> Result<&CStr, ()> {
            Err(())
        }

        pub fn error_string(&self) -> Result<&CStr, ()> {
            Err(())
        }
    }

    pub mod sys {
        use std::ffi::c_void;

        pub use super::super::{culib, is_culib_present};

        pub type CUctx_st = u8;
        pub type CUdevice = i32;
        pub type CUdeviceptr = u64;
        pub type CUevent = *mut CUevent_st;
        pub type CUevent_st = u8;
        pub type CUfunc_st = u8;
        pub type CUfunction = *mut CUfunc_st;
        pub type CUgraph_st = u8;
        pub type CUgraphExec_st = u8;
        pub type CUgraphNode = *mut CUgraphNode_st;
        pub type CUgraphNode_st = u8;
        pub type CUmemPoolHandle_st = u8;
        pub type CUmod_st = u8;
        pub type CUstream = *mut CUstream_st;
        pub type CUstream_st = u8;

        #[repr(u32)]
        #[derive(Copy, Clone, PartialEq)]
        pub enum CUresult {
            CUDA_SUCCESS,
            CUDA_ERROR_NOT_INITIALIZED,
            CUDA_ERROR_NOT_FOUND,
            CUDA_ERROR_NOT_READY,
            CUDA_ERROR_NO_BINARY_FOR_GPU,
            CUDA_ERROR_INVALID_IMAGE,
            CUDA_ERROR_OUT_OF_MEMORY,
            CUDA_ERROR_STUB_LIBRARY,
        }

        pub enum CUdevice_attribute {
            CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
            CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        }

        pub enum CUevent_flags {
            CU_EVENT_DEFAULT,
            CU_EVENT_DISABLE_TIMING,
        }

        pub enum CUstreamCaptureMode {
            CU_STREAM_CAPTURE_MODE_RELAXED,
        }

        pub enum CUmemAccess_flags {
            CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        }

        pub enum CUmemLocationType {
            CU_MEM_LOCATION_TYPE_DEVICE,
        }

        pub struct CUmemLocation {
            pub type_: CUmemLocationType,
            pub id: i32,
        }

        pub struct CUmemAccessDesc {
            pub location: CUmemLocation,
            pub flags: CUmemAccess_flags,
        }

        pub struct CUtensorMap {
            pub opaque: [u64; 16],
        }

        pub enum CUtensorMapDataType_enum {
            CU_TENSOR_MAP_DATA_TYPE_UINT8,
            CU_TENSOR_MAP_DATA_TYPE_UINT16,
            CU_TENSOR_MAP_DATA_TYPE_UINT32,
            CU_TENSOR_MAP_DATA_TYPE_UINT64,
            CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
        }

        pub enum CUtensorMapInterleave_enum {
            CU_TENSOR_MAP_INTERLEAVE_NONE,
        }

        pub enum CUtensorMapSwizzle_enum {
            CU_TENSOR_MAP_SWIZZLE_128B,
        }

        pub enum CUtensorMapL2promotion_enum {
            CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        }

        pub enum CUtensorMapFloatOOBfill_enum {
            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        }

        pub struct CUDA_KERNEL_NODE_PARAMS {
            pub func: CUfunction,
            pub gridDimX: u32,
            pub gridDimY: u32,
            pub gridDimZ: u32,
            pub blockDimX: u32,
            pub blockDimY: u32,
            pub blockDimZ: u32,
            pub sharedMemBytes: u32,
            pub kernelParams: *mut *mut c_void,
            pub extra: *mut *mut c_void,
            pub kern: *mut c_void,
            pub ctx: *mut CUctx_st,
        }
    }
}

pub mod nvrtc {
    pub mod sys {
        pub use super::super::{culib, is_culib_present};

        pub type nvrtcProgram = *mut u8;
    }
}

pub fn is_culib_present() -> bool {
    false
}

pub fn culib() -> &'static libloading::Library {
    unreachable!("no library is present")
}
