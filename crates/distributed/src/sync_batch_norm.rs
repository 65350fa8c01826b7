//! Batch normalisation over the batches of all ranks.

use crate::group::{ProcessGroup, SOURCE, error, world};
use kiln_nn::{
    BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d, BatchNormNd, Forward, Hooks, Mode, Module,
};
use kiln_tensor::{Int, Result, Tensor, Var, assign_together, no_grad, on_behalf_of_caller, stack};

/// Batch normalisation of `[n, c, ..]` with the statistics of all ranks' batches (`torch.nn.SyncBatchNorm`). In
/// evaluation it is a [`BatchNorm2d`].
///
/// ```
/// use kiln_distributed::{SyncBatchNorm, run_in_threads};
/// use kiln_nn::{BatchNorm1d, Forward, Linear, sequential};
/// use kiln_tensor::{DType, Tensor};
/// let means = run_in_threads(2, |rank| {
///     let model = sequential![BatchNorm1d::new(1)]?;
///     SyncBatchNorm::convert_sync_batchnorm(&model)?;
///     // Batches of zeros on one rank, and of twos on the other.
///     let y = model.call(Tensor::full([3, 1], 2.0 * rank as f64, DType::F32));
///     y.mean(()).item::<f32>()
/// });
/// let means = means.into_iter().collect::<Result<Vec<_>, _>>()?;
/// assert!((means[0] + 1.0).abs() < 1e-4 && (means[1] - 1.0).abs() < 1e-4);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Module)]
#[module(extra_repr)]
pub struct SyncBatchNorm {
    /// `[c]`, starts at 1.
    pub weight: Option<Var>,
    /// `[c]`, starts at 0.
    pub bias: Option<Var>,
    /// `[c]`, starts at 0.
    #[buffer]
    pub running_mean: Option<Var>,
    /// `[c]`, starts at 1.
    #[buffer]
    pub running_var: Option<Var>,
    /// The number of batches in the statistics: i64 of rank 0.
    #[buffer]
    pub num_batches_tracked: Option<Var>,
    num_features: usize,
    eps: f64,
    #[skip]
    momentum: Option<f64>,
    /// The settings of the batch norm that it was made of, as printed.
    #[skip]
    settings: String,
    #[skip]
    group: ProcessGroup,
    mode: Mode,
    hooks: Hooks,
}

impl SyncBatchNorm {
    /// Makes a layer for inputs of `num_features` channels, with PyTorch's defaults and the world's group.
    ///
    /// # Errors
    /// If the number is negative, there is no group, or inside `compile`: make layers before.
    #[track_caller]
    pub fn new(num_features: impl Into<Int>) -> Result<SyncBatchNorm> {
        SyncBatchNorm::with(num_features, BatchNorm::new())
    }

    /// Makes a layer with a batch norm's options.
    ///
    /// # Errors
    /// As [`SyncBatchNorm::new`].
    #[track_caller]
    pub fn with(num_features: impl Into<Int>, options: BatchNorm) -> Result<SyncBatchNorm> {
        SyncBatchNorm::of(&BatchNorm1d::with(num_features, options)?)
    }

    /// Makes a layer that holds a batch norm's parameters and buffers.
    ///
    /// # Errors
    /// If there is no group.
    #[track_caller]
    pub fn of<const D: usize>(norm: &BatchNormNd<D>) -> Result<SyncBatchNorm> {
        Ok(SyncBatchNorm {
            weight: norm.weight.clone(),
            bias: norm.bias.clone(),
            running_mean: norm.running_mean.clone(),
            running_var: norm.running_var.clone(),
            num_batches_tracked: norm.num_batches_tracked.clone(),
            num_features: norm.num_features(),
            eps: norm.eps(),
            momentum: norm.momentum(),
            settings: Module::extra_repr(norm),
            group: world()?,
            mode: Mode::with_statistics(),
            hooks: Hooks::new(),
        })
    }

    /// Puts a layer of this kind in the place of every batch norm within a model. It holds the same parameters and
    /// buffers. Wrap the model and make optimisers afterwards.
    ///
    /// # Errors
    /// If there is no group, the model is itself a batch norm, or a batch norm is in a list.
    #[track_caller]
    pub fn convert_sync_batchnorm(module: &impl Module) -> Result<()> {
        for (path, layer) in module.named_modules() {
            let norm = match (
                layer.downcast_ref::<BatchNorm1d>(),
                layer.downcast_ref::<BatchNorm2d>(),
                layer.downcast_ref::<BatchNorm3d>(),
            ) {
                (Some(norm), ..) => SyncBatchNorm::of(norm)?,
                (_, Some(norm), _) => SyncBatchNorm::of(norm)?,
                (_, _, Some(norm)) => SyncBatchNorm::of(norm)?,
                _ => continue,
            };
            if path.is_empty() {
                let text = "the model is itself a batch norm; make a `SyncBatchNorm::of` it";
                return Err(error("convert_sync_batchnorm", text));
            }
            norm.set_training(layer.is_training());
            module.set_submodule::<Tensor, Tensor>(&path, norm)?;
        }
        Ok(())
    }

    fn extra_repr(&self) -> String {
        self.settings.clone()
    }

    /// The mean and biased variance of each channel over all ranks, and the number of elements of a channel.
    fn statistics(&self, x: &Tensor, dims: &[i64]) -> Result<[Tensor; 3]> {
        let c = self.num_features;
        let count = x.numel()? / c.max(1);
        if count == 1 && self.group.size() == 1 {
            let text = format!(
                "expected more than 1 value per channel when training, got input size {:?}",
                x.shape()?
            );
            return Err(error("SyncBatchNorm", text));
        }
        let mean = x.mean(dims);
        let squares = (x - self.by_channel(&mean, x)).square().sum(dims);
        let counts = Tensor::full([c], count as f64, mean.dtype());
        // An empty batch has no mean, and no part in that of all.
        let mean = match count {
            0 => mean.zeros_like(),
            _ => mean,
        };
        let local_statistics = stack([mean, squares, counts], 0).reshape([1, 3, c as i64]);
        let gathered = self.group.all_gather(local_statistics);
        let [means, squares, counts] = [0, 1, 2].map(|i| gathered.select(1, i));
        let total = counts.sum(0);
        // Chan et al., 1979: sums of squares about the means of parts.
        let mean = (&means * &counts).sum(0) / &total;
        let between = ((means - &mean).square() * &counts).sum(0);
        let variance = (squares.sum(0) + between) / &total;
        Ok([mean, variance, total])
    }

    /// A value of each channel in the shape of the input's dims.
    fn by_channel(&self, value: &Tensor, x: &Tensor) -> Tensor {
        let mut shape = vec![1i64; x.ndim()];
        shape[1] = self.num_features as i64;
        value.reshape(shape)
    }

    fn update(&self, mean: &Tensor, variance: &Tensor, total: &Tensor) -> Result<()> {
        let (Some(running_mean), Some(running_var)) = (&self.running_mean, &self.running_var)
        else {
            return Ok(());
        };
        let Some(batches) = &self.num_batches_tracked else {
            return Ok(());
        };
        no_grad(|| {
            let unbiased = variance.detach() * total / (total - 1.0);
            let batch = batches.get() + 1;
            let weight = match self.momentum {
                Some(momentum) => Tensor::full((), momentum, mean.dtype()),
                None => batch.to_dtype(mean.dtype()).reciprocal(),
            };
            let moved = |old: &Var, new: Tensor| {
                let old = old.get();
                (&old + (new.to_dtype(old.dtype()) - &old) * &weight).to_dtype(old.dtype())
            };
            assign_together([
                (running_mean, moved(running_mean, mean.detach())),
                (running_var, moved(running_var, unbiased)),
                (batches, batch),
            ])
        })
    }
}

impl Forward for SyncBatchNorm {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        on_behalf_of_caller(SOURCE, || self.normalize(x))
    }
}

impl SyncBatchNorm {
    fn normalize(&self, x: Tensor) -> Result<Tensor> {
        if x.ndim() < 2 || x.dims()[1].as_const() != Some(self.num_features as i64) {
            return Err(error(
                "SyncBatchNorm",
                format!("takes [n, {}, ..], not {:?}", self.num_features, x.dims()),
            ));
        }
        let running = self.running_mean.as_ref().zip(self.running_var.as_ref());
        let wide = match x.dtype().is_narrow_float() {
            true => x.to_dtype(kiln_tensor::DType::F32),
            false => x.clone(),
        };
        let (mean, variance) = match running.filter(|_| !self.mode.is_training()) {
            Some((mean, variance)) => (mean.get(), variance.get()),
            None => {
                let dims: Vec<i64> = (0..x.ndim() as i64).filter(|d| *d != 1).collect();
                let [mean, variance, total] = self.statistics(&wide, &dims)?;
                if self.mode.is_training() {
                    self.update(&mean, &variance, &total)?;
                }
                (mean, variance)
            }
        };
        let scale = (variance + self.eps).rsqrt();
        let mut y = (&wide - self.by_channel(&mean, &wide)) * self.by_channel(&scale, &wide);
        if let Some(weight) = &self.weight {
            y *= self.by_channel(&weight.get(), &wide);
        }
        if let Some(bias) = &self.bias {
            y += self.by_channel(&bias.get(), &wide);
        }
        Ok(y.to_dtype(x.dtype()))
    }
}
