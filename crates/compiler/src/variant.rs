//! Variants of one structure: which sizes and numbers a plan was compiled for.
//!
//! The first variant bakes every size and number. When a program of the same structure differs in some,
//! the next variant turns those numbers into inputs and, where the leading dims of inputs differ,
//! those dims into symbols; every other size that differs must then be an affine function of one of
//! the symbols through both examples, else the new sizes are baked too. A variant matches a program
//! when its symbols, read off the inputs, give every size of the program exactly.

use crate::Recording;
use crate::cache::Found;
use crate::explain::marker;
use kiln_base::{Dim, Loc, Scalar, Sym};
use kiln_ir::{Fact, Graph, NodeId, Op, OpError, Role, SymbolInfo, Value, ops};
use std::sync::Arc;

/// The sizes and numbers of a recorded program, flat, in recording order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Every size among the ops' attributes.
    pub(crate) dims: Vec<i64>,
    /// Positions in `dims` of the leading dims of inputs.
    pub(crate) leading: Vec<usize>,
    /// Every promotable number.
    pub(crate) scalars: Vec<Scalar>,
}

/// What a variant expects.
#[derive(Clone, Debug)]
pub(crate) struct Expectation {
    /// Every size; symbolic ones through `symbols`.
    pub(crate) dims: Vec<Dim>,
    /// For each symbol the position in `dims` that gives its value.
    pub(crate) symbols: Vec<usize>,
    /// Every number; `None` where it is an input.
    pub(crate) scalars: Vec<Option<Scalar>>,
}

/// A compiled variant.
pub(crate) struct Variant {
    pub(crate) expects: Expectation,
    /// The sizes it was made from.
    pub(crate) example: Vec<i64>,
    pub(crate) found: Arc<Found>,
    /// About how much memory it takes.
    pub(crate) bytes: usize,
}

impl Sizes {
    /// Reads the sizes of a program whose dims are all known.
    pub(crate) fn of(recording: &Recording) -> Sizes {
        let mut sizes = Sizes::default();
        for node in &recording.nodes {
            if !node.op.has_sizes() {
                continue;
            }
            if let Op::Input(input) = node.op
                && input.fact.rank() > 0
            {
                sizes.leading.push(sizes.dims.len());
            }
            let known = |d: &Dim| d.as_const().unwrap_or(i64::MIN);
            sizes.dims.extend(node.op.dims().iter().map(known));
            sizes.scalars.extend(node.op.scalar());
        }
        sizes
    }
}

impl Expectation {
    /// Everything baked.
    pub(crate) fn baked(sizes: &Sizes) -> Expectation {
        Expectation {
            dims: sizes.dims.iter().map(|d| Dim::Const(*d)).collect(),
            symbols: Vec::new(),
            scalars: sizes.scalars.iter().map(|s| Some(*s)).collect(),
        }
    }

    /// Whether a program with these sizes may run the variant.
    pub(crate) fn matches(&self, sizes: &Sizes) -> bool {
        let scalars = self.scalars.iter().zip(&sizes.scalars);
        self.matches_dims(&sizes.dims)
            && scalars.fold(true, |ok, (want, s)| ok && want.is_none_or(|w| w == *s))
    }

    fn matches_dims(&self, dims: &[i64]) -> bool {
        let values: Vec<i64> = self.symbols.iter().map(|at| dims[*at]).collect();
        values.iter().all(|v| *v >= 2)
            && self.dims.iter().zip(dims).all(|(want, d)| match want {
                Dim::Const(c) => c == d,
                symbolic => symbolic.eval_checked(&values) == Some(*d),
            })
    }

    /// What a new variant should expect, given one that did not match; `None` if its sizes and these
    /// have no common form.
    pub(crate) fn generalize(previous: &Variant, sizes: &Sizes) -> Option<Expectation> {
        let old = &previous.expects;
        let scalars = old
            .scalars
            .iter()
            .zip(&sizes.scalars)
            .map(|(want, s)| want.filter(|w| w == s))
            .collect();
        let (dims, symbols) = if old.matches_dims(&sizes.dims) {
            (old.dims.clone(), old.symbols.clone())
        } else {
            symbolic_dims(&previous.example, sizes)?
        };
        Some(Expectation {
            dims,
            symbols,
            scalars,
        })
    }
}

impl Recording<'_> {
    /// The program as a graph. Each node's location is the marker of its place in the recording, see
    /// [`crate::marker`].
    ///
    /// # Errors
    /// If an op does not apply to its operands.
    pub fn to_graph(&self) -> Result<Graph, OpError> {
        self.build(None)
    }

    /// The program with the sizes that a variant expects; numbers that are inputs come last.
    pub(crate) fn build(&self, expects: Option<&Expectation>) -> Result<Graph, OpError> {
        let mut graph = Graph::default();
        for i in 0..expects.map_or(0, |e| e.symbols.len()) {
            graph.symbols.push(SymbolInfo {
                name: format!("s{i}"),
                min: 2,
            });
        }
        let mut dims = expects.map(|e| e.dims.iter());
        let mut scalars = expects.map(|e| e.scalars.iter());
        let mut next_inner = self.nodes.len();
        let mut next_input = 0;
        let mut next_scalar = self.input_count() as u32;
        let mut map: Vec<NodeId> = Vec::with_capacity(self.nodes.len());
        let mapped = |map: &[NodeId], v: &Value| Value {
            node: map[v.node.index()],
            output: v.output,
        };
        for (index, node) in self.nodes.iter().enumerate() {
            let mut op = node.op.clone();
            if let Some(dims) = &mut dims {
                op.dims_mut(&mut |d| *d = dims.next().cloned().unwrap_or(Dim::ZERO));
            }
            if !op.bodies().is_empty() {
                op.inner_nodes_mut(&mut |n| {
                    n.loc = marker(next_inner);
                    next_inner += 1;
                });
                for body in op.bodies_mut() {
                    Arc::make_mut(body).bind(&graph.symbols)?;
                }
            }
            if let Op::Input(input) = &mut op {
                input.index = next_input;
                next_input += 1;
            }
            let operands = self.operands[node.inputs.clone()].iter();
            let inputs: Vec<Value> = operands.map(|v| mapped(&map, v)).collect();
            let scalar = op.scalar().and(scalars.as_mut()).and_then(|s| s.next());
            map.push(match op {
                Op::Full(full) if scalar == Some(&None) => {
                    next_scalar += 1;
                    number_input(&mut graph, full, next_scalar - 1, marker(index))?
                }
                op => graph.add(op, &inputs, marker(index))?,
            });
        }
        graph.outputs = self.outputs.clone();
        for o in &mut graph.outputs {
            o.value = mapped(&map, &o.value);
        }
        Ok(graph)
    }
}

/// A number that is an input, spread to the shape it had.
fn number_input(
    graph: &mut Graph,
    full: ops::Full,
    index: u32,
    loc: Loc,
) -> Result<NodeId, OpError> {
    let input = ops::Input {
        index,
        fact: Fact::new(full.dtype, std::iter::empty::<Dim>()),
        role: Role::Data,
    };
    let number = graph.add(input, &[], loc.clone())?;
    let spread = ops::Broadcast { shape: full.shape };
    graph.add(spread, &[number.value()], loc)
}

/// Dims through two examples: symbols for the leading input dims that differ, affine functions of them
/// for the others that do.
fn symbolic_dims(old: &[i64], sizes: &Sizes) -> Option<(Vec<Dim>, Vec<usize>)> {
    let new = &sizes.dims;
    let mut symbols: Vec<usize> = Vec::new();
    for &at in &sizes.leading {
        let known = symbols
            .iter()
            .any(|s| (old[*s], new[*s]) == (old[at], new[at]));
        if old[at] != new[at] && !known {
            if old[at] < 2 || new[at] < 2 {
                return None;
            }
            symbols.push(at);
        }
    }
    let through = |at: usize| -> Option<Dim> {
        if old[at] == new[at] {
            return Some(Dim::Const(new[at]));
        }
        symbols.iter().enumerate().find_map(|(i, s)| {
            let (rise, run) = (new[at] - old[at], new[*s] - old[*s]);
            (rise % run == 0).then(|| {
                let slope = Dim::Const(rise / run);
                let scaled = &slope * &Dim::symbol(Sym(i as u32));
                &scaled + &Dim::Const(new[at] - rise / run * new[*s])
            })
        })
    };
    let dims: Option<Vec<Dim>> = (0..new.len()).map(through).collect();
    let dims = dims?;
    // A leading dim that differs must be a symbol itself, not a function of another.
    let defined = symbols
        .iter()
        .enumerate()
        .all(|(i, at)| dims[*at] == Dim::symbol(Sym(i as u32)));
    defined.then_some((dims, symbols))
}
