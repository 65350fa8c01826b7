//! Operators with user-defined kernels.

use crate::autograd::{Derivative, check_may_not_flow, with_derivative};
use crate::nest::Flat;
use crate::record::compose;
use crate::{Error, Nest, Result, Tensor, no_grad};
use kiln_base::custom::{
    ArrayView, ArrayViewMut, CudaFunction, CudaGrid, KernelError, register, register_alternative,
    register_cuda, register_cuda_alternative,
};
use kiln_ir::{Builder, Fact, OpError, ensure, ops};
use std::sync::Arc;

/// An operator with a user-defined kernel, as `torch.library.custom_op`. It is recorded like any other, lazily and
/// inside [`compile`](crate::compile), and is a launch of its own.
///
/// ```
/// use kiln_tensor::{CustomOp, Tensor};
/// use std::sync::LazyLock;
///
/// static CUBE: LazyLock<CustomOp> = LazyLock::new(|| {
///     let cube = CustomOp::new(
///         "mine::cube",
///         |inputs| Ok(inputs[0].clone()), // dtype and shape of the result
///         |inputs, output| {
///             let x = inputs[0].as_slice::<f32>()?;
///             for (y, x) in output.as_mut_slice::<f32>()?.iter_mut().zip(x) {
///                 *y = x * x * x;
///             }
///             Ok(())
///         },
///     );
///     let cube = cube.expect("the name is registered nowhere else");
///     cube.backward(|inputs, _, g| vec![Some(g * inputs[0].square() * 3.0)])
/// });
///
/// let x = Tensor::from([1.0f32, 2.0]).requires_grad_(true);
/// let y = CUBE.call(&x);
/// y.sum(()).backward()?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 8.0]);
/// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [3.0, 12.0]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub struct CustomOp {
    name: &'static str,
    infer: Box<Infer>,
    backward: Option<Arc<Derivative>>,
}

/// A function from the operands' dtypes and shapes to the result's.
type Infer = dyn Fn(&[Fact]) -> Result<Fact, KernelError> + Send + Sync;

impl CustomOp {
    /// Registers an operator for the rest of the process, under a name that must be unique, such as `"mine::cube"`.
    /// Compiled plans hold the name, so a program that loads one registers the same kernel first.
    ///
    /// `infer` returns the result's dtype and shape, or the reason why the operator does not apply. Inside `compile`,
    /// dims may be symbols. `cpu` computes the result from contiguous operands; the result begins as zeros. It must
    /// depend on nothing else, since equal calls may run once and unused calls never. Numbers that differ from call
    /// to call are also operands, of rank 0.
    ///
    /// # Errors
    /// If the name is empty or taken.
    #[track_caller]
    pub fn new(
        name: &'static str,
        infer: impl Fn(&[Fact]) -> Result<Fact, KernelError> + Send + Sync + 'static,
        cpu: impl Fn(&[ArrayView<'_>], &mut ArrayViewMut<'_>) -> Result<(), KernelError>
        + Send
        + Sync
        + 'static,
    ) -> Result<CustomOp> {
        registered(register(name, cpu))?;
        Ok(CustomOp {
            name,
            infer: Box::new(infer),
            backward: None,
        })
    }

    /// Adds a kernel for NVIDIA GPUs: CUDA C++ with a `__device__` function that every thread of a grid calls. Its
    /// arguments are a pointer to each operand, a pointer to the result (which it writes completely), and the numbers
    /// of the grid; [`CudaFunction`] has the details. `grid` computes the threads, and numbers such as sizes, from
    /// the shapes of the operands and of the result. The source is compiled when a program with the operator is first
    /// compiled for a GPU. Errors in it are reported at the line of the call.
    ///
    /// ```no_run
    /// use kiln_tensor::{CudaGrid, CustomOp, DType, Device, Tensor};
    /// let cube = CustomOp::new(
    ///     "mine::cube",
    ///     |inputs| Ok(inputs[0].clone()),
    ///     |inputs, output| {
    ///         let x = inputs[0].as_slice::<f32>()?;
    ///         output.write(&x.iter().map(|x| x * x * x).collect::<Vec<f32>>())
    ///     },
    /// )?
    /// .cuda(
    ///     "__device__ void cube(const float* x, float* y, long long n) {
    ///         long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    ///         if (i < n) y[i] = x[i] * x[i] * x[i];
    ///     }",
    ///     "cube",
    ///     |_, output| CudaGrid::points(output.iter().product()),
    /// )?;
    /// let x = Tensor::rand([1000], DType::F32).to(Device::cuda(0)?);
    /// println!("{}", cube.call(&x).sum(()));
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the operator already has a CUDA kernel.
    #[track_caller]
    pub fn cuda(
        self,
        source: &str,
        function: &str,
        grid: impl Fn(&[&[usize]], &[usize]) -> CudaGrid + Send + Sync + 'static,
    ) -> Result<CustomOp> {
        let cuda = cuda_function(source, function, grid);
        registered(register_cuda(self.name, cuda))?;
        Ok(self)
    }

    /// Adds another kernel on the CPU, under its own name. It must compute the same as the first. Where
    /// [tuning](crate::tuning) is on, the faster one for the given sizes is used. Before that, its result is compared
    /// with the first's on random operands: integers and bools must be equal, floats as close as
    /// `torch.testing.assert_close` requires. It may return an error for sizes that it can't compute, and is then not
    /// used for them. For sizes that are left open, the first is always used.
    ///
    /// # Errors
    /// If the name is empty or taken.
    #[track_caller]
    pub fn alternative(
        self,
        kernel: &str,
        cpu: impl Fn(&[ArrayView<'_>], &mut ArrayViewMut<'_>) -> Result<(), KernelError>
        + Send
        + Sync
        + 'static,
    ) -> Result<CustomOp> {
        registered(register_alternative(self.name, kernel, cpu))?;
        Ok(self)
    }

    /// As [`CustomOp::alternative`], on NVIDIA GPUs; the other arguments are those of [`CustomOp::cuda`].
    ///
    /// # Errors
    /// If the name is empty or taken.
    #[track_caller]
    pub fn cuda_alternative(
        self,
        kernel: &str,
        source: &str,
        function: &str,
        grid: impl Fn(&[&[usize]], &[usize]) -> CudaGrid + Send + Sync + 'static,
    ) -> Result<CustomOp> {
        let cuda = cuda_function(source, function, grid);
        registered(register_cuda_alternative(self.name, kernel, cuda))?;
        Ok(self)
    }

    /// Adds a derivative: a function from the inputs, the result and the gradient of the result to one gradient for
    /// each input (`None` for zero). It may call this or another custom operator.
    pub fn backward(
        mut self,
        f: impl Fn(&[Tensor], &Tensor, &Tensor) -> Vec<Option<Tensor>> + Send + Sync + 'static,
    ) -> CustomOp {
        self.backward = Some(Arc::new(f));
        self
    }

    /// Applies the operator to one or several tensors ([`Nest`]). Their dtypes are not promoted.
    #[track_caller]
    pub fn call(&self, inputs: impl Nest) -> Tensor {
        let inputs = Flat::of(&inputs).leaves;
        let inputs = &inputs.iter().collect::<Vec<_>>()[..];
        compose(self.name, inputs, |b| {
            ensure!(!inputs.is_empty(), "a custom op takes at least one tensor");
            let facts: Vec<Fact> = inputs.iter().map(|t| t.fact().clone()).collect();
            let output = (self.infer)(&facts).map_err(|e| OpError(e.to_string()))?;
            let name = self.name.into();
            let operands: Vec<Tensor> = inputs.iter().map(|t| (*t).clone()).collect();
            let record = || b.op(ops::Custom { name, output }, &operands);
            let Some(f) = &self.backward else {
                return record();
            };
            check_may_not_flow()?;
            let y = no_grad(record)?;
            Ok(with_derivative(&y, inputs, b.call_site(), || f.clone()))
        })
    }
}

fn cuda_function(
    source: &str,
    function: &str,
    grid: impl Fn(&[&[usize]], &[usize]) -> CudaGrid + Send + Sync + 'static,
) -> CudaFunction {
    CudaFunction {
        source: source.into(),
        function: function.into(),
        grid: Box::new(grid),
    }
}

/// Returns the answer of the registry as an error at the user's line.
#[track_caller]
fn registered(answer: std::result::Result<(), String>) -> Result<()> {
    match answer {
        Ok(()) => Ok(()),
        Err(text) => Err(Error::invalid("CustomOp", text)),
    }
}
