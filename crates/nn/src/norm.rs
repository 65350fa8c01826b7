//! Normalisation without running statistics.

use crate::layer::{self, fact, input_error, invalid};
use crate::print::{float, optional, python, sizes};
use crate::{Forward, Hooks, Module, init};
use kiln_tensor::{Affine, Int, IntList, Result, Tensor, Var, options};

options! {
    /// The options of a layer norm, an RMS norm or a group norm.
    Norm () {
        /// The term added to the variance, or to the mean square. The default is 1e-5, and for an RMS norm the dtype's
        /// machine epsilon.
        eps: Option<f64> = None,
        /// True if there are weight and bias (default yes): PyTorch's `elementwise_affine`, or `affine`.
        affine: bool = true,
        /// True if there is a bias besides a weight (default yes). An RMS norm has none.
        bias: bool = true,
    }
}

/// Returns the shape of the last dims that a norm is over: at least one dim.
#[track_caller]
fn last_dims(layer: &str, shape: impl Into<IntList>) -> Result<Vec<usize>> {
    let shape = shape.into();
    if shape.0.is_empty() || shape.0.iter().any(|d| *d < 0) {
        let message = format!("the normalized shape can't be {:?}", shape.0);
        return Err(invalid(layer, message));
    }
    Ok(shape.0.iter().map(|d| *d as usize).collect())
}

/// The constructors of norms over the last dims, given the fields that they don't share.
macro_rules! over_last_dims {
    ($name:ident, $eps:literal, |$options:ident, $shape:ident| $($field:ident: $value:expr),+) => {
        #[doc = concat!("Makes a layer that normalises over the last dims, of these sizes, with an eps of ", $eps, ".")]
        ///
        /// # Errors
        /// If the shape has no dims.
        #[track_caller]
        pub fn new(normalized_shape: impl Into<IntList>) -> Result<$name> {
            $name::with(normalized_shape, Norm::new())
        }

        /// Makes a layer that normalises over the last dims, of these sizes.
        ///
        /// # Errors
        /// As [`Self::new`].
        #[track_caller]
        pub fn with(normalized_shape: impl Into<IntList>, $options: Norm) -> Result<$name> {
            let $shape = last_dims(stringify!($name), normalized_shape)?;
            Ok($name {
                weight: layer::filled_if($options.affine, &$shape, 1.0)?,
                $($field: $value,)+
                normalized_shape: $shape,
                hooks: Hooks::new(),
            })
        }

        /// The sizes of the last dims.
        pub fn normalized_shape(&self) -> &[usize] {
            &self.normalized_shape
        }
    };
}

/// Normalisation over the last dims (`torch.nn.LayerNorm`), then `· weight + bias`, which start at 1
/// and 0.
#[derive(Module)]
#[module(extra_repr, reset_parameters)]
pub struct LayerNorm {
    /// `normalized_shape`.
    pub weight: Option<Var>,
    /// `normalized_shape`.
    pub bias: Option<Var>,
    normalized_shape: Vec<usize>,
    eps: f64,
    hooks: Hooks,
}

impl LayerNorm {
    over_last_dims!(LayerNorm, "1e-5", |options, shape|
        bias: layer::filled_if(options.affine && options.bias, &shape, 0.0)?, eps: options.eps.unwrap_or(1e-5));

    /// Returns the term added to the variance.
    pub fn eps(&self) -> f64 {
        self.eps
    }

    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        reset_affine(self.weight.as_ref(), self.bias.as_ref())
    }

    fn extra_repr(&self) -> String {
        format!(
            "{}, eps={}, elementwise_affine={}",
            sizes(&self.normalized_shape, self.normalized_shape.len()),
            float(self.eps),
            python(self.weight.is_some())
        )
    }
}

impl Forward for LayerNorm {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let options = Affine::new().weight(&self.weight).bias(&self.bias);
        Ok(x.layer_norm_with(&self.normalized_shape, options.eps(self.eps)))
    }
}

/// Division by the root mean square of the last dims (`torch.nn.RMSNorm`), then `· weight`, which
/// starts at 1.
#[derive(Module)]
#[module(extra_repr, reset_parameters)]
pub struct RMSNorm {
    /// `normalized_shape`.
    pub weight: Option<Var>,
    normalized_shape: Vec<usize>,
    #[skip]
    eps: Option<f64>,
    hooks: Hooks,
}

impl RMSNorm {
    over_last_dims!(RMSNorm, "the dtype's machine epsilon", |options, shape| eps: options.eps);

    /// Returns the term added to the mean square; `None` stands for the dtype's machine epsilon.
    pub fn eps(&self) -> Option<f64> {
        self.eps
    }

    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        reset_affine(self.weight.as_ref(), None)
    }

    fn extra_repr(&self) -> String {
        format!(
            "{}, eps={}, elementwise_affine={}",
            sizes(&self.normalized_shape, self.normalized_shape.len()),
            optional(self.eps),
            python(self.weight.is_some())
        )
    }
}

impl Forward for RMSNorm {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let options = Affine::new().weight(&self.weight).eps(self.eps);
        Ok(x.rms_norm_with(&self.normalized_shape, options))
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
    hooks: Hooks,
}

impl GroupNorm {
    /// Makes a layer with an eps of 1e-5.
    ///
    /// # Errors
    /// If the channels do not divide into the groups.
    #[track_caller]
    pub fn new(num_groups: impl Into<Int>, num_channels: impl Into<Int>) -> Result<GroupNorm> {
        GroupNorm::with(num_groups, num_channels, Norm::new())
    }

    /// Makes a layer of `num_groups` groups, with `num_channels` channels in all.
    ///
    /// # Errors
    /// As [`GroupNorm::new`].
    #[track_caller]
    pub fn with(
        num_groups: impl Into<Int>,
        num_channels: impl Into<Int>,
        options: Norm,
    ) -> Result<GroupNorm> {
        let sizes = [num_groups.into(), num_channels.into()];
        let [num_groups, num_channels] = layer::feature_sizes("GroupNorm", sizes)?;
        if num_groups == 0 || !num_channels.is_multiple_of(num_groups) {
            let message = format!("{num_channels} channels do not divide into {num_groups} groups");
            return Err(invalid("GroupNorm", message));
        }
        Ok(GroupNorm {
            weight: layer::filled_if(options.affine, [num_channels], 1.0)?,
            bias: layer::filled_if(options.affine && options.bias, [num_channels], 0.0)?,
            num_groups,
            num_channels,
            eps: options.eps.unwrap_or(1e-5),
            hooks: Hooks::new(),
        })
    }

    /// Returns the term added to the variance.
    pub fn eps(&self) -> f64 {
        self.eps
    }

    /// Returns the number of groups into which the channels are split.
    pub fn num_groups(&self) -> usize {
        self.num_groups
    }

    /// Returns the number of channels.
    pub fn num_channels(&self) -> usize {
        self.num_channels
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
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let channels = self.num_channels;
        if x.ndim() >= 2 && !x.dims()[1].is(channels as i64) {
            return input_error(
                self,
                format!("expects {channels} channels, not {}", fact(&x)),
            );
        }
        let options = Affine::new().weight(&self.weight).bias(&self.bias);
        Ok(x.group_norm_with(self.num_groups, options.eps(self.eps)))
    }
}

/// Sets weights to 1 and biases to 0.
#[track_caller]
pub(crate) fn reset_affine(weight: Option<&Var>, bias: Option<&Var>) -> Result<()> {
    for (var, value) in [(weight, 1.0), (bias, 0.0)] {
        if let Some(var) = var {
            init::constant_(var, value)?;
        }
    }
    Ok(())
}
