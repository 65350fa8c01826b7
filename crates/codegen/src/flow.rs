//! The graph in the few ops that fusion distinguishes.
//!
//! Every view becomes one affine [`View`], windows included. Matrix products and convolutions that have no library
//! kernel become products of views under a reduction. Composites are errors. Each node names the value of the graph
//! that it computes.

use crate::affine::{Affine, flatten, flatten_layout};
use crate::{Hint, LowerError};
use kiln_base::prim::{RandomKind, Reduction};
use kiln_base::{DType, Dim, Scalar};
use kiln_ir::{Pw, Value};
use kiln_plan::Conv;
use smallvec::SmallVec;
use std::sync::Arc;

/// The maximum number of operands of a concatenation. More are concatenated in steps, with results in memory.
pub(crate) const WIDE: usize = 32;

mod build;
mod ops;
mod ordered;
mod structured;

pub(crate) use build::build;
pub(crate) use ops::{Library, LibraryCall, scores};

/// A node: an index into [`Flow::nodes`].
pub(crate) type Nid = usize;

/// The point at which a cast to a dtype of fewer bits rounds.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// At the cast.
    Here,
    /// When the value is stored or compared; see [`kiln_ir::ops::Cast::is_step`].
    Stored,
}

/// The operation of a node.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Input(u32),
    Data(Arc<[u8]>),
    Scalar(Scalar),
    /// The index along axis 0, as i64.
    Iota,
    /// A number computed from sizes.
    Size(Dim),
    Random(RandomKind),
    Pw(Pw),
    Cast(Rounding),
    /// The operand in a buffer of its own.
    Copy,
    View(View),
    Reshape,
    Concat(usize),
    Gather(usize),
    Reduce(Reduction, SmallVec<[usize; 4]>),
    ArgReduce(Reduction, usize),
    MatMul,
    /// A convolution of the node's inputs.
    Conv(Box<Conv>),
    Attention(kiln_ir::ops::Attention),
    /// An op that a kernel of its own computes, by name.
    Library(&'static str, Arc<dyn Library>),
    /// A loop, branch or collective operation, whose outputs are its [`Op::Part`]s.
    Control(Arc<kiln_ir::Op>),
    /// An output of the operand.
    Part,
    /// The first operand, in its memory, after all operands are computed.
    After,
}

/// A renaming of indices: operand index d is `index[d]`, whose axes are the dims of the result.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub index: Vec<Affine>,
    /// The operand dims whose index may fall outside, and the value of the view there.
    pub fill: Option<(SmallVec<[usize; 4]>, Scalar)>,
}

impl Op {
    /// Returns a view without padding.
    fn view(index: Vec<Affine>) -> Op {
        Op::View(View { index, fill: None })
    }

    /// Returns a view that is `value` where the index of a dim of `padded` is out of range.
    fn padded_view(index: Vec<Affine>, padded: SmallVec<[usize; 4]>, value: Scalar) -> Op {
        let fill = (!padded.is_empty()).then_some((padded, value));
        Op::View(View { index, fill })
    }
}

impl Node {
    /// Applies a hint to the node.
    fn apply_hint(&mut self, hint: Hint) {
        match (hint, &self.op) {
            (Hint::Apart, _) => self.apart = true,
            (Hint::Images(first, last), Op::Conv(_)) => self.measured = Some((first, last)),
            _ => {}
        }
    }
}

/// A node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub op: Op,
    pub inputs: SmallVec<[Nid; 3]>,
    pub dtype: DType,
    pub shape: SmallVec<[Dim; 4]>,
    /// The value of the graph that this computes, or is a step towards.
    pub source: Value,
    /// True if this is a step towards `source`, not `source` itself.
    pub helper: bool,
    /// True if it depends on parameters and constants only.
    pub parameter_only: bool,
    /// True if it is stored as `[batch, spatial.., channels]`, if at all.
    pub channels_last: bool,
    /// True if it must be computed by a launch of its own, even if it could be fused.
    pub apart: bool,
    /// The measured choice for a convolution, as [`Hint::Images`](crate::Hint::Images) describes.
    pub measured: Option<(u32, u32)>,
}

/// A graph output.
#[derive(Copy, Clone, Debug)]
pub(crate) struct FlowOutput {
    pub node: Nid,
    /// True if the value must be in memory.
    pub required: bool,
}

/// The graph.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flow {
    pub nodes: Vec<Node>,
    pub outputs: Vec<FlowOutput>,
}

impl Flow {
    pub fn numel(&self, n: Nid) -> Dim {
        kiln_base::numel(&self.nodes[n].shape)
    }

    /// True if a chain of at most `depth` ops proves that no element of a value exceeds a non-negative limit. Floats
    /// may be NaN, which casts to integers convert to 0.
    pub fn is_at_most(&self, n: Nid, limit: f64, depth: u32) -> bool {
        let Some(depth) = depth.checked_sub(1) else {
            return false;
        };
        let node = &self.nodes[n];
        let fits = |n: &Nid| self.is_at_most(*n, limit, depth);
        match &node.op {
            Op::Scalar(number) => number.as_f64() <= limit,
            Op::Pw(Pw::Minimum) => node.inputs.iter().any(fits),
            Op::Pw(Pw::Clip | Pw::Clamp) => fits(&node.inputs[2]),
            Op::Pw(Pw::Maximum) | Op::Concat(_) => node.inputs.iter().all(fits),
            // Casts of floats saturate, others wrap around.
            Op::Cast(_) => self.nodes[node.inputs[0]].dtype.is_float() && fits(&node.inputs[0]),
            Op::View(view) => {
                let fill = view.fill.as_ref();
                fill.is_none_or(|(_, number)| number.as_f64() <= limit) && fits(&node.inputs[0])
            }
            Op::Pw(Pw::Relu) | Op::Reshape | Op::Copy | Op::Reduce(Reduction::Max, _) => {
                fits(&node.inputs[0])
            }
            _ => false,
        }
    }
}

impl Node {
    /// Returns the offset of an element in the value's memory.
    pub fn address(&self, map: &[Affine]) -> Affine {
        flatten_layout(map, &self.shape, self.channels_last)
    }

    /// Returns the offset of an element in the raw result of the node's library kernel.
    pub fn raw_address(&self, map: &[Affine]) -> Affine {
        match &self.op {
            Op::Conv(c) => flatten_layout(map, &self.shape, c.writes_channels_last()),
            _ => flatten(map, &self.shape),
        }
    }

    /// True if the value is in memory without a launch.
    pub fn is_leaf(&self) -> bool {
        matches!(self.op, Op::Input(_) | Op::Data(_) | Op::After)
    }

    /// True if the node is an index map or a number, which is rematerialised at each use.
    pub fn is_index_map(&self) -> bool {
        matches!(
            self.op,
            Op::Scalar(_)
                | Op::Iota
                | Op::Size(_)
                | Op::Random(_)
                | Op::View(_)
                | Op::Reshape
                | Op::Concat(_)
        )
    }

    /// True if a library kernel computes it.
    pub fn has_library(&self) -> bool {
        self.is_product() || self.is_alone()
    }

    /// True if its library kernel accepts an epilogue.
    pub fn is_product(&self) -> bool {
        matches!(self.op, Op::MatMul | Op::Conv(_) | Op::Attention(_))
    }

    /// True if its library kernel accepts no epilogue.
    pub fn is_alone(&self) -> bool {
        matches!(self.op, Op::Library(..) | Op::Control(_))
    }

    /// Returns its name in the names of kernels.
    pub fn name(&self) -> &'static str {
        match &self.op {
            Op::Input(_) => "input",
            Op::Data(_) => "constant",
            Op::Scalar(_) => "full",
            Op::Iota => "iota",
            Op::Size(_) => "numel",
            Op::Random(_) => "random",
            Op::Pw(pw) => pw.name(),
            Op::Cast(_) => "cast",
            Op::Copy => "copy",
            Op::View(v) if v.fill.is_some() => "pad",
            Op::View(_) => "view",
            Op::Reshape => "reshape",
            Op::Concat(_) => "concat",
            Op::Gather(_) => "gather",
            Op::Reduce(kind, _) => kind.name(),
            Op::ArgReduce(Reduction::Min, _) => "argmin",
            Op::ArgReduce(..) => "argmax",
            Op::MatMul => "matmul",
            Op::Conv(c) => c.role.name(),
            Op::Attention(_) => "attention",
            Op::Library(name, _) => name,
            Op::Control(op) => op.name(),
            Op::Part => "output",
            Op::After => "barrier",
        }
    }
}

type Result<T> = std::result::Result<T, LowerError>;
