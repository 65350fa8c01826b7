//! Stochastic gradient descent.

use super::rule::check_momentum;
use super::{Description, Rule, Scalars, Update};
use kiln_tensor::{Tensor, options, where_};

options! {
    /// Stochastic gradient descent, `torch.optim.SGD`:
    ///
    /// ```text
    /// g ← g + weight_decay · p
    /// b ← g in the first step, then momentum · b + (1 − dampening) · g
    /// p ← p − lr · b      (nesterov: p − lr · (g + momentum · b))
    /// ```
    SGD () {
        /// Learning rate.
        lr: f64 = 1e-3,
        /// Weight of the past.
        momentum: f64 = 0.0,
        /// The part of the gradient that is kept out of the momentum.
        dampening: f64 = 0.0,
        /// L2 penalty.
        weight_decay: f64 = 0.0,
        /// Nesterov's momentum; needs a momentum and no dampening.
        nesterov: bool = false,
        /// Ascends instead.
        maximize: bool = false,
    }
}

impl Rule for SGD {
    fn describe(&self) -> Description {
        Description::new("SGD")
            .number("lr", self.lr)
            .number("momentum", self.momentum)
            .number_in("dampening", self.dampening, ..)
            .number("weight_decay", self.weight_decay)
            .flag("nesterov", self.nesterov)
            .flag("maximize", self.maximize)
            .state((self.momentum != 0.0).then_some("momentum_buffer"))
    }

    fn check(&self, value: &dyn Fn(&str) -> f64) -> Result<(), String> {
        check_momentum(self.momentum, value("momentum"))?;
        match self.nesterov && (value("momentum") == 0.0 || value("dampening") != 0.0) {
            true => Err("nesterov needs a momentum and no dampening".to_string()),
            false => Ok(()),
        }
    }

    fn scalars(&self, s: &mut Scalars) {
        if s.uses("dampening") {
            // The first momentum is the gradient itself.
            let later = 1.0 - s.number("dampening");
            s.set("share", where_(s.step().eq(1.0), 1.0, &later));
        }
    }

    fn update(&self, u: &mut Update) -> Tensor {
        let mut g = u.gradient();
        if self.momentum != 0.0 {
            let fresh = match u.uses("dampening") {
                true => &g * u.number("share"),
                false => g.clone(),
            };
            let b = u.state("momentum_buffer") * u.number("momentum") + fresh;
            g = match self.nesterov {
                true => g + &b * u.number("momentum"),
                false => b.clone(),
            };
            u.set("momentum_buffer", b);
        }
        u.parameter() - g * u.number("lr")
    }
}
