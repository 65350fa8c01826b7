//! One structure of the plan cache: its variants, and the sizes and numbers seen so far.

use crate::generalize::same_sizes;
use crate::recording::{Fit, Recorded, Recording};
use crate::variant::{Kind, Sizes, Variant, kinds};
use kiln_ir::{Graph, Op, Output, Value};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// One structure with its variants.
pub(crate) struct Entry {
    pub(crate) nodes: Vec<StructureNode>,
    pub(crate) operands: Vec<Value>,
    pub(crate) outputs: Vec<Output>,
    pub(crate) kinds: Vec<Kind>,
    /// The reason why the structure is new.
    pub(crate) new: String,
    pub(crate) state: Mutex<EntryState>,
}

/// A node of a structure: its op without sizes, its body and its operands.
type StructureNode = (Op, Option<Arc<Graph>>, Range<usize>);

#[derive(Default)]
pub(crate) struct EntryState {
    /// The variants, the most recently used last.
    pub(crate) variants: Vec<Variant>,
    /// Programs that found no plan, the latest last.
    pub(crate) examples: Vec<Sizes>,
    /// The first sizes that were seen. A plan for these has no symbolic sizes.
    pub(crate) first: Vec<Vec<i64>>,
    /// For each number, true if it has differed.
    pub(crate) free: Vec<bool>,
    /// The number of times that sizes could not be symbols.
    pub(crate) refused: usize,
    pub(crate) compiled: u64,
    pub(crate) bytes: usize,
    pub(crate) used: u64,
}

/// The maximum number of variants of one structure.
const MAX_VARIANTS: usize = 16;
/// The number of combinations of sizes that get plans of their own before sizes become symbols.
const FIRST_SIZES: usize = 3;
/// The number of programs without a plan that are remembered.
const EXAMPLES: usize = 12;
/// The number of refusals after which sizes stay known.
pub(crate) const REFUSALS: usize = 8;

impl Entry {
    pub(crate) fn new(recording: &Recording, before: Option<&Entry>) -> Entry {
        Entry {
            new: match before {
                Some(before) => format!("a new structure: {}", before.unlike(recording)),
                None => "the first program".to_string(),
            },
            nodes: recording
                .nodes
                .iter()
                .map(|n| (n.op.skeleton(), n.body.cloned(), n.inputs.clone()))
                .collect(),
            operands: recording.operands.clone(),
            outputs: recording.outputs.clone(),
            kinds: kinds(recording),
            state: Mutex::default(),
        }
    }

    pub(crate) fn is(&self, recording: &Recording) -> bool {
        let same = |((op, body, inputs), n): (&StructureNode, &Recorded)| {
            *inputs == n.inputs && n.same_structure(op, body)
        };
        self.nodes.len() == recording.nodes.len()
            && self.operands == recording.operands
            && self.outputs == recording.outputs
            && self.nodes.iter().zip(&recording.nodes).all(same)
    }

    /// The first operation of a program that has no counterpart here.
    fn unlike(&self, recording: &Recording) -> String {
        let nodes = self.nodes.iter().zip(&recording.nodes);
        let differs = |((op, body, inputs), n): (&StructureNode, &Recorded)| {
            *inputs != n.inputs
                || self.operands[inputs.clone()] != recording.operands[n.inputs.clone()]
                || !n.same_structure(op, body)
        };
        let at = nodes.into_iter().position(differs);
        match at.map(|at| (&self.nodes[at].0, &recording.nodes[at])) {
            Some((
                Op::Input(a),
                Recorded {
                    op: Op::Input(b),
                    loc,
                    ..
                },
            )) => {
                let kind =
                    |i: &kiln_ir::ops::Input| format!("{} of rank {}", i.fact.dtype, i.fact.rank());
                format!("the input at {loc} is {} and was {}", kind(b), kind(a))
            }
            Some((op, n)) if op.name() == n.op.name() => format!(
                "`{}` at {} has other attributes or operands than the program before",
                op.name(),
                n.loc
            ),
            Some((op, n)) => {
                format!(
                    "`{}` at {} stands where `{}` stood",
                    n.op.name(),
                    n.loc,
                    op.name()
                )
            }
            None => format!(
                "{} operations and {} results, before {} and {}",
                recording.nodes.len(),
                recording.outputs.len(),
                self.nodes.len(),
                self.outputs.len()
            ),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, EntryState> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The reason why a plan is needed.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    New,
    Numbers,
    Sizes,
    /// Other sizes, of which some became symbols.
    Symbols,
}

impl EntryState {
    /// The plan that leaves the least open among those that fit. Sizes that have plans of their own run no other
    /// plan: their results must not depend, bit for bit, on what was seen since.
    pub(crate) fn find(&mut self, kinds: &[Kind], sizes: &Sizes) -> Option<Fit> {
        let own = self.is_first(kinds, sizes);
        let fits =
            |v: &Variant| v.expects.matches(sizes) && !(own && v.expects.has_symbolic_sizes());
        let variants = self.variants.iter().enumerate().filter(|(_, v)| fits(v));
        let (at, _) = variants.min_by_key(|(_, v)| v.expects.open())?;
        let variant = self.variants.remove(at);
        let fit = Fit {
            found: variant.found.clone(),
            extents: variant.expects.extents(sizes),
            compiled: None,
        };
        self.variants.push(variant);
        Some(fit)
    }

    /// True if these sizes are among the first.
    pub(crate) fn is_first(&self, kinds: &[Kind], sizes: &Sizes) -> bool {
        let mut first = self.first.iter();
        first.any(|f| same_sizes(kinds, f, &sizes.dims))
    }

    /// Records what differs in a program without a plan.
    pub(crate) fn learn(&mut self, kinds: &[Kind], sizes: &Sizes) {
        self.free.resize(sizes.scalars.len(), false);
        if let Some(last) = self.examples.last() {
            let scalars = last.scalars.iter().zip(&sizes.scalars);
            for (free, (a, b)) in self.free.iter_mut().zip(scalars) {
                *free |= a != b;
            }
        }
        if self.first.len() < FIRST_SIZES && !self.is_first(kinds, sizes) {
            self.first.push(sizes.dims.clone());
        }
    }

    /// Keeps a program as an example.
    pub(crate) fn remember(&mut self, sizes: &Sizes) {
        if self.examples.len() >= EXAMPLES {
            self.examples.remove(0);
        }
        self.examples.push(sizes.clone());
    }

    pub(crate) fn cause(&self, kinds: &[Kind], sizes: &Sizes) -> Cause {
        let mut before = self.examples.iter();
        match before.any(|e| same_sizes(kinds, &e.dims, &sizes.dims)) {
            _ if self.examples.is_empty() => Cause::New,
            true => Cause::Numbers,
            false => Cause::Sizes,
        }
    }

    /// Drops a variant if there are too many: the least recently used one. Each of the first sizes keeps its latest
    /// variant. Returns the number of bytes freed.
    pub(crate) fn drop_one(&mut self, kinds: &[Kind]) -> usize {
        if self.variants.len() <= MAX_VARIANTS {
            return 0;
        }
        let known = |v: &Variant| -> Option<usize> {
            let dims: Vec<i64> = v
                .expects
                .dims
                .iter()
                .zip(kinds)
                .map(|(d, kind)| match kind {
                    Kind::Offset => 0,
                    _ => d.as_const().unwrap_or(-1),
                })
                .collect();
            self.first.iter().position(|f| same_sizes(kinds, f, &dims))
        };
        let of: Vec<Option<usize>> = self.variants.iter().map(known).collect();
        let replaceable = |i: &usize| of[*i].is_none() || of[i + 1..].contains(&of[*i]);
        let at = (0..of.len() - 1).find(replaceable).unwrap_or(0);
        self.variants.remove(at).bytes
    }
}
