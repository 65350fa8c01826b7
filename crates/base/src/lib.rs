//! Words that every Kiln crate shares: [`DType`]s, [`Scalar`]s, [`Dim`]s, source locations ([`Loc`]),
//! the scalar primitives of kernels ([`prim`], [`special`]), the serialisable [`Plan`](plan::Plan) with its kernels,
//! the registry of [`custom`] operators, the names of those of [`linalg`], and [files](mod@file) that are replaced whole.

pub mod cuda;
pub mod custom;
mod dim;
mod dtype;
mod element;
pub mod file;
pub mod linalg;
mod loc;
pub mod memory;
pub mod plan;
pub mod prim;
mod scalar;
pub mod special;
pub mod tile;

pub use dim::{Dim, NotDivisible, Sym, SymbolValues, addressable, contiguous_strides, numel};
pub use dtype::{Compute, DType, Kind};
pub use element::Element;
pub use loc::Loc;
pub use scalar::{Scalar, float_to_int, round_float, wrap_int};
