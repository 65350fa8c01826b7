//! Operators with a kernel of the user's own.

use crate::autograd::{Derivative, differentiated, keeps_derivative};
use crate::nest::Flat;
use crate::record::compose;
use crate::{Error, Nest, Result, Tensor, no_grad};
use kiln_base::custom::{
    ArrayView, ArrayViewMut, CudaFunction, CudaGrid, KernelError, register, register_alternative,
    register_cuda, register_cuda_alternative,
};
use kiln_ir::{Builder, Fact, OpError, ensure, ops};
use std::sync::Arc;

/// An operator with a kernel of the user's own, as `torch.library.custom_op`. It is recorded like any
/// other, lazily and inside [`compile`](crate::compile), and is a launch of its own.
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

/// From the operands' dtypes and shapes to the result's.
type Infer = dyn Fn(&[Fact]) -> Result<Fact, KernelError> + Send + Sync;

impl CustomOp {
    /// Registers an operator under a name that nobody else takes, such as `"mine::cube"`, for the rest
    /// of the process. Compiled plans hold the name, so a program that loads one registers the same
    /// kernel first.
    ///
    /// `infer` gives the result's dtype and shape, or says why the operator does not apply; inside
    /// `compile`, dims may be symbols. `cpu` computes the result, which begins as zeros, from contiguous
    /// operands; it must depend on nothing else, since equal calls may run once and unused ones never.
    /// Numbers that differ from call to call are operands too, of rank 0.
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

    /// The operator with a kernel on NVIDIA GPUs too: CUDA C++ with a `__device__` function that every
    /// thread of a grid calls with a pointer to each operand, one to the result (which it writes whole),
    /// and the numbers of the grid; [`CudaFunction`] says it precisely. `grid` gives the threads, and
    /// numbers such as sizes, from the shapes of the operands and of the result. The source is compiled
    /// when a program with the operator is first compiled for a GPU; what is wrong in it is an error at
    /// the line of the call.
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
    /// If it has such a kernel already.
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

    /// The operator with another kernel on the CPU, under a name of its own. It computes the same as the
    /// first; where [tuning](crate::tuning) is on, the one that is faster for the sizes at hand is used.
    /// Before that, its result is compared with the first's on random operands: integers and bools must be
    /// equal, floats as close as `torch.testing.assert_close` asks. It may give an error for sizes that it can't
    /// compute, and is not used for these; where sizes are left open, the first computes them all.
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

    /// As [`CustomOp::alternative`], on NVIDIA GPUs; the rest is as for [`CustomOp::cuda`].
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

    /// The operator with a derivative: from the inputs, the result and the gradient of the result to one
    /// gradient for each input (`None` for zero). It may call this or another custom operator.
    pub fn backward(
        mut self,
        f: impl Fn(&[Tensor], &Tensor, &Tensor) -> Vec<Option<Tensor>> + Send + Sync + 'static,
    ) -> CustomOp {
        self.backward = Some(Arc::new(f));
        self
    }

    /// The operator on a tensor or several ([`Nest`]), whose dtypes are not promoted.
    #[track_caller]
    pub fn call(&self, inputs: impl Nest) -> Tensor {
        let inputs = Flat::of(&inputs).all;
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
            keeps_derivative()?;
            let y = no_grad(record)?;
            Ok(differentiated(&y, inputs, b.place(), || f.clone()))
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

/// What the registry answered, as an error at the user's line.
#[track_caller]
fn registered(answer: std::result::Result<(), String>) -> Result<()> {
    match answer {
        Ok(()) => Ok(()),
        Err(text) => Err(Error::invalid("CustomOp", text)),
    }
}
