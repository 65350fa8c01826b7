//! Resilient backpropagation.

use super::{Description, Rule, Update};
use kiln_tensor::{Tensor, options, where_};
use std::ops::Bound::{Excluded, Unbounded};

options! {
    /// Resilient backpropagation (Riedmiller and Braun, 1993), `torch.optim.Rprop`. Each element has a step size of its
    /// own, which begins with `lr` and grows while the gradient keeps its sign. When the sign changes, the step size
    /// shrinks and the element stays where it is.
    Rprop () {
        /// The first step size.
        lr: f64 = 1e-2,
        /// The factors of the step size: when the sign of the gradient changes, and when it does not.
        etas: (f64, f64) = (0.5, 1.2),
        /// The smallest and the largest step size.
        step_sizes: (f64, f64) = (1e-6, 50.0),
        /// Ascends instead.
        maximize: bool = false,
    }
}

impl Rule for Rprop {
    fn describe(&self) -> Description {
        Description::new("Rprop")
            .number("lr", self.lr)
            .number_in("etaminus", self.etas.0, (Excluded(0.0), Excluded(1.0)))
            .number_in("etaplus", self.etas.1, (Excluded(1.0), Unbounded))
            .number_in("step_size_min", self.step_sizes.0, ..)
            .number_in("step_size_max", self.step_sizes.1, ..)
            .flag("maximize", self.maximize)
            .state("prev")
            .state("step_size")
    }

    fn update(&self, u: &mut Update) -> Tensor {
        let g = u.gradient();
        let same = &g * u.state("prev");
        let factor = where_(same.lt(0.0), u.number("etaminus"), 1.0);
        let factor = where_(same.gt(0.0), u.number("etaplus"), factor);
        // The first step uses the current learning rate.
        let size = where_(
            u.number("step").eq(1.0),
            u.number("lr"),
            u.state("step_size"),
        );
        let size = (size * factor).maximum(u.number("step_size_min"));
        let size = size.minimum(u.number("step_size_max"));
        let g = where_(same.lt(0.0), 0.0, g);
        u.set("prev", g.clone());
        u.set("step_size", size.clone());
        u.parameter() - g.sign() * size
    }
}
