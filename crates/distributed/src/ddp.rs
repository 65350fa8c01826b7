//! Data parallel training.

use crate::comm_hooks::GradBucket;
use crate::group::{ProcessGroup, SOURCE, error, world};
use crate::reducer::{Reducer, split_like};
use kiln_nn::{Forward, Hooks, Module};
use kiln_tensor::{
    DType, Nest, Result, Tensor, Var, cat, no_grad, on_behalf_of_caller, options, realize_first,
};
use std::collections::BTreeMap;
use std::sync::Arc;

options! {
    /// The options of [`DistributedDataParallel::with`].
    DataParallelOptions () {
        /// The maximum number of MiB of gradients that are reduced by one operation (default 25). The first bucket is
        /// full at 1 MiB.
        bucket_cap_mb: f64 = 25.0,
        /// True if each call in training begins with rank 0's buffers (default yes).
        broadcast_buffers: bool = true,
        /// True if a backward pass may leave out parameters (default no); by default this is an error that names them.
        /// Their gradients then count as zero on this rank. What no rank has used keeps the gradient that it had, if any;
        /// inside `compile` it gets zeros.
        find_unused_parameters: bool = false,
        /// The group (default: the world).
        process_group: Option<ProcessGroup> = None,
    }
}

/// A model whose gradients are the means over all ranks (`torch.nn.parallel.DistributedDataParallel`). Each rank
/// computes with its share of a batch; as all begin with rank 0's parameters and take the same steps, they stay equal.
///
/// The gradients are reduced in buckets, each as soon as it is computed. That is recorded: forward, backward, reduction,
/// clipping and update run as one plan. Optimisers, clipping and `GradScaler` need no change: an infinity on one rank is
/// one on all of them.
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
        let mut parameters = module.named_parameters();
        parameters.retain(|(_, p)| p.requires_grad());
        if parameters.is_empty() {
            let text = "no parameter requires gradients, so there is nothing to reduce";
            return Err(error("DistributedDataParallel", text));
        }
        broadcast_model(&group, &module, 0)?;
        let reducer = Reducer::new(group, parameters, options)?;
        Ok(DistributedDataParallel {
            module,
            reducer,
            hooks: Hooks::new(),
        })
    }

    pub(crate) fn reducer(&self) -> &Reducer {
        &self.reducer
    }

    /// The model.
    pub fn module(&self) -> &M {
        &self.module
    }

    /// Calls a function in which backward passes only accumulate gradients on each rank. The next pass outside of it
    /// reduces the sums.
    pub fn no_sync<T>(&self, f: impl FnOnce() -> T) -> T {
        self.reducer.unsynchronised(f)
    }

    /// Replaces the reduction of gradients: `f` returns the means for a bucket, of its dtype and shape.
    /// [`crate::bf16_compress_hook`] halves what is sent. `f` records, so what it does is part of the step. It is called
    /// in a world of one, too.
    ///
    /// ```
    /// use kiln_distributed::{DistributedDataParallel, bf16_compress_hook, run_in_threads};
    /// use kiln_nn::{Forward, Linear};
    /// use kiln_tensor::{DType, Tensor};
    /// let gradients = run_in_threads(2, |rank| {
    ///     let model = DistributedDataParallel::new(Linear::new(1, 1)?)?;
    ///     model.register_comm_hook(bf16_compress_hook)?;
    ///     let x = Tensor::full([1, 1], 1.0 + rank as f64, DType::F32);
    ///     model.call(&x).sum(()).backward()?;
    ///     model.module().weight.grad().expect("a gradient").item::<f32>()
    /// });
    /// for gradient in gradients {
    ///     assert_eq!(gradient?, 1.5);
    /// }
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is a hook already.
    #[track_caller]
    pub fn register_comm_hook(
        &self,
        f: impl Fn(&ProcessGroup, &GradBucket) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Result<()> {
        let set = self.reducer.hook.set(Box::new(f));
        set.map_err(|_| error("register_comm_hook", "the model has a hook already"))
    }
}

impl<M, I, O> Forward<I, O> for DistributedDataParallel<M>
where
    M: Forward<I, O>,
    I: Nest<Owned = I> + 'static,
    O: Nest<Owned = O> + 'static,
{
    fn forward(&self, input: I) -> Result<O> {
        let sends = self.reducer.options.broadcast_buffers
            && self.module.is_training()
            && self.reducer.synchronises();
        on_behalf_of_caller(SOURCE, || {
            let root = self.reducer.call(sends)?;
            if sends {
                broadcast(&self.reducer.group, &self.module.buffers(), root)?;
            }
            self.module.try_call(input)
        })
    }
}

/// Gives a model's parameters and buffers the values that they have on a rank, at once.
#[track_caller]
pub(crate) fn broadcast_model(
    group: &ProcessGroup,
    module: &impl Module,
    root: usize,
) -> Result<()> {
    let cells = [module.parameters(), module.buffers()].concat();
    broadcast(group, &cells, root)?;
    let values: Vec<Tensor> = cells.iter().map(Var::detach).collect();
    realize_first(values)
}

/// Assigns cells the values that they have on a rank.
#[track_caller]
pub(crate) fn broadcast(group: &ProcessGroup, cells: &[Var], root: usize) -> Result<()> {
    if group.size() == 1 {
        return Ok(());
    }
    let mut by_dtype: BTreeMap<DType, Vec<&Var>> = BTreeMap::new();
    for cell in cells {
        by_dtype.entry(cell.dtype()).or_default().push(cell);
    }
    let record = || {
        for cells in by_dtype.values() {
            let values: Vec<Tensor> = cells.iter().map(|c| c.detach()).collect();
            let flat = cat(values.iter().map(|v| v.reshape([-1])), 0);
            let values = split_like(&group.broadcast(flat, root), &values)?;
            for (cell, value) in cells.iter().zip(values) {
                cell.assign(value)?;
            }
        }
        Ok(())
    };
    on_behalf_of_caller(SOURCE, || no_grad(record))
}
