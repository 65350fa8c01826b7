//! Functions that are recorded once and called for many similar tensors.

use crate::Tensor;
use std::panic::Location;

/// A function that is called for many tensors of few dtypes and shapes, such as an optimiser's update of each
/// parameter. The recording for operands of one kind is kept, and each call is recorded as one operation. Plans are
/// those of the recorded operations.
///
/// The function must only record operations on its operands and on numbers that never change. For operands of the
/// same dtypes, shapes and devices it must record the same operations. Every call is recorded operation by operation
/// if they are more than pointwise work and views, if the function reads other tensors, or while gradients or bodies
/// are being recorded.
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
    /// Returns the results of `f` for these operands.
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

    /// Returns the number of kinds of calls that are recorded as one operation each.
    pub fn kinds(&self) -> usize {
        self.0.kinds()
    }

    /// Forgets the recordings: the function records something else from now on.
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
        // The op that was recorded first is named, whichever recording it is in.
        let first = Tensor::from([0.0f32, 1.0]).log();
        let y = call(&first.abs()).swap_remove(0);
        let e = detect_anomaly(|| y.to_vec::<f32>()).unwrap_err();
        assert_eq!((e.kind(), e.op()), (ErrorKind::Anomaly, "log"), "{e}");
        assert_eq!(roots.kinds(), 1);
    }
}
