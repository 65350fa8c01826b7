//! Grids that vectors span.

use super::index::as_vector;
use crate::Tensor;
use crate::record::{Recorder, compose, compose_many};
use kiln_base::{Dim, numel};
use kiln_ir::{Builder, Shape, ensure};

/// Every combination of one element of each vector, as rows; a single vector stays.
#[track_caller]
pub fn cartesian_prod(tensors: &[&Tensor]) -> Tensor {
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
            let grid = b.along(t, i, shape.len())?;
            let grid = b.broadcast_to(&grid, &shape)?;
            columns.push(b.reshape(&grid, &[numel(&shape), Dim::ONE])?);
        }
        b.concat(&columns, 1)
    })
}

/// The coordinates of the grid that these vectors span, one tensor each. `xy` swaps the first two dims
/// (Cartesian instead of matrix indexing).
#[track_caller]
pub fn meshgrid(tensors: &[&Tensor], xy: bool) -> Vec<Tensor> {
    compose_many("meshgrid", tensors, tensors.len(), |b| {
        let mut vectors = Vec::new();
        for t in tensors {
            ensure!(t.ndim() <= 1, "needs vectors, not {}", t.fact());
            vectors.push(as_vector(b, t)?);
        }
        let swapped = xy && vectors.len() >= 2;
        let mut axes: Vec<usize> = (0..vectors.len()).collect();
        if swapped {
            axes.swap(0, 1);
        }
        let mut shape = Shape::from_elem(Dim::ONE, vectors.len());
        for (v, &a) in vectors.iter().zip(&axes) {
            shape[a] = v.dims()[0].clone();
        }
        let grid = |b: &mut Recorder, (v, a): (&Tensor, &usize)| {
            let v = b.along(v, *a, shape.len())?;
            b.broadcast_to(&v, &shape)
        };
        vectors.iter().zip(&axes).map(|p| grid(b, p)).collect()
    })
}
