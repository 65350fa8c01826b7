//! The results of lowering: buffers and tasks.

use crate::work::{Candidate, Work};
use hashbrown::HashMap;
use kiln_base::{DType, Dim, Machine};
use kiln_ir::{NodeId, Value};
use kiln_plan::{self as plan, schedule};
use std::fmt;
use std::sync::Arc;

/// The cost of an impossible choice.
pub(crate) const NEVER: u64 = 1 << 50;

/// A buffer of a [`Program`]: an index into [`Program::buffers`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufId(pub u32);

/// The options of lowering.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The target machine: tile programs and the engine's own kernels on a CPU, CUDA C++ on a GPU.
    pub machine: Machine,
    /// True if ops are fused. Otherwise every op is its own kernel (for differential tests).
    pub fuse: bool,
    /// The maximum number of operations one kernel may hold.
    pub max_ops: usize,
    /// The maximum number of buffers one kernel may touch; small ones count less.
    pub max_buffers: usize,
    /// The memory layout of images.
    pub layout: Layout,
    /// True if sums of products must be computed as such, unless another candidate is requested.
    pub exact: bool,
    /// True if tasks get all candidates, for a tuner to choose from.
    pub candidates: bool,
    /// One more schedule of contractions among these candidates on a GPU, where it is legal.
    pub schedule: Option<schedule::Gpu>,
}

/// The memory layout of the images of convolutions between kernels. Results always have channels first (NCHW).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// The layouts of least cost over the whole program.
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
            candidates: false,
            schedule: None,
        }
    }
}

/// An override of the rules for lowering a node.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Hint {
    /// A reduction in about this many parts, which a second launch combines; with 1 in one launch.
    Parts(i64),
    /// The value in a launch of its own: its readers do not compute it.
    Apart,
    /// The measured times of a convolution with channels first, and last, in thousandths of the model's estimate for
    /// channels first.
    Images(u32, u32),
}

/// The hints for nodes that deviate from the rules.
pub type Hints = HashMap<NodeId, Hint>;

/// The reason why a graph can't be lowered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{node} can't be lowered: {text}")]
pub struct LowerError {
    /// The node that can't be lowered.
    pub node: NodeId,
    /// A description of the problem.
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
    /// The target machine.
    pub machine: Machine,
    /// Every buffer: inputs by input index, then constants, then buffers that tasks write, in order.
    pub buffers: Vec<BufferInfo>,
    /// The tasks, in an order in which they can run.
    pub tasks: Vec<Task>,
    /// The buffer of each graph output. `None` only for [`kiln_ir::Target::Kept`] values that the
    /// program does not write to memory.
    pub outputs: Vec<Option<BufId>>,
    /// The memory layout of images, and the reasons.
    pub layout: LayoutReport,
}

/// The memory layout of the images of a program's convolutions, and the reasons. Costs are in thousandths of a
/// multiply-add of a matrix product.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutReport {
    /// The number of convolutions that could have channels last.
    pub convolutions: usize,
    /// The number of those that do.
    pub channels_last: usize,
    /// Reads of images in a launch of the other layout.
    pub conversions: Vec<Conversion>,
    /// The cost of the chosen layouts by the model.
    pub cost: u64,
    /// The cost with channels first everywhere.
    pub first_cost: u64,
    /// The cost with channels last wherever possible.
    pub last_cost: u64,
}

/// An image that a launch reads in the other layout than its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// The image.
    pub value: Value,
    /// A value that the reader writes.
    pub reader: Value,
    /// True if the reader has channels last, and the image channels first.
    pub channels_last: bool,
    /// True if the image keeps channels first whoever writes it: an input or a result of the program, or a value read
    /// by a reshape or by a library kernel that is not a convolution.
    pub kept: bool,
    /// True if the reader copies the image into its layout; else it strides through memory.
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
    /// The origin of its contents.
    pub origin: Origin,
    /// True if it depends on parameters and constants only.
    pub parameter_only: bool,
    /// True if its memory layout is `[batch, spatial.., channels]`, where the shape is `[batch, channels, spatial..]`.
    pub channels_last: bool,
}

/// The origin of a buffer's contents.
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

/// Some work of a program, and its candidates.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The work.
    pub work: Work,
    /// The candidates, the default first; others only if [`Options::candidates`] requests them.
    pub candidates: Vec<Candidate>,
    /// The index of the chosen candidate.
    pub chosen: usize,
    /// The buffer of each of the work's arguments.
    pub args: Vec<BufId>,
    /// The data-error sites that kernels name by position.
    pub sites: Vec<plan::Site>,
    /// The graph nodes computed here, ascending.
    pub nodes: Vec<NodeId>,
    /// The reasons why values that cross the border of the task were not fused.
    pub why_not: Vec<String>,
}

impl Task {
    /// Returns the chosen candidate.
    pub fn candidate(&self) -> &Candidate {
        &self.candidates[self.chosen]
    }

    /// Returns the buffers that it writes.
    pub fn written(&self) -> impl Iterator<Item = BufId> {
        let args = self.args.iter().zip(&self.work.args);
        args.filter(|(_, a)| a.written).map(|(b, _)| *b)
    }
}

/// The estimated cost of some work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The arithmetic operations.
    pub flops: Dim,
    /// The bytes of the buffers touched, each counted once.
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
