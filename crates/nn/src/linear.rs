//! Linear layers.

use crate::layer::{self, invalid, run};
use crate::print::python;
use crate::{Forward, Module, init};
use kiln_tensor::{Int, Result, Tensor, Var, einsum};

/// `x · weightᵀ + bias` on the last dim (`torch.nn.Linear`): `[.., in_features]` to
/// `[.., out_features]`. Both start uniform within ±1/√in_features.
#[derive(Module)]
#[module(extra_repr, reset_parameters)]
pub struct Linear {
    /// `[out_features, in_features]`.
    pub weight: Var,
    /// `[out_features]`.
    pub bias: Option<Var>,
    /// The size of the input's last dim.
    pub in_features: usize,
    /// The size of the output's last dim.
    pub out_features: usize,
}

impl Linear {
    /// A layer with a bias.
    ///
    /// # Errors
    /// Inside `compile`: make layers before.
    #[track_caller]
    pub fn new(in_features: impl Into<Int>, out_features: impl Into<Int>) -> Result<Linear> {
        let [in_features, out_features] =
            layer::sizes("Linear", [in_features.into(), out_features.into()])?;
        let linear = Linear {
            weight: layer::constant([out_features, in_features], 0.0)?,
            bias: Some(layer::constant([out_features], 0.0)?),
            in_features,
            out_features,
        };
        linear.reset_parameters()?;
        Ok(linear)
    }

    /// The layer with or without its bias.
    pub fn bias(mut self, bias: bool) -> Linear {
        self.bias = self.bias.filter(|_| bias);
        self
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
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        run(self, &[x], || {
            let bias = self.bias.as_ref().map(Var::get);
            x.linear(self.weight.get(), bias.as_ref())
        })
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
}

impl Bilinear {
    /// A layer with a bias.
    ///
    /// # Errors
    /// If `in1_features` is 0.
    #[track_caller]
    pub fn new(
        in1_features: impl Into<Int>,
        in2_features: impl Into<Int>,
        out_features: impl Into<Int>,
    ) -> Result<Bilinear> {
        let features = [
            in1_features.into(),
            in2_features.into(),
            out_features.into(),
        ];
        let [in1_features, in2_features, out_features] = layer::sizes("Bilinear", features)?;
        if in1_features == 0 {
            return Err(invalid(
                "Bilinear",
                "in1_features must be at least 1, not 0",
            ));
        }
        let bilinear = Bilinear {
            weight: layer::constant([out_features, in1_features, in2_features], 0.0)?,
            bias: Some(layer::constant([out_features], 0.0)?),
        };
        bilinear.reset_parameters()?;
        Ok(bilinear)
    }

    /// The layer with or without its bias.
    pub fn bias(mut self, bias: bool) -> Bilinear {
        self.bias = self.bias.filter(|_| bias);
        self
    }

    /// The result for two inputs of equal leading dims.
    #[track_caller]
    pub fn forward(&self, x1: &Tensor, x2: &Tensor) -> Tensor {
        run(self, &[x1, x2], || {
            let y = einsum("...i,oij,...j->...o", &[x1, &self.weight.get(), x2]);
            match &self.bias {
                Some(bias) => &y + &bias.get(),
                None => y,
            }
        })
    }

    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        let bound = 1.0 / (self.weight.shape()[1] as f64).sqrt();
        reset_within(bound, &self.weight, self.bias.as_ref())
    }

    fn extra_repr(&self) -> String {
        let shape = self.weight.shape();
        format!(
            "in1_features={}, in2_features={}, out_features={}, bias={}",
            shape[1],
            shape[2],
            shape[0],
            python(self.bias.is_some())
        )
    }
}

/// What it is given (`torch.nn.Identity`): a layer that takes another one's place.
#[derive(Default, Module)]
pub struct Identity;

impl Identity {
    /// A layer that does nothing.
    pub fn new() -> Identity {
        Identity
    }
}

impl Forward for Identity {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.clone()
    }
}

/// Weight and bias uniform within ±bound.
#[track_caller]
pub(crate) fn reset_within(bound: f64, weight: &Var, bias: Option<&Var>) -> Result<()> {
    for var in [Some(weight), bias].into_iter().flatten() {
        init::uniform_(var, -bound, bound)?;
    }
    Ok(())
}
