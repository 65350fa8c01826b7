//! RMSprop.

use super::rule::check_momentum;
use super::{Description, Rule, Scalars, Update};
use kiln_tensor::{Tensor, options};

options! {
    /// RMSprop (Hinton), `torch.optim.RMSprop`:
    ///
    /// ```text
    /// g ← g + weight_decay · p
    /// v ← alpha v + (1 − alpha) g²
    /// centered: a ← a + (1 − alpha)(g − a), and v − a² takes the place of v
    /// b ← momentum · b + g / (√v + eps)
    /// p ← p − lr · b
    /// ```
    RMSprop () {
        /// Learning rate.
        lr: f64 = 1e-2,
        /// The decay rate of the running average of squares.
        alpha: f64 = 0.99,
        /// Keeps the divisor from zero.
        eps: f64 = 1e-8,
        /// L2 penalty.
        weight_decay: f64 = 0.0,
        /// Weight of the past.
        momentum: f64 = 0.0,
        /// Divides by an estimate of the variance.
        centered: bool = false,
        /// Ascends instead.
        maximize: bool = false,
    }
}

impl Rule for RMSprop {
    fn describe(&self) -> Description {
        Description::new("RMSprop")
            .number("lr", self.lr)
            .number("alpha", self.alpha)
            .number("eps", self.eps)
            .number("weight_decay", self.weight_decay)
            .number("momentum", self.momentum)
            .flag("centered", self.centered)
            .flag("maximize", self.maximize)
            .state("square_avg")
            .state((self.momentum > 0.0).then_some("momentum_buffer"))
            .state(self.centered.then_some("grad_avg"))
    }

    fn check(&self, value: &dyn Fn(&str) -> f64) -> Result<(), String> {
        check_momentum(self.momentum, value("momentum"))
    }

    fn scalars(&self, s: &mut Scalars) {
        s.set("1 - alpha", 1.0 - s.number("alpha"));
    }

    fn update(&self, u: &mut Update) -> Tensor {
        let (g, share) = (u.gradient(), u.number("1 - alpha"));
        let mut second = u.state("square_avg") * u.number("alpha") + &g * &g * &share;
        u.set("square_avg", second.clone());
        if self.centered {
            let mean = u.state("grad_avg");
            let mean = &mean + (&g - &mean) * share;
            second -= mean.square();
            u.set("grad_avg", mean);
        }
        let mut d = g / (second.sqrt() + u.number("eps"));
        if self.momentum > 0.0 {
            d += u.state("momentum_buffer") * u.number("momentum");
            u.set("momentum_buffer", d.clone());
        }
        u.parameter() - d * u.number("lr")
    }
}
