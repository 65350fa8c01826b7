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
    /// The first sizes. A plan for these has no symbolic sizes.
    pub(crate) early: Vec<Vec<i64>>,
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
    pub(crate) fn new(recording: &Recording, previous: Option<&Entry>) -> Entry {
        Entry {
            new: match previous {
                Some(previous) => format!("a new structure: {}", previous.difference(recording)),
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
        let is_same = |((op, body, inputs), n): (&StructureNode, &Recorded)| {
            *inputs == n.inputs && n.same_structure(op, body)
        };
        self.nodes.len() == recording.nodes.len()
            && self.operands == recording.operands
            && self.outputs == recording.outputs
            && self.nodes.iter().zip(&recording.nodes).all(is_same)
    }

    /// Describes the first operation of a program that has no counterpart here.
    fn difference(&self, recording: &Recording) -> String {
        let nodes = self.nodes.iter().zip(&recording.nodes);
        let differs = |((op, body, inputs), n): (&StructureNode, &Recorded)| {
            *inputs != n.inputs
                || self.operands[inputs.clone()] != recording.operands[n.inputs.clone()]
                || !n.same_structure(op, body)
        };
        let node = nodes.into_iter().position(differs);
        match node.map(|node| (&self.nodes[node].0, &recording.nodes[node])) {
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
    /// Returns the plan with the fewest symbols and inputs among those that match. The first sizes run their own plans:
    /// their results must not depend on later programs, bit for bit.
    pub(crate) fn find(&mut self, kinds: &[Kind], sizes: &Sizes) -> Option<Fit> {
        let first = self.is_first(kinds, sizes);
        let fits =
            |v: &Variant| v.expects.matches(sizes) && !(first && v.expects.has_symbolic_sizes());
        let variants = self.variants.iter().enumerate().filter(|(_, v)| fits(v));
        let (index, _) = variants.min_by_key(|(_, v)| v.expects.open())?;
        let variant = self.variants.remove(index);
        let fit = Fit {
            plan: variant.plan.clone(),
            extents: variant.expects.extents(sizes),
            compiled: None,
        };
        self.variants.push(variant);
        Some(fit)
    }

    /// True if these sizes are among the first.
    pub(crate) fn is_first(&self, kinds: &[Kind], sizes: &Sizes) -> bool {
        let mut early = self.early.iter();
        early.any(|f| same_sizes(kinds, f, &sizes.dims))
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
        if self.early.len() < FIRST_SIZES && !self.is_first(kinds, sizes) {
            self.early.push(sizes.dims.clone());
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
        let mut earlier = self.examples.iter();
        match earlier.any(|e| same_sizes(kinds, &e.dims, &sizes.dims)) {
            _ if self.examples.is_empty() => Cause::New,
            true => Cause::Numbers,
            false => Cause::Sizes,
        }
    }

    /// Drops the least recently used variant if there are too many. Each of the first sizes keeps its latest variant.
    /// Returns the number of bytes freed.
    pub(crate) fn drop_one(&mut self, kinds: &[Kind]) -> usize {
        if self.variants.len() <= MAX_VARIANTS {
            return 0;
        }
        let group_of = |v: &Variant| -> Option<usize> {
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
            self.early.iter().position(|f| same_sizes(kinds, f, &dims))
        };
        let group: Vec<Option<usize>> = self.variants.iter().map(group_of).collect();
        let replaceable = |i: &usize| group[*i].is_none() || group[i + 1..].contains(&group[*i]);
        let dropped = (0..group.len() - 1).find(replaceable).unwrap_or(0);
        self.variants.remove(dropped).bytes
    }
}
