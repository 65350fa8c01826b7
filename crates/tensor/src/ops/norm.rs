//! Normalisation.

use super::args::{Int, IntList, needs_float, same_dtype};
use super::reduce::variance;
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Scalar, Tensor, Var, assign_together, promote};
use kiln_base::Dim;
use kiln_ir::{Builder, OpError, Pw, Shape, ensure, ops};

impl Tensor {
    /// Batch normalisation of `[n, c, ..]` over everything but the channels (Ioffe and Szegedy, 2015):
    /// `(x − mean) / √(variance + eps) · weight + bias`, statistics and parameters of `[c]`.
    ///
    /// With `training`, or without running statistics, mean and variance are those of the batch.
    /// `training` with running statistics assigns them `(1 − momentum) · old + momentum · batch`, where
    /// the variance is the unbiased one. Otherwise the running statistics normalise.
    #[track_caller]
    #[allow(clippy::too_many_arguments)] // PyTorch's signature
    pub fn batch_norm(
        &self,
        running_mean: Option<&Var>,
        running_var: Option<&Var>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        training: bool,
        momentum: f64,
        eps: f64,
    ) -> Tensor {
        let running = (running_mean.map(Var::get), running_var.map(Var::get));
        let mut operands = vec![self];
        operands.extend([&running.0, &running.1].into_iter().flatten());
        operands.extend(weight.into_iter().chain(bias));
        let mut updates = None;
        let y = compose("batch_norm", &operands, |b| {
            needs_float(self, "input")?;
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
            let given = match &running {
                (Some(mean), Some(var)) => Some((mean.clone(), var.clone())),
                (None, None) => None,
                _ => return Err(OpError::new("needs both running statistics or neither")),
            };
            let affine = Affine { weight, bias };
            affine.check(self)?;
            if let Some((mean, var)) = &given {
                check_channels(self, mean, "running mean")?;
                check_channels(self, var, "running variance")?;
            }
            match given {
                // An empty batch says nothing about the statistics.
                Some((mean, var)) if !training || is_empty => {
                    normalise(b, self, &mean, &var, &affine, eps)
                }
                given => {
                    let axes: Vec<usize> = (0..self.ndim()).filter(|a| *a != 1).collect();
                    let values: Shape = axes.iter().map(|a| self.dims()[*a].clone()).collect();
                    ensure!(
                        !training || !kiln_base::numel(&values).is(1),
                        "{} has one value a channel, whose variance is 0; needs more to train",
                        self.fact()
                    );
                    let batch = batch_statistics(b, self, &axes)?;
                    if let (Some(old), true) = (given, training) {
                        updates = Some(updated(b, &batch, old, momentum)?);
                    }
                    normalise(b, self, &batch.mean, &batch.var, &affine, eps)
                }
            }
        });
        match updates {
            Some(updates) => assigned(y, [running_mean, running_var], updates),
            None => y,
        }
    }

    /// Instance normalisation of `[n, c, ..]`: each channel of each sample by its own statistics, or
    /// with `use_input_stats` false by the running ones. Running statistics, where given and the
    /// input's are used, are updated with the mean over the batch.
    #[track_caller]
    #[allow(clippy::too_many_arguments)] // PyTorch's signature
    pub fn instance_norm(
        &self,
        running_mean: Option<&Var>,
        running_var: Option<&Var>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        use_input_stats: bool,
        momentum: f64,
        eps: f64,
    ) -> Tensor {
        if !use_input_stats {
            return self.batch_norm(
                running_mean,
                running_var,
                weight,
                bias,
                false,
                momentum,
                eps,
            );
        }
        let running = (running_mean.map(Var::get), running_var.map(Var::get));
        let mut operands = vec![self];
        operands.extend([&running.0, &running.1].into_iter().flatten());
        operands.extend(weight.into_iter().chain(bias));
        let mut updates = None;
        let y = compose("instance_norm", &operands, |b| {
            needs_float(self, "input")?;
            ensure!(
                self.ndim() >= 3,
                "{} has no dims after its channels",
                self.fact()
            );
            let affine = Affine { weight, bias };
            affine.check(self)?;
            let axes: Vec<usize> = (2..self.ndim()).collect();
            let values: Shape = self.dims()[2..].into();
            ensure!(
                !kiln_base::numel(&values).is(1),
                "{} has one value a channel, whose variance is 0",
                self.fact()
            );
            let x = b.widened(self)?;
            let (var, mean) = variance(b, &x, &axes, 0.0)?;
            let mut y = centred_and_scaled(b, &x, &mean, &var, eps)?;
            y = affine.apply(b, &y, 1)?;
            if let (Some(old_mean), Some(old_var)) = &running {
                check_channels(self, old_mean, "running mean")?;
                check_channels(self, old_var, "running variance")?;
                let over_batch = |b: &mut Recorder, t: &Tensor| {
                    let t = b.reshape(t, &self.dims()[..2])?;
                    b.mean(&t, &[0], false)
                };
                let batch = Batch {
                    mean: over_batch(b, &mean)?,
                    var: over_batch(b, &var)?,
                    count: b.count(&x, &axes, x.dtype())?,
                };
                let old = (old_mean.clone(), old_var.clone());
                updates = Some(updated(b, &batch, old, momentum)?);
            }
            b.cast(&y, self.dtype())
        });
        match updates {
            Some(updates) => assigned(y, [running_mean, running_var], updates),
            None => y,
        }
    }

    /// Layer normalisation over the last dims, of sizes `normalized_shape` (Ba et al., 2016).
    #[track_caller]
    pub fn layer_norm(
        &self,
        normalized_shape: impl Into<IntList>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Tensor {
        let shape = normalized_shape.into();
        let mut operands = vec![self];
        operands.extend(weight.into_iter().chain(bias));
        compose("layer_norm", &operands, |b| {
            let axes = last_axes(self, &shape, &[(weight, "weight"), (bias, "bias")])?;
            let x = b.widened(self)?;
            let (var, mean) = variance(b, &x, &axes, 0.0)?;
            let y = centred_and_scaled(b, &x, &mean, &var, eps)?;
            let y = weighted(b, &y, weight, bias)?;
            b.cast(&y, self.dtype())
        })
    }

    /// `x / √(mean x² + eps) · weight` over the last dims, of sizes `normalized_shape` (Zhang and
    /// Sennrich, 2019). Without an eps, the dtype's machine epsilon.
    #[track_caller]
    pub fn rms_norm(
        &self,
        normalized_shape: impl Into<IntList>,
        weight: Option<&Tensor>,
        eps: impl Into<Option<f64>>,
    ) -> Tensor {
        let (shape, eps) = (normalized_shape.into(), eps.into());
        let mut operands = vec![self];
        operands.extend(weight);
        compose("rms_norm", &operands, |b| {
            let axes = last_axes(self, &shape, &[(weight, "weight")])?;
            let x = b.widened(self)?;
            let square = b.unary(Pw::Square, &x)?;
            let mean = b.mean(&square, &axes, true)?;
            let spread = b.with(Pw::Add, &mean, eps.unwrap_or(epsilon(x.dtype())))?;
            let scale = b.unary(Pw::Rsqrt, &spread)?;
            let y = b.binary(Pw::Mul, &x, &scale)?;
            let y = weighted(b, &y, weight, None)?;
            b.cast(&y, self.dtype())
        })
    }

    /// Group normalisation of `[n, c, ..]` in `num_groups` groups of channels (Wu and He, 2018); weight
    /// and bias of `[c]`.
    #[track_caller]
    pub fn group_norm(
        &self,
        num_groups: impl Into<Int>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Tensor {
        let num_groups = num_groups.into().0;
        let mut operands = vec![self];
        operands.extend(weight.into_iter().chain(bias));
        compose("group_norm", &operands, |b| {
            needs_float(self, "input")?;
            ensure!(
                self.ndim() >= 2,
                "{} has no channel dim (dim 1)",
                self.fact()
            );
            ensure!(
                num_groups > 0,
                "the number of groups must be positive, not {num_groups}"
            );
            let affine = Affine { weight, bias };
            affine.check(self)?;
            let groups = Dim::Const(num_groups);
            let channels = self.dims()[1].div_exact(&groups).map_err(|_| {
                OpError(format!(
                    "{} channels do not divide into {num_groups} groups",
                    self.dims()[1]
                ))
            })?;
            let mut split = Shape::from(self.dims());
            split[1] = groups;
            split.insert(2, channels);
            let x = b.widened(self)?;
            let x = b.reshape(&x, &split)?;
            let axes: Vec<usize> = (2..split.len()).collect();
            let (var, mean) = variance(b, &x, &axes, 0.0)?;
            let y = centred_and_scaled(b, &x, &mean, &var, eps)?;
            let y = b.reshape(&y, self.dims())?;
            let y = affine.apply(b, &y, 1)?;
            b.cast(&y, self.dtype())
        })
    }
}

/// Weight and bias, one number a channel.
struct Affine<'a> {
    weight: Option<&'a Tensor>,
    bias: Option<&'a Tensor>,
}

impl Affine<'_> {
    fn check(&self, x: &Tensor) -> Result<(), OpError> {
        for (t, what) in [(self.weight, "weight"), (self.bias, "bias")] {
            if let Some(t) = t {
                check_channels(x, t, what)?;
            }
        }
        Ok(())
    }

    /// `y · weight + bias` along an axis, in y's dtype.
    fn apply(&self, b: &mut Recorder, y: &Tensor, axis: usize) -> Recorded {
        let stretched = |b: &mut Recorder, t: Option<&Tensor>| {
            t.map(|t| b.along(t, axis, y.ndim())).transpose()
        };
        let (weight, bias) = (stretched(b, self.weight)?, stretched(b, self.bias)?);
        weighted(b, y, weight.as_ref(), bias.as_ref())
    }
}

fn check_channels(x: &Tensor, t: &Tensor, what: &str) -> Result<(), OpError> {
    ensure!(
        t.ndim() == 1 && t.dims()[0] == x.dims()[1] && t.dtype().is_float(),
        "the {what} must hold one float for each of the {} channels, not {}",
        x.dims()[1],
        t.fact()
    );
    Ok(())
}

/// `y · weight + bias` in y's dtype.
fn weighted(
    b: &mut Recorder,
    y: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
) -> Recorded {
    let mut y = y.clone();
    for (op, t) in [(Pw::Mul, weight), (Pw::Add, bias)] {
        if let Some(t) = t {
            let t = b.cast(t, y.dtype())?;
            y = b.binary(op, &y, &t)?;
        }
    }
    Ok(y)
}

/// `(x − mean) / √(var + eps)`.
fn centred_and_scaled(
    b: &mut Recorder,
    x: &Tensor,
    mean: &Tensor,
    var: &Tensor,
    eps: f64,
) -> Recorded {
    let spread = b.with(Pw::Add, var, eps)?;
    let scale = b.unary(Pw::Rsqrt, &spread)?;
    let centred = b.binary(Pw::Sub, x, mean)?;
    b.binary(Pw::Mul, &centred, &scale)
}

/// The axes of the last dims, which must have these sizes, as must weight and bias.
fn last_axes(
    x: &Tensor,
    shape: &IntList,
    parameters: &[(Option<&Tensor>, &str)],
) -> Result<Vec<usize>, OpError> {
    needs_float(x, "input")?;
    ensure!(
        !shape.0.is_empty(),
        "the normalised shape must have at least 1 dim"
    );
    let n = shape.0.len();
    let wanted: Shape = shape.0.iter().map(|d| Dim::Const(*d)).collect();
    ensure!(
        n <= x.ndim() && x.dims()[x.ndim() - n..] == wanted[..],
        "the last dims of {} are not {:?}",
        x.fact(),
        shape.0
    );
    for (t, what) in parameters {
        if let Some(t) = t {
            same_dtype(x, "input", t, what)?;
            ensure!(
                t.dims() == &wanted[..],
                "the {what} {} must have the shape {:?}",
                t.fact(),
                shape.0
            );
        }
    }
    Ok((x.ndim() - n..x.ndim()).collect())
}

fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        _ => f32::EPSILON as f64,
    }
}

/// Statistics of a batch, one a channel, in the dtype that they are computed in.
struct Batch {
    mean: Tensor,
    /// Biased.
    var: Tensor,
    /// How many values each is made of.
    count: Tensor,
}

fn batch_statistics(b: &mut Recorder, x: &Tensor, axes: &[usize]) -> Result<Batch, OpError> {
    let x = b.widened(x)?;
    let (var, mean) = variance(b, &x, axes, 0.0)?;
    let channels = std::slice::from_ref(&x.dims()[1]);
    Ok(Batch {
        mean: b.reshape(&mean, channels)?,
        var: b.reshape(&var, channels)?,
        count: b.count(&x, axes, x.dtype())?,
    })
}

/// The next running mean and variance, in the dtypes of the old ones.
fn updated(
    b: &mut Recorder,
    batch: &Batch,
    (mean, var): (Tensor, Tensor),
    momentum: f64,
) -> Result<[Tensor; 2], OpError> {
    let freedom = b.with(Pw::Sub, &batch.count, 1.0)?;
    let correction = b.binary(Pw::Div, &batch.count, &freedom)?;
    let unbiased = b.binary(Pw::Mul, &batch.var, &correction)?;
    Ok([
        blended(b, &mean, &batch.mean, momentum)?,
        blended(b, &var, &unbiased, momentum)?,
    ])
}

/// `(1 − momentum) · old + momentum · new`.
fn blended(b: &mut Recorder, old: &Tensor, new: &Tensor, momentum: f64) -> Recorded {
    let dtype = promote::common(&[old, new])?;
    let (wide_old, new) = (b.cast(old, dtype)?, b.cast(new, dtype)?);
    let kept = b.with(Pw::Mul, &wide_old, 1.0 - momentum)?;
    let added = b.with(Pw::Mul, &new, momentum)?;
    let sum = b.binary(Pw::Add, &kept, &added)?;
    b.cast(&sum, old.dtype())
}

/// The result, once the running statistics are assigned.
#[track_caller]
fn assigned(y: Tensor, vars: [Option<&Var>; 2], updates: [Tensor; 2]) -> Tensor {
    if y.error().is_some() {
        return y;
    }
    let cells = vars.into_iter().zip(&updates);
    let given = assign_together(cells.filter_map(|(var, value)| Some((var?, value))));
    given.map_or_else(Tensor::from_error, |()| y)
}

/// Normalisation with these statistics, in one dtype for all of them.
fn normalise(
    b: &mut Recorder,
    x: &Tensor,
    mean: &Tensor,
    var: &Tensor,
    affine: &Affine,
    eps: f64,
) -> Recorded {
    let mut tensors = vec![x, mean, var];
    tensors.extend(affine.weight.into_iter().chain(affine.bias));
    let dtype = promote::common(&tensors)?;
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
    b.cast(&y, x.dtype())
}
