//! The positions that index tensors select.

use super::args::known;
use super::index::{as_index, check_index_range, wrap_index};
use crate::Tensor;
use crate::record::{Recorded, Recorder};
use kiln_base::numel;
use kiln_base::prim::ScatterKind;
use kiln_ir::{Builder, OpError, Pw, Shape, broadcast_shapes, ensure};

/// The positions that the index tensors of `x[..]` select. The indexed dims of x are moved to the front and merged;
/// `flat` indexes the merged dim, and the other dims follow.
pub(crate) struct Places {
    /// The dims of x with the indexed ones first.
    perm: Vec<usize>,
    /// The number of indexed dims.
    indexed: usize,
    /// The shape that the indices broadcast to.
    shape: Shape,
    /// Positions within the indexed dims, row-major, as one vector.
    flat: Tensor,
    /// The position of the index's dims among the other dims of the result.
    at: usize,
}

impl Places {
    /// Checks and combines the indices, i64 or i32; negative ones count from the end. Returns `None` if no dim is
    /// indexed.
    pub(crate) fn new(
        b: &mut Recorder,
        x: &Tensor,
        indices: &[Option<&Tensor>],
    ) -> Result<Option<Places>, OpError> {
        ensure!(
            indices.len() <= x.ndim(),
            "{} indices are too many for {}",
            indices.len(),
            x.fact()
        );
        let at: Vec<usize> = (0..indices.len())
            .filter(|i| indices[*i].is_some())
            .collect();
        let mut tensors = Vec::new();
        for t in indices.iter().flatten() {
            tensors.push(as_index(b, t, "index")?);
        }
        let shape = broadcast_shapes(tensors.iter().map(|t| t.dims()))
            .ok_or_else(|| OpError::new("the shapes of the indices do not broadcast together"))?;
        let mut combined: Option<Tensor> = None;
        for (t, &a) in tensors.iter().zip(&at) {
            let extent = known(x, a)?;
            let i = b.reshape(t, &[t.fact().numel()])?;
            let mut i = wrap_index(b, &i, extent)?;
            // A single index is checked where it is used.
            if tensors.len() > 1 {
                i = check_index_range(b, &i, &extent.into())?;
            }
            let i = b.reshape(&i, t.dims())?;
            combined = Some(match combined {
                Some(flat) => {
                    let scaled = b.with(Pw::Mul, &flat, extent)?;
                    b.binary(Pw::Add, &scaled, &i)?
                }
                None => i,
            });
        }
        let Some(flat) = combined else {
            return Ok(None);
        };
        let flat = b.broadcast_to(&flat, &shape)?;
        let adjacent = at.windows(2).all(|w| w[1] == w[0] + 1);
        let other_axes = (0..x.ndim()).filter(|a| !at.contains(a));
        Ok(Some(Places {
            perm: at.iter().copied().chain(other_axes).collect(),
            indexed: at.len(),
            flat: b.reshape(&flat, &[numel(&shape)])?,
            shape,
            at: if adjacent { at[0] } else { 0 },
        }))
    }

    /// The dims of x that are not indexed.
    fn tail(&self, x: &Tensor) -> Shape {
        let dims = self.perm[self.indexed..].iter();
        dims.map(|a| x.dims()[*a].clone()).collect()
    }

    /// Moves the indexed dims of x to the front and merges them.
    fn to_front(&self, b: &mut Recorder, x: &Tensor) -> Recorded {
        let moved = b.permute(x, &self.perm)?;
        let mut shape = self.tail(x);
        shape.insert(0, numel(&moved.dims()[..self.indexed]));
        b.reshape(&moved, &shape)
    }

    /// Returns the order of dims that moves those of the index from the front to their position in the result.
    fn result_order(&self, rank: usize) -> Vec<usize> {
        let n = self.shape.len();
        let before = n..n + self.at;
        before.chain(0..n).chain(n + self.at..rank).collect()
    }

    /// The shape of `x[..]`.
    pub(crate) fn result_shape(&self, x: &Tensor) -> Shape {
        let rows: Shape = self.shape.iter().cloned().chain(self.tail(x)).collect();
        let perm = self.result_order(rows.len());
        perm.iter().map(|a| rows[*a].clone()).collect()
    }

    /// `x[..]`.
    pub(crate) fn gather(&self, b: &mut Recorder, x: &Tensor) -> Recorded {
        let indexed_first = self.to_front(b, x)?;
        let rows = b.index_select(&indexed_first, 0, &self.flat)?;
        let shape: Shape = self.shape.iter().cloned().chain(self.tail(x)).collect();
        let rows = b.reshape(&rows, &shape)?;
        b.permute(&rows, &self.result_order(shape.len()))
    }

    /// Returns x with `values`, broadcast to the shape of `x[..]`, at these positions. If a position has several
    /// values, it takes the last one or their sum.
    pub(crate) fn put(
        &self,
        b: &mut Recorder,
        x: &Tensor,
        values: &Tensor,
        kind: ScatterKind,
    ) -> Recorded {
        let wanted = self.result_shape(x);
        let perm = self.result_order(wanted.len());
        let values = b.broadcast_to(values, &wanted)?;
        let values = b.permute(&values, &inverse(&perm))?;
        let mut shape = self.tail(x);
        shape.insert(0, numel(&self.shape));
        let values = b.reshape(&values, &shape)?;
        let indexed_first = self.to_front(b, x)?;
        let index = b.reshape_along(&self.flat, 0, shape.len())?;
        let index = b.broadcast_to(&index, &shape)?;
        let indexed_first = b.scatter(kind, &indexed_first, 0, &index, &values)?;
        let moved: Shape = self.perm.iter().map(|a| x.dims()[*a].clone()).collect();
        let moved = b.reshape(&indexed_first, &moved)?;
        b.permute(&moved, &inverse(&self.perm))
    }
}

/// The permutation that undoes another.
pub(crate) fn inverse(perm: &[usize]) -> Vec<usize> {
    let mut out = vec![0; perm.len()];
    for (i, &p) in perm.iter().enumerate() {
        out[p] = i;
    }
    out
}
