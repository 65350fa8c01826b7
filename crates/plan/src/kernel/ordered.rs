//! Kernels that walk along an axis in an order: scans, sorts and scatters.

use crate::contract::{Contract, Contradiction, Described, Draft, Reads};
use crate::dims::dims;
use crate::{Footprint, Strided};
use kiln_base::prim::{ScanKind, ScatterKind};
use kiln_base::{DType, Dim, numel};
use serde::{Deserialize, Serialize};

/// A scan: `out[o, i, j] = x[o, 0, j] ∘ … ∘ x[o, i, j]`, or from the end; all of one dtype. f16 and bf16 accumulate in
/// f32. The result may alias the operand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scan {
    /// The dtype: any that computes except bool.
    pub dtype: DType,
    /// The operation that combines elements.
    pub kind: ScanKind,
    /// True if the last element comes first.
    pub reverse: bool,
    /// The extent before the axis.
    pub outer: Dim,
    /// The extent of the axis.
    pub len: Dim,
    /// The extent after the axis.
    pub inner: Dim,
    /// The argument of the contiguous operand.
    pub x: u16,
    /// The argument of the contiguous result.
    pub out: u16,
}

dims!(Scan: outer, len, inner; dtype, kind, reverse, x, out);

/// The i64 indices of a stable sort of each lane of contiguous `[lanes, len]`; the first `kept` are returned. NaN is
/// the largest, −0 is 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArgSort {
    /// The dtype: any that computes.
    pub dtype: DType,
    /// True if the largest element comes first.
    pub descending: bool,
    /// The number of lanes.
    pub lanes: Dim,
    /// The number of elements of a lane.
    pub len: Dim,
    /// The number of indices returned per lane.
    pub kept: Dim,
    /// The argument of the operand.
    pub x: u16,
    /// The argument of the contiguous `[lanes, kept]`.
    pub out: u16,
}

dims!(ArgSort: lanes, len, kept; dtype, descending, x, out);

/// A copy of x in which `x[.., index[.., i, ..], ..]` is combined with `src[.., i, ..]`, ascending in i. An index
/// outside the axis is a data error at the kernel's only site. The result may alias x.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scatter {
    /// The dtype of x, the source and the result: any for [`ScatterKind::Set`], else one that computes, and for sums
    /// and products neither bool, f16 nor bf16.
    pub dtype: DType,
    /// The operation that combines elements.
    pub kind: ScatterKind,
    /// The indexed axis.
    pub axis: u16,
    /// The extents of x and the result.
    pub shape: Vec<Dim>,
    /// The extents of the index and the source.
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

dims!(Scatter: shape, index_shape, index, src; dtype, kind, axis, x, out);

impl Described for Scan {
    fn name(&self) -> &str {
        "scan"
    }

    fn contract(&self) -> Result<Contract, Contradiction> {
        let mut draft = Draft::new(self.name());
        draft.reads(self.x, self.dtype, Reads::First)?;
        draft.writes(self.out, self.dtype)?;
        draft.finish(0)
    }

    fn results(&self) -> Option<Vec<&Dim>> {
        Some(vec![&self.outer, &self.len, &self.inner])
    }

    fn footprints(&self) -> Vec<Footprint> {
        let extents = [&self.outer, &self.len, &self.inner];
        [self.x, self.out]
            .map(|arg| Footprint::whole(arg, extents))
            .into()
    }
}

impl Described for ArgSort {
    fn name(&self) -> &str {
        "arg_sort"
    }

    fn contract(&self) -> Result<Contract, Contradiction> {
        let mut draft = Draft::new(self.name());
        draft.reads(self.x, self.dtype, Reads::Throughout)?;
        draft.writes(self.out, DType::I64)?;
        draft.finish(0)
    }

    fn results(&self) -> Option<Vec<&Dim>> {
        Some(vec![&self.lanes, &self.kept])
    }

    fn operations(&self) -> Dim {
        &self.lanes * &self.len
    }

    fn footprints(&self) -> Vec<Footprint> {
        vec![
            Footprint::whole(self.x, [&self.lanes, &self.len]),
            Footprint::whole(self.out, [&self.lanes, &self.kept]),
        ]
    }
}

impl Described for Scatter {
    fn name(&self) -> &str {
        "scatter"
    }

    fn contract(&self) -> Result<Contract, Contradiction> {
        let mut draft = Draft::new(self.name());
        draft.reads(self.x, self.dtype, Reads::First)?;
        draft.reads(self.index.arg, DType::I64, Reads::Throughout)?;
        draft.reads(self.src.arg, self.dtype, Reads::Throughout)?;
        draft.writes(self.out, self.dtype)?;
        draft.finish(1)
    }

    fn results(&self) -> Option<Vec<&Dim>> {
        Some(self.shape.iter().collect())
    }

    fn operations(&self) -> Dim {
        numel(&self.index_shape)
    }

    fn footprints(&self) -> Vec<Footprint> {
        let whole_arrays = [self.x, self.out].map(|arg| Footprint::whole(arg, &self.shape));
        let strided = [&self.index, &self.src].map(|x| x.footprint(&self.index_shape));
        whole_arrays.into_iter().chain(strided).collect()
    }
}
