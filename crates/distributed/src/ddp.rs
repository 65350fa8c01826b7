//! Data parallel training.

use crate::ReduceOp;
use crate::group::{ProcessGroup, error, world};
use kiln_nn::{Forward, Hooks, Module};
use kiln_tensor::{
    DType, Nest, Result, Tensor, Var, after_backward, cat, no_grad, options, realize_first,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

options! {
    /// The options of [`DistributedDataParallel::with`].
    DataParallelOptions () {
        /// The most MiB of gradients that are reduced by one operation (default 25).
        bucket_cap_mb: f64 = 25.0,
        /// True if each call in training begins with rank 0's buffers (default yes).
        broadcast_buffers: bool = true,
        /// True if a backward pass may leave out parameters (default no). Their gradients then count as zero on this
        /// rank; by default this is an error that names them.
        find_unused_parameters: bool = false,
        /// The dtype in which gradients are sent, if not their own: bf16 halves what is sent
        /// (`bf16_compress_hook`).
        gradient_dtype: Option<DType> = None,
        /// The group (default: the world).
        process_group: Option<ProcessGroup> = None,
    }
}

/// A model whose gradients are the means over all ranks (`torch.nn.parallel.DistributedDataParallel`). Each rank
/// computes with its share of a batch; as all begin with rank 0's parameters and take the same steps, they stay equal.
///
/// The gradients are reduced in buckets at the end of each backward pass. That is recorded: forward, backward,
/// reduction, clipping and update run as one plan. Optimisers, clipping and `GradScaler` need no change: an infinity
/// on one rank is one on all of them.
///
/// ```
/// use kiln_distributed::{DistributedDataParallel, run_in_threads};
/// use kiln_nn::{Forward, Linear, Module};
/// use kiln_tensor::{DType, Tensor};
/// let gradients = run_in_threads(2, |rank| {
///     let model = DistributedDataParallel::new(Linear::new(2, 1)?)?;
///     let x = Tensor::full([4, 2], rank as f32, DType::F32);
///     // Accumulates alone, and reduces with the next pass.
///     model.no_sync(|| model.call(&x).mean(()).backward())?;
///     model.call(&x).mean(()).backward()?;
///     model.module().weight.grad().expect("a gradient").to_vec::<f32>()
/// });
/// for gradient in gradients {
///     assert_eq!(gradient?, [1.0, 1.0]);
/// }
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Module)]
pub struct DistributedDataParallel<M: Module> {
    module: M,
    #[skip]
    reducer: Arc<Reducer>,
    hooks: Hooks,
}

/// The reduction of gradients.
struct Reducer {
    group: ProcessGroup,
    /// Those that require gradients, with their names, the last one first: about the order in which backward passes
    /// reach them. It is the same on all ranks.
    parameters: Vec<(String, Var)>,
    options: DataParallelOptions,
    /// The backward pass that this thread is in. The function that waits for its end holds it.
    pass: Mutex<Weak<Pass>>,
    synchronises: AtomicBool,
}

/// For each parameter, true if a backward pass has reached it.
type Pass = Mutex<Vec<bool>>;

impl<M: Module> DistributedDataParallel<M> {
    /// Wraps a model, whose parameters and buffers become rank 0's.
    ///
    /// # Errors
    /// If there is no process group, no parameter requires gradients, or the ranks' models have different sizes.
    #[track_caller]
    pub fn new(module: M) -> Result<DistributedDataParallel<M>> {
        DistributedDataParallel::with(module, DataParallelOptions::new())
    }

    /// Wraps a model.
    ///
    /// # Errors
    /// As [`DistributedDataParallel::new`].
    #[track_caller]
    pub fn with(module: M, options: DataParallelOptions) -> Result<DistributedDataParallel<M>> {
        let group = match &options.process_group {
            Some(group) => group.clone(),
            None => world()?,
        };
        let trained = module.named_parameters().into_iter().rev();
        let parameters: Vec<_> = trained.filter(|(_, p)| p.requires_grad()).collect();
        if parameters.is_empty() {
            let text = "no parameter requires gradients, so there is nothing to reduce";
            return Err(error("DistributedDataParallel", text));
        }
        let cells = [module.parameters(), module.buffers()].concat();
        broadcast(&group, &cells)?;
        let values: Vec<Tensor> = cells.iter().map(Var::detach).collect();
        realize_first(values)?;
        let reducer = Arc::new(Reducer {
            group,
            parameters,
            options,
            pass: Mutex::default(),
            synchronises: AtomicBool::new(true),
        });
        for (i, (_, parameter)) in reducer.parameters.iter().enumerate() {
            let reducer = Arc::downgrade(&reducer);
            parameter.register_hook(move |_| {
                if let Some(reducer) = reducer.upgrade() {
                    reducer.reach(i);
                }
                None
            })?;
        }
        Ok(DistributedDataParallel {
            module,
            reducer,
            hooks: Hooks::new(),
        })
    }

    /// The model.
    pub fn module(&self) -> &M {
        &self.module
    }

    /// Calls a function in which backward passes only accumulate gradients on each rank. The next pass outside of it
    /// reduces the sums.
    pub fn no_sync<T>(&self, f: impl FnOnce() -> T) -> T {
        struct Restore<'a>(&'a AtomicBool, bool);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.store(self.1, Ordering::SeqCst);
            }
        }
        let flag = &self.reducer.synchronises;
        let _restore = Restore(flag, flag.swap(false, Ordering::SeqCst));
        f()
    }
}

impl<M, I, O> Forward<I, O> for DistributedDataParallel<M>
where
    M: Forward<I, O>,
    I: Nest<Owned = I> + 'static,
    O: Nest<Owned = O> + 'static,
{
    fn forward(&self, input: I) -> Result<O> {
        let reducer = &self.reducer;
        let synchronises = reducer.synchronises.load(Ordering::SeqCst);
        if reducer.options.broadcast_buffers && synchronises && self.module.is_training() {
            broadcast(&reducer.group, &self.module.buffers())?;
        }
        self.module.try_call(input)
    }
}

impl Reducer {
    /// Notes that a backward pass has the gradient of a parameter.
    fn reach(self: &Arc<Self>, parameter: usize) {
        if self.group.size() == 1 || !self.synchronises.load(Ordering::SeqCst) {
            return;
        }
        let mut pass = self.pass.lock().unwrap_or_else(PoisonError::into_inner);
        let reached = pass.upgrade().unwrap_or_else(|| {
            let new = Arc::new(Mutex::new(vec![false; self.parameters.len()]));
            *pass = Arc::downgrade(&new);
            let (reducer, own) = (self.clone(), new.clone());
            after_backward(move || reducer.reduce(&own));
            new
        });
        reached.lock().unwrap_or_else(PoisonError::into_inner)[parameter] = true;
    }

    /// Replaces the gradients of all parameters by their means.
    fn reduce(&self, pass: &Pass) -> Result<()> {
        let reached = pass.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = reached.iter().zip(&self.parameters).filter(|(r, _)| !**r);
        let unused: Vec<&str> = unused.map(|(_, (name, _))| &name[..]).collect();
        if !unused.is_empty() && !self.options.find_unused_parameters {
            return Err(error(
                "backward",
                format!(
                    "these parameters got no gradient, and other ranks wait for it: {}. Set \
                     `find_unused_parameters` if a pass may leave some out, or freeze them before the model is wrapped",
                    unused.join(", ")
                ),
            ));
        }
        no_grad(|| {
            let mut bucket: Vec<(&Var, Tensor)> = Vec::new();
            let mut bytes = 0.0;
            for (_, parameter) in &self.parameters {
                let g = parameter
                    .grad()
                    .unwrap_or_else(|| parameter.detach().zeros_like());
                let more = g.numel()? as f64 * g.dtype().size() as f64;
                let full = bytes + more > self.options.bucket_cap_mb * f64::from(1 << 20);
                if bucket
                    .first()
                    .is_some_and(|(_, first)| full || first.dtype() != g.dtype())
                {
                    self.reduce_bucket(&std::mem::take(&mut bucket))?;
                    bytes = 0.0;
                }
                bucket.push((parameter, g));
                bytes += more;
            }
            self.reduce_bucket(&bucket)
        })
    }

    fn reduce_bucket(&self, bucket: &[(&Var, Tensor)]) -> Result<()> {
        let gradients: Vec<Tensor> = bucket.iter().map(|(_, g)| g.clone()).collect();
        let dtype = gradients[0].dtype();
        let sent = flat(&gradients).to_dtype(self.options.gradient_dtype.unwrap_or(dtype));
        // The scale becomes part of what reads the gradients.
        let sums = self.group.all_reduce(sent, ReduceOp::Sum).to_dtype(dtype);
        let means = sums * (1.0 / self.group.size() as f64);
        let means = parts(&means, &gradients)?;
        bucket
            .iter()
            .zip(means)
            .try_for_each(|((parameter, _), g)| parameter.set_grad(Some(g)))
    }
}

/// Tensors of one dtype as one vector.
fn flat(tensors: &[Tensor]) -> Tensor {
    cat(tensors.iter().map(|t| t.reshape([-1])), 0)
}

/// The parts of a vector with the shapes of these tensors.
fn parts(of: &Tensor, like: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut at = 0;
    like.iter()
        .map(|t| {
            let (shape, len) = (t.shape()?, t.numel()?);
            let part = of.narrow(0, at, len).reshape(shape);
            at += len;
            Ok(part)
        })
        .collect()
}

/// Assigns cells the values that they have on rank 0.
#[track_caller]
fn broadcast(group: &ProcessGroup, cells: &[Var]) -> Result<()> {
    if group.size() == 1 {
        return Ok(());
    }
    let mut by_dtype: BTreeMap<DType, Vec<&Var>> = BTreeMap::new();
    for cell in cells {
        by_dtype.entry(cell.dtype()).or_default().push(cell);
    }
    no_grad(|| {
        for cells in by_dtype.values() {
            let values: Vec<Tensor> = cells.iter().map(|c| c.detach()).collect();
            let values = parts(&group.broadcast(flat(&values), 0), &values)?;
            for (cell, value) in cells.iter().zip(values) {
                cell.assign(value)?;
            }
        }
        Ok(())
    })
}
