//! Words that every Kiln crate shares: [`DType`]s, [`Scalar`]s, [`Dim`]s, source locations ([`Loc`]),
//! the scalar primitives of kernels ([`prim`], [`special`]) and the serialisable [`Plan`](plan::Plan) with its kernels.

pub mod cuda;
mod dim;
mod dtype;
mod loc;
pub mod memory;
pub mod plan;
pub mod prim;
mod scalar;
pub mod special;
pub mod tile;

pub use dim::{Dim, NotDivisible, Sym, SymbolValues, contiguous_strides, numel};
pub use dtype::{Compute, DType, Kind};
pub use loc::Loc;
pub use scalar::{Scalar, float_to_int, round_float, wrap_int};
