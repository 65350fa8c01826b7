//! Adagrad.

use super::rule::{Coefficients, Numbers, Rule, decay, decayed, not_negative};
use kiln_tensor::Tensor;

/// Adagrad (Duchi et al., 2011), `torch.optim.Adagrad`:
///
/// ```text
/// g ← g + weight_decay · p
/// s ← s + g²
/// p ← p − lr / (1 + (t − 1) · lr_decay) · g / (√s + eps)
/// ```
#[derive(Clone, Debug)]
pub struct Adagrad {
    /// Learning rate.
    pub lr: f64,
    /// How fast the learning rate falls.
    pub lr_decay: f64,
    /// L2 penalty.
    pub weight_decay: f64,
    /// What the sum of squares starts from.
    pub initial_accumulator_value: f64,
    /// Keeps the divisor from zero.
    pub eps: f64,
    /// Ascends instead.
    pub maximize: bool,
}

impl Default for Adagrad {
    fn default() -> Adagrad {
        Adagrad {
            lr: 1e-2,
            lr_decay: 0.0,
            weight_decay: 0.0,
            initial_accumulator_value: 0.0,
            eps: 1e-10,
            maximize: false,
        }
    }
}

impl Rule for Adagrad {
    fn name(&self) -> &'static str {
        "Adagrad"
    }

    fn numbers(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("lr", self.lr),
            ("lr_decay", self.lr_decay),
            ("weight_decay", self.weight_decay),
            ("initial_accumulator_value", self.initial_accumulator_value),
            ("eps", self.eps),
        ]
    }

    fn flags(&self) -> Vec<(&'static str, bool)> {
        vec![("maximize", self.maximize)]
    }

    fn check(&self, value: &dyn Fn(&str) -> f64) -> Result<(), String> {
        let mut numbers = self.numbers().into_iter();
        numbers.try_for_each(|(name, _)| not_negative(name, value(name)))
    }

    fn moments(&self) -> Vec<(&'static str, f64)> {
        vec![("sum", self.initial_accumulator_value)]
    }

    fn coefficients(&self, numbers: &Numbers, step: &Tensor) -> Vec<Tensor> {
        let mut all = decay(numbers);
        let slowed = (step - 1.0) * numbers.get("lr_decay") + 1.0;
        all.extend([numbers.get("eps"), numbers.get("lr") / slowed]);
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
        let [eps, step_size] = coefficients.take();
        let [sum] = moments else {
            return p.clone();
        };
        *sum = &*sum + &g * &g;
        p - g / (sum.sqrt() + eps) * step_size
    }
}
