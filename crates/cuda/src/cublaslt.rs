//! Matrix products by cuBLASLt, which is opened at run time if it is installed.
//!
//! Its matrices are column-major, so it computes the transposed product Bᵀ · Aᵀ. Split-K reductions use the workspace,
//! in order and in the compute dtype, so equal runs give equal bits. Calls are captured as child graphs of a run's
//! graph.

use super::device::Device;
use super::driver::{Object, sys};
use super::libraries::lt_version;
use super::library::cublas_lt;
use super::loader::Loader;
use super::stream::{Captured, Stream};
use hashbrown::HashMap;
use kiln_base::DType;
use kiln_kernel::calls::{self, Calls, LastCalls, LaunchCall};
use kiln_kernel::error::{Error, Result, damaged};
use kiln_kernel::lock::lock;
use kiln_kernel::work::{Expand, LinkedKernel};
use kiln_plan::LibraryProduct;
use kiln_plan::cuda::ARGUMENT_ALIGN;
use kiln_plan::memory::ALIGN;
use std::any::Any;
use std::ffi::{c_int, c_void};
use std::ptr::{from_ref, null_mut};
use std::sync::{Arc, Mutex, OnceLock};

/// The maximum number of algorithms that are requested.
const MAX_ALGORITHMS: usize = 8;
/// The maximum bytes of workspace, as NVIDIA recommends for Hopper.
const MAX_WORKSPACE: u64 = 32 << 20;
/// The alignment of a workspace.
const WORKSPACE_ALIGN: usize = 256;

type Pointer = *mut u8;

/// `cublasLtMatmulHeuristicResult_t`.
#[derive(Copy, Clone, Default)]
#[repr(C)]
struct HeuristicResult {
    algorithm: [u64; 8],
    workspace: usize,
    status: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

crate::symbols! {
    /// The functions of the library, as NVIDIA documents them.
    struct Functions {
        cublasLtCreate: fn(*mut Pointer) -> c_int,
        cublasLtMatmulDescCreate: fn(*mut Pointer, c_int, c_int) -> c_int,
        cublasLtMatmulDescDestroy: fn(Pointer) -> c_int,
        cublasLtMatmulDescSetAttribute: fn(Pointer, c_int, *const c_void, usize) -> c_int,
        cublasLtMatrixLayoutCreate: fn(*mut Pointer, c_int, u64, u64, i64) -> c_int,
        cublasLtMatrixLayoutDestroy: fn(Pointer) -> c_int,
        cublasLtMatrixLayoutSetAttribute: fn(Pointer, c_int, *const c_void, usize) -> c_int,
        cublasLtMatmulPreferenceCreate: fn(*mut Pointer) -> c_int,
        cublasLtMatmulPreferenceDestroy: fn(Pointer) -> c_int,
        cublasLtMatmulPreferenceSetAttribute: fn(Pointer, c_int, *const c_void, usize) -> c_int,
        cublasLtMatmulAlgoGetHeuristic: fn(
            Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, c_int, *mut HeuristicResult, *mut c_int
        ) -> c_int,
        cublasLtMatmulAlgoCheck: fn(
            Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, *const [u64; 8], *mut HeuristicResult
        ) -> c_int,
        cublasLtMatmul: fn(
            Pointer, Pointer, *const c_void, *const c_void, Pointer, *const c_void, Pointer, *const c_void,
            *const c_void, Pointer, *mut c_void, Pointer, *const [u64; 8], *mut c_void, usize, sys::CUstream
        ) -> c_int,
    }
}

/// `CUBLAS_STATUS_NOT_SUPPORTED`.
const NOT_SUPPORTED: c_int = 15;

/// Returns an error unless a call succeeded.
fn check_status(function: &str, status: c_int) -> Result<()> {
    let meaning = match status {
        0 => return Ok(()),
        1 => "not initialised",
        3 => "out of memory",
        7 => "invalid value",
        8 => "no code for this GPU",
        13 => "execution failed",
        14 => "internal error",
        NOT_SUPPORTED => "not supported",
        _ => "unknown status",
    };
    Err(Error::Cuda(format!(
        "{function} of cuBLASLt failed: {meaning} ({status})"
    )))
}

/// Calls a function that returns a status.
macro_rules! lt {
    ($functions:expr, $name:ident($($argument:expr),* $(,)?)) => {
        check_status(stringify!($name), ($functions.$name)($($argument),*))
    };
}

/// The opened library.
fn functions() -> Result<&'static Functions> {
    static OPEN: OnceLock<Result<Functions>> = OnceLock::new();
    let open = OPEN.get_or_init(|| {
        let (library, path) = cublas_lt()?;
        Functions::of(library).map_err(|missing| {
            let path = path.display();
            Error::Cuda(format!(
                "cuBLASLt, {path}, has no {missing}; it may be older than CUDA 12"
            ))
        })
    });
    open.as_ref().map_err(Clone::clone)
}

/// The version of cuBLASLt, such as `13.0.2`.
///
/// # Errors
/// [`Error::Cuda`] if it is not found, with the places that were searched.
pub fn cublas_lt_version() -> Result<String> {
    functions()?;
    let (library, _) = cublas_lt()?;
    Ok(lt_version(library).unwrap_or_default())
}

/// The library's handle for a device, made at the first call.
fn handle(functions: &Functions, device: &Device) -> Result<Pointer> {
    static HANDLES: Mutex<Option<HashMap<u32, Object<u8>>>> = Mutex::new(None);
    device.activate()?;
    let mut handles = lock(&HANDLES);
    let handles = handles.get_or_insert_default();
    if let Some(handle) = handles.get(&device.ordinal()) {
        return Ok(handle.0);
    }
    let mut handle = Object(null_mut());
    // SAFETY: the device's context is current and the pointer is to writable memory.
    unsafe { lt!(functions, cublasLtCreate(&mut handle.0)) }?;
    handles.insert(device.ordinal(), handle);
    Ok(handle.0)
}

/// An algorithm of the library for a product.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LibraryAlgorithm {
    /// `cublasLtMatmulAlgo_t`.
    pub description: [u64; 8],
    /// The bytes of memory for its workspace.
    pub workspace: u64,
}

/// The algorithms that the library advises for a product, best first.
///
/// # Errors
/// [`Error::Cuda`] if there is no library or it fails.
pub fn library_algorithms(
    device: &Device,
    product: &LibraryProduct,
) -> Result<Vec<LibraryAlgorithm>> {
    let functions = functions()?;
    let handle = handle(functions, device)?;
    let described = Described::new(functions, product)?;
    let mut preference = Preference(functions, null_mut());
    let mut results = [HeuristicResult::default(); MAX_ALGORITHMS];
    let mut count = 0;
    // SAFETY: all objects are alive, and each pointer is to memory of the stated type.
    let status = unsafe {
        lt!(functions, cublasLtMatmulPreferenceCreate(&mut preference.1))?;
        preference.set(1, &MAX_WORKSPACE)?;
        // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: neither in place nor in the dtype of the result.
        preference.set(3, &2u32)?;
        let [a, b] = product
            .operands
            .each_ref()
            .map(|x| alignment(product, x.offset));
        for (attribute, alignment) in
            (5..).zip([b, a, ARGUMENT_ALIGN as u32, ARGUMENT_ALIGN as u32])
        {
            preference.set(attribute, &alignment)?;
        }
        let [x, y, result] = described.layouts;
        (functions.cublasLtMatmulAlgoGetHeuristic)(
            handle,
            described.operation,
            x,
            y,
            result,
            result,
            preference.1,
            MAX_ALGORITHMS as c_int,
            results.as_mut_ptr(),
            &mut count,
        )
    };
    if status == NOT_SUPPORTED {
        return Ok(Vec::new());
    }
    check_status("cublasLtMatmulAlgoGetHeuristic", status)?;
    let results = results.iter().take(count.max(0) as usize);
    let fits = |f: &&HeuristicResult| f.status == 0 && f.workspace as u64 <= MAX_WORKSPACE;
    let algorithm = |f: &HeuristicResult| LibraryAlgorithm {
        description: f.algorithm,
        workspace: match f.workspace {
            0 => 0,
            bytes => (bytes + WORKSPACE_ALIGN - ALIGN) as u64,
        },
    };
    Ok(results.filter(fits).map(algorithm).collect())
}

/// The alignment of an operand, in bytes.
fn alignment(product: &LibraryProduct, offset: i64) -> u32 {
    let bytes = offset as usize * product.dtype.size();
    1 << (bytes | ARGUMENT_ALIGN).trailing_zeros()
}

struct Preference(&'static Functions, Pointer);

impl Preference {
    /// # Safety
    /// The attribute has this type.
    unsafe fn set<T>(&self, attribute: c_int, value: &T) -> Result<()> {
        let (value, size) = (from_ref(value).cast(), size_of::<T>());
        // SAFETY: as the caller guarantees; the preference is alive.
        unsafe {
            lt!(
                self.0,
                cublasLtMatmulPreferenceSetAttribute(self.1, attribute, value, size)
            )
        }
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: nobody holds it any more.
        unsafe { (self.0.cublasLtMatmulPreferenceDestroy)(self.1) };
    }
}

/// A product in the library's terms: the operation, and the layouts of its operands and its result.
struct Described {
    functions: &'static Functions,
    operation: Pointer,
    layouts: [Pointer; 3],
}

// SAFETY: the library's objects belong to no thread.
unsafe impl Send for Described {}
// SAFETY: they are only read.
unsafe impl Sync for Described {}

/// `cudaDataType_t` of a dtype.
fn cuda_type(dtype: DType) -> Result<c_int> {
    Ok(match dtype {
        DType::F32 => 0,
        DType::F16 => 2,
        DType::I8 => 3,
        DType::I32 => 10,
        DType::BF16 => 14,
        other => return Err(damaged!("a product of {other} by cuBLASLt")),
    })
}

impl Described {
    fn new(functions: &'static Functions, product: &LibraryProduct) -> Result<Described> {
        let LibraryProduct { m, k, n, .. } = *product;
        let (operand, stored) = (cuda_type(product.dtype)?, cuda_type(product.stored)?);
        // CUBLAS_COMPUTE_32I, CUBLAS_COMPUTE_32F_FAST_TF32 and CUBLAS_COMPUTE_32F, and the dtype of factors.
        let (computed, scale) = match (product.dtype, product.tf32) {
            (DType::I8, _) => (72, 10),
            (_, true) => (77, 0),
            (_, false) => (68, 0),
        };
        let mut described = Described {
            functions,
            operation: null_mut(),
            layouts: [null_mut(); 3],
        };
        let [a, b] = &product.operands;
        // Bᵀ has n rows and k columns, Aᵀ k rows and m columns.
        let shape = |x: &kiln_plan::LibraryMatrix, rows: i64, columns: i64| match x.transposed {
            false => (rows, columns),
            true => (columns, rows),
        };
        let layouts = [
            (operand, shape(b, n, k), b.leading, b.batch_stride),
            (operand, shape(a, k, m), a.leading, a.batch_stride),
            (stored, (n, m), n, m * n),
        ];
        let transposed = [b, a].map(|x| c_int::from(x.transposed));
        // SAFETY: pointers are to writable memory, and attributes have the types of their values.
        unsafe {
            let operation = &mut described.operation;
            lt!(
                functions,
                cublasLtMatmulDescCreate(operation, computed, scale)
            )?;
            // CUBLASLT_MATMUL_DESC_TRANSA and ..TRANSB.
            for (attribute, transposed) in (3..).zip(&transposed) {
                let (value, size) = (from_ref(transposed).cast(), size_of::<c_int>());
                let operation = described.operation;
                lt!(
                    functions,
                    cublasLtMatmulDescSetAttribute(operation, attribute, value, size)
                )?;
            }
            for (layout, (cuda_type, (rows, columns), leading, stride)) in
                described.layouts.iter_mut().zip(layouts)
            {
                let [rows, columns] = [rows, columns].map(|n| n as u64);
                lt!(
                    functions,
                    cublasLtMatrixLayoutCreate(layout, cuda_type, rows, columns, leading)
                )?;
                let count = i32::try_from(product.batch);
                let count = count.map_err(|_| damaged!("a batch of {} products", product.batch))?;
                // CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT and ..STRIDED_BATCH_OFFSET.
                let (value, size) = (from_ref(&count).cast(), size_of::<i32>());
                lt!(
                    functions,
                    cublasLtMatrixLayoutSetAttribute(*layout, 5, value, size)
                )?;
                let (value, size) = (from_ref(&stride).cast(), size_of::<i64>());
                lt!(
                    functions,
                    cublasLtMatrixLayoutSetAttribute(*layout, 6, value, size)
                )?;
            }
        }
        Ok(described)
    }
}

impl Drop for Described {
    fn drop(&mut self) {
        // SAFETY: nobody holds them any more; the library ignores null.
        unsafe {
            for layout in self.layouts.into_iter().filter(|l| !l.is_null()) {
                (self.functions.cublasLtMatrixLayoutDestroy)(layout);
            }
            if !self.operation.is_null() {
                (self.functions.cublasLtMatmulDescDestroy)(self.operation);
            }
        }
    }
}

/// A product by the library, linked.
pub struct LibraryLaunch {
    product: LibraryProduct,
    described: Described,
    device: Arc<Device>,
    handle: Object<u8>,
}

impl LibraryLaunch {
    /// # Errors
    /// [`Error::Cuda`] if there is no library, [`Error::Plan`] if it refuses the algorithm.
    pub fn new(loader: &Loader, product: &LibraryProduct) -> Result<LibraryLaunch> {
        let (functions, device) = (functions()?, loader.device().clone());
        let handle = handle(functions, &device)?;
        let described = Described::new(functions, product)?;
        let mut check = HeuristicResult::default();
        let [x, y, result] = described.layouts;
        let (operation, algorithm) = (described.operation, &product.algorithm);
        // SAFETY: all objects are alive, and the pointers are to memory of the stated types.
        unsafe {
            lt!(
                functions,
                cublasLtMatmulAlgoCheck(
                    handle, operation, x, y, result, result, algorithm, &mut check
                )
            )
        }?;
        let available = product.workspace_bytes as usize + ALIGN;
        if check.workspace > 0 && check.workspace + WORKSPACE_ALIGN > available {
            let bytes = check.workspace;
            return Err(damaged!(
                "a product by cuBLASLt takes {bytes} bytes of workspace"
            ));
        }
        Ok(LibraryLaunch {
            product: product.clone(),
            described,
            device,
            handle: Object(handle),
        })
    }

    /// The library's launch of a call, if it is one.
    pub(super) fn of_call<'a>(call: &LaunchCall<'a>) -> Option<&'a LibraryLaunch> {
        let launch: &dyn Any = call.launch;
        launch.downcast_ref()
    }

    /// Enqueues it on a stream of the device whose context is current.
    pub(super) fn run(&self, args: &[*mut u8], stream: &Stream) -> Result<()> {
        let (product, functions) = (&self.product, self.described.functions);
        let pointer = |arg: u16| args[usize::from(arg)];
        let [a, b] = product.operands.each_ref().map(|x| {
            let bytes = x.offset as usize * product.dtype.size();
            pointer(x.arg).wrapping_add(bytes) as *const c_void
        });
        let (float, integer) = ([1f32, 0.0], [1i32, 0]);
        let [one, zero]: [*const c_void; 2] = match product.dtype {
            DType::I8 => integer.each_ref().map(|x| from_ref(x).cast()),
            _ => float.each_ref().map(|x| from_ref(x).cast()),
        };
        let workspace = product.workspace.map(|arg| {
            let address = pointer(arg);
            let aligned = (address as usize).next_multiple_of(WORKSPACE_ALIGN);
            let padding = aligned - address as usize;
            (
                aligned as *mut c_void,
                product.workspace_bytes as usize - padding,
            )
        });
        let (workspace, bytes) = workspace.unwrap_or((null_mut(), 0));
        let (out, [x, y, result]) = (pointer(product.out) as *mut c_void, self.described.layouts);
        // SAFETY: all objects are alive. Binding proved that the footprints of the product lie in the memory behind the
        // pointers, and the algorithm was found to fit its workspace.
        unsafe {
            lt!(
                functions,
                cublasLtMatmul(
                    self.handle.0,
                    self.described.operation,
                    one,
                    b,
                    x,
                    a,
                    y,
                    zero,
                    out,
                    result,
                    out,
                    result,
                    from_ref(&product.algorithm),
                    workspace,
                    bytes,
                    stream.handle(),
                )
            )
        }
    }

    /// Its work as a graph.
    pub(super) fn capture_graph(&self, args: &[*mut u8]) -> Result<Captured> {
        let stream = Stream::new(self.device.context)?;
        stream.capture(|| self.run(args, &stream))
    }
}

impl calls::Launch for LibraryLaunch {
    fn sites(&self) -> usize {
        0
    }

    fn is_empty(&self) -> bool {
        false
    }
}

impl LinkedKernel for LibraryLaunch {
    fn expand(&self, with: Expand, calls: &mut Calls) -> Result<LastCalls> {
        calls.add(with.context.call(self, with.args))
    }
}
