//! Embeddings of bags of indices.

use super::args::named_values;
use super::index::as_index;
use super::search::insertion_index;
use super::short::wide;
use crate::operand::AsTensor;
use crate::options::options;
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Tensor};
use kiln_base::prim::ScatterKind;
use kiln_base::{Dim, numel};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, ensure};

/// The operation that combines the rows of a bag.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum BagMode {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// The largest number in each column.
    Max,
}

named_values! {
    BagMode, "mode":
    "sum" => Sum,
    "mean" => Mean,
    "max" => Max,
}

options! {
    /// The bags of [`Tensor::embedding_bag`].
    Bags () {
        /// The operation that combines the rows of a bag (default their mean).
        mode: BagMode = BagMode::Mean,
        /// True if the last offset is the end of the last bag (default false).
        include_last_offset: bool = false,
        /// The index that is ignored; none by default.
        padding_idx: Option<i64> = None,
        ;
        /// The starts of the bags in an index vector, `[bags]`: ascending, the first is 0.
        offsets,
        /// The factors of the rows, of the indices' shape; for sums only.
        per_sample_weights,
    }
}

#[on_cells]
impl Tensor {
    /// The mean of the rows of this `[count, size]` weight that each bag of indices (i64 or i32) selects: `[bags,
    /// size]`. Bags are the rows of an index matrix; an empty one gives zeros.
    pub fn embedding_bag(&self, indices: impl AsTensor) -> Tensor {
        self.embedding_bag_with(indices, Bags::new())
    }

    /// [`Tensor::embedding_bag`] with other bags, such as the parts of an index vector, or with another way to
    /// combine rows.
    pub fn embedding_bag_with(&self, indices: impl AsTensor, options: Bags) -> Tensor {
        let (mode, padding) = (options.mode, options.padding_idx);
        let (offsets, per_sample_weights) = (
            options.offsets.as_ref(),
            options.per_sample_weights.as_ref(),
        );
        let mut operands = vec![self, indices];
        operands.extend(offsets);
        operands.extend(per_sample_weights);
        compose("embedding_bag", &operands, |b| {
            ensure!(
                self.ndim() == 2,
                "the weight must be a matrix, not {}",
                self.fact()
            );
            super::args::check_float(self, "weight")?;
            super::args::check_same_device(self, "weight", indices, "indices")?;
            b.indexed_by("indices", indices);
            let i = as_index(b, indices, "index")?;
            let flat = b.reshape(&i, &[i.fact().numel()])?;
            let (mut bag, bags) = bag_numbers(b, &i, offsets, options.include_last_offset)?;
            if let Some(p) = padding {
                let rows = super::args::known(self, 0)?;
                ensure!(
                    (-rows..rows).contains(&p),
                    "the padding index {p} is out of range for {rows} rows"
                );
                let padded = b.with(Pw::Eq, &flat, p.rem_euclid(rows))?;
                let none = b.scalar_like(bags, &bag)?;
                bag = b.select(&padded, &none, &bag)?;
            }
            let rows = b.index_select(self, 0, &flat)?;
            let mut rows = b.cast(&rows, wide(self.dtype()))?;
            if let Some(w) = per_sample_weights {
                ensure!(
                    mode == BagMode::Sum,
                    "weights apply to sums only, not to {mode:?}"
                );
                super::args::check_alike(self, "weight", w, "weight of each sample")?;
                ensure!(
                    w.dims() == indices.dims(),
                    "the weights {} do not have the shape of the indices {}",
                    w.fact(),
                    indices.fact()
                );
                let w = b.cast(w, rows.dtype())?;
                let w = b.reshape(&w, &[numel(w.dims()), Dim::ONE])?;
                rows = b.binary(Pw::Mul, &rows, &w)?;
            }
            let y = combine_bags(b, &rows, &bag, bags, mode)?;
            b.cast(&y, self.dtype())
        })
    }
}

/// Returns the bag number of each index, and the number of bags. Indices in no bag have the number of bags instead.
fn bag_numbers(
    b: &mut Recorder,
    indices: &Tensor,
    offsets: Option<&Tensor>,
    include_last: bool,
) -> Result<(Tensor, i64), OpError> {
    match (indices.ndim(), offsets) {
        (2, None) => {
            let number = b.iota(&indices.dims()[0])?;
            let number = b.reshape_along(&number, 0, 2)?;
            let number = b.broadcast_to(&number, indices.dims())?;
            let number = b.reshape(&number, &[indices.fact().numel()])?;
            Ok((number, super::args::known(indices, 0)?))
        }
        (1, Some(offsets)) => {
            ensure!(
                offsets.ndim() == 1,
                "the offsets must be a vector, not {}",
                offsets.fact()
            );
            let offsets = as_index(b, offsets, "offsets")?;
            let bags = super::args::known(&offsets, 0)? - include_last as i64;
            ensure!(bags >= 0, "the last offset is missing");
            let numbers = b.iota(&indices.dims()[0])?;
            let begun = insertion_index(b, &offsets, &numbers, true)?;
            Ok((b.with(Pw::Sub, &begun, 1i64)?, bags))
        }
        (2, Some(_)) => Err(OpError::new(
            "the rows of an index matrix are bags; leave the offsets out",
        )),
        (1, None) => Err(OpError::new(
            "an index vector needs the offsets of its bags",
        )),
        _ => Err(OpError(format!(
            "the indices must be a vector or a matrix, not {}",
            indices.fact()
        ))),
    }
}

/// Combines the rows of each bag. One extra bag takes the rows that are ignored.
fn combine_bags(
    b: &mut Recorder,
    rows: &Tensor,
    bag: &Tensor,
    bags: i64,
    mode: BagMode,
) -> Result<Tensor, OpError> {
    let size = rows.dims()[1].clone();
    let bag_index = b.reshape_along(bag, 0, 2)?;
    let bag_index = b.broadcast_to(&bag_index, rows.dims())?;
    let zeros = b.full(0i64, rows.dtype(), &[(bags + 1).into(), size])?;
    let y = match mode {
        BagMode::Max => {
            // Bags without rows stay zero.
            let lowest = super::scatter::neutral(ScatterKind::Max, rows.dtype());
            let lowest = b.full(lowest, rows.dtype(), rows.dims())?;
            let start = b.scatter(ScatterKind::Set, &zeros, 0, &bag_index, &lowest)?;
            let best = b.scatter(ScatterKind::Max, &start, 0, &bag_index, &rows.detach())?;
            select_first_max(b, rows, &bag_index, &best)?
        }
        _ => b.scatter(ScatterKind::Sum, &zeros, 0, &bag_index, rows)?,
    };
    let y = b.narrow(&y, 0, 0i64, bags)?;
    if mode != BagMode::Mean {
        return Ok(y);
    }
    let unit = b.full(1i64, DType::I64, bag.dims())?;
    let counts = b.full(0i64, DType::I64, &[(bags + 1).into()])?;
    let counts = b.scatter(ScatterKind::Sum, &counts, 0, bag, &unit)?;
    let counts = b.narrow(&counts, 0, 0i64, bags)?;
    let counts = b.with(Pw::Maximum, &counts, 1i64)?;
    let counts = b.cast(&counts, rows.dtype())?;
    let counts = b.reshape_along(&counts, 0, 2)?;
    b.binary(Pw::Div, &y, &counts)
}

/// Selects, for each bag and column, the first row with the largest number, which receives the gradient; zero for
/// bags without rows.
fn select_first_max(b: &mut Recorder, rows: &Tensor, place: &Tensor, best: &Tensor) -> Recorded {
    const NONE: i64 = i64::MAX;
    let wins = b.gather(best, 0, place)?;
    let wins = b.binary(Pw::Eq, rows, &wins)?;
    let nan = b.unary(Pw::IsNan, rows)?;
    let wins = b.binary(Pw::Or, &wins, &nan)?;
    // Rows count from 1; a row of zeros is prepended.
    let number = b.iota(&rows.dims()[0])?;
    let number = b.with(Pw::Add, &number, 1i64)?;
    let number = b.reshape_along(&number, 0, 2)?;
    let number = b.broadcast_to(&number, rows.dims())?;
    let none = b.scalar_like(NONE, &number)?;
    let number = b.select(&wins, &number, &none)?;
    let start = b.full(NONE, DType::I64, best.dims())?;
    let first_row = b.scatter(ScatterKind::Min, &start, 0, place, &number)?;
    let missing = b.with(Pw::Eq, &first_row, NONE)?;
    let first_row = b.fill_where(&missing, 0i64, &first_row)?;
    let padded = b.pad_axis(rows, 0, Dim::ONE, Dim::ZERO, 0.0)?;
    b.gather(&padded, 0, &first_row)
}
