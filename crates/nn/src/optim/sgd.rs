//! Stochastic gradient descent.

use super::rule::{Coefficients, Numbers, Rule, decay, decayed, not_negative};
use kiln_tensor::{Tensor, where_};

/// Stochastic gradient descent, `torch.optim.SGD`:
///
/// ```text
/// g ← g + weight_decay · p
/// b ← g in the first step, then momentum · b + (1 − dampening) · g
/// p ← p − lr · b      (nesterov: p − lr · (g + momentum · b))
/// ```
#[derive(Clone, Debug)]
pub struct Sgd {
    /// Learning rate.
    pub lr: f64,
    /// Weight of the past.
    pub momentum: f64,
    /// How much less of the gradient enters the momentum.
    pub dampening: f64,
    /// L2 penalty.
    pub weight_decay: f64,
    /// Nesterov's momentum; needs a momentum and no dampening.
    pub nesterov: bool,
    /// Ascends instead.
    pub maximize: bool,
}

impl Default for Sgd {
    fn default() -> Sgd {
        Sgd {
            lr: 1e-3,
            momentum: 0.0,
            dampening: 0.0,
            weight_decay: 0.0,
            nesterov: false,
            maximize: false,
        }
    }
}

impl Rule for Sgd {
    fn name(&self) -> &'static str {
        "SGD"
    }

    fn numbers(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("lr", self.lr),
            ("momentum", self.momentum),
            ("dampening", self.dampening),
            ("weight_decay", self.weight_decay),
        ]
    }

    fn flags(&self) -> Vec<(&'static str, bool)> {
        vec![("nesterov", self.nesterov), ("maximize", self.maximize)]
    }

    fn check(&self, value: &dyn Fn(&str) -> f64) -> Result<(), String> {
        for name in ["lr", "momentum", "weight_decay"] {
            not_negative(name, value(name))?;
        }
        match self.nesterov && (value("momentum") == 0.0 || value("dampening") != 0.0) {
            true => Err("nesterov needs a momentum and no dampening".to_string()),
            false => Ok(()),
        }
    }

    fn moments(&self) -> Vec<(&'static str, f64)> {
        let momentum = self.momentum != 0.0;
        momentum
            .then_some(("momentum_buffer", 0.0))
            .into_iter()
            .collect()
    }

    fn coefficients(&self, numbers: &Numbers, step: &Tensor) -> Vec<Tensor> {
        let mut all = decay(numbers);
        all.extend([numbers.get("momentum"), numbers.get("lr")]);
        if numbers.uses("dampening") {
            // The first momentum is the gradient itself.
            let later = 1.0 - numbers.get("dampening");
            all.push(where_(step.eq(1.0), 1.0, &later));
        }
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
        let mut g = decayed(numbers, self.maximize, &mut coefficients, p, gradient);
        let [momentum, lr] = coefficients.take();
        if let [buffer] = moments {
            let fresh = match numbers.uses("dampening") {
                true => {
                    let [share] = coefficients.take();
                    &g * share
                }
                false => g.clone(),
            };
            *buffer = &*buffer * &momentum + fresh;
            g = match self.nesterov {
                true => g + &*buffer * &momentum,
                false => buffer.clone(),
            };
        }
        p - g * lr
    }
}
