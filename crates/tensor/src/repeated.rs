//! Recording a function once that is called for many tensors alike.

use crate::{Device, Tensor, is_anomaly_enabled, is_grad_enabled};
use hashbrown::HashMap;
use kiln_ir::{Fact, Facts, Graph, Op};
use kiln_lazy::body::{self, Captured, trace};
use kiln_lazy::recorder::repeat;
use kiln_lazy::scope;
use smallvec::SmallVec;
use std::hash::BuildHasher;
use std::panic::Location;
use std::sync::Arc;

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
pub struct Repeated {
    /// What was recorded, by the kinds of the operands; `None` where a call can't be one operation.
    known: HashMap<Kinds, Option<Recorded>>,
}

type Kinds = SmallVec<[(Fact, Option<Device>); 12]>;

#[derive(Clone)]
struct Recorded {
    body: Arc<Graph>,
    hash: u64,
    facts: Facts,
}

impl Repeated {
    /// What `f` gives for these operands.
    #[track_caller]
    pub fn call(
        &mut self,
        operands: &[Tensor],
        f: impl Fn(&[Tensor]) -> Vec<Tensor>,
    ) -> Vec<Tensor> {
        let loc = Location::caller();
        let as_it_is = scope::is_recording()
            || body::is_tracing()
            || is_grad_enabled()
            || is_anomaly_enabled()
            || operands
                .iter()
                .any(|t| t.error().is_some() || t.names.is_some());
        if as_it_is {
            return f(operands);
        }
        let kind = |t: &Tensor| (t.fact().clone(), t.handle.node.device);
        let kinds: Kinds = operands.iter().map(kind).collect();
        let known = self.known.entry(kinds);
        let known = known.or_insert_with_key(|kinds| Recorded::of(kinds, loc, &f));
        match known {
            Some(recorded) => recorded.call(operands, loc),
            None => f(operands),
        }
    }

    /// How many kinds of calls are one operation each.
    pub fn kinds(&self) -> usize {
        self.known.values().flatten().count()
    }

    /// Forgets what was recorded: from now on the function records something else.
    pub fn forget(&mut self) {
        self.known.clear();
    }
}

impl Recorded {
    /// What `f` records for operands of these kinds, if that can be one operation.
    fn of(
        kinds: &[(Fact, Option<Device>)],
        loc: &'static Location<'static>,
        f: impl Fn(&[Tensor]) -> Vec<Tensor>,
    ) -> Option<Recorded> {
        let (results, mut traced) = trace(kinds, None, "repeated", loc, |given| {
            f(&given.iter().cloned().map(Tensor::from).collect::<Vec<_>>())
        });
        let fine = |t: &Tensor| t.error().is_none() && t.handle.node.device == kinds[0].1;
        if kinds.is_empty() || results.is_empty() || !results.iter().all(fine) {
            return None;
        }
        let mut captured = Captured::default();
        let body = traced.graph(&results, &mut captured).ok()?;
        let is_plain = |op: &Op| match op {
            Op::Pointwise(_) | Op::Cast(_) | Op::Input(_) | Op::Full(_) => true,
            op => op.is_view(),
        };
        let is_plain = body.iter().all(|(_, n)| is_plain(&n.op));
        let computed = |t: &Tensor| !matches!(t.handle.node.op, Op::Input(_));
        if !is_plain || !captured.values.is_empty() || !results.iter().all(computed) {
            return None;
        }
        static STATE: std::sync::LazyLock<hashbrown::DefaultHashBuilder> =
            std::sync::LazyLock::new(Default::default);
        Some(Recorded {
            hash: STATE.hash_one(&body),
            facts: results.iter().map(|t| t.fact().clone()).collect(),
            body: Arc::new(body),
        })
    }

    /// Records a call.
    fn call(&self, operands: &[Tensor], loc: &'static Location<'static>) -> Vec<Tensor> {
        let outputs = repeat((&self.body, self.hash), &self.facts, operands, loc);
        outputs.into_iter().map(Tensor::from).collect()
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
        let mut call =
            |x: &Tensor| no_grad(|| roots.call(&[x.clone()], |x| vec![x[0].sqrt() + 1.0]));
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
