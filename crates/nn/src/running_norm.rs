//! Batch and instance normalisation, which can keep running statistics.

use crate::layer::{self, fact, run, wrong};
use crate::norm::{reset_affine, values};
use crate::print::{float, optional, python};
use crate::{Forward, Mode, Module};
use kiln_tensor::{DType, Int, Result, Tensor, Var, assign_together, no_grad};

macro_rules! running_norms {
    ($($(#[$doc:meta])* $name:ident $forward:ident $spatial:literal $default:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Module)]
        #[module(extra_repr, reset_parameters)]
        pub struct $name {
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
            /// i64 of rank 0: how many batches the statistics are of.
            #[buffer]
            pub num_batches_tracked: Option<Var>,
            num_features: usize,
            eps: f64,
            momentum: Option<f64>,
            mode: Mode,
        }

        impl $name {
            /// A layer for inputs of `num_features` channels, with an eps of 1e-5 and a momentum of 0.1.
            ///
            /// # Errors
            /// Inside `compile`: make layers before.
            #[track_caller]
            pub fn new(num_features: impl Into<Int>) -> Result<$name> {
                let [num_features] = layer::sizes(stringify!($name), [num_features.into()])?;
                let layer = $name {
                    weight: None,
                    bias: None,
                    running_mean: None,
                    running_var: None,
                    num_batches_tracked: None,
                    num_features,
                    eps: 1e-5,
                    momentum: Some(0.1),
                    mode: Mode::with_statistics(),
                };
                layer.affine($default)?.track_running_stats($default)
            }

            /// The layer with this number added to the variance (default 1e-5).
            pub fn eps(mut self, eps: f64) -> $name {
                self.eps = eps;
                self
            }

            /// The layer whose running statistics move this far towards those of each batch (default
            /// 0.1). `None` makes them the average of all batches' (for instance norms it keeps them).
            pub fn momentum(mut self, momentum: impl Into<Option<f64>>) -> $name {
                self.momentum = momentum.into();
                self
            }

            #[doc = concat!("The layer with or without weight and bias (default ", $default, ").")]
            ///
            /// # Errors
            /// As [`Self::new`].
            #[track_caller]
            pub fn affine(mut self, affine: bool) -> Result<$name> {
                let c = [self.num_features];
                (self.weight, self.bias) = match affine {
                    true => (Some(layer::constant(c, 1.0)?), Some(layer::constant(c, 0.0)?)),
                    false => (None, None),
                };
                Ok(self)
            }

            #[doc = concat!("The layer with or without running statistics (default ", $default, ").")]
            ///
            /// # Errors
            /// As [`Self::new`].
            #[track_caller]
            pub fn track_running_stats(mut self, track: bool) -> Result<$name> {
                let c = [self.num_features];
                (self.running_mean, self.running_var) = match track {
                    true => (Some(layer::buffer(c, 0.0)?), Some(layer::buffer(c, 1.0)?)),
                    false => (None, None),
                };
                let count = || Var::new(&Tensor::zeros((), DType::I64));
                self.num_batches_tracked = track.then(count).transpose()?;
                Ok(self)
            }

            /// The running statistics as new.
            ///
            /// # Errors
            /// Inside `compile`, where making new values is part of the program.
            #[track_caller]
            pub fn reset_running_stats(&self) -> Result<()> {
                reset_affine(self.running_var.as_ref(), self.running_mean.as_ref())?;
                reset_affine(None, self.num_batches_tracked.as_ref())
            }

            #[track_caller]
            fn reset_parameters(&self) -> Result<()> {
                self.reset_running_stats()?;
                reset_affine(self.weight.as_ref(), self.bias.as_ref())
            }

            fn extra_repr(&self) -> String {
                format!(
                    "{}, eps={}, momentum={}, affine={}, track_running_stats={}",
                    self.num_features,
                    float(self.eps),
                    optional(self.momentum),
                    python(self.weight.is_some()),
                    python(self.running_mean.is_some())
                )
            }

            fn parts(&self) -> Norm<'_> {
                Norm {
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
                    momentum: self.momentum,
                    training: self.mode.is_training(),
                }
            }
        }

        impl Forward for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                run(self, &[x], || self.parts().$forward(x, $spatial))
            }
        }
    )*};
}

running_norms! {
    /// Batch normalisation of `[n, c]` or `[n, c, l]` (`torch.nn.BatchNorm1d`); see [`BatchNorm2d`].
    BatchNorm1d batch 1 true;
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
    /// The running variance is of the unbiased variances; the batch is normalised with the biased one.
    BatchNorm2d batch 2 true;
    /// Batch normalisation of `[n, c, d, h, w]` (`torch.nn.BatchNorm3d`); see [`BatchNorm2d`].
    BatchNorm3d batch 3 true;
    /// Instance normalisation of `[n, c, l]` (or `[c, l]`) (`torch.nn.InstanceNorm1d`); see
    /// [`InstanceNorm2d`].
    InstanceNorm1d instance 1 false;
    /// Instance normalisation of `[n, c, h, w]` (or `[c, h, w]`) (`torch.nn.InstanceNorm2d`): each
    /// channel of each sample by its own statistics, or in evaluation by the running ones, where it
    /// keeps them.
    InstanceNorm2d instance 2 false;
    /// Instance normalisation of `[n, c, d, h, w]` (or `[c, d, h, w]`) (`torch.nn.InstanceNorm3d`);
    /// see [`InstanceNorm2d`].
    InstanceNorm3d instance 3 false;
}

/// A norm layer, whatever its dims.
struct Norm<'a> {
    layer: &'a dyn Module,
    weight: &'a Option<Var>,
    bias: &'a Option<Var>,
    /// Mean and variance.
    running: Option<(&'a Var, &'a Var)>,
    batches: Option<&'a Var>,
    channels: usize,
    eps: f64,
    momentum: Option<f64>,
    training: bool,
}

impl Norm<'_> {
    fn batch(&self, x: &Tensor, spatial: usize) -> Tensor {
        let fits = x.ndim() == spatial + 2 || spatial == 1 && x.ndim() == 2;
        if let Some(e) = self.misfit(x, fits, 1) {
            return e;
        }
        let (weight, bias) = values(self.weight, self.bias);
        let (mean, var) = self.running.unzip();
        let normalised = |momentum| {
            let (weight, bias) = (weight.as_ref(), bias.as_ref());
            x.batch_norm(mean, var, weight, bias, self.training, momentum, self.eps)
        };
        let (true, Some((mean, var)), Some(batches)) = (self.training, self.running, self.batches)
        else {
            return normalised(0.0);
        };
        let before = [mean.get(), var.get()];
        // With a momentum of 1 the running statistics become those of the batch.
        let y = normalised(self.momentum.unwrap_or(1.0));
        if y.error().is_some() {
            return y;
        }
        let count = batches.get() + 1;
        let mut now = [mean.get(), var.get()];
        if self.momentum.is_none() {
            now = no_grad(|| {
                let share = count.to_dtype(mean.dtype()).reciprocal();
                let average = |i: usize| &before[i] + &((&now[i] - &before[i]) * &share);
                [average(0), average(1)]
            });
        }
        // The count belongs to the statistics: a step that fails changes neither.
        let updates = [(mean, &now[0]), (var, &now[1]), (batches, &count)];
        assign_together(updates).map_or_else(Tensor::from_error, |()| y)
    }

    fn instance(&self, x: &Tensor, spatial: usize) -> Tensor {
        let unbatched = x.ndim() == spatial + 1;
        let fits = unbatched || x.ndim() == spatial + 2;
        if let Some(e) = self.misfit(x, fits, x.ndim().saturating_sub(spatial + 1)) {
            return e;
        }
        let (weight, bias) = values(self.weight, self.bias);
        let (mean, var) = self.running.unzip();
        let batch = if unbatched { x.unsqueeze(0) } else { x.clone() };
        let own = self.training || self.running.is_none();
        let momentum = self.momentum.unwrap_or(0.0);
        let y = batch.instance_norm(
            mean,
            var,
            weight.as_ref(),
            bias.as_ref(),
            own,
            momentum,
            self.eps,
        );
        if unbatched { y.squeeze(0) } else { y }
    }

    /// What is wrong with an input whose channels are at an axis.
    fn misfit(&self, x: &Tensor, fits: bool, channels_at: usize) -> Option<Tensor> {
        if x.error().is_some() {
            return Some(x.clone());
        }
        if !fits {
            let message = format!("takes no input of {} dims, such as {}", x.ndim(), fact(x));
            return Some(wrong(self.layer, message));
        }
        let fits = x.dims()[channels_at].is(self.channels as i64);
        let message = || format!("expects {} channels, not {}", self.channels, fact(x));
        (!fits).then(|| wrong(self.layer, message()))
    }
}
