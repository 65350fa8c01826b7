//! Kernels that walk along an axis in an order: scans, sorts and scatters.

use crate::Strided;
use kiln_base::prim::{ScanKind, ScatterKind};
use kiln_base::{DType, Dim};
use serde::{Deserialize, Serialize};

/// `out[o, i, j] = x[o, 0, j] ∘ … ∘ x[o, i, j]`, or from the end; all of one dtype. f16 and bf16
/// accumulate in f32. The result may lie in the operand's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scan {
    /// Any that computes but bool.
    pub dtype: DType,
    /// How elements combine.
    pub kind: ScanKind,
    /// Whether the last element comes first.
    pub reverse: bool,
    /// Extent in front of the axis.
    pub outer: Dim,
    /// Extent of the axis.
    pub len: Dim,
    /// Extent behind the axis.
    pub inner: Dim,
    /// The argument of the contiguous operand.
    pub x: u16,
    /// The argument of the contiguous result.
    pub out: u16,
}

/// The i64 indices that sort each lane of contiguous `[lanes, len]`, stable, of which the first `kept`
/// are given. NaN is the largest, −0 is 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArgSort {
    /// Any that computes.
    pub dtype: DType,
    /// Whether the largest element comes first.
    pub descending: bool,
    /// Number of lanes.
    pub lanes: Dim,
    /// Elements of a lane.
    pub len: Dim,
    /// Indices given of a lane.
    pub kept: Dim,
    /// The argument of the operand.
    pub x: u16,
    /// The argument of the contiguous `[lanes, kept]`.
    pub out: u16,
}

/// A copy of x in which `x[.., index[.., i, ..], ..]` is combined with `src[.., i, ..]`, ascending in
/// i. An index outside the axis is a data error at the kernel's one site. The result may lie in the
/// memory of x.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scatter {
    /// Of x, the source and the result; any for [`ScatterKind::Set`], else one that computes, and
    /// for sums and products neither bool, f16 nor bf16.
    pub dtype: DType,
    /// How elements combine.
    pub kind: ScatterKind,
    /// The indexed axis.
    pub axis: u16,
    /// Extents of x and the result.
    pub shape: Vec<Dim>,
    /// Extents of the index and the source.
    pub index_shape: Vec<Dim>,
    /// The argument of contiguous x.
    pub x: u16,
    /// The index, i64.
    pub index: Strided,
    /// The source.
    pub src: Strided,
    /// The argument of the contiguous result.
    pub out: u16,
}
