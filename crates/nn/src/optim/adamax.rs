//! Adamax.

use super::adam::{correction, moments};
use super::{Description, Rule, Scalars, Update};
use kiln_tensor::{Tensor, options};

options! {
    /// Adamax, Adam with the infinity norm (Kingma and Ba, 2014), `torch.optim.Adamax`:
    ///
    /// ```text
    /// g ← g + weight_decay · p
    /// m ← β₁ m + (1 − β₁) g
    /// u ← max(β₂ u, |g| + eps)
    /// p ← p − lr / (1 − β₁ᵗ) · m / u
    /// ```
    Adamax () {
        /// Learning rate.
        lr: f64 = 2e-3,
        /// β₁ and β₂.
        betas: (f64, f64) = (0.9, 0.999),
        /// Keeps the divisor from zero.
        eps: f64 = 1e-8,
        /// L2 penalty.
        weight_decay: f64 = 0.0,
        /// Ascends instead.
        maximize: bool = false,
    }
}

impl Rule for Adamax {
    fn describe(&self) -> Description {
        Description::new("Adamax")
            .number("lr", self.lr)
            .fractions(["beta1", "beta2"], self.betas)
            .number("eps", self.eps)
            .number("weight_decay", self.weight_decay)
            .flag("maximize", self.maximize)
            .state("exp_avg")
            .state("exp_inf")
    }

    fn scalars(&self, s: &mut Scalars) {
        moments(s);
        s.set("step_size", s.number("lr") / correction(s, "beta1"));
    }

    fn update(&self, u: &mut Update) -> Tensor {
        let (g, m) = (u.gradient(), u.state("exp_avg"));
        let m = &m + (&g - &m) * u.number("1 - beta1");
        let largest = u.state("exp_inf") * u.number("beta2");
        let largest = largest.maximum(g.abs() + u.number("eps"));
        u.set("exp_avg", m.clone());
        u.set("exp_inf", largest.clone());
        u.parameter() - m / largest * u.number("step_size")
    }
}
