//! Adadelta.

use super::{Description, Rule, Scalars, Update};
use kiln_tensor::{Tensor, options};

options! {
    /// Adadelta (Zeiler, 2012), `torch.optim.Adadelta`:
    ///
    /// ```text
    /// g ← g + weight_decay · p
    /// v ← rho v + (1 − rho) g²
    /// d ← √(u + eps) / √(v + eps) · g
    /// u ← rho u + (1 − rho) d²
    /// p ← p − lr · d
    /// ```
    Adadelta () {
        /// Learning rate.
        lr: f64 = 1.0,
        /// The decay rate of the running averages.
        rho: f64 = 0.9,
        /// Keeps the quotient from zero.
        eps: f64 = 1e-6,
        /// L2 penalty.
        weight_decay: f64 = 0.0,
        /// Ascends instead.
        maximize: bool = false,
    }
}

impl Rule for Adadelta {
    fn describe(&self) -> Description {
        Description::new("Adadelta")
            .number("lr", self.lr)
            .number_in("rho", self.rho, 0.0..=1.0)
            .number("eps", self.eps)
            .number("weight_decay", self.weight_decay)
            .flag("maximize", self.maximize)
            .state("square_avg")
            .state("acc_delta")
    }

    fn scalars(&self, s: &mut Scalars) {
        s.set("1 - rho", 1.0 - s.number("rho"));
    }

    fn update(&self, u: &mut Update) -> Tensor {
        let (g, change, eps) = (u.gradient(), u.state("acc_delta"), u.number("eps"));
        let (rho, share) = (u.number("rho"), u.number("1 - rho"));
        let square = u.state("square_avg") * &rho + &g * &g * &share;
        let d = (&change + &eps).sqrt() / (&square + eps).sqrt() * g;
        u.set("square_avg", square);
        u.set("acc_delta", change * rho + &d * &d * share);
        u.parameter() - d * u.number("lr")
    }
}
