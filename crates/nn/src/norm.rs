//! Normalisation without running statistics.

use crate::layer::{self, invalid, run};
use crate::print::{float, optional, python, sizes};
use crate::{Forward, Module, init};
use kiln_tensor::{Int, IntList, Result, Tensor, Var};

/// The shape that a norm is over, which may not be empty.
#[track_caller]
fn normalized(layer: &str, shape: impl Into<IntList>) -> Result<(IntList, Vec<usize>)> {
    let shape = shape.into();
    if shape.0.is_empty() || shape.0.iter().any(|d| *d < 0) {
        let message = format!("the normalized shape can't be {:?}", shape.0);
        return Err(invalid(layer, message));
    }
    let sizes = shape.0.iter().map(|d| *d as usize).collect();
    Ok((shape, sizes))
}

/// Normalisation over the last dims (`torch.nn.LayerNorm`), then `· weight + bias`, which start at 1
/// and 0.
#[derive(Module)]
#[module(extra_repr, reset_parameters)]
pub struct LayerNorm {
    /// The sizes of the last dims.
    pub normalized_shape: IntList,
    /// `normalized_shape`.
    pub weight: Option<Var>,
    /// `normalized_shape`.
    pub bias: Option<Var>,
    eps: f64,
}

impl LayerNorm {
    /// A layer over the last dims, of these sizes, with an eps of 1e-5.
    ///
    /// # Errors
    /// If the shape has no dims.
    #[track_caller]
    pub fn new(normalized_shape: impl Into<IntList>) -> Result<LayerNorm> {
        let (normalized_shape, sizes) = normalized("LayerNorm", normalized_shape)?;
        Ok(LayerNorm {
            normalized_shape,
            weight: Some(layer::constant(&sizes, 1.0)?),
            bias: Some(layer::constant(&sizes, 0.0)?),
            eps: 1e-5,
        })
    }

    /// The layer with this number added to the variance (default 1e-5).
    pub fn eps(mut self, eps: f64) -> LayerNorm {
        self.eps = eps;
        self
    }

    /// The layer with or without weight and bias (default with).
    pub fn elementwise_affine(mut self, affine: bool) -> LayerNorm {
        self.weight = self.weight.filter(|_| affine);
        self.bias(affine)
    }

    /// The layer with or without its bias (default with).
    pub fn bias(mut self, bias: bool) -> LayerNorm {
        self.bias = self.bias.filter(|_| bias);
        self
    }

    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        reset_affine(self.weight.as_ref(), self.bias.as_ref())
    }

    fn extra_repr(&self) -> String {
        let (shape, affine) = (&self.normalized_shape.0, self.weight.is_some());
        format!(
            "{}, eps={}, elementwise_affine={}",
            sizes(shape, shape.len()),
            float(self.eps),
            python(affine)
        )
    }
}

impl Forward for LayerNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        run(self, &[x], || {
            let (weight, bias) = values(&self.weight, &self.bias);
            let shape = self.normalized_shape.clone();
            x.layer_norm(shape, weight.as_ref(), bias.as_ref(), self.eps)
        })
    }
}

/// Division by the root mean square of the last dims (`torch.nn.RMSNorm`), then `· weight`, which
/// starts at 1.
#[derive(Module)]
#[module(extra_repr, reset_parameters)]
pub struct RMSNorm {
    /// The sizes of the last dims.
    pub normalized_shape: IntList,
    /// `normalized_shape`.
    pub weight: Option<Var>,
    eps: Option<f64>,
}

impl RMSNorm {
    /// A layer over the last dims, of these sizes.
    ///
    /// # Errors
    /// If the shape has no dims.
    #[track_caller]
    pub fn new(normalized_shape: impl Into<IntList>) -> Result<RMSNorm> {
        let (normalized_shape, sizes) = normalized("RMSNorm", normalized_shape)?;
        Ok(RMSNorm {
            normalized_shape,
            weight: Some(layer::constant(&sizes, 1.0)?),
            eps: None,
        })
    }

    /// The layer with this number added to the mean square (default: the dtype's machine epsilon).
    pub fn eps(mut self, eps: impl Into<Option<f64>>) -> RMSNorm {
        self.eps = eps.into();
        self
    }

    /// The layer with or without its weight (default with).
    pub fn elementwise_affine(mut self, affine: bool) -> RMSNorm {
        self.weight = self.weight.filter(|_| affine);
        self
    }

    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        reset_affine(self.weight.as_ref(), None)
    }

    fn extra_repr(&self) -> String {
        let (shape, affine) = (&self.normalized_shape.0, self.weight.is_some());
        format!(
            "{}, eps={}, elementwise_affine={}",
            sizes(shape, shape.len()),
            optional(self.eps),
            python(affine)
        )
    }
}

impl Forward for RMSNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        run(self, &[x], || {
            let weight = self.weight.as_ref().map(Var::get);
            x.rms_norm(self.normalized_shape.clone(), weight.as_ref(), self.eps)
        })
    }
}

/// Normalisation of `[n, c, ..]` in groups of channels (`torch.nn.GroupNorm`), then
/// `· weight + bias` by channel, which start at 1 and 0.
#[derive(Module)]
#[module(extra_repr, reset_parameters)]
pub struct GroupNorm {
    /// `[c]`.
    pub weight: Option<Var>,
    /// `[c]`.
    pub bias: Option<Var>,
    num_groups: usize,
    num_channels: usize,
    eps: f64,
}

impl GroupNorm {
    /// A layer with an eps of 1e-5.
    ///
    /// # Errors
    /// If the channels do not divide into the groups.
    #[track_caller]
    pub fn new(num_groups: impl Into<Int>, num_channels: impl Into<Int>) -> Result<GroupNorm> {
        let sizes = [num_groups.into(), num_channels.into()];
        let [num_groups, num_channels] = layer::sizes("GroupNorm", sizes)?;
        if num_groups == 0 || !num_channels.is_multiple_of(num_groups) {
            let message = format!("{num_channels} channels do not divide into {num_groups} groups");
            return Err(invalid("GroupNorm", message));
        }
        Ok(GroupNorm {
            weight: Some(layer::constant([num_channels], 1.0)?),
            bias: Some(layer::constant([num_channels], 0.0)?),
            num_groups,
            num_channels,
            eps: 1e-5,
        })
    }

    /// The layer with this number added to the variance (default 1e-5).
    pub fn eps(mut self, eps: f64) -> GroupNorm {
        self.eps = eps;
        self
    }

    /// The layer with or without weight and bias (default with).
    pub fn affine(mut self, affine: bool) -> GroupNorm {
        self.weight = self.weight.filter(|_| affine);
        self.bias = self.bias.filter(|_| affine);
        self
    }

    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        reset_affine(self.weight.as_ref(), self.bias.as_ref())
    }

    fn extra_repr(&self) -> String {
        format!(
            "{}, {}, eps={}, affine={}",
            self.num_groups,
            self.num_channels,
            float(self.eps),
            python(self.weight.is_some())
        )
    }
}

impl Forward for GroupNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        run(self, &[x], || {
            if x.ndim() >= 2 && !x.dims()[1].is(self.num_channels as i64) {
                let message = format!(
                    "expects {} channels, not {}",
                    self.num_channels,
                    layer::fact(x)
                );
                return layer::wrong(self, message);
            }
            let (weight, bias) = values(&self.weight, &self.bias);
            x.group_norm(
                self.num_groups as i64,
                weight.as_ref(),
                bias.as_ref(),
                self.eps,
            )
        })
    }
}

/// What weight and bias hold.
pub(crate) fn values(weight: &Option<Var>, bias: &Option<Var>) -> (Option<Tensor>, Option<Tensor>) {
    (weight.as_ref().map(Var::get), bias.as_ref().map(Var::get))
}

/// Weight 1 and bias 0.
#[track_caller]
pub(crate) fn reset_affine(weight: Option<&Var>, bias: Option<&Var>) -> Result<()> {
    for (var, value) in [(weight, 1.0), (bias, 0.0)] {
        if let Some(var) = var {
            init::constant_(var, value)?;
        }
    }
    Ok(())
}
