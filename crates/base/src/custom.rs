//! Custom operators of a program: kernels registered under a name.
//!
//! A plan holds only the names, so a plan that calls custom operators runs wherever they are registered.

use crate::{DType, Element, elements, panic_text};
use std::collections::BTreeMap;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

/// The error of a user's kernel: any error, or `"a text".into()`.
pub type KernelError = Box<dyn Error + Send + Sync>;

/// A kernel on the CPU: from the operands to the result, which is initialised with zeros. It must depend on nothing but
/// the operands: it runs once for equal calls, and never for results that nobody needs.
pub type CpuKernel =
    dyn Fn(&[ArrayView<'_>], &mut ArrayViewMut<'_>) -> Result<(), KernelError> + Send + Sync;

/// A kernel on NVIDIA GPUs: CUDA C++ with a function that every thread of a grid calls.
///
/// # How the function is called
/// It is a `__device__` function (or a template of one) that returns nothing. Its arguments are
///
/// 1. a pointer to each operand in order, contiguous and row-major, `const T*`;
/// 2. a pointer `T*` to the result, all of whose elements it must write;
/// 3. the grid's [`numbers`](CudaGrid::numbers), each a `long long`.
///
/// `T` is `bool`'s `unsigned char`, `signed char`, `short`, `int`, `long long` and their unsigned kinds, `float`,
/// `double`, and for f16 and bf16 the `unsigned short` of their bits. The kernel's source is compiled after the prelude
/// of a plan's kernels, without headers, in a separate unit. Calls that are independent of each other may run
/// concurrently, so it must not keep state in global variables.
pub struct CudaFunction {
    /// CUDA C++.
    pub source: String,
    /// The name of the function in it.
    pub function: String,
    /// The grid for operands and a result of these shapes.
    pub grid: Box<GridOf>,
}

/// A function from the shapes of the operands and of the result to the threads that compute it.
pub type GridOf = dyn Fn(&[&[usize]], &[usize]) -> CudaGrid + Send + Sync;

/// The threads of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaGrid {
    /// The blocks along x, y and z; no threads run if one of them is 0.
    pub blocks: [u32; 3],
    /// The threads of a block along x, y and z.
    pub threads: [u32; 3],
    /// The bytes of dynamic shared memory of a block.
    pub shared: u32,
    /// The function's arguments after the pointers, such as sizes.
    pub numbers: Vec<i64>,
}

impl CudaGrid {
    /// Returns a grid of at least one thread for each of `n` points along x, in blocks of 256. The function gets `n`,
    /// because the last block may have threads without a point.
    pub fn points(n: usize) -> CudaGrid {
        CudaGrid {
            blocks: [n.div_ceil(256).min(u32::MAX as usize) as u32, 1, 1],
            threads: [256, 1, 1],
            shared: 0,
            numbers: vec![n as i64],
        }
    }
}

/// The kernels of one operator: one for each kind of device, and alternatives.
pub struct CustomKernels {
    name: String,
    cpu: Arc<CpuKernel>,
    cuda: OnceLock<Arc<CudaFunction>>,
    alternatives: Mutex<Vec<(String, Alternative)>>,
}

/// An alternative kernel of an operator, which may be faster on some sizes or devices.
#[derive(Clone)]
enum Alternative {
    Cpu(Arc<CpuKernel>),
    Cuda(Arc<CudaFunction>),
}

static REGISTRY: RwLock<BTreeMap<String, Arc<CustomKernels>>> = RwLock::new(BTreeMap::new());

/// Registers the kernel of a custom operator for the rest of the process.
///
/// # Errors
/// If the name is empty or taken: plans could not tell the kernels apart.
pub fn register(
    name: &str,
    cpu: impl Fn(&[ArrayView<'_>], &mut ArrayViewMut<'_>) -> Result<(), KernelError>
    + Send
    + Sync
    + 'static,
) -> Result<(), String> {
    if name.is_empty() {
        return Err("a custom op needs a name".into());
    }
    let mut registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
    if registry.contains_key(name) {
        return Err(format!(
            "a custom op `{name}` is registered already; register it once, such as in a static"
        ));
    }
    let kernels = CustomKernels {
        name: name.into(),
        cpu: Arc::new(cpu),
        cuda: OnceLock::new(),
        alternatives: Mutex::default(),
    };
    registry.insert(name.into(), Arc::new(kernels));
    Ok(())
}

/// Gives a registered operator its kernel on NVIDIA GPUs, for the rest of the process.
///
/// # Errors
/// If no such operator is registered, or it has one already.
pub fn register_cuda(name: &str, cuda: CudaFunction) -> Result<(), String> {
    let kernels = find(name)?;
    let set = kernels.cuda.set(Arc::new(cuda));
    set.map_err(|_| format!("the custom op `{name}` has a CUDA kernel already"))
}

/// Gives a registered operator another kernel on the CPU, which the tuner may choose where it is faster.
///
/// # Errors
/// If no such operator is registered, or the kernel's name is taken.
pub fn register_alternative(
    op: &str,
    name: &str,
    cpu: impl Fn(&[ArrayView<'_>], &mut ArrayViewMut<'_>) -> Result<(), KernelError>
    + Send
    + Sync
    + 'static,
) -> Result<(), String> {
    find(op)?.add(name, Alternative::Cpu(Arc::new(cpu)))
}

/// Gives a registered operator another kernel on NVIDIA GPUs, which the tuner may choose where it is
/// faster.
///
/// # Errors
/// If no such operator is registered, or the kernel's name is taken.
pub fn register_cuda_alternative(op: &str, name: &str, cuda: CudaFunction) -> Result<(), String> {
    find(op)?.add(name, Alternative::Cuda(Arc::new(cuda)))
}

/// Returns the kernels of a custom operator.
///
/// # Errors
/// If no operator is registered under this name.
pub fn find(name: &str) -> Result<Arc<CustomKernels>, String> {
    let registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
    registry.get(name).cloned().ok_or_else(|| {
        format!("no custom op `{name}` is registered in this program; register it first")
    })
}

impl CustomKernels {
    fn add(&self, name: &str, kernel: Alternative) -> Result<(), String> {
        let mut list = self.list();
        if name.is_empty() || name == "default" || list.iter().any(|(n, _)| n == name) {
            let op = &self.name;
            return Err(format!(
                "the custom op `{op}` can't have another kernel {name:?}"
            ));
        }
        list.push((name.into(), kernel));
        Ok(())
    }

    /// Returns the names of its alternative kernels for GPUs, or for the CPU.
    pub fn alternatives(&self, gpu: bool) -> Vec<String> {
        let list = self.list();
        let is_on_device = |kernel: &Alternative| matches!(kernel, Alternative::Cuda(_)) == gpu;
        let alternatives = list.iter().filter(|(_, k)| is_on_device(k));
        alternatives.map(|(n, _)| n.clone()).collect()
    }

    fn list(&self) -> MutexGuard<'_, Vec<(String, Alternative)>> {
        let list = self.alternatives.lock();
        list.unwrap_or_else(PoisonError::into_inner)
    }

    fn alternative(&self, name: &str) -> Result<Alternative, String> {
        let list = self.list();
        let alternative = list.iter().find(|(n, _)| n == name).map(|(_, k)| k.clone());
        alternative.ok_or_else(|| {
            let op = &self.name;
            format!(
                "the custom op `{op}` has no kernel {name:?} in this program; register it first"
            )
        })
    }

    /// Returns the kernel on NVIDIA GPUs, or the alternative of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn cuda(&self, kernel: Option<&str>) -> Result<Arc<CudaFunction>, String> {
        let function = match kernel {
            None => self.cuda.get().cloned(),
            Some(name) => match self.alternative(name)? {
                Alternative::Cuda(function) => Some(function),
                Alternative::Cpu(_) => None,
            },
        };
        function.ok_or_else(|| {
            let name = &self.name;
            format!("the custom op `{name}` has no CUDA kernel; give it one, or call it on the CPU")
        })
    }

    /// Returns the kernel on the CPU, or the alternative of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn cpu(&self, kernel: Option<&str>) -> Result<Arc<CpuKernel>, String> {
        match kernel.map(|name| self.alternative(name)).transpose()? {
            None => Ok(self.cpu.clone()),
            Some(Alternative::Cpu(kernel)) => Ok(kernel),
            Some(Alternative::Cuda(_)) => Err(format!(
                "that kernel of the custom op `{}` is for GPUs",
                self.name
            )),
        }
    }

    /// Runs the kernel on the CPU. The result must hold zeros.
    ///
    /// # Errors
    /// The error of the kernel, or its panic.
    pub fn run(
        &self,
        inputs: &[ArrayView<'_>],
        output: &mut ArrayViewMut<'_>,
    ) -> Result<(), String> {
        run(&*self.cpu, inputs, output)
    }
}

/// Runs a kernel. The result must hold zeros.
///
/// # Errors
/// The error of the kernel, or its panic.
pub fn run(
    kernel: &CpuKernel,
    inputs: &[ArrayView<'_>],
    output: &mut ArrayViewMut<'_>,
) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(|| kernel(inputs, output))) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(panic) => Err(format!("its kernel panicked: {}", panic_text(&*panic))),
    }
}

impl std::fmt::Debug for CustomKernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CustomKernels({:?})", self.name)
    }
}

/// A contiguous row-major tensor that a kernel reads.
#[derive(Clone, Copy, Debug)]
pub struct ArrayView<'a> {
    dtype: DType,
    shape: &'a [usize],
    bytes: &'a [u8],
}

/// A contiguous row-major tensor that a kernel writes.
#[derive(Debug)]
pub struct ArrayViewMut<'a> {
    dtype: DType,
    shape: &'a [usize],
    bytes: &'a mut [u8],
}

/// Returns an error unless the bytes hold a tensor of this shape and `T` is the type of its elements.
fn check<T: Element>(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<(), KernelError> {
    if T::DTYPE != dtype {
        return Err(format!("asked for {} elements of {dtype}{shape:?}", T::DTYPE).into());
    }
    let aligned = bytes.as_ptr().cast::<T>().is_aligned();
    if bytes.len() != shape.iter().product::<usize>() * dtype.size() || !aligned {
        return Err(format!("{} bytes don't hold {dtype}{shape:?}", bytes.len()).into());
    }
    Ok(())
}

impl<'a> ArrayView<'a> {
    /// Makes a view of aligned native-endian elements; bools are 0 or 1.
    pub fn new(dtype: DType, shape: &'a [usize], bytes: &'a [u8]) -> ArrayView<'a> {
        ArrayView {
            dtype,
            shape,
            bytes,
        }
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the shape, outermost dim first.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// Returns the elements.
    ///
    /// # Errors
    /// If `T` is another dtype's type.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T], KernelError> {
        if !self.bytes.is_empty() {
            check::<T>(self.dtype, self.shape, self.bytes)?;
        }
        Ok(elements(self.dtype, self.bytes)?)
    }
}

impl<'a> ArrayViewMut<'a> {
    /// Makes a view of aligned zeros.
    pub fn new(dtype: DType, shape: &'a [usize], bytes: &'a mut [u8]) -> ArrayViewMut<'a> {
        ArrayViewMut {
            dtype,
            shape,
            bytes,
        }
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the shape, outermost dim first.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// Returns the elements, to be written.
    ///
    /// # Errors
    /// If `T` is another dtype's type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], KernelError> {
        if self.bytes.is_empty() && T::DTYPE == self.dtype {
            return Ok(&mut []);
        }
        check::<T>(self.dtype, self.shape, self.bytes)?;
        let len = self.bytes.len() / size_of::<T>();
        // SAFETY: the bytes are aligned for T, and hold zeros or elements that were written through this slice.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.bytes.as_mut_ptr().cast(), len) })
    }

    /// Writes all elements.
    ///
    /// # Errors
    /// If `T` is another dtype's type, or there are more or fewer elements than the result has.
    pub fn write<T: Element>(&mut self, elements: &[T]) -> Result<(), KernelError> {
        let (dtype, shape) = (self.dtype, self.shape);
        let slice = self.as_mut_slice::<T>()?;
        if slice.len() != elements.len() {
            let (expected, actual) = (slice.len(), elements.len());
            return Err(format!("{dtype}{shape:?} takes {expected} elements, not {actual}").into());
        }
        slice.copy_from_slice(elements);
        Ok(())
    }
}
