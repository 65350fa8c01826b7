//! RMSprop.

use super::rule::{Coefficients, Numbers, Rule, decay, decayed, not_negative};
use kiln_tensor::Tensor;

/// RMSprop (Hinton), `torch.optim.RMSprop`:
///
/// ```text
/// g ← g + weight_decay · p
/// v ← alpha v + (1 − alpha) g²
/// centered: a ← a + (1 − alpha)(g − a), and v − a² takes the place of v
/// b ← momentum · b + g / (√v + eps)
/// p ← p − lr · b
/// ```
#[derive(Clone, Debug)]
pub struct RmsProp {
    /// Learning rate.
    pub lr: f64,
    /// How slowly the average of squares forgets.
    pub alpha: f64,
    /// Keeps the divisor from zero.
    pub eps: f64,
    /// L2 penalty.
    pub weight_decay: f64,
    /// Weight of the past.
    pub momentum: f64,
    /// Divides by an estimate of the variance.
    pub centered: bool,
    /// Ascends instead.
    pub maximize: bool,
}

impl Default for RmsProp {
    fn default() -> RmsProp {
        RmsProp {
            lr: 1e-2,
            alpha: 0.99,
            eps: 1e-8,
            weight_decay: 0.0,
            momentum: 0.0,
            centered: false,
            maximize: false,
        }
    }
}

impl Rule for RmsProp {
    fn name(&self) -> &'static str {
        "RMSprop"
    }

    fn numbers(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("lr", self.lr),
            ("alpha", self.alpha),
            ("eps", self.eps),
            ("weight_decay", self.weight_decay),
            ("momentum", self.momentum),
        ]
    }

    fn flags(&self) -> Vec<(&'static str, bool)> {
        vec![("centered", self.centered), ("maximize", self.maximize)]
    }

    fn check(&self, value: &dyn Fn(&str) -> f64) -> Result<(), String> {
        let mut numbers = self.numbers().into_iter();
        numbers.try_for_each(|(name, _)| not_negative(name, value(name)))
    }

    fn moments(&self) -> Vec<(&'static str, f64)> {
        let mut all = vec![("square_avg", 0.0)];
        all.extend((self.momentum > 0.0).then_some(("momentum_buffer", 0.0)));
        all.extend(self.centered.then_some(("grad_avg", 0.0)));
        all
    }

    fn coefficients(&self, numbers: &Numbers, _: &Tensor) -> Vec<Tensor> {
        let mut all = decay(numbers);
        let alpha = numbers.get("alpha");
        all.extend([alpha.clone(), 1.0 - &alpha, numbers.get("eps")]);
        all.extend([numbers.get("momentum"), numbers.get("lr")]);
        all
    }

    fn repeats(&self) -> bool {
        true
    }

    fn update(
        &self,
        numbers: &Numbers,
        mut coefficients: Coefficients,
        p: &Tensor,
        gradient: &Tensor,
        moments: &mut [Tensor],
    ) -> Tensor {
        let g = decayed(numbers, self.maximize, &mut coefficients, p, gradient);
        let [alpha, share, eps, momentum, lr] = coefficients.take();
        let [square, rest @ ..] = moments else {
            return p.clone();
        };
        let (buffer, mean) = match (rest, self.centered) {
            ([buffer, mean], _) => (Some(buffer), Some(mean)),
            ([mean], true) => (None, Some(mean)),
            ([buffer], false) => (Some(buffer), None),
            _ => (None, None),
        };
        *square = &*square * alpha + &g * &g * &share;
        let mut second = square.clone();
        if let Some(mean) = mean {
            *mean = &*mean + (&g - &*mean) * share;
            second -= mean.square();
        }
        let mut d = g / (second.sqrt() + eps);
        if let Some(buffer) = buffer {
            *buffer = &*buffer * momentum + d;
            d = buffer.clone();
        }
        p - d * lr
    }
}
