//! The kernels that steps run: each kind in a file of its own.

mod attention;
mod collective;
mod control;
mod conv;
mod custom;
mod library;
mod matmul;
mod ordered;

pub use attention::{Attention, AttentionGrad, Dropout, Scores};
pub use collective::Collective;
pub use control::{If, Loop};
pub use conv::{Conv, ConvRole, Images};
pub use custom::Custom;
pub use library::{LibraryMatrix, LibraryProduct};
pub use matmul::MatMul;
pub use ordered::{ArgSort, Scan, Scatter};

use crate::Plan;
use crate::contract::Described;
use crate::cuda::CudaKernel;
use crate::dims::dims;
use crate::tile::{Schedule, TileProgram};
use kiln_base::DType;
use serde::{Deserialize, Serialize};
use std::ops::Deref;

/// Returns the dtype of sums of products: i32 for narrower integers, which wrap around.
fn sums(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        DType::U8 | DType::I8 | DType::I16 => DType::I32,
        other => other,
    }
}

/// True if operands are of one dtype, or bytes of which one is signed.
fn match_up([a, b]: [DType; 2]) -> bool {
    a == b || a.is_byte() && b.is_byte()
}

/// A kernel, which a step runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Kernel {
    /// A fused group.
    Tile(TileProgram),
    /// A batched matrix product.
    MatMul(MatMul),
    /// A convolution.
    Conv(Conv),
    /// A scan: running results along an axis.
    Scan(Scan),
    /// The order of the elements of lanes.
    ArgSort(ArgSort),
    /// Elements placed by index.
    Scatter(Scatter),
    /// A program run a number of times.
    Loop(Loop),
    /// One of two programs.
    If(If),
    /// A user's kernel.
    Custom(Custom),
    /// Any of these, for a GPU. A plan has either these alone or none.
    Cuda(CudaKernel),
    /// Attention.
    Attention(Box<Attention>),
    /// The gradients of attention.
    AttentionGrad(Box<AttentionGrad>),
    /// A collective operation of processes.
    Collective(Collective),
    /// A product by a library for GPUs, which no file holds.
    Library(Box<LibraryProduct>),
}

impl Deref for Kernel {
    type Target = dyn Described;

    fn deref(&self) -> &Self::Target {
        match self {
            Kernel::Tile(k) => k,
            Kernel::MatMul(k) => k,
            Kernel::Conv(k) => k,
            Kernel::Scan(k) => k,
            Kernel::ArgSort(k) => k,
            Kernel::Scatter(k) => k,
            Kernel::Loop(k) => k,
            Kernel::If(k) => k,
            Kernel::Custom(k) => k,
            Kernel::Cuda(k) => k,
            Kernel::Attention(k) => &**k,
            Kernel::AttentionGrad(k) => &**k,
            Kernel::Collective(k) => k,
            Kernel::Library(k) => &**k,
        }
    }
}

impl Kernel {
    /// Returns its tile programs, in the order in which they run: prologues, then the epilogue or the fused group.
    pub fn programs(&self) -> impl Iterator<Item = &TileProgram> {
        let prologues = self.prologues().iter().flatten().map(|p| &p.program);
        prologues.chain(self.program())
    }

    /// Returns the programs that it runs, mutably.
    pub fn bodies_mut(&mut self) -> &mut [Plan] {
        match self {
            Kernel::Loop(l) => std::slice::from_mut(&mut l.body),
            Kernel::If(i) => &mut i.branches[..],
            _ => &mut [],
        }
    }
}

/// An epilogue: work on the result of a matrix product or convolution while it is hot in the cache.
///
/// Its program is a [`Schedule::Lanes`] program without `inner` whose linear iteration space is that of the product's
/// row-major result (`[batch.., m, n]`, or `[n, c, spatial..]`). Alternatively, for a matrix product, it is a
/// [`Schedule::Rows`] program whose axes are the product's rows and whose `inner` are the n elements of one. Its
/// arguments are the step's, followed by the raw result: an array over that whole space, only the current part of which
/// exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epilogue {
    /// The program; the raw result is its last argument.
    pub program: TileProgram,
}

dims!(Epilogue: program;);

impl Epilogue {
    /// True if it works on whole rows of the result.
    pub fn over_rows(&self) -> bool {
        self.program.schedule == Schedule::Rows
    }
}

/// A prologue: pointwise work that computes an operand of a matrix product or convolution in parts, without
/// materialising it.
///
/// Its program is a [`Schedule::Lanes`] program without `inner` and data errors over the operand's row-major linear
/// space. Its arguments are the step's, followed by the operand, which it writes: an array over that whole space, only
/// the current part of which exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prologue {
    /// The program; the operand is its last argument.
    pub program: TileProgram,
}

dims!(Prologue: program;);
