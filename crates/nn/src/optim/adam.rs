//! Adam and AdamW.

use super::rule::{Coefficients, Numbers, Rule, decay, decayed, fraction, not_negative};
use kiln_tensor::Tensor;

/// Adam (Kingma and Ba, 2014), `torch.optim.Adam`:
///
/// ```text
/// g ← g + weight_decay · p
/// m ← β₁ m + (1 − β₁) g
/// v ← β₂ v + (1 − β₂) g²
/// p ← p − lr / (1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + eps)      (amsgrad: the largest v so far)
/// ```
#[derive(Clone, Debug)]
pub struct Adam {
    /// Learning rate.
    pub lr: f64,
    /// β₁ and β₂.
    pub betas: (f64, f64),
    /// Keeps the divisor from zero.
    pub eps: f64,
    /// L2 penalty.
    pub weight_decay: f64,
    /// Divides by the largest second moment so far (Reddi et al., 2018).
    pub amsgrad: bool,
    /// Ascends instead.
    pub maximize: bool,
}

/// Adam with decoupled weight decay (Loshchilov and Hutter, 2017), `torch.optim.AdamW`: [`Adam`], but
/// `p ← p · (1 − lr · weight_decay)` in place of the penalty.
#[derive(Clone, Debug)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// β₁ and β₂.
    pub betas: (f64, f64),
    /// Keeps the divisor from zero.
    pub eps: f64,
    /// Decay of the parameters.
    pub weight_decay: f64,
    /// Divides by the largest second moment so far.
    pub amsgrad: bool,
    /// Ascends instead.
    pub maximize: bool,
}

impl Default for Adam {
    fn default() -> Adam {
        Adam {
            lr: 1e-3,
            betas: (0.9, 0.999),
            eps: 1e-8,
            weight_decay: 0.0,
            amsgrad: false,
            maximize: false,
        }
    }
}

impl Default for AdamW {
    fn default() -> AdamW {
        AdamW {
            lr: 1e-3,
            betas: (0.9, 0.999),
            eps: 1e-8,
            weight_decay: 1e-2,
            amsgrad: false,
            maximize: false,
        }
    }
}

impl AdamW {
    fn adam(&self) -> Adam {
        let AdamW {
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            maximize,
        } = *self;
        Adam {
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            maximize,
        }
    }
}

impl Rule for Adam {
    fn name(&self) -> &'static str {
        "Adam"
    }

    fn numbers(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("lr", self.lr),
            ("beta1", self.betas.0),
            ("beta2", self.betas.1),
            ("eps", self.eps),
            ("weight_decay", self.weight_decay),
        ]
    }

    fn flags(&self) -> Vec<(&'static str, bool)> {
        vec![("amsgrad", self.amsgrad), ("maximize", self.maximize)]
    }

    fn check(&self, value: &dyn Fn(&str) -> f64) -> Result<(), String> {
        for name in ["beta1", "beta2"] {
            fraction(name, value(name))?;
        }
        let mut others = ["lr", "eps", "weight_decay"].into_iter();
        others.try_for_each(|name| not_negative(name, value(name)))
    }

    fn moments(&self) -> Vec<(&'static str, f64)> {
        let largest = self.amsgrad.then_some(("max_exp_avg_sq", 0.0));
        [("exp_avg", 0.0), ("exp_avg_sq", 0.0)]
            .into_iter()
            .chain(largest)
            .collect()
    }

    fn coefficients(&self, numbers: &Numbers, step: &Tensor) -> Vec<Tensor> {
        let mut all = decay(numbers);
        all.extend(step_coefficients(numbers, step));
        all
    }

    fn repeats(&self) -> bool {
        true
    }

    fn update(
        &self,
        numbers: &Numbers,
        mut coefficients: Coefficients,
        p: &Tensor,
        gradient: &Tensor,
        moments: &mut [Tensor],
    ) -> Tensor {
        let g = decayed(numbers, self.maximize, &mut coefficients, p, gradient);
        adam_step(coefficients, p, &g, moments)
    }
}

impl Rule for AdamW {
    fn name(&self) -> &'static str {
        "AdamW"
    }

    fn numbers(&self) -> Vec<(&'static str, f64)> {
        self.adam().numbers()
    }

    fn flags(&self) -> Vec<(&'static str, bool)> {
        self.adam().flags()
    }

    fn check(&self, value: &dyn Fn(&str) -> f64) -> Result<(), String> {
        self.adam().check(value)
    }

    fn moments(&self) -> Vec<(&'static str, f64)> {
        self.adam().moments()
    }

    fn coefficients(&self, numbers: &Numbers, step: &Tensor) -> Vec<Tensor> {
        let kept = 1.0 - numbers.get("lr") * numbers.get("weight_decay");
        let mut all = vec![kept];
        all.extend(step_coefficients(numbers, step));
        all
    }

    fn repeats(&self) -> bool {
        true
    }

    fn update(
        &self,
        numbers: &Numbers,
        mut coefficients: Coefficients,
        p: &Tensor,
        gradient: &Tensor,
        moments: &mut [Tensor],
    ) -> Tensor {
        let [kept] = coefficients.take();
        let p = match numbers.uses("weight_decay") {
            true => p * kept,
            false => p.clone(),
        };
        let g = match self.maximize {
            true => gradient.neg(),
            false => gradient.clone(),
        };
        adam_step(coefficients, &p, &g, moments)
    }
}

/// 1 − β₁, β₂, 1 − β₂, the step size, √(1 − β₂ᵗ), eps.
fn step_coefficients(numbers: &Numbers, step: &Tensor) -> [Tensor; 6] {
    let [beta1, beta2] = [numbers.get("beta1"), numbers.get("beta2")];
    let correction = |beta: &Tensor| 1.0 - beta.pow(step);
    [
        1.0 - &beta1,
        beta2.clone(),
        1.0 - &beta2,
        numbers.get("lr") / correction(&beta1),
        correction(&beta2).sqrt(),
        numbers.get("eps"),
    ]
}

fn adam_step(
    mut coefficients: Coefficients,
    p: &Tensor,
    g: &Tensor,
    moments: &mut [Tensor],
) -> Tensor {
    let [share1, beta2, share2, step_size, root_correction, eps] = coefficients.take();
    let [m, v, largest @ ..] = moments else {
        return p.clone();
    };
    *m = &*m + (g - &*m) * share1;
    *v = &*v * beta2 + g * g * share2;
    let second = match largest {
        [largest, ..] => {
            *largest = largest.maximum(&*v);
            largest.clone()
        }
        [] => v.clone(),
    };
    let divisor = second.sqrt() / root_correction + eps;
    p - &*m / divisor * step_size
}
