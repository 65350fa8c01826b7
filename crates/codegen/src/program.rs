//! What lowering gives: buffers and tasks.

use crate::work::{Way, Work};
use hashbrown::HashMap;
use kiln_base::{DType, Dim, Machine};
use kiln_ir::{NodeId, Value};
use kiln_plan::{self as plan, schedule};
use std::fmt;
use std::sync::Arc;

/// A cost of what is not possible.
pub(crate) const NEVER: u64 = 1 << 50;

/// A buffer of a [`Program`]: an index into [`Program::buffers`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufId(pub u32);

/// How to lower.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What programs are lowered for: on a CPU tile programs and the engine's own kernels, on a GPU CUDA C++.
    pub machine: Machine,
    /// Whether to fuse. Without it every op is its own kernel (for differential tests).
    pub fuse: bool,
    /// The most operations one kernel may hold.
    pub max_ops: usize,
    /// The most buffers one kernel may touch; small ones count less.
    pub max_buffers: usize,
    /// How images lie in memory.
    pub layout: Layout,
    /// Whether sums of products are computed as such, unless a way is asked for that isn't.
    pub exact: bool,
    /// Whether tasks have every way to compute them, for a tuner to choose.
    pub ways: bool,
    /// One more schedule of contractions among these ways on a GPU, where it is legal.
    pub schedule: Option<schedule::Gpu>,
}

/// How the images of convolutions lie in memory between kernels. Results always have channels first (NCHW).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// As costs least over the whole program.
    #[default]
    Auto,
    /// Channels first (NCHW), everywhere.
    ChannelsFirst,
    /// Channels last (NHWC), where convolutions can.
    ChannelsLast,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            machine: Machine::default(),
            fuse: true,
            max_ops: 128,
            max_buffers: 24,
            layout: Layout::Auto,
            exact: false,
            ways: false,
            schedule: None,
        }
    }
}

/// How a node is lowered, against the rules.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Hint {
    /// A reduction in about so many parts, which a second launch puts together; with 1 in one launch.
    Parts(i64),
    /// The value in a launch of its own: what reads it does not compute it.
    Apart,
    /// A convolution takes so long with channels first, and last, in thousandths of what the model says of
    /// channels first.
    Images(u32, u32),
}

/// Nodes that are lowered otherwise than by the rules.
pub type Hints = HashMap<NodeId, Hint>;

/// Why a graph can't be lowered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{node} can't be lowered: {text}")]
pub struct LowerError {
    /// The node that can't be lowered.
    pub node: NodeId,
    /// What is wrong with it.
    pub text: String,
}

impl LowerError {
    pub(crate) fn new(node: NodeId, text: impl Into<String>) -> LowerError {
        LowerError {
            node,
            text: text.into(),
        }
    }
}

/// A graph as a list of tasks over buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// What it was lowered for.
    pub machine: Machine,
    /// Every buffer: inputs by input index, then constants, then what tasks write, in order.
    pub buffers: Vec<BufferInfo>,
    /// The tasks, in an order in which they can run.
    pub tasks: Vec<Task>,
    /// The buffer of each graph output. `None` only for [`kiln_ir::Target::Kept`] values that the
    /// program does not write to memory.
    pub outputs: Vec<Option<BufId>>,
    /// How images lie in memory, and why.
    pub layout: LayoutReport,
}

/// How the images of a program's convolutions lie in memory, and why. Costs are in thousandths of a
/// multiply-add of a matrix product.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutReport {
    /// Convolutions that could have channels last.
    pub convolutions: usize,
    /// Those that have.
    pub channels_last: usize,
    /// Reads of images in a launch of the other layout.
    pub conversions: Vec<Conversion>,
    /// What the chosen layouts cost by the model.
    pub cost: u64,
    /// What channels first cost everywhere...
    pub first_cost: u64,
    /// ...and channels last wherever possible.
    pub last_cost: u64,
}

/// An image that a launch reads in the other layout than its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// The image.
    pub value: Value,
    /// A value that the reader writes.
    pub reader: Value,
    /// Whether the reader has channels last, and the image channels first.
    pub channels_last: bool,
    /// Whether the image keeps channels first whoever writes it: an input or a result of the program, or
    /// what a reshape or a library kernel that is no convolution reads.
    pub kept: bool,
    /// Whether the reader copies the image into its layout; else it steps through memory.
    pub copied: bool,
    /// The image's bytes.
    pub bytes: Dim,
}

impl fmt::Display for LayoutReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, all) = (self.channels_last, self.convolutions);
        let k = self.conversions.len();
        write!(
            f,
            "layout: {n} of {all} convolutions with channels last, {k} conversions"
        )?;
        if self.cost == 0 {
            return Ok(());
        }
        let millions = |cost: u64| match cost {
            c if c >= NEVER => "impossible".to_string(),
            c => format!("{:.1}", c as f64 / 1e9),
        };
        write!(
            f,
            "; by the model {} million operations, {} with channels first everywhere, {} with channels last",
            millions(self.cost),
            millions(self.first_cost),
            millions(self.last_cost)
        )
    }
}

/// A contiguous buffer: row-major, or with channels last.
#[derive(Clone, Debug, PartialEq)]
pub struct BufferInfo {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<Dim>,
    /// Where its contents come from.
    pub origin: Origin,
    /// Whether it depends on parameters and constants only.
    pub parameter_only: bool,
    /// Whether it lies in memory as `[batch, spatial.., channels]`, where the shape is
    /// `[batch, channels, spatial..]`.
    pub channels_last: bool,
}

/// Where a buffer's contents come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    /// The caller: the input of this index.
    Input(u32),
    /// The graph: little-endian elements.
    Constant(Arc<[u8]>),
    /// A task that writes this value of the graph.
    Value(Value),
    /// A task that writes a rearrangement or an intermediate of this value: reordered convolution
    /// weights, partial sums, a copy of an input.
    Derived(Value),
}

/// Some work of a program, and what it is computed by.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// What is computed.
    pub work: Work,
    /// The ways to compute it, the default first; others only where [`Options::ways`] asks for them.
    pub ways: Vec<Way>,
    /// Which of the ways it is computed by.
    pub chosen: usize,
    /// The buffer of each of the work's arguments.
    pub args: Vec<BufId>,
    /// The data-error sites that kernels name by position.
    pub sites: Vec<plan::Site>,
    /// The graph nodes computed here, ascending.
    pub nodes: Vec<NodeId>,
    /// For values that cross the border of the task: why they were not fused.
    pub why_not: Vec<String>,
}

impl Task {
    /// The way that it is computed by.
    pub fn way(&self) -> &Way {
        &self.ways[self.chosen]
    }

    /// The buffers that it writes.
    pub fn written(&self) -> impl Iterator<Item = BufId> {
        let args = self.args.iter().zip(&self.work.args);
        args.filter(|(_, a)| a.written).map(|(b, _)| *b)
    }
}

/// An estimate of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Arithmetic operations.
    pub flops: Dim,
    /// Bytes of the buffers touched, each counted once.
    pub bytes: Dim,
}

impl Default for Cost {
    fn default() -> Cost {
        Cost {
            flops: Dim::ZERO,
            bytes: Dim::ZERO,
        }
    }
}
