//! Batch and instance normalisation, optionally with running statistics.

use super::args::check_float;
use super::norm::{PerChannel, check_channels, standardize};
use super::reduce::variance;
use crate::options::options;
use crate::record::{Recorded, Recorder, compose};
use crate::{Scalar, Tensor, Var, assign_together, promote};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, Shape, ensure, ops};

options! {
    /// The options of [`Tensor::batch_norm`] and [`Tensor::instance_norm`]. Statistics and parameters have shape
    /// `[c]`.
    ///
    /// ```
    /// use kiln_tensor::{RunningStats, DType, Tensor, Var};
    /// let x = Tensor::randn([8, 3, 4, 4], DType::F32);
    /// let mean = Var::new(Tensor::zeros([3], DType::F32))?;
    /// let variance = Var::new(Tensor::ones([3], DType::F32))?;
    /// let options = RunningStats::new().running_mean(&mean).running_var(&variance);
    /// x.batch_norm_with(options.clone().training(true)).realize()?; // updates both
    /// let y = x.batch_norm_with(options); // normalises with them
    /// assert_eq!(y.shape()?, [8, 3, 4, 4]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    RunningStats () {
        /// The running mean.
        running_mean: Option<Var> = None,
        /// The running variance, unbiased.
        running_var: Option<Var> = None,
        /// True to normalise by the input's own statistics, which also update the running ones. It is PyTorch's
        /// `training` of batch norm (default false) and `use_input_stats` of instance norm (default true).
        training: Option<bool> = None,
        /// The weight of the batch in running statistics. They become `(1 − momentum) · old + momentum · batch`
        /// (default 0.1).
        momentum: f64 = 0.1,
        /// The number added to the variance (default 1e-5).
        eps: f64 = 1e-5,
        ;
        /// The scale of each channel.
        weight,
        /// The bias of each channel.
        bias,
    }
}

/// Reads a variable at the line of the caller: closures are not `#[track_caller]`.
#[track_caller]
fn value_of(cell: Option<&Var>) -> Option<Tensor> {
    Some(cell?.get())
}

#[on_cells]
impl Tensor {
    /// Batch normalisation of `[n, c, ..]` over everything but the channels (Ioffe and Szegedy, 2015):
    /// `(x − mean) / √(variance + eps)` with the batch's mean and variance.
    pub fn batch_norm(&self) -> Tensor {
        self.batch_norm_with(RunningStats::new())
    }

    /// [`Tensor::batch_norm`] with scale, bias and running statistics. If `training` is set, the batch's statistics
    /// normalise, and update the running ones. Otherwise the running ones normalise, or the batch's if there are none.
    pub fn batch_norm_with(&self, options: RunningStats) -> Tensor {
        let (training, eps) = (options.training.unwrap_or(false), options.eps);
        let (weight, bias) = (options.weight.as_ref(), options.bias.as_ref());
        let cells = [options.running_mean.as_ref(), options.running_var.as_ref()];
        let running = [value_of(cells[0]), value_of(cells[1])];
        let parameters = running.iter().flatten().chain(weight).chain(bias);
        let operands: Vec<&Tensor> = [self].into_iter().chain(parameters).collect();
        let mut updates = None;
        let y = compose("batch_norm", &operands, |b| {
            check_float(self, "input")?;
            ensure!(eps >= 0.0, "eps must not be negative, but is {eps}");
            let is_empty = self.fact().numel().is(0);
            if is_empty && self.ndim() == 1 {
                return Ok(self.clone()); // without channels
            }
            ensure!(
                self.ndim() >= 2,
                "{} has no channel dim (dim 1)",
                self.fact()
            );
            let statistics = match &running {
                [Some(mean), Some(var)] => Some((mean.clone(), var.clone())),
                [None, None] => None,
                _ => return Err(OpError::new("needs both running statistics or neither")),
            };
            let affine = PerChannel { weight, bias };
            affine.check(self)?;
            if let Some((mean, var)) = &statistics {
                check_channels(self, mean, "running mean")?;
                check_channels(self, var, "running variance")?;
            }
            match statistics {
                // An empty batch has no statistics.
                Some((mean, var)) if !training || is_empty => {
                    normalise(b, self, &mean, &var, &affine, eps)
                }
                statistics => {
                    let axes: Vec<usize> = (0..self.ndim()).filter(|a| *a != 1).collect();
                    let values: Shape = axes.iter().map(|a| self.dims()[*a].clone()).collect();
                    ensure!(
                        !training || !kiln_base::numel(&values).is(1),
                        "{} has one value per channel, whose variance is 0; training needs more than one",
                        self.fact()
                    );
                    // Widened once, so that the gradients of all its uses are added before they are rounded.
                    let x = b.widen(self)?;
                    let batch = batch_statistics(b, &x, &axes)?;
                    if let (Some(old), true) = (statistics, training) {
                        updates = Some(updated_statistics(b, &batch, old, options.momentum)?);
                    }
                    let y = normalise(b, &x, &batch.mean, &batch.var, &affine, eps)?;
                    b.narrowed(&y, self.dtype())
                }
            }
        });
        assign_statistics(y, cells, updates)
    }

    /// Instance normalisation of `[n, c, ..]`: normalises each channel of each sample by its own statistics.
    pub fn instance_norm(&self) -> Tensor {
        self.instance_norm_with(RunningStats::new())
    }

    /// [`Tensor::instance_norm`] with scale, bias and running statistics. The running statistics are updated with the
    /// mean over the batch. If `training` is false, they normalise instead.
    pub fn instance_norm_with(&self, options: RunningStats) -> Tensor {
        if options.training == Some(false) {
            return self.batch_norm_with(options);
        }
        let (weight, bias) = (options.weight.as_ref(), options.bias.as_ref());
        let cells = [options.running_mean.as_ref(), options.running_var.as_ref()];
        let running = [value_of(cells[0]), value_of(cells[1])];
        let parameters = running.iter().flatten().chain(weight).chain(bias);
        let operands: Vec<&Tensor> = [self].into_iter().chain(parameters).collect();
        let mut updates = None;
        let y = compose("instance_norm", &operands, |b| {
            check_float(self, "input")?;
            ensure!(
                self.ndim() >= 3,
                "{} has no dims after its channels",
                self.fact()
            );
            let affine = PerChannel { weight, bias };
            affine.check(self)?;
            let axes: Vec<usize> = (2..self.ndim()).collect();
            let values: Shape = self.dims()[2..].into();
            ensure!(
                !kiln_base::numel(&values).is(1),
                "{} has one value per channel, whose variance is 0",
                self.fact()
            );
            let x = b.widen(self)?;
            let (var, mean) = variance(b, &x, &axes, 0.0)?;
            let mut y = standardize(b, &x, &mean, &var, options.eps)?;
            y = affine.apply(b, &y, 1)?;
            if let [Some(old_mean), Some(old_var)] = &running {
                check_channels(self, old_mean, "running mean")?;
                check_channels(self, old_var, "running variance")?;
                let over_batch = |b: &mut Recorder, t: &Tensor| {
                    let t = b.reshape(t, &self.dims()[..2])?;
                    b.mean(&t, &[0], false)
                };
                let batch = BatchStatistics {
                    mean: over_batch(b, &mean)?,
                    var: over_batch(b, &var)?,
                    count: b.count(&x, &axes, x.dtype())?,
                };
                let old = (old_mean.clone(), old_var.clone());
                updates = Some(updated_statistics(b, &batch, old, options.momentum)?);
            }
            b.narrowed(&y, self.dtype())
        });
        assign_statistics(y, cells, updates)
    }
}

/// The mean and variance of each channel of a batch, in the dtype in which they are computed.
struct BatchStatistics {
    mean: Tensor,
    /// The biased variance.
    var: Tensor,
    /// The number of values of a channel.
    count: Tensor,
}

fn batch_statistics(
    b: &mut Recorder,
    x: &Tensor,
    axes: &[usize],
) -> Result<BatchStatistics, OpError> {
    let (var, mean) = variance(b, x, axes, 0.0)?;
    let channels = std::slice::from_ref(&x.dims()[1]);
    Ok(BatchStatistics {
        mean: b.reshape(&mean, channels)?,
        var: b.reshape(&var, channels)?,
        count: b.count(x, axes, x.dtype())?,
    })
}

/// Returns the updated running mean and variance, in the dtypes of the old ones.
fn updated_statistics(
    b: &mut Recorder,
    batch: &BatchStatistics,
    (mean, var): (Tensor, Tensor),
    momentum: f64,
) -> Result<[Tensor; 2], OpError> {
    let degrees_of_freedom = b.with(Pw::Sub, &batch.count, 1.0)?;
    let bessel = b.binary(Pw::Div, &batch.count, &degrees_of_freedom)?;
    let unbiased = b.binary(Pw::Mul, &batch.var, &bessel)?;
    Ok([
        moving_average(b, &mean, &batch.mean, momentum)?,
        moving_average(b, &var, &unbiased, momentum)?,
    ])
}

/// Returns `(1 − momentum) · old + momentum · new`.
fn moving_average(b: &mut Recorder, old: &Tensor, new: &Tensor, momentum: f64) -> Recorded {
    let dtype = promote::common_dtype(&[old, new])?;
    let (wide_old, new) = (b.cast(old, dtype)?, b.cast(new, dtype)?);
    let kept = b.with(Pw::Mul, &wide_old, 1.0 - momentum)?;
    let added = b.with(Pw::Mul, &new, momentum)?;
    let sum = b.binary(Pw::Add, &kept, &added)?;
    b.cast(&sum, old.dtype())
}

/// Assigns the running statistics, if they are updated. Returns `y`, or the error of the assignment.
#[track_caller]
fn assign_statistics(y: Tensor, vars: [Option<&Var>; 2], updates: Option<[Tensor; 2]>) -> Tensor {
    let Some(updates) = updates.filter(|_| y.error().is_none()) else {
        return y;
    };
    let cells = vars.into_iter().zip(&updates);
    let assigned = assign_together(cells.filter_map(|(var, value)| Some((var?, value))));
    assigned.map_or_else(Tensor::from_error, |()| y)
}

/// Normalises by these statistics, with all operands in one dtype.
fn normalise(
    b: &mut Recorder,
    x: &Tensor,
    mean: &Tensor,
    var: &Tensor,
    affine: &PerChannel,
    eps: f64,
) -> Recorded {
    let mut tensors = vec![x, mean, var];
    tensors.extend(affine.weight.into_iter().chain(affine.bias));
    let dtype = promote::common_dtype(&tensors)?;
    let mut inputs = Vec::new();
    for t in [x, mean, var] {
        inputs.push(b.cast(t, dtype)?);
    }
    let has_affine = affine.weight.is_some() || affine.bias.is_some();
    if has_affine {
        let channels = std::slice::from_ref(&x.dims()[1]);
        for (t, default) in [(affine.weight, 1.0), (affine.bias, 0.0)] {
            inputs.push(match t {
                Some(t) => b.cast(t, dtype)?,
                None => b.full(default, dtype, channels)?,
            });
        }
    }
    let eps = Scalar::Float(eps);
    let op = ops::BatchNorm {
        eps,
        affine: has_affine,
    };
    let y = b.op(op, &inputs)?;
    b.narrowed(&y, x.dtype())
}
