//! Adam and AdamW.

use super::{Description, Rule, Scalars, Update};
use kiln_tensor::{Tensor, options};

/// Adam and its variant, which differ in the meaning of `weight_decay`.
macro_rules! adam {
    ($(#[$doc:meta])* $name:ident, $weight_decay:literal, {$($field:tt)*}, $decoupled:expr) => {
        options! {
            $(#[$doc])*
            $name () {
                /// Learning rate.
                lr: f64 = 1e-3,
                /// β₁ and β₂.
                betas: (f64, f64) = (0.9, 0.999),
                /// Keeps the divisor from zero.
                eps: f64 = 1e-8,
                /// L2 penalty, or decoupled weight decay.
                weight_decay: f64 = $weight_decay,
                $($field)*
                /// Divides by the largest second moment so far (Reddi et al., 2018).
                amsgrad: bool = false,
                /// Ascends instead.
                maximize: bool = false,
            }
        }

        impl Rule for $name {
            fn describe(&self) -> Description {
                let decoupled: fn(&$name) -> bool = $decoupled;
                Description::new(stringify!($name))
                    .number("lr", self.lr)
                    .fractions(["beta1", "beta2"], self.betas)
                    .number("eps", self.eps)
                    .number("weight_decay", self.weight_decay)
                    .flag("amsgrad", self.amsgrad)
                    .flag("maximize", self.maximize)
                    .flag("decoupled_weight_decay", decoupled(self))
                    .decoupled(decoupled(self))
                    .state("exp_avg")
                    .state("exp_avg_sq")
                    .state(self.amsgrad.then_some("max_exp_avg_sq"))
            }

            fn scalars(&self, s: &mut Scalars) {
                moments(s);
                s.set("step_size", s.number("lr") / correction(s, "beta1"));
                s.set("root_correction", correction(s, "beta2").sqrt());
            }

            fn update(&self, u: &mut Update) -> Tensor {
                let (m, mut v) = averages(u);
                if self.amsgrad {
                    v = u.state("max_exp_avg_sq").maximum(v);
                    u.set("max_exp_avg_sq", v.clone());
                }
                let divisor = v.sqrt() / u.number("root_correction") + u.number("eps");
                u.parameter() - m / divisor * u.number("step_size")
            }
        }
    };
}

adam! {
    /// Adam (Kingma and Ba, 2014), `torch.optim.Adam`:
    ///
    /// ```text
    /// g ← g + weight_decay · p      (decoupled: p ← p · (1 − lr · weight_decay))
    /// m ← β₁ m + (1 − β₁) g
    /// v ← β₂ v + (1 − β₂) g²
    /// p ← p − lr / (1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + eps)      (amsgrad: the largest v so far)
    /// ```
    Adam, 0.0, {
        /// True if `weight_decay` is decoupled.
        decoupled_weight_decay: bool = false,
    }, |rule| rule.decoupled_weight_decay
}

adam! {
    /// Adam with decoupled weight decay (Loshchilov and Hutter, 2017), `torch.optim.AdamW`: [`Adam`], but
    /// `p ← p · (1 − lr · weight_decay)` in place of the penalty.
    AdamW, 1e-2, {}, |_| true
}

/// Sets the weights of the gradient in [`averages`].
pub(super) fn moments(s: &mut Scalars) {
    s.set("1 - beta1", 1.0 - s.number("beta1"));
    s.set("1 - beta2", 1.0 - s.number("beta2"));
}

/// `1 − βᵗ`.
pub(super) fn correction(s: &Scalars, beta: &str) -> Tensor {
    1.0 - s.number(beta).pow(s.step())
}

/// The running means `exp_avg` of the gradient and `exp_avg_sq` of its square, this step's included.
pub(super) fn averages(u: &mut Update) -> (Tensor, Tensor) {
    let (g, m) = (u.gradient(), u.state("exp_avg"));
    let m = &m + (&g - &m) * u.number("1 - beta1");
    let v = u.state("exp_avg_sq") * u.number("beta2") + &g * &g * u.number("1 - beta2");
    u.set("exp_avg", m.clone());
    u.set("exp_avg_sq", v.clone());
    (m, v)
}
