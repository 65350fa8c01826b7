//! The serialisable program, which the compiler produces and the runtime runs.
//!
//! A [`Plan`] is data: buffers, kernels, and two lists of [`Step`]s. The *prepare* steps depend only on parameters and
//! run again only when one of those changes; the *run* steps run every time. Sizes may be symbolic; binding the inputs'
//! shapes gives every symbol a value. A plan does not contain the meaning of its inputs and outputs for a caller. A
//! [`Signature`] does, and both together are an [`Entry`].

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
mod footprint;
mod kernel;
mod measure;
pub mod memory;
mod operand;
pub mod schedule;
pub mod tile;
mod winograd;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use bytes::{DecodeError, FORMAT};
pub use contract::{ArgUse, Contract, Contradiction, Described, Reads};
pub use cost::Decision;
pub use depth::MAX_DEPTH;
pub use dims::Dims;
use dims::dims;
pub use entry::{Draw, Entry, Named, Signature, State};
pub use fft::FftTile;
pub use footprint::Footprint;
pub use kernel::*;
pub use kiln_base::Role;
use kiln_base::{DType, Dim, Sym};
pub use operand::{Array, Matrix, Strided};
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
    /// The inputs, which the caller passes, in order.
    pub inputs: Vec<Input>,
    /// The outputs, which are returned to the caller, in order.
    pub outputs: Vec<Output>,
    /// The data embedded in the plan.
    pub constants: Vec<Constant>,
    /// Every buffer.
    pub buffers: Vec<Buffer>,
    /// The kernels that steps call.
    pub kernels: Vec<Arc<Kernel>>,
    /// Steps that depend on parameters only, in order.
    pub prepare: Vec<Step>,
    /// The other steps, in order.
    pub run: Vec<Step>,
    /// An index into `run`: the steps from here on write into donated inputs, and run only if no step before them
    /// reported a data error.
    pub commit: u32,
    /// The sites that can report a data error.
    pub sites: Vec<Site>,
    /// The conditions on the values of symbols, in addition to the smallest value of each.
    pub needs: Vec<Need>,
}

dims!(Plan: inputs, outputs, buffers, kernels, needs; symbols, constants, prepare, run, commit, sites);

impl Plan {
    /// Returns the bytes of a buffer under a binding.
    pub fn buffer_bytes(&self, id: BufferId, values: &[i64]) -> usize {
        let b = &self.buffers[id.0 as usize];
        b.len.eval(values) as usize * b.dtype.size()
    }

    /// Returns the dim of the symbol at `index`.
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
    /// The input's index.
    pub input: u32,
    /// The index of its dim; that dim is exactly this symbol.
    pub axis: u32,
}

/// An input: a contiguous row-major tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The element type.
    pub dtype: DType,
    /// The shape; must match at every run once symbols have their values.
    pub shape: Vec<Dim>,
    /// Its role.
    pub role: Role,
    /// Its buffer.
    pub buffer: BufferId,
}

dims!(Input: shape; dtype, role, buffer);

/// An output: a contiguous row-major tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// The element type.
    pub dtype: DType,
    /// The shape.
    pub shape: Vec<Dim>,
    /// Its buffer.
    pub buffer: BufferId,
    /// The input whose memory it may reuse if the caller donates it. Every step that reads the input comes
    /// before the step that writes this output, or is that step and reads each element before writing it.
    pub donor: Option<u32>,
}

dims!(Output: shape; dtype, buffer, donor);

/// Data embedded in a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constant {
    /// The element type.
    pub dtype: DType,
    /// The elements, little-endian.
    pub bytes: Vec<u8>,
    /// Its buffer.
    pub buffer: BufferId,
}

/// A buffer of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// The element type.
    pub dtype: DType,
    /// The number of elements.
    pub len: Dim,
    /// The origin of its memory.
    pub allocation: Allocation,
}

dims!(Buffer: len; dtype, allocation);

/// The origin of a buffer's memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Allocation {
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
    /// An index into [`Plan::kernels`].
    pub kernel: u32,
    /// The buffer of each kernel argument.
    pub args: Vec<BufferId>,
    /// The plan's site for each of the kernel's.
    pub sites: Vec<u32>,
    /// True if it is concurrent with the step before it. Such steps are tile kernels that report no data error, and
    /// none touches memory that another writes.
    pub concurrent: bool,
    /// One bool or i32: if that is not 0 when the step is about to run, the step writes nothing. Such a step reports no
    /// data error. It writes only outputs with a donor, which then keep the donor's contents.
    pub guard: Option<BufferId>,
}

impl Step {
    /// Returns every buffer that it touches: its arguments, then its guard.
    pub fn touched(&self) -> impl Iterator<Item = BufferId> {
        self.args.iter().copied().chain(self.guard)
    }
}

/// A site that can report a data error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// The op, such as `gather`.
    pub op: String,
    /// The kind of error.
    pub kind: SiteKind,
    /// The graph node, by which the caller finds the user's source line.
    pub node: u32,
}

/// A number that must not be negative for the values of symbols.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    /// The number.
    pub size: Dim,
    /// The op that needs it, such as `conv`.
    pub op: String,
    /// The graph node, by which the caller finds the user's source line.
    pub node: u32,
}

dims!(Need: size; op, node);

/// The kind of error at a [`Site`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SiteKind {
    /// An index outside `0..bound`.
    IndexOutOfRange,
    /// An integer division by zero.
    DivisionByZero,
    /// The kernel of a custom op failed.
    Custom,
}
