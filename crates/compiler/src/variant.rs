//! Variants of one structure: the sizes and numbers that a plan was compiled for.
//!
//! A variant knows each size, offset and number, or takes it from the run: a number as a rank-0 input, a size from
//! the shape of an input. A size that no input has comes as the size of an input without elements that exists for
//! nothing else: `[0, n]`, and `[0, n + 2]` for an offset, since a symbol is at least 2. So a plan needs to know
//! nothing but its inputs' shapes. The expected form of the other sizes is a guess from examples (see
//! [`generalize`](crate::generalize)). A variant matches a program when its symbols give every size of the program
//! exactly, so a wrong guess costs a compilation and never a result.

use crate::node_map::NodeMap;
use crate::recording::{Found, Recording};
use kiln_base::{DType, Dim, Loc, Scalar, Sym};
use kiln_ir::{Fact, Graph, NodeId, Op, OpError, Role, SymbolInfo, Value, ops};
use std::sync::Arc;

/// The sizes and numbers of a recorded program, flat, in recording order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Every size and offset among the ops' attributes.
    pub(crate) dims: Vec<i64>,
    /// Every promotable number.
    pub(crate) scalars: Vec<Scalar>,
}

/// The kind of a number among the sizes of a structure.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A dim of an input.
    Input,
    /// Another size.
    Size,
    /// A number that is not a size.
    Offset,
}

/// A symbol of a variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    /// The position of the size that defines it.
    pub(crate) at: usize,
    /// The kind of that size.
    pub(crate) kind: Kind,
    /// The factor in `size = times · symbol − less`.
    pub(crate) times: i64,
    /// The constant in the same equation.
    pub(crate) less: i64,
}

/// The sizes and numbers that a variant expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expectation {
    /// Every size and offset; symbolic ones through `symbols`.
    pub(crate) dims: Vec<Dim>,
    /// The symbols, with the sizes that define them.
    pub(crate) symbols: Vec<Symbol>,
    /// Every number; `None` where it is an input.
    pub(crate) scalars: Vec<Option<Scalar>>,
}

/// A compiled variant.
pub(crate) struct Variant {
    pub(crate) expects: Expectation,
    /// The reason why it was compiled, for people.
    pub(crate) why: String,
    pub(crate) plan: Arc<Found>,
    /// The approximate number of bytes of memory that it takes.
    pub(crate) bytes: usize,
}

impl Sizes {
    /// Reads the sizes of a program whose dims are all known.
    pub(crate) fn of(recording: &Recording) -> Sizes {
        let mut sizes = Sizes::default();
        for node in recording.nodes.iter().filter(|n| n.op.has_sizes()) {
            let known = |d: &Dim| d.as_const().unwrap_or(i64::MIN);
            sizes.dims.extend(node.op.dims().iter().map(known));
            sizes.scalars.extend(node.op.scalar());
        }
        sizes
    }
}

/// Returns the kind of each of a program's sizes.
pub(crate) fn kinds(recording: &Recording) -> Vec<Kind> {
    let kinds = recording.nodes.iter().flat_map(|node| {
        let input = matches!(node.op, Op::Input(_));
        node.op
            .offsets()
            .into_iter()
            .map(move |offset| match offset {
                true => Kind::Offset,
                false if input => Kind::Input,
                false => Kind::Size,
            })
    });
    kinds.collect()
}

impl Symbol {
    /// Returns the symbol for the size at a position; offsets are counted from -2, since a symbol is at least 2.
    pub(crate) fn new(at: usize, kind: Kind) -> Symbol {
        Symbol {
            at,
            kind,
            times: 1,
            less: if kind == Kind::Offset { 2 } else { 0 },
        }
    }

    /// Its value in a program.
    pub(crate) fn value(&self, dims: &[i64]) -> i64 {
        dims[self.at].saturating_add(self.less) / self.times
    }

    /// True if it is the size of an input.
    fn is_of_input(&self) -> bool {
        self.kind == Kind::Input && (self.times, self.less) == (1, 0)
    }
}

impl Expectation {
    /// An expectation that leaves nothing open.
    pub(crate) fn baked(sizes: &Sizes) -> Expectation {
        Expectation {
            dims: sizes.dims.iter().map(|d| Dim::Const(*d)).collect(),
            symbols: Vec::new(),
            scalars: sizes.scalars.iter().map(|s| Some(*s)).collect(),
        }
    }

    /// True if a program with these sizes may run the variant.
    pub(crate) fn matches(&self, sizes: &Sizes) -> bool {
        let mut scalars = self.scalars.iter().zip(&sizes.scalars);
        self.matches_dims(&sizes.dims) && scalars.all(|(want, s)| want.is_none_or(|w| w == *s))
    }

    fn matches_dims(&self, dims: &[i64]) -> bool {
        let values: Vec<i64> = self.symbols.iter().map(|s| s.value(dims)).collect();
        values.iter().all(|v| *v >= 2)
            && self.dims.iter().zip(dims).all(|(want, d)| match want {
                Dim::Const(c) => c == d,
                symbolic => symbolic.eval_checked(&values) == Some(*d),
            })
    }

    /// True if it leaves a size open.
    pub(crate) fn has_symbolic_sizes(&self) -> bool {
        self.symbols.iter().any(|s| s.kind != Kind::Offset)
    }

    /// The number of sizes that it leaves open, then of offsets and numbers.
    pub(crate) fn open(&self) -> (usize, usize) {
        let sizes = self.symbols.iter().filter(|s| s.kind != Kind::Offset);
        let sizes = sizes.count();
        let numbers = self.scalars.iter().filter(|s| s.is_none()).count();
        (sizes, self.symbols.len() - sizes + numbers)
    }

    /// Returns the sizes of the inputs without elements, in order, for a program that matches.
    pub(crate) fn extents(&self, sizes: &Sizes) -> Vec<i64> {
        let extents = self.symbols.iter().filter(|s| !s.is_of_input());
        extents.map(|s| s.value(&sizes.dims)).collect()
    }
}

impl Recording<'_> {
    /// The program as a graph. Each node's location is its position in the recording, see [`Loc::recorded`].
    ///
    /// # Errors
    /// If an op does not apply to its operands.
    pub fn to_graph(&self) -> Result<Graph, OpError> {
        self.build(None)
    }

    /// Returns the program with the sizes that a variant expects; numbers that are inputs come last, then the inputs
    /// without elements.
    pub(crate) fn build(&self, expects: Option<&Expectation>) -> Result<Graph, OpError> {
        let mut graph = Graph::default();
        for i in 0..expects.map_or(0, |e| e.symbols.len()) {
            graph.symbols.push(symbol_info(i));
        }
        let mut dims = expects.map(|e| e.dims.iter());
        let mut scalars = expects.map(|e| e.scalars.iter());
        let mut next_inner = self.nodes.len();
        let mut next_input = 0;
        let mut next_scalar = self.input_count() as u32;
        let mut map = NodeMap::default();
        for (index, node) in self.nodes.iter().enumerate() {
            let operands = self.operands[node.inputs.clone()].iter();
            let inputs: Vec<Value> = operands.map(|v| map.value(v)).collect();
            if let Some(body) = node.body {
                map.add_body(&mut graph, body, &inputs, |inner| {
                    Loc::recorded(next_inner + inner)
                })?;
                next_inner += body.len();
                continue;
            }
            let mut op = node.op.clone();
            if let Some(dims) = &mut dims {
                op.dims_mut(&mut |d| *d = dims.next().cloned().unwrap_or(Dim::ZERO));
            }
            if !op.bodies().is_empty() {
                op.inner_nodes_mut(&mut |n| {
                    n.loc = Loc::recorded(next_inner);
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
            let scalar = op.scalar().and(scalars.as_mut()).and_then(|s| s.next());
            map.add(match op {
                Op::Full(full) if scalar == Some(&None) => {
                    next_scalar += 1;
                    number_input(&mut graph, full, next_scalar - 1, Loc::recorded(index))?
                }
                op => graph.add(op, &inputs, Loc::recorded(index))?,
            });
        }
        extent_inputs(&mut graph, expects, next_scalar)?;
        graph.outputs = self.outputs.clone();
        for o in &mut graph.outputs {
            o.value = map.value(&o.value);
        }
        Ok(graph)
    }
}

/// The declaration of the symbol with this number.
pub(crate) fn symbol_info(index: usize) -> SymbolInfo {
    SymbolInfo {
        name: format!("s{index}"),
        min: 2,
    }
}

/// Adds an input for each symbol that is the size of no other input; the symbol is a size of the added one.
fn extent_inputs(
    graph: &mut Graph,
    expects: Option<&Expectation>,
    mut index: u32,
) -> Result<(), OpError> {
    let symbols = expects.map_or(&[][..], |e| &e.symbols);
    for (i, _) in (symbols.iter().enumerate()).filter(|(_, s)| !s.is_of_input()) {
        let shape = [Dim::ZERO, Dim::symbol(Sym(i as u32))];
        let input = ops::Input {
            index,
            fact: Fact::new(DType::U8, shape),
            role: Role::Data,
        };
        graph.add(input, &[], Loc::UNKNOWN)?;
        index += 1;
    }
    Ok(())
}

/// Adds an input for a number, broadcast to the shape of the constant that it replaces.
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
