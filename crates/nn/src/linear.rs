//! Linear layers.

use crate::layer::{self, invalid};
use crate::print::python;
use crate::{Forward, Hooks, Module, init};
use kiln_tensor::{Int, Result, Tensor, Var, einsum, options};

options! {
    /// The options of linear and bilinear layers.
    LinearOptions () {
        /// True if there is a bias (default yes).
        bias: bool = true,
    }
}

/// `x · weightᵀ + bias` on the last dim (`torch.nn.Linear`): `[.., in_features]` to
/// `[.., out_features]`. Both start uniform within ±1/√in_features.
#[derive(Module)]
#[module(extra_repr, reset_parameters)]
pub struct Linear {
    /// `[out_features, in_features]`.
    pub weight: Var,
    /// `[out_features]`.
    pub bias: Option<Var>,
    in_features: usize,
    out_features: usize,
    hooks: Hooks,
}

impl Linear {
    /// Makes a layer with a bias.
    ///
    /// # Errors
    /// If a size is negative, or inside `compile`: make layers before.
    #[track_caller]
    pub fn new(in_features: impl Into<Int>, out_features: impl Into<Int>) -> Result<Linear> {
        Linear::with(in_features, out_features, LinearOptions::new())
    }

    /// Makes a layer.
    ///
    /// # Errors
    /// As [`Linear::new`].
    #[track_caller]
    pub fn with(
        in_features: impl Into<Int>,
        out_features: impl Into<Int>,
        options: LinearOptions,
    ) -> Result<Linear> {
        Linear::from_sizes([in_features.into(), out_features.into()], options.bias)
    }

    #[track_caller]
    pub(crate) fn from_sizes(features: [Int; 2], bias: bool) -> Result<Linear> {
        let [in_features, out_features] = layer::feature_sizes("Linear", features)?;
        let linear = Linear {
            weight: layer::filled([out_features, in_features], 0.0)?,
            bias: layer::filled_if(bias, [out_features], 0.0)?,
            in_features,
            out_features,
            hooks: Hooks::new(),
        };
        linear.reset_parameters()?;
        Ok(linear)
    }

    /// The size of the input's last dim.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// The size of the output's last dim.
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        // kaiming_uniform_ with a = √5.
        let bound = 1.0 / (self.in_features.max(1) as f64).sqrt();
        reset_within(bound, &self.weight, self.bias.as_ref())
    }

    fn extra_repr(&self) -> String {
        format!(
            "in_features={}, out_features={}, bias={}",
            self.in_features,
            self.out_features,
            python(self.bias.is_some())
        )
    }
}

impl Forward for Linear {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(x.linear_with(&self.weight, &self.bias))
    }
}

/// `x1 · weight · x2 + bias` (`torch.nn.Bilinear`): `[.., in1]` and `[.., in2]` to `[.., out]`. Both
/// start uniform within ±1/√in1.
#[derive(Module)]
#[module(extra_repr, reset_parameters)]
pub struct Bilinear {
    /// `[out, in1, in2]`.
    pub weight: Var,
    /// `[out]`.
    pub bias: Option<Var>,
    hooks: Hooks,
}

impl Bilinear {
    /// Makes a layer with a bias.
    ///
    /// # Errors
    /// If `in1_features` is 0.
    #[track_caller]
    pub fn new(in1: impl Into<Int>, in2: impl Into<Int>, out: impl Into<Int>) -> Result<Bilinear> {
        Bilinear::with(in1, in2, out, LinearOptions::new())
    }

    /// Makes a layer.
    ///
    /// # Errors
    /// As [`Bilinear::new`].
    #[track_caller]
    pub fn with(
        in1: impl Into<Int>,
        in2: impl Into<Int>,
        out: impl Into<Int>,
        options: LinearOptions,
    ) -> Result<Bilinear> {
        Bilinear::from_sizes([in1.into(), in2.into(), out.into()], options.bias)
    }

    #[track_caller]
    fn from_sizes(features: [Int; 3], bias: bool) -> Result<Bilinear> {
        let [in1, in2, out] = layer::feature_sizes("Bilinear", features)?;
        if in1 == 0 {
            let message = "in1_features must be at least 1, not 0";
            return Err(invalid("Bilinear", message));
        }
        let bilinear = Bilinear {
            weight: layer::filled([out, in1, in2], 0.0)?,
            bias: layer::filled_if(bias, [out], 0.0)?,
            hooks: Hooks::new(),
        };
        bilinear.reset_parameters()?;
        Ok(bilinear)
    }

    /// The size of the first input's last dim.
    pub fn in1_features(&self) -> usize {
        layer::shape(&self.weight)[1]
    }

    /// The size of the second input's last dim.
    pub fn in2_features(&self) -> usize {
        layer::shape(&self.weight)[2]
    }

    /// The size of the output's last dim.
    pub fn out_features(&self) -> usize {
        layer::shape(&self.weight)[0]
    }

    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        let bound = 1.0 / (self.in1_features() as f64).sqrt();
        reset_within(bound, &self.weight, self.bias.as_ref())
    }

    fn extra_repr(&self) -> String {
        format!(
            "in1_features={}, in2_features={}, out_features={}, bias={}",
            self.in1_features(),
            self.in2_features(),
            self.out_features(),
            python(self.bias.is_some())
        )
    }
}

/// Two inputs of equal leading dims.
impl Forward<(Tensor, Tensor)> for Bilinear {
    fn forward(&self, (x1, x2): (Tensor, Tensor)) -> Result<Tensor> {
        let y = einsum("...i,oij,...j->...o", &[&x1, &self.weight.get(), &x2]);
        Ok(match &self.bias {
            Some(bias) => y + bias.get(),
            None => y,
        })
    }
}

/// A layer that returns its input (`torch.nn.Identity`), to replace another layer.
#[derive(Clone, Debug, Default, Module)]
pub struct Identity {
    hooks: Hooks,
}

impl Identity {
    /// A layer that does nothing.
    pub fn new() -> Identity {
        Identity::default()
    }
}

impl Forward for Identity {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(x)
    }
}

/// Draws weight and bias uniformly within ±bound.
#[track_caller]
pub(crate) fn reset_within(bound: f64, weight: &Var, bias: Option<&Var>) -> Result<()> {
    for var in [Some(weight), bias].into_iter().flatten() {
        init::uniform_(var, -bound, bound)?;
    }
    Ok(())
}
