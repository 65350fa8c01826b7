//! Adafactor.

use super::{Description, Rule, Scalars, Update};
use kiln_tensor::{Tensor, keep, options};

options! {
    /// Adafactor (Shazeer and Stern, 2018), `torch.optim.Adafactor`. Of a matrix (the last two dims of a parameter), it
    /// keeps only the mean squares of rows and columns:
    ///
    /// ```text
    /// p ← p · (1 − lr · weight_decay)
    /// r ← r + t^beta2_decay (mean of g² along rows − r), c the same along columns
    /// v = r c / max(mean of r, eps₁)      (of a vector: a running mean of g² itself)
    /// u = g / √max(v, eps₁²)
    /// p ← p − max(eps₂, rms(p)) · min(lr, 1 / √t) · u / max(1, rms(u) / d)
    /// ```
    Adafactor () {
        /// Learning rate.
        lr: f64 = 1e-2,
        /// The exponent with which the weight of a new gradient falls; not positive.
        beta2_decay: f64 = -0.8,
        /// The term that keeps divisors from zero (the dtype's ε if it is `None`), and the lower bound of a parameter's
        /// scale.
        eps: (Option<f64>, f64) = (None, 1e-3),
        /// The largest root mean square of an update.
        d: f64 = 1.0,
        /// Decay of the parameters.
        weight_decay: f64 = 0.0,
        /// Ascends instead.
        maximize: bool = false,
    }
}

impl Rule for Adafactor {
    fn describe(&self) -> Description {
        let described = Description::new("Adafactor")
            .number("lr", self.lr)
            .number_in("beta2_decay", self.beta2_decay, ..=0.0)
            .number("eps2", self.eps.1)
            .number_in("d", self.d, 1.0..)
            .number("weight_decay", self.weight_decay)
            .flag("maximize", self.maximize)
            .decoupled(true)
            .state_shaped("row_var", |shape| without(shape, 1))
            .state_shaped("col_var", |shape| without(shape, 2))
            .state_shaped("variance", |s| (s.len() < 2).then(|| s.to_vec()));
        match self.eps.0 {
            Some(eps) => described.number("eps1", eps),
            None => described,
        }
    }

    fn scalars(&self, s: &mut Scalars) {
        s.set("share", s.step().pow(s.number("beta2_decay")));
        s.set("rho", s.number("lr").minimum(1.0 / s.step().sqrt()));
    }

    fn update(&self, u: &mut Update) -> Tensor {
        let (g, p, share) = (u.gradient(), u.parameter(), u.number("share"));
        let eps = match self.eps.0 {
            Some(_) => u.number("eps1"),
            None => {
                let epsilon = u.dtype().float().map_or(0.0, |float| float.epsilon());
                Tensor::scalar(epsilon).to_dtype(g.dtype())
            }
        };
        let towards = |old: Tensor, new: Tensor| &old + (new - &old) * &share;
        let second = match g.ndim() {
            0 | 1 => {
                u.set("variance", towards(u.state("variance"), g.square()));
                u.state("variance")
            }
            _ => {
                let square = g.square();
                u.set(
                    "row_var",
                    towards(u.state("row_var"), square.mean(keep(-1))),
                );
                u.set(
                    "col_var",
                    towards(u.state("col_var"), square.mean(keep(-2))),
                );
                let row = u.state("row_var");
                let total = row.mean(keep(-2)).maximum(&eps);
                row * u.state("col_var") / total
            }
        };
        let update = g / second.maximum(eps.square()).sqrt();
        let rms = |x: &Tensor| x.square().mean(()).sqrt();
        let scale = rms(&u.before_decay()).maximum(u.number("eps2")) * u.number("rho");
        let excess = (rms(&update) / u.number("d")).clamp_min(1.0);
        p - update * (scale / excess)
    }
}

/// The shape of a matrix's state where its n-th dim from the end is reduced.
fn without(shape: &[usize], n: usize) -> Option<Vec<usize>> {
    let mut shape = shape.to_vec();
    let axis = (shape.len() > 1).then(|| shape.len() - n)?;
    shape[axis] = 1;
    Some(shape)
}
