//! The closed set of ops.
//!
//! Each op is a struct in its own file under [`crate::ops`] that implements [`OpDef`]; the list there makes
//! them one enum.

use crate::{Builder, Fact, Facts, Graph, Node, OpError, Role, ensure, ops::*};
use kiln_base::{DType, Dim, Scalar};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::hash::{Hash, Hasher};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// An op without its sizes and its promotable number.
#[derive(PartialEq, Hash)]
struct Frame {
    op: std::mem::Discriminant<Op>,
    dtype: Option<DType>,
    role: Option<(u32, Role)>,
    rank: usize,
}

/// The cost of computing an op again, compared with storing its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Nothing: the result is an index map of the operand, which can be read instead.
    View,
    /// Almost nothing: the result depends on numbers and sizes alone.
    Generated,
    /// Little compared with reading the operands.
    Little,
    /// As much as reading the operands, or more.
    Work,
}

/// The definition of an op.
pub trait OpDef: Clone + PartialEq {
    /// The name in the text form.
    const NAME: &'static str;

    /// The number of operands, as a range.
    const ARITY: RangeInclusive<usize>;

    /// The cost of computing it again, compared with storing its result.
    const COST: Cost = Cost::Work;

    /// True if sizes or a promotable number are among the attributes.
    const HAS_SIZES: bool = false;

    /// [`OpDef::NAME`]; of a pointwise op, the row's name.
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// [`OpDef::ARITY`], narrowed by the attributes.
    fn arity(&self) -> RangeInclusive<usize> {
        Self::ARITY
    }

    /// The facts of its outputs, or the reason that it does not apply. The number of operands is already checked.
    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError>;

    /// Returns symbolic numbers that must not be negative, besides the sizes of the outputs. [`infer`](OpDef::infer)
    /// can't check them. Known numbers may be among them.
    fn needs(&self, _inputs: &[&Fact]) -> Vec<Dim> {
        Vec::new()
    }

    /// Visits every size among the attributes, in a fixed order. Plans are shared between programs
    /// that differ only in these.
    fn dims_mut(&mut self, _f: &mut dyn FnMut(&mut Dim)) {}

    /// Visits those sizes that are offsets: they give a position, from 0, and not an extent.
    fn offsets_mut(&mut self, _f: &mut dyn FnMut(&mut Dim)) {}
}

macro_rules! ops {
    ($($name:ident),* $(,)?) => {
        /// An operation. See [`crate::ops`] for each op's meaning.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[allow(missing_docs)]
        pub enum Op { $($name($name)),* }

        impl Op {
            /// Names of all ops but the pointwise rows, for the text form.
            #[cfg(feature = "parse")]
            pub(crate) const VARIANTS: &'static [&'static str] = &[$(stringify!($name)),*];

            /// The name in the text form.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$name(op) => op.name()),* }
            }

            /// The facts of the outputs, or the reason that the op does not apply to these operands.
            pub fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
                let arity = match self { $(Op::$name(op) => op.arity()),* };
                ensure!(
                    arity.contains(&inputs.len()),
                    "takes {} operands, not {}",
                    if arity.start() == arity.end() { arity.start().to_string() }
                    else { format!("{} to {}", arity.start(), arity.end()) },
                    inputs.len()
                );
                let facts = match self { $(Op::$name(op) => op.infer(inputs)?),* };
                facts.iter().try_for_each(Fact::check)?;
                Ok(facts)
            }

            /// Returns symbolic numbers that must not be negative, besides the sizes of the outputs.
            pub fn needs(&self, inputs: &[&Fact]) -> Vec<Dim> {
                match self { $(Op::$name(op) => op.needs(inputs)),* }
            }

            /// The cost of computing it again, compared with storing its result.
            pub fn cost(&self) -> Cost {
                match self { $(Op::$name(_) => $name::COST),* }
            }

            /// True if sizes or a promotable number are among the attributes.
            pub fn has_sizes(&self) -> bool {
                match self { $(Op::$name(_) => $name::HAS_SIZES),* }
            }

            /// Visits every size among the attributes, in a fixed order.
            pub fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
                match self { $(Op::$name(op) => op.dims_mut(f)),* }
            }

            /// Visits every offset among these sizes.
            pub fn offsets_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
                match self { $(Op::$name(op) => op.offsets_mut(f)),* }
            }
        }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Op { Op::$name(op) }
        })*
    };
}

crate::ops::each!(ops);

impl Op {
    /// Every size among the attributes, in a fixed order.
    pub fn dims(&self) -> SmallVec<[Dim; 4]> {
        let mut out = SmallVec::new();
        match self {
            // The most frequent ops with sizes, without a copy of the op.
            Op::Full(Full { shape, .. }) | Op::Broadcast(Broadcast { shape }) => {
                out.extend(shape.iter().cloned());
            }
            Op::Reshape(Reshape { shape }) => out.extend(shape.iter().cloned()),
            Op::Input(Input { fact, .. }) => out.extend(fact.shape.iter().cloned()),
            op if op.has_sizes() => op.clone().dims_mut(&mut |d| out.push(d.clone())),
            _ => {}
        }
        out
    }

    /// For each of [`Op::dims`], true if it is an offset.
    pub fn offsets(&self) -> SmallVec<[bool; 4]> {
        let mut out = SmallVec::new();
        if self.has_sizes() {
            let mut op = self.clone();
            op.dims_mut(&mut |d| *d = Dim::ZERO);
            op.offsets_mut(&mut |d| *d = Dim::ONE);
            op.dims_mut(&mut |d| out.push(d.is(1)));
        }
        out
    }

    /// Graphs that the op owns.
    pub fn bodies(&self) -> &[Arc<Graph>] {
        match self {
            Op::If(op) => &op.branches,
            Op::Loop(op) => std::slice::from_ref(&op.body),
            _ => &[],
        }
    }

    /// Graphs that the op owns, to change.
    pub fn bodies_mut(&mut self) -> &mut [Arc<Graph>] {
        match self {
            Op::If(op) => &mut op.branches,
            Op::Loop(op) => std::slice::from_mut(&mut op.body),
            _ => &mut [],
        }
    }

    /// A composite in terms of simpler ops; `None` for primitives.
    pub fn decompose<B: Builder>(
        &self,
        b: &mut B,
        inputs: &[B::Value],
    ) -> Option<Result<B::Value, OpError>> {
        Some(match self {
            Op::Softmax(op) => op.decompose(b, &inputs[0]),
            Op::BatchNorm(op) => op.decompose(b, inputs),
            Op::Attention(op) => op.decompose(b, inputs),
            Op::AttentionGrad(op) => op.decompose(b, inputs),
            Op::ConvTranspose(op) => op.decompose(b, &inputs[0], &inputs[1]),
            Op::ConvWeight(op) => op.decompose(b, &inputs[0], &inputs[1]),
            _ => return None,
        })
    }

    /// Returns the number among the attributes that plans may promote to an input.
    pub fn scalar(&self) -> Option<Scalar> {
        match self {
            Op::Full(f) => Some(f.value),
            _ => None,
        }
    }

    /// The op with its sizes and its number replaced by zeros. It is equal for programs that may share a plan.
    pub fn skeleton(&self) -> Op {
        let mut op = self.clone();
        op.dims_mut(&mut |d| *d = Dim::ZERO);
        if let Op::Full(full) = &mut op {
            full.value = Scalar::Int(0);
        }
        op
    }

    /// True if two ops differ at most in sizes and the promotable number.
    pub fn same_structure(&self, other: &Op) -> bool {
        match (self.frame(), other.frame()) {
            (Some(a), Some(b)) => a == b,
            (None, None) if self.has_sizes() => self.skeleton() == other.skeleton(),
            (None, None) => self == other,
            _ => false,
        }
    }

    /// Feeds a hasher the attributes that are equal for programs that may share a plan.
    pub fn hash_structure(&self, h: &mut impl Hasher) {
        match self.frame() {
            Some(frame) => frame.hash(h),
            None if self.has_sizes() => self.skeleton().hash(h),
            None => self.hash(h),
        }
    }

    /// The contents of [`Op::skeleton`] without a copy, for the most frequent ops with sizes.
    fn frame(&self) -> Option<Frame> {
        let (dtype, role, rank) = match self {
            Op::Full(Full {
                value: _,
                dtype,
                shape,
            }) => (Some(*dtype), None, shape.len()),
            Op::Broadcast(Broadcast { shape }) => (None, None, shape.len()),
            Op::Reshape(Reshape { shape }) => (None, None, shape.len()),
            Op::Input(Input {
                index,
                fact: Fact { dtype, shape },
                role,
            }) => (Some(*dtype), Some((*index, *role)), shape.len()),
            _ => return None,
        };
        Some(Frame {
            op: std::mem::discriminant(self),
            dtype,
            role,
            rank,
        })
    }

    /// Calls `f` with every node of the op's bodies and of theirs, in a fixed order.
    pub fn inner_nodes<'a>(&'a self, f: &mut dyn FnMut(&'a Node)) {
        for body in self.bodies() {
            for (_, node) in body.iter() {
                f(node);
                node.op.inner_nodes(f);
            }
        }
    }

    /// Like [`Op::inner_nodes`], to change them.
    pub fn inner_nodes_mut(&mut self, f: &mut dyn FnMut(&mut Node)) {
        for body in self.bodies_mut() {
            let body = Arc::make_mut(body);
            for id in body.ids() {
                f(body.node_mut(id));
                body.node_mut(id).op.inner_nodes_mut(f);
            }
        }
    }

    /// True if the op only renames indices: its result could be read straight from its operand.
    pub fn is_view(&self) -> bool {
        self.cost() == Cost::View
    }

    /// True if computing the op again costs little compared with reading its operands.
    pub fn is_cheap(&self) -> bool {
        self.cost() != Cost::Work
    }
}
