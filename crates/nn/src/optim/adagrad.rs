//! Adagrad.

use super::{Description, Rule, Scalars, Update};
use kiln_tensor::{Tensor, options};

options! {
    /// Adagrad (Duchi et al., 2011), `torch.optim.Adagrad`:
    ///
    /// ```text
    /// g ← g + weight_decay · p
    /// s ← s + g²
    /// p ← p − lr / (1 + (t − 1) · lr_decay) · g / (√s + eps)
    /// ```
    Adagrad () {
        /// Learning rate.
        lr: f64 = 1e-2,
        /// The decay of the learning rate.
        lr_decay: f64 = 0.0,
        /// L2 penalty.
        weight_decay: f64 = 0.0,
        /// The initial value of the sum of squares.
        initial_accumulator_value: f64 = 0.0,
        /// Keeps the divisor from zero.
        eps: f64 = 1e-10,
        /// Ascends instead.
        maximize: bool = false,
    }
}

impl Rule for Adagrad {
    fn describe(&self) -> Description {
        let start = ("initial_accumulator_value", self.initial_accumulator_value);
        Description::new("Adagrad")
            .number("lr", self.lr)
            .number("lr_decay", self.lr_decay)
            .number("weight_decay", self.weight_decay)
            .number(start.0, start.1)
            .number("eps", self.eps)
            .flag("maximize", self.maximize)
            .state_of("sum", start.1)
    }

    fn scalars(&self, s: &mut Scalars) {
        let slowed = (s.step() - 1.0) * s.number("lr_decay") + 1.0;
        s.set("step_size", s.number("lr") / slowed);
    }

    fn update(&self, u: &mut Update) -> Tensor {
        let g = u.gradient();
        let sum = u.state("sum") + &g * &g;
        u.set("sum", sum.clone());
        u.parameter() - g / (sum.sqrt() + u.number("eps")) * u.number("step_size")
    }
}
