//! Elements placed by index along one axis.

use super::gather::check_index;
use super::prelude::*;
use kiln_base::prim::ScatterKind;

/// A copy of x in which `x[.., index[.., i, ..], ..]` is combined with `src[.., i, ..]`, in row-major
/// order of the source. Operands are x, an i64 index of the same rank, no larger than x off the axis,
/// and a source of the index's shape and x's dtype. An index outside `0..x.shape[axis]` is a data
/// error. Sums and products of f16 and bf16 accumulate in f32; integers wrap.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Scatter {
    /// The axis.
    pub axis: usize,
    /// The function that combines an element with those scattered to it.
    pub kind: ScatterKind,
}

impl OpDef for Scatter {
    const NAME: &'static str = "scatter";
    const ARITY: RangeInclusive<usize> = 3..=3;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let (x, index, src) = (inputs[0], inputs[1], inputs[2]);
        check_index(x, index, self.axis)?;
        ensure!(
            src.dtype == x.dtype,
            "the source is {} but the tensor is {}; cast one of them",
            src.dtype,
            x.dtype
        );
        if self.kind != ScatterKind::Set {
            check_computes(x.dtype)?;
        }
        ensure!(
            !(x.dtype == DType::Bool && matches!(self.kind, ScatterKind::Sum | ScatterKind::Prod)),
            "bool has no {}; cast it first",
            self.kind.name()
        );
        ensure!(
            src.shape == index.shape,
            "the source {src} must have the shape of the index {index}"
        );
        one_output(x.dtype, x.shape.clone())
    }
}
