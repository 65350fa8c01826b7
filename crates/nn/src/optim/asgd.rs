//! Averaged stochastic gradient descent.

use super::{Description, Rule, Scalars, Update};
use kiln_tensor::{Tensor, options, where_};

options! {
    /// Averaged stochastic gradient descent (Polyak and Juditsky, 1992), `torch.optim.ASGD`. The average is
    /// `ax` in the state:
    ///
    /// ```text
    /// g ← g + weight_decay · p
    /// p ← p · (1 − lambd · η) − η · g
    /// a ← a + μ (p − a)
    /// η ← lr / (1 + lambd · lr · t)^alpha,    μ ← 1 / max(1, t − t0)
    /// ```
    ASGD () {
        /// Learning rate.
        lr: f64 = 1e-2,
        /// Decay.
        lambd: f64 = 1e-4,
        /// Power of the falling rate.
        alpha: f64 = 0.75,
        /// The step at which averaging begins.
        t0: f64 = 1e6,
        /// L2 penalty.
        weight_decay: f64 = 0.0,
        /// Ascends instead.
        maximize: bool = false,
    }
}

impl Rule for ASGD {
    fn describe(&self) -> Description {
        Description::new("ASGD")
            .number("lr", self.lr)
            .number("lambd", self.lambd)
            .number("alpha", self.alpha)
            .number_in("t0", self.t0, ..)
            .number("weight_decay", self.weight_decay)
            .flag("maximize", self.maximize)
            .state("ax")
            .count("eta", 0.0)
            .count("mu", 1.0)
    }

    fn scalars(&self, s: &mut Scalars) {
        let (step, lr) = (s.step(), s.number("lr"));
        // The first step uses the current learning rate.
        let eta = where_(step.eq(1.0), &lr, s.number("eta"));
        s.set("kept", 1.0 - s.number("lambd") * &eta);
        s.set("rate", eta);
        s.set("share", s.number("mu"));
        let slowed = (s.number("lambd") * &lr * &step + 1.0).pow(s.number("alpha"));
        s.set("eta", lr / slowed);
        s.set("mu", 1.0 / (step - s.number("t0")).clamp_min(1.0));
    }

    fn update(&self, u: &mut Update) -> Tensor {
        let p = u.parameter() * u.number("kept") - u.gradient() * u.number("rate");
        let (a, share) = (u.state("ax"), u.number("share"));
        let mean = &a + (&p - &a) * &share;
        u.set("ax", where_(share.eq(1.0), &p, mean));
        p
    }
}
