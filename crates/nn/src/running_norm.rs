//! Batch and instance normalisation, which can keep running statistics.

use crate::layer::{self, fact, input_error};
use crate::norm::reset_affine;
use crate::print::{float, optional, python};
use crate::{Forward, Hooks, Mode, Module};
use kiln_tensor::{
    DType, Flat, Int, Nest, Result, RunningStats, Tensor, Var, assign_together, no_grad, options,
};
use std::sync::atomic::{AtomicU64, Ordering};

options! {
    /// The options of a batch norm.
    BatchNorm () {
        /// The term added to the variance (default 1e-5).
        eps: f64 = 1e-5,
        /// The weight of each batch in the running statistics (default 0.1). `None` makes them the average of all
        /// batches.
        momentum: Option<f64> = 0.1,
        /// True if there are weight and bias (default yes).
        affine: bool = true,
        /// True if there are running statistics (default yes).
        track_running_stats: bool = true,
        /// True if there is a bias besides a weight (default yes).
        bias: bool = true,
    }
}

options! {
    /// The options of an instance norm.
    InstanceNorm () {
        /// The term added to the variance (default 1e-5).
        eps: f64 = 1e-5,
        /// The weight of each batch in the running statistics (default 0.1). `None` leaves them as they are.
        momentum: Option<f64> = 0.1,
        /// True if there are weight and bias (default no).
        affine: bool = false,
        /// True if there are running statistics (default no).
        track_running_stats: bool = false,
        /// True if there is a bias besides a weight (default yes).
        bias: bool = true,
    }
}

/// A norm of `D` spatial dims, made with options.
macro_rules! running_norms {
    ($($(#[$doc:meta])* $name:ident $options:ident $forward:ident [$($label:literal)*];)*) => {$(
        $(#[$doc])*
        #[derive(Module)]
        #[module(name, extra_repr, reset_parameters)]
        pub struct $name<const D: usize> {
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
            momentum: Momentum,
            mode: Mode,
            hooks: Hooks,
        }

        impl<const D: usize> $name<D> {
            pub(crate) const NAME: &str = [$($label),*][D];

            /// Makes a layer for inputs of `num_features` channels, with PyTorch's defaults.
            ///
            /// # Errors
            /// If the number is negative, or inside `compile`: make layers before.
            #[track_caller]
            pub fn new(num_features: impl Into<Int>) -> Result<$name<D>> {
                $name::with(num_features, $options::new())
            }

            /// Makes a layer for inputs of `num_features` channels.
            ///
            /// # Errors
            /// As [`Self::new`].
            #[track_caller]
            pub fn with(num_features: impl Into<Int>, options: $options) -> Result<$name<D>> {
                let [num_features] = layer::feature_sizes(Self::NAME, [num_features.into()])?;
                let (c, tracks) = ([num_features], options.track_running_stats);
                let (mut running_mean, mut running_var, mut num_batches_tracked) = (None, None, None);
                if tracks {
                    running_mean = Some(layer::buffer(c, 0.0)?);
                    running_var = Some(layer::buffer(c, 1.0)?);
                    num_batches_tracked = Some(Var::new(Tensor::zeros((), DType::I64))?);
                }
                Ok($name {
                    weight: layer::filled_if(options.affine, c, 1.0)?,
                    bias: layer::filled_if(options.affine && options.bias, c, 0.0)?,
                    running_mean,
                    running_var,
                    num_batches_tracked,
                    num_features,
                    eps: options.eps,
                    momentum: Momentum::new(options.momentum),
                    mode: Mode::with_statistics(),
                    hooks: Hooks::new(),
                })
            }

            /// Returns the number of channels.
            pub fn num_features(&self) -> usize {
                self.num_features
            }

            /// Returns the term added to the variance.
            pub fn eps(&self) -> f64 {
                self.eps
            }

            /// Returns the weight of each batch in the running statistics.
            pub fn momentum(&self) -> Option<f64> {
                self.momentum.get()
            }

            /// Changes [`Self::momentum`] for later calls; code that is already compiled keeps the old one.
            pub fn set_momentum(&self, momentum: impl Into<Option<f64>>) {
                self.momentum.set(momentum.into());
            }

            /// True if there are weight and bias.
            pub fn affine(&self) -> bool {
                self.weight.is_some()
            }

            /// True if there are running statistics.
            pub fn track_running_stats(&self) -> bool {
                self.running_mean.is_some()
            }

            /// Resets the running statistics to their initial values.
            ///
            /// # Errors
            /// Inside `compile`, where making new values is part of the program.
            #[track_caller]
            pub fn reset_running_stats(&self) -> Result<()> {
                self.statistics().reset()
            }

            #[track_caller]
            fn reset_parameters(&self) -> Result<()> {
                self.reset_running_stats()?;
                reset_affine(self.weight.as_ref(), self.bias.as_ref())
            }

            fn name(&self) -> &str {
                Self::NAME
            }

            fn extra_repr(&self) -> String {
                format!(
                    "{}, eps={}, momentum={}, affine={}, track_running_stats={}",
                    self.num_features,
                    float(self.eps),
                    optional(self.momentum()),
                    python(self.affine()),
                    python(self.track_running_stats())
                )
            }

            fn statistics(&self) -> BatchStatisticsNorm<'_> {
                BatchStatisticsNorm {
                    layer: self,
                    weight: &self.weight,
                    bias: &self.bias,
                    running: match (&self.running_mean, &self.running_var) {
                        (Some(mean), Some(var)) => Some((mean, var)),
                        _ => None,
                    },
                    batches: self.num_batches_tracked.as_ref(),
                    channels: self.num_features,
                    eps: self.eps,
                    momentum: &self.momentum,
                    mode: &self.mode,
                }
            }
        }

        impl<const D: usize> Forward for $name<D> {
            fn forward(&self, x: Tensor) -> Result<Tensor> {
                self.statistics().$forward(&x, D)
            }
        }
    )*};
}

running_norms! {
    /// Batch normalisation over `D` spatial dims, 1 to 3. The layer for each has a name of its own: see
    /// [`BatchNorm2d`].
    BatchNormNd BatchNorm batch ["BatchNorm0d" "BatchNorm1d" "BatchNorm2d" "BatchNorm3d"];
    /// Instance normalisation over `D` spatial dims, 1 to 3. The layer for each has a name of its own: see
    /// [`InstanceNorm2d`].
    InstanceNormNd InstanceNorm instance
        ["InstanceNorm0d" "InstanceNorm1d" "InstanceNorm2d" "InstanceNorm3d"];
}

/// Batch normalisation of `[n, c]` or `[n, c, l]` (`torch.nn.BatchNorm1d`); see [`BatchNorm2d`].
pub type BatchNorm1d = BatchNormNd<1>;

/// Batch normalisation of `[n, c, h, w]` (`torch.nn.BatchNorm2d`; Ioffe and Szegedy, 2015):
/// `(x − mean) / √(variance + eps) · weight + bias` by channel.
///
/// | training | running statistics | normalises with |
/// |---|---|---|
/// | yes | yes | those of the batch, and updates the running ones |
/// | yes | no | those of the batch |
/// | no | yes | the running ones |
/// | no | no | those of the batch |
///
/// The running variance averages unbiased variances; the batch is normalised with the biased one.
pub type BatchNorm2d = BatchNormNd<2>;

/// Batch normalisation of `[n, c, d, h, w]` (`torch.nn.BatchNorm3d`); see [`BatchNorm2d`].
pub type BatchNorm3d = BatchNormNd<3>;

/// Instance normalisation of `[n, c, l]` (or `[c, l]`) (`torch.nn.InstanceNorm1d`); see
/// [`InstanceNorm2d`].
pub type InstanceNorm1d = InstanceNormNd<1>;

/// Instance normalisation of `[n, c, h, w]` (or `[c, h, w]`) (`torch.nn.InstanceNorm2d`). Each channel of each sample
/// is normalised with its own statistics, or in evaluation with the running ones, if there are any.
pub type InstanceNorm2d = InstanceNormNd<2>;

/// Instance normalisation of `[n, c, d, h, w]` (or `[c, d, h, w]`) (`torch.nn.InstanceNorm3d`);
/// see [`InstanceNorm2d`].
pub type InstanceNorm3d = InstanceNormNd<3>;

/// A momentum that can be changed; NaN stands for none.
struct Momentum(AtomicU64);

impl Momentum {
    fn new(momentum: Option<f64>) -> Momentum {
        let this = Momentum(AtomicU64::new(0));
        this.set(momentum);
        this
    }

    fn get(&self) -> Option<f64> {
        let momentum = f64::from_bits(self.0.load(Ordering::Relaxed));
        Some(momentum).filter(|m| !m.is_nan())
    }

    fn set(&self, momentum: Option<f64>) {
        let bits = momentum.unwrap_or(f64::NAN).to_bits();
        self.0.store(bits, Ordering::Relaxed);
    }
}

impl Clone for Momentum {
    fn clone(&self) -> Momentum {
        Momentum::new(self.get())
    }
}

/// Computes the running statistics of all batch norms within a module again, as the averages over these batches
/// (`torch.optim.swa_utils.update_bn`). A model with averaged weights needs this. `forward` passes each batch to the
/// model. Modes and momenta are restored afterwards; frozen batch norms keep their statistics.
///
/// ```
/// use kiln_nn::{BatchNorm1d, Forward, Linear, sequential, update_bn};
/// use kiln_tensor::{DType, Result, Tensor};
/// let model = sequential![Linear::new(4, 8), BatchNorm1d::new(8), Linear::new(8, 2)]?;
/// // Such as a data loader's.
/// let batches = (0..10).map(|_| -> Result<_> {
///     Ok((Tensor::randn([16, 4], DType::F32), Tensor::randint(0, 2, [16])))
/// });
/// update_bn(batches, &model, |(x, _)| model.call(x))?;
/// assert_eq!(model.get_as::<BatchNorm1d>(1)?.momentum(), Some(0.1));
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// The first error of a batch, or of the result of `forward` for one.
#[track_caller]
pub fn update_bn<B, O: Nest<Owned = O>>(
    batches: impl IntoIterator<Item = Result<B>>,
    module: &dyn Module,
    mut forward: impl FnMut(B) -> O,
) -> Result<()> {
    let modules = module.modules().into_iter();
    let norms: Vec<BatchStatisticsNorm<'_>> =
        modules.filter_map(BatchStatisticsNorm::find).collect();
    let mut modes = Vec::new();
    module.each_mode(&mut |mode| modes.push(mode.is_training()));
    let momenta: Vec<Option<f64>> = norms.iter().map(|n| n.momentum.get()).collect();
    norms.iter().try_for_each(BatchStatisticsNorm::reset)?;
    norms.iter().for_each(|n| n.momentum.set(None));
    module.train();
    let result = no_grad(|| {
        batches.into_iter().try_for_each(|batch| {
            let y = forward(batch?);
            let mut tensors = Flat::of(&y).tensors().to_vec().into_iter();
            tensors.try_for_each(|t| t.check().map(drop))?;
            // Computes the statistics batch by batch, so that only one batch is held.
            norms
                .iter()
                .filter_map(|n| n.running)
                .try_for_each(|(mean, _)| mean.get().realize().map(drop))
        })
    });
    norms
        .iter()
        .zip(momenta)
        .for_each(|(n, momentum)| n.momentum.set(momentum));
    let mut modes = modes.into_iter();
    module.each_mode(&mut |mode| mode.set_training(modes.next() == Some(true)));
    result
}

/// A norm layer with any number of dims.
struct BatchStatisticsNorm<'a> {
    layer: &'a dyn Module,
    weight: &'a Option<Var>,
    bias: &'a Option<Var>,
    /// The running mean and variance.
    running: Option<(&'a Var, &'a Var)>,
    batches: Option<&'a Var>,
    channels: usize,
    eps: f64,
    momentum: &'a Momentum,
    mode: &'a Mode,
}

impl<'a> BatchStatisticsNorm<'a> {
    /// Returns the parts of a batch norm that updates running statistics in training.
    fn find(m: &'a dyn Module) -> Option<BatchStatisticsNorm<'a>> {
        let norm = (m.downcast_ref::<BatchNorm1d>().map(BatchNormNd::statistics))
            .or_else(|| m.downcast_ref::<BatchNorm2d>().map(BatchNormNd::statistics))
            .or_else(|| m.downcast_ref::<BatchNorm3d>().map(BatchNormNd::statistics));
        norm.filter(|p| p.running.is_some() && !p.mode.is_frozen())
    }

    #[track_caller]
    fn reset(&self) -> Result<()> {
        let (mean, var) = self.running.unzip();
        reset_affine(var, mean)?;
        reset_affine(None, self.batches)
    }

    fn batch(&self, x: &Tensor, spatial: usize) -> Result<Tensor> {
        let fits = x.ndim() == spatial + 2 || spatial == 1 && x.ndim() == 2;
        self.check(x, fits, 1)?;
        let (mean, var) = self.running.unzip();
        let (training, momentum) = (self.mode.is_training(), self.momentum.get());
        let options = RunningStats::new().weight(self.weight).bias(self.bias);
        let options = options
            .running_mean(mean.cloned())
            .running_var(var.cloned());
        let options = options.training(training).eps(self.eps);
        let normalised = |momentum| x.batch_norm_with(options.momentum(momentum));
        let (true, Some((mean, var)), Some(batches)) = (training, self.running, self.batches)
        else {
            return Ok(normalised(0.0));
        };
        let before = [mean.get(), var.get()];
        // With a momentum of 1, the running statistics become those of the batch.
        let y = normalised(momentum.unwrap_or(1.0));
        y.check()?;
        let count = batches.get() + 1;
        let mut updated = [mean.get(), var.get()];
        if momentum.is_none() {
            updated = no_grad(|| {
                let share = count.to_dtype(mean.dtype()).reciprocal();
                let average = |i: usize| &before[i] + &((&updated[i] - &before[i]) * &share);
                [average(0), average(1)]
            });
        }
        // The count is assigned with the statistics, so that a step that fails changes neither.
        let updates = [(mean, &updated[0]), (var, &updated[1]), (batches, &count)];
        assign_together(updates)?;
        Ok(y)
    }

    fn instance(&self, x: &Tensor, spatial: usize) -> Result<Tensor> {
        let unbatched = x.ndim() == spatial + 1;
        let fits = unbatched || x.ndim() == spatial + 2;
        self.check(x, fits, x.ndim().saturating_sub(spatial + 1))?;
        let (mean, var) = self.running.unzip();
        let batch = if unbatched { x.unsqueeze(0) } else { x.clone() };
        let own = self.mode.is_training() || self.running.is_none();
        let momentum = self.momentum.get().unwrap_or(0.0);
        let options = RunningStats::new().weight(self.weight).bias(self.bias);
        let options = options
            .running_mean(mean.cloned())
            .running_var(var.cloned());
        let options = options.training(own).momentum(momentum).eps(self.eps);
        let y = batch.instance_norm_with(options);
        Ok(if unbatched { y.squeeze(0) } else { y })
    }

    /// Checks that the input fits the layer, with its channels at an axis.
    fn check(&self, x: &Tensor, fits: bool, channels_at: usize) -> Result<()> {
        x.check()?;
        if !fits {
            let message = format!("takes no input of {} dims, such as {}", x.ndim(), fact(x));
            return input_error(self.layer, message);
        }
        match x.dims()[channels_at].is(self.channels as i64) {
            true => Ok(()),
            false => {
                let message = format!("expects {} channels, not {}", self.channels, fact(x));
                input_error(self.layer, message)
            }
        }
    }
}
