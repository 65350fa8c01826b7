//! Layer, RMS and group normalisation.

use super::args::{Int, IntList, check_alike, check_float, check_same_device};
use super::reduce::variance;
use crate::options::options;
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Tensor};
use kiln_base::Dim;
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, Shape, ensure};

options! {
    /// The parameters of [`Tensor::layer_norm`], [`Tensor::group_norm`] and [`Tensor::rms_norm`] besides the
    /// normalised dims.
    ///
    /// ```
    /// use kiln_tensor::{Affine, DType, Tensor, Var};
    /// let x = Tensor::randn([2, 8], DType::F32);
    /// let weight = Var::parameter(&Tensor::ones([8], DType::F32))?;
    /// let y = x.layer_norm_with(8, Affine::new().weight(&weight).eps(1e-6));
    /// assert_eq!(y.shape()?, x.layer_norm(8).shape()?);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    Affine () {
        /// The number added to the variance, or to the mean square. The default is 1e-5, for an RMS norm the dtype's
        /// machine epsilon.
        eps: Option<f64> = None,
        ;
        /// The factor of the result, of the normalised shape; for a group norm one for each channel.
        weight,
        /// The bias of the result, of the weight's shape. An RMS norm has none.
        bias,
    }
}

impl Affine {
    fn parts(&self) -> (Option<&Tensor>, Option<&Tensor>, f64) {
        let eps = self.eps.unwrap_or(1e-5);
        (self.weight.as_ref(), self.bias.as_ref(), eps)
    }
}

#[on_cells]
impl Tensor {
    /// Layer normalisation over the last dims, of sizes `normalized_shape` (Ba et al., 2016). An f16 or bf16 input
    /// may have parameters of f32.
    pub fn layer_norm(&self, normalized_shape: impl Into<IntList>) -> Tensor {
        self.layer_norm_with(normalized_shape, Affine::new())
    }

    /// [`Tensor::layer_norm`] with a weight, a bias or another eps.
    #[autocast(options)]
    pub fn layer_norm_with(&self, normalized_shape: impl Into<IntList>, options: Affine) -> Tensor {
        let (weight, bias, eps) = options.parts();
        let mut operands = vec![self];
        operands.extend(weight.into_iter().chain(bias));
        compose("layer_norm", &operands, |b| {
            let axes = last_axes(
                self,
                &normalized_shape,
                &[(weight, "weight"), (bias, "bias")],
            )?;
            let x = b.widen(self)?;
            let (var, mean) = variance(b, &x, &axes, 0.0)?;
            let y = standardize(b, &x, &mean, &var, eps)?;
            let y = apply_affine(b, &y, weight, bias)?;
            b.narrowed(&y, self.dtype())
        })
    }

    /// `x / √(mean x² + eps)` over the last dims, of sizes `normalized_shape` (Zhang and Sennrich, 2019),
    /// with the dtype's machine epsilon.
    pub fn rms_norm(&self, normalized_shape: impl Into<IntList>) -> Tensor {
        self.rms_norm_with(normalized_shape, Affine::new())
    }

    /// [`Tensor::rms_norm`] with a weight or another eps.
    #[autocast(options)]
    pub fn rms_norm_with(&self, normalized_shape: impl Into<IntList>, options: Affine) -> Tensor {
        let weight = options.weight.as_ref();
        let mut operands = vec![self];
        operands.extend(weight);
        compose("rms_norm", &operands, |b| {
            ensure!(options.bias.is_none(), "takes no bias");
            let axes = last_axes(self, &normalized_shape, &[(weight, "weight")])?;
            let x = b.widen(self)?;
            let square = b.unary(Pw::Square, &x)?;
            let mean = b.mean(&square, &axes, true)?;
            let eps = options.eps.unwrap_or(epsilon(x.dtype()));
            let spread = b.with(Pw::Add, &mean, eps)?;
            let scale = b.unary(Pw::Rsqrt, &spread)?;
            let y = b.binary(Pw::Mul, &x, &scale)?;
            let y = apply_affine(b, &y, weight, None)?;
            b.narrowed(&y, self.dtype())
        })
    }

    /// Group normalisation of `[n, c, ..]` in `num_groups` groups of channels (Wu and He, 2018).
    pub fn group_norm(&self, num_groups: impl Into<Int>) -> Tensor {
        self.group_norm_with(num_groups, Affine::new())
    }

    /// [`Tensor::group_norm`] with a weight and bias of `[c]`, or another eps.
    #[autocast(options)]
    pub fn group_norm_with(&self, num_groups: impl Into<Int>, options: Affine) -> Tensor {
        let (weight, bias, eps) = options.parts();
        let mut operands = vec![self];
        operands.extend(weight.into_iter().chain(bias));
        compose("group_norm", &operands, |b| {
            check_float(self, "input")?;
            ensure!(
                self.ndim() >= 2,
                "{} has no channel dim (dim 1)",
                self.fact()
            );
            ensure!(
                num_groups > 0,
                "the number of groups must be positive, not {num_groups}"
            );
            let affine = PerChannel { weight, bias };
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
            let x = b.widen(self)?;
            let x = b.reshape(&x, &split)?;
            let axes: Vec<usize> = (2..split.len()).collect();
            let (var, mean) = variance(b, &x, &axes, 0.0)?;
            let y = standardize(b, &x, &mean, &var, eps)?;
            let y = b.reshape(&y, self.dims())?;
            let y = affine.apply(b, &y, 1)?;
            b.narrowed(&y, self.dtype())
        })
    }
}

/// Weight and bias, with one number for each channel.
pub(super) struct PerChannel<'a> {
    pub(super) weight: Option<&'a Tensor>,
    pub(super) bias: Option<&'a Tensor>,
}

impl PerChannel<'_> {
    pub(super) fn check(&self, x: &Tensor) -> Result<(), OpError> {
        for (t, what) in [(self.weight, "weight"), (self.bias, "bias")] {
            if let Some(t) = t {
                check_channels(x, t, what)?;
            }
        }
        Ok(())
    }

    /// `y · weight + bias` along an axis, in y's dtype.
    pub(super) fn apply(&self, b: &mut Recorder, y: &Tensor, axis: usize) -> Recorded {
        let stretched = |b: &mut Recorder, t: Option<&Tensor>| {
            t.map(|t| b.reshape_along(t, axis, y.ndim())).transpose()
        };
        let (weight, bias) = (stretched(b, self.weight)?, stretched(b, self.bias)?);
        apply_affine(b, y, weight.as_ref(), bias.as_ref())
    }
}

pub(super) fn check_channels(x: &Tensor, t: &Tensor, what: &str) -> Result<(), OpError> {
    check_same_device(x, "input", t, what)?;
    ensure!(
        t.ndim() == 1 && t.dims()[0] == x.dims()[1] && t.dtype().is_float(),
        "the {what} must hold one float for each of the {} channels, not {}",
        x.dims()[1],
        t.fact()
    );
    Ok(())
}

/// `y · weight + bias` in y's dtype.
fn apply_affine(
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
pub(super) fn standardize(
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

/// Returns the axes of the last dims, which must have these sizes; so must weight and bias.
fn last_axes(
    x: &Tensor,
    shape: &IntList,
    parameters: &[(Option<&Tensor>, &str)],
) -> Result<Vec<usize>, OpError> {
    check_float(x, "input")?;
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
            check_same_device(x, "input", t, what)?;
            let is_mixed = x.dtype().is_half() && t.dtype() == DType::F32;
            if !is_mixed {
                check_alike(x, "input", t, what)?;
            }
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
