//! NAdam.

use super::adam::{averages, correction, moments};
use super::{Description, Rule, Scalars, Update};
use kiln_tensor::{Tensor, options};

options! {
    /// NAdam, Adam with Nesterov's momentum (Dozat, 2016), `torch.optim.NAdam`. Beside `m` and `v` of
    /// [`Adam`](super::Adam):
    ///
    /// ```text
    /// μₜ ← β₁ (1 − 0.96^(t · momentum_decay) / 2)
    /// Π ← Π μₜ
    /// p ← p − lr · ((1 − μₜ) / (1 − Π) · g + μₜ₊₁ / (1 − Π μₜ₊₁) · m) / (√(v / (1 − β₂ᵗ)) + eps)
    /// ```
    NAdam () {
        /// Learning rate.
        lr: f64 = 2e-3,
        /// β₁ and β₂.
        betas: (f64, f64) = (0.9, 0.999),
        /// Keeps the divisor from zero.
        eps: f64 = 1e-8,
        /// L2 penalty, or decoupled weight decay.
        weight_decay: f64 = 0.0,
        /// The rate at which the momentum rises.
        momentum_decay: f64 = 4e-3,
        /// True if `weight_decay` is decoupled.
        decoupled_weight_decay: bool = false,
        /// Ascends instead.
        maximize: bool = false,
    }
}

impl Rule for NAdam {
    fn describe(&self) -> Description {
        Description::new("NAdam")
            .number("lr", self.lr)
            .fractions(["beta1", "beta2"], self.betas)
            .number("eps", self.eps)
            .number("weight_decay", self.weight_decay)
            .number("momentum_decay", self.momentum_decay)
            .flag("decoupled_weight_decay", self.decoupled_weight_decay)
            .flag("maximize", self.maximize)
            .decoupled(self.decoupled_weight_decay)
            .state("exp_avg")
            .state("exp_avg_sq")
            .count("mu_product", 1.0)
    }

    fn scalars(&self, s: &mut Scalars) {
        moments(s);
        let mu = |step: Tensor| {
            let fallen = (step * s.number("momentum_decay") * 0.96f64.ln()).exp();
            s.number("beta1") * (1.0 - fallen * 0.5)
        };
        let (mu, next) = (mu(s.step()), mu(s.step() + 1.0));
        let (lr, product) = (s.number("lr"), s.number("mu_product") * &mu);
        s.set("of_g", &lr * (1.0 - mu) / (1.0 - &product));
        s.set("of_m", lr * &next / (1.0 - &product * &next));
        s.set("mu_product", product);
        s.set("root_correction", correction(s, "beta2").sqrt());
    }

    fn update(&self, u: &mut Update) -> Tensor {
        let (m, v) = averages(u);
        let direction = u.gradient() * u.number("of_g") + m * u.number("of_m");
        u.parameter() - direction / (v.sqrt() / u.number("root_correction") + u.number("eps"))
    }
}
