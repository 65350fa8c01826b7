//! Functions that are recorded once and called for many operands of the same facts.

use crate::body::{self, Captured, trace};
use crate::grad::is_grad_enabled;
use crate::node::{Node, NodeState, Operands};
use crate::recorder::join_recordings;
use crate::run::anomaly::is_anomaly_enabled;
use crate::run::boundary;
use crate::{Device, Handle, scope};
use hashbrown::{DefaultHashBuilder, HashMap};
use kiln_ir::{Fact, Facts, Graph, Op, ops};
use smallvec::SmallVec;
use std::hash::BuildHasher;
use std::panic::Location;
use std::sync::{Arc, LazyLock};

/// The recordings of a function, by the facts and devices of its operands. `None`: a call can't be one operation.
#[derive(Default)]
pub struct Repeated {
    known: HashMap<Kinds, Option<RecordedBody>>,
}

type Kinds = SmallVec<[(Fact, Option<Device>); 12]>;

#[derive(Clone)]
struct RecordedBody {
    body: Arc<Graph>,
    hash: u64,
    facts: Facts,
}

impl Repeated {
    /// Returns the results of `f` for these operands. It must only record operations on them and on constants, and the
    /// same ones for operands of the same kinds.
    pub fn call<T: AsRef<Handle> + From<Handle>>(
        &mut self,
        operands: &[T],
        loc: &'static Location<'static>,
        f: impl Fn(&[T]) -> Vec<T>,
    ) -> Vec<T> {
        let bypass = scope::is_recording()
            || body::is_tracing()
            || is_grad_enabled()
            || is_anomaly_enabled()
            || operands.iter().any(|t| t.as_ref().error().is_some());
        if bypass {
            return f(operands);
        }
        let kind = |t: &T| (t.as_ref().fact().clone(), t.as_ref().node.device);
        let kinds: Kinds = operands.iter().map(kind).collect();
        let known = self.known.entry(kinds);
        let known = known.or_insert_with_key(|kinds| RecordedBody::of(kinds, loc, &f));
        match known {
            Some(recorded) => recorded.call(operands, loc).map(T::from).collect(),
            None => f(operands),
        }
    }

    /// The number of kinds of calls that are one operation each.
    pub fn kinds(&self) -> usize {
        self.known.values().flatten().count()
    }

    /// Forgets all recordings.
    pub fn forget(&mut self) {
        self.known.clear();
    }
}

impl RecordedBody {
    /// Records `f` for operands of these kinds, if a call can be one operation.
    fn of<T: AsRef<Handle> + From<Handle>>(
        kinds: &[(Fact, Option<Device>)],
        loc: &'static Location<'static>,
        f: impl Fn(&[T]) -> Vec<T>,
    ) -> Option<RecordedBody> {
        let (results, mut traced) = trace(kinds, None, "repeated", loc, |operands| {
            f(&operands.iter().cloned().map(T::from).collect::<Vec<_>>())
        });
        let nodes = || results.iter().map(|t| &t.as_ref().node);
        let is_valid = |n: &Arc<Node>| n.error.is_none() && n.device == kinds[0].1;
        if kinds.is_empty() || results.is_empty() || !nodes().all(is_valid) {
            return None;
        }
        let mut captured = Captured::default();
        let body = traced.graph(&results, &mut captured).ok()?;
        let is_repeatable = |op: &Op| match op {
            Op::Pointwise(_) | Op::Cast(_) | Op::Input(_) | Op::Full(_) => true,
            op => op.is_view(),
        };
        let is_repeatable = body.iter().all(|(_, n)| is_repeatable(&n.op));
        let is_computed = |n: &Arc<Node>| !matches!(n.op, Op::Input(_));
        if !is_repeatable || !captured.values.is_empty() || !nodes().all(is_computed) {
            return None;
        }
        static STATE: LazyLock<DefaultHashBuilder> = LazyLock::new(Default::default);
        Some(RecordedBody {
            hash: STATE.hash_one(&body),
            facts: results.iter().map(|t| t.as_ref().fact().clone()).collect(),
            body: Arc::new(body),
        })
    }

    /// Records a call: one operation, without gradients.
    fn call<T: AsRef<Handle>>(
        &self,
        operands: &[T],
        loc: &'static Location<'static>,
    ) -> impl Iterator<Item = Handle> {
        let state = NodeState::Lazy {
            inputs: operands
                .iter()
                .map(|t| t.as_ref().operand())
                .collect::<Operands>(),
            recording: Some(join_recordings(operands)),
            kept: SmallVec::new(),
        };
        let op = ops::Barrier { detach: true }.into();
        let device = operands.first().and_then(|t| t.as_ref().node.device);
        let mut node = Node::new(op, self.facts.clone(), device, loc, "repeated", state);
        (node.body, node.hash) = (Some(self.body.clone()), self.hash);
        let node = Arc::new(node);
        boundary::recorded(&node);
        (0..self.facts.len() as u32).map(move |o| Handle::output_of(&node, o))
    }
}
