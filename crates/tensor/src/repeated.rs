//! Recording a function once that is called for many tensors alike.

use crate::Tensor;
use std::panic::Location;

/// A function that is called for many tensors of few dtypes and shapes, such as an optimiser's update of each
/// parameter. What it records for operands of one kind is kept, and each call recorded as one operation; plans
/// are those of what it recorded.
///
/// The function must do nothing but record operations on its operands and on numbers that never change, for
/// operands of the same dtypes, shapes and devices the same ones. Where these are more than pointwise work and
/// views, where it reads other tensors, or gradients or bodies are being recorded, every call is recorded as it
/// is.
///
/// ```
/// use kiln_tensor::{Repeated, Tensor, no_grad};
/// let mut step = Repeated::default();
/// for n in [1.0f32, 2.0] {
///     let x = Tensor::from([n, 3.0]);
///     let y = no_grad(|| step.call(&[x.clone(), x], |x| vec![&x[0] * &x[1] + &x[0]]));
///     assert_eq!(y[0].to_vec::<f32>()?, [n * n + n, 12.0]);
/// }
/// assert_eq!(step.kinds(), 1);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Default)]
pub struct Repeated(kiln_lazy::repeated::Repeated);

impl Repeated {
    /// What `f` gives for these operands.
    #[track_caller]
    pub fn call(
        &mut self,
        operands: &[Tensor],
        f: impl Fn(&[Tensor]) -> Vec<Tensor>,
    ) -> Vec<Tensor> {
        match operands.iter().any(|t| t.names.is_some()) {
            true => f(operands),
            false => self.0.call(operands, Location::caller(), f),
        }
    }

    /// How many kinds of calls are one operation each.
    pub fn kinds(&self) -> usize {
        self.0.kinds()
    }

    /// Forgets what was recorded: from now on the function records something else.
    pub fn forget(&mut self) {
        self.0.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, detect_anomaly, no_grad};

    #[test]
    fn an_anomaly_in_what_was_recorded_before_is_named() {
        let mut roots = Repeated::default();
        let line = line!() + 2;
        let mut call = |x: &Tensor| {
            no_grad(|| roots.call(std::slice::from_ref(x), |x| vec![x[0].sqrt() + 1.0]))
        };
        call(&Tensor::from([1.0f32, 4.0]));
        let y = call(&Tensor::from([4.0f32, -1.0])).swap_remove(0);
        let after = &y * 2.0;
        let e = detect_anomaly(|| after.to_vec::<f32>()).unwrap_err();
        let found = (e.kind(), e.op(), e.loc().line());
        assert_eq!(found, (ErrorKind::Anomaly, "sqrt", line), "{e}");
        // The op that was recorded first is named, whatever it was recorded in.
        let first = Tensor::from([0.0f32, 1.0]).log();
        let y = call(&first.abs()).swap_remove(0);
        let e = detect_anomaly(|| y.to_vec::<f32>()).unwrap_err();
        assert_eq!((e.kind(), e.op()), (ErrorKind::Anomaly, "log"), "{e}");
        assert_eq!(roots.kinds(), 1);
    }
}
