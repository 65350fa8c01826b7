//! Grids that vectors span.

use super::args::{Int, check_listable, known};
use super::index::as_vector;
use crate::operand::{AsTensor, listed};
use crate::options::options;
use crate::record::{Recorder, compose, compose_many};
use crate::{DType, Tensor};
use kiln_base::{Dim, numel};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Shape, ensure};

/// Every combination of one element of each vector, as rows; a single vector is returned unchanged.
#[track_caller]
pub fn cartesian_prod(tensors: impl IntoIterator<Item: AsTensor>) -> Tensor {
    let tensors = listed(tensors);
    let tensors = &tensors.iter().collect::<Vec<_>>()[..];
    compose("cartesian_prod", tensors, |b| {
        ensure!(!tensors.is_empty(), "needs at least one tensor");
        ensure!(
            tensors.iter().all(|t| t.ndim() == 1),
            "combines vectors only"
        );
        if let [one] = tensors {
            return Ok((*one).clone());
        }
        let shape: Shape = tensors.iter().map(|t| t.dims()[0].clone()).collect();
        let mut columns = Vec::new();
        for (i, t) in tensors.iter().enumerate() {
            let grid = b.reshape_along(t, i, shape.len())?;
            let grid = b.broadcast_to(&grid, &shape)?;
            columns.push(b.reshape(&grid, &[numel(&shape), Dim::ONE])?);
        }
        b.concat(&columns, 1)
    })
}

options! {
    /// The options of [`Tensor::combinations`]; a number of elements converts into them.
    Combinations (
        /// The number of elements.
        r: Int
    ) {
        /// True if an element can be chosen again (default false).
        with_replacement: bool = false,
    }
}

/// The order of a grid's dims with respect to the vectors that span it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// Dim i is that of vector i, as in matrix indexing.
    Ij,
    /// The first two dims are swapped: Cartesian.
    Xy,
}

#[on_cells]
impl Tensor {
    /// Every choice of `r` elements of this vector as rows, ascending in position. Each element is chosen at most
    /// once, unless [`Combinations`] allows replacement.
    pub fn combinations(&self, r: impl Into<Combinations>) -> Tensor {
        let (r, with_replacement) = (r.r.0, r.with_replacement);
        compose("combinations", &[self], |b| {
            ensure!(self.ndim() == 1, "needs a vector, not {}", self.fact());
            ensure!(r >= 0, "can't choose {r} elements");
            if r == 0 {
                return b.full(0i64, self.dtype(), &[Dim::ZERO]);
            }
            let n = known(self, 0)?;
            let positions = list_choices(n, r, with_replacement)?;
            let count = positions.len() / r as usize;
            let index = b.list(&positions, &[count, r as usize], DType::I64)?;
            let flat = b.reshape(&index, &[index.fact().numel()])?;
            let picked = b.gather(self, 0, &flat)?;
            b.reshape(&picked, index.dims())
        })
    }
}

/// The positions of each choice of r of n elements, one after the other, in lexicographic order.
fn list_choices(n: i64, r: i64, with_replacement: bool) -> Result<Vec<i64>, OpError> {
    check_listable(Some(r), "each of the combinations")?;
    let pool = if with_replacement {
        n.saturating_add(r - 1)
    } else {
        n
    };
    // C(pool, i + 1) = C(pool, i) · (pool − i) / (i + 1), which is an integer at each step.
    let count = (0..r).try_fold(1i128, |c, i| {
        c.checked_mul((pool - i).max(0) as i128)
            .map(|c| c / (i as i128 + 1))
    });
    let length = count.and_then(|c| i64::try_from(c.checked_mul(r as i128)?).ok());
    check_listable(length, "the combinations")?;
    let mut out = Vec::new();
    let step = !with_replacement as i64;
    let mut row: Vec<i64> = (0..r).map(|i| i * step).collect();
    for _ in 0..length.unwrap_or(0) / r {
        out.extend(&row);
        // Increments the last position that can still grow, and resets the ones after it to follow closely.
        let max_position = |i: i64| n - 1 - (r - 1 - i) * step;
        if let Some(i) = (0..r).rev().find(|i| row[*i as usize] < max_position(*i)) {
            let value = row[i as usize] + 1;
            (i..r).for_each(|j| row[j as usize] = value + (j - i) * step);
        }
    }
    Ok(out)
}

/// The coordinates of the grid that these vectors span, one tensor each.
#[track_caller]
pub fn meshgrid(tensors: impl IntoIterator<Item: AsTensor>) -> Vec<Tensor> {
    meshgrid_with(tensors, Indexing::Ij)
}

/// [`meshgrid`] with this indexing.
#[track_caller]
pub fn meshgrid_with(
    tensors: impl IntoIterator<Item: AsTensor>,
    indexing: Indexing,
) -> Vec<Tensor> {
    let tensors = listed(tensors);
    let tensors = &tensors.iter().collect::<Vec<_>>()[..];
    compose_many("meshgrid", tensors, tensors.len(), |b| {
        let mut vectors = Vec::new();
        for t in tensors {
            ensure!(t.ndim() <= 1, "needs vectors, not {}", t.fact());
            vectors.push(as_vector(b, t)?);
        }
        let swapped = indexing == Indexing::Xy && vectors.len() >= 2;
        let mut axes: Vec<usize> = (0..vectors.len()).collect();
        if swapped {
            axes.swap(0, 1);
        }
        let mut shape = Shape::from_elem(Dim::ONE, vectors.len());
        for (v, &a) in vectors.iter().zip(&axes) {
            shape[a] = v.dims()[0].clone();
        }
        let grid = |b: &mut Recorder, (v, a): (&Tensor, &usize)| {
            let v = b.reshape_along(v, *a, shape.len())?;
            b.broadcast_to(&v, &shape)
        };
        vectors.iter().zip(&axes).map(|p| grid(b, p)).collect()
    })
}
