//! RAdam.

use super::adam::{averages, correction, moments};
use super::{Description, Rule, Scalars, Update};
use kiln_tensor::{Tensor, options, where_};

options! {
    /// RAdam, Adam with a rectified rate (Liu et al., 2019), `torch.optim.RAdam`. Beside `m` and `v` of
    /// [`Adam`](super::Adam):
    ///
    /// ```text
    /// ρ∞ = 2 / (1 − β₂) − 1,    ρ = ρ∞ − 2 t β₂ᵗ / (1 − β₂ᵗ)
    /// r = √((ρ − 4) (ρ − 2) ρ∞ / ((ρ∞ − 4) (ρ∞ − 2) ρ))
    /// p ← p − lr / (1 − β₁ᵗ) · m · (r √(1 − β₂ᵗ) / (√v + eps) if ρ > 5, else 1)
    /// ```
    RAdam () {
        /// Learning rate.
        lr: f64 = 1e-3,
        /// β₁ and β₂.
        betas: (f64, f64) = (0.9, 0.999),
        /// Keeps the divisor from zero.
        eps: f64 = 1e-8,
        /// L2 penalty, or decoupled weight decay.
        weight_decay: f64 = 0.0,
        /// True if `weight_decay` is decoupled.
        decoupled_weight_decay: bool = false,
        /// Ascends instead.
        maximize: bool = false,
    }
}

impl Rule for RAdam {
    fn describe(&self) -> Description {
        Description::new("RAdam")
            .number("lr", self.lr)
            .fractions(["beta1", "beta2"], self.betas)
            .number("eps", self.eps)
            .number("weight_decay", self.weight_decay)
            .flag("decoupled_weight_decay", self.decoupled_weight_decay)
            .flag("maximize", self.maximize)
            .decoupled(self.decoupled_weight_decay)
            .state("exp_avg")
            .state("exp_avg_sq")
    }

    fn scalars(&self, s: &mut Scalars) {
        moments(s);
        let (beta2, left) = (s.number("beta2"), correction(s, "beta2"));
        let limit = 2.0 / (1.0 - &beta2) - 1.0;
        let length = &limit - s.step() * 2.0 * beta2.pow(s.step()) / &left;
        let rising = (&length - 4.0) * (&length - 2.0) * &limit;
        let rectified = (rising / ((&limit - 4.0) * (&limit - 2.0) * &length) * left).sqrt();
        s.set("rectified", where_(length.gt(5.0), rectified, 0.0));
        s.set("step_size", s.number("lr") / correction(s, "beta1"));
    }

    fn update(&self, u: &mut Update) -> Tensor {
        let (m, v) = averages(u);
        let rectified = u.number("rectified");
        let adapted = &rectified / (v.sqrt() + u.number("eps"));
        let factor = where_(rectified.gt(0.0), adapted, 1.0);
        u.parameter() - m * factor * u.number("step_size")
    }
}
