//! The serialisable program: what the compiler produces and the runtime runs.
//!
//! A [`Plan`] is data: buffers, kernels, and two lists of [`Step`]s. The *prepare* steps depend only on
//! parameters and run again only when one of those changes; the *run* steps run every time. Sizes
//! may be symbolic; binding the inputs' shapes gives every symbol a value. A plan does not say what its inputs and
//! outputs are to anybody; with a [`Signature`], which does, it is an [`Entry`].

mod algorithm;
mod bytes;
mod contract;
pub mod contraction;
pub mod cost;
pub mod cstyle;
pub mod cuda;
mod depth;
mod dims;
mod entry;
mod fft;
mod kernel;
mod measure;
pub mod memory;
mod operand;
mod reach;
pub mod schedule;
pub mod tile;
mod winograd;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use bytes::{DecodeError, FORMAT};
pub use contract::{ArgUse, Contract, Contradiction, Described, Reads};
pub use cost::Decision;
pub use depth::MAX_DEPTH;
pub use entry::{Draw, Entry, Named, Signature, State};
pub use fft::FftTile;
pub use kernel::*;
pub use kiln_base::Role;
use kiln_base::{DType, Dim, Sym};
pub use operand::{Array, Matrix, Strided};
pub use reach::Reach;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
pub use winograd::{Rows, Winograd};

/// A buffer of a plan.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BufferId(pub u32);

/// A program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The symbols that sizes use.
    pub symbols: Vec<Symbol>,
    /// What the caller gives, in order.
    pub inputs: Vec<Input>,
    /// What the caller gets, in order.
    pub outputs: Vec<Output>,
    /// Data baked into the plan.
    pub constants: Vec<Constant>,
    /// Every buffer.
    pub buffers: Vec<Buffer>,
    /// The kernels that steps call.
    pub kernels: Vec<Arc<Kernel>>,
    /// Steps that depend on parameters only, in order.
    pub prepare: Vec<Step>,
    /// The other steps, in order.
    pub run: Vec<Step>,
    /// Index into `run`: the steps from here on write into donated inputs and run only if no step
    /// before them reported a data error.
    pub commit: u32,
    /// Places that can report a data error.
    pub sites: Vec<Site>,
    /// What must hold of the values of symbols, beside the smallest value of each.
    pub needs: Vec<Need>,
}

impl Plan {
    /// The bytes of a buffer under a binding.
    pub fn buffer_bytes(&self, id: BufferId, values: &[i64]) -> usize {
        let b = &self.buffers[id.0 as usize];
        b.len.eval(values) as usize * b.dtype.size()
    }

    /// The dim of the symbol at `index`.
    pub fn symbol(index: usize) -> Dim {
        Dim::symbol(Sym(index as u32))
    }
}

/// A symbol and the input dim that gives it its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Symbol {
    /// A readable name, such as `batch`.
    pub name: String,
    /// The smallest legal value; at least 2.
    pub min: i64,
    /// Which input.
    pub input: u32,
    /// Which of its dims; that dim is exactly this symbol.
    pub axis: u32,
}

/// An input: a contiguous row-major tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Element type.
    pub dtype: DType,
    /// Shape; must match at every run once symbols have their values.
    pub shape: Vec<Dim>,
    /// What it is.
    pub role: Role,
    /// Its buffer.
    pub buffer: BufferId,
}

/// An output: a contiguous row-major tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<Dim>,
    /// Its buffer.
    pub buffer: BufferId,
    /// The input whose memory it may take over where the caller gives that memory up. Every step
    /// that reads the input comes before the step that writes this output, or is that step and
    /// reads each element before writing it.
    pub donor: Option<u32>,
}

/// Data baked into a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constant {
    /// Element type.
    pub dtype: DType,
    /// Little-endian elements.
    pub bytes: Vec<u8>,
    /// Its buffer.
    pub buffer: BufferId,
}

/// A buffer of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub len: Dim,
    /// Where its memory comes from.
    pub place: Place,
}

/// Where a buffer's memory comes from.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Place {
    /// The caller.
    Input,
    /// A fresh allocation that outlives the run (or the donor's memory).
    Output,
    /// The plan.
    Constant,
    /// Results of *prepare*, kept as long as the parameters stay the same.
    Prepared,
    /// The arena.
    Temporary,
    /// The memory of another temporary buffer that dies where this one is written.
    InPlace(BufferId),
}

/// One kernel call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Index into [`Plan::kernels`].
    pub kernel: u32,
    /// The buffer of each kernel argument.
    pub args: Vec<BufferId>,
    /// The plan's site for each of the kernel's.
    pub sites: Vec<u32>,
    /// Whether it starts together with the step before it. Such steps are tile kernels that report no
    /// data error, and none touches what another writes.
    pub joined: bool,
    /// One bool or i32: if that is not 0 when the step is about to run, the step writes nothing. It reports no data
    /// error, and writes outputs with a donor alone, which then hold what that held.
    pub guard: Option<BufferId>,
}

impl Step {
    /// Every buffer that it touches: its arguments, then its guard.
    pub fn touched(&self) -> impl Iterator<Item = BufferId> {
        self.args.iter().copied().chain(self.guard)
    }
}

/// A place that can report a data error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// The op, such as `gather`.
    pub op: String,
    /// What goes wrong there.
    pub kind: SiteKind,
    /// The graph node, by which the caller finds the user's source line.
    pub node: u32,
}

/// A number that must not be negative when symbols have values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    /// The number.
    pub size: Dim,
    /// The op that needs it, such as `conv`.
    pub op: String,
    /// The graph node, by which the caller finds the user's source line.
    pub node: u32,
}

/// What goes wrong at a [`Site`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SiteKind {
    /// An index outside `0..bound`.
    IndexOutOfRange,
    /// An integer division by zero.
    DivisionByZero,
    /// The kernel of a custom op failed.
    Custom,
}
