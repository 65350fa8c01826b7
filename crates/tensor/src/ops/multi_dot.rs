//! Products of several matrices.

use super::args::{check_alike, known};
use super::matmul::matmul;
use super::short::wide;
use crate::operand::{AsTensor, listed};
use crate::record::{Recorded, Recorder, compose};
use crate::{Tensor, autocast};
use kiln_ir::{Builder, OpError, Shape, ensure};

/// The product of matrices, in the order that takes the fewest multiplications. The first and the last may be
/// vectors: a row on the left, a column on the right.
#[track_caller]
pub fn multi_dot(tensors: impl IntoIterator<Item: AsTensor>) -> Tensor {
    let mut tensors = listed(tensors);
    autocast::cast_all("multi_dot", &mut tensors);
    let tensors = &tensors.iter().collect::<Vec<_>>()[..];
    compose("multi_dot", tensors, |b| {
        let [first, middle @ .., last] = tensors else {
            return Err(OpError::new("needs at least 2 tensors"));
        };
        ensure!(
            [first, last].iter().all(|t| (1..=2).contains(&t.ndim()))
                && middle.iter().all(|t| t.ndim() == 2),
            "multiplies matrices, of which the first and the last may be vectors"
        );
        let dtype = first.dtype();
        for t in tensors {
            check_alike(first, "first tensor", t, "others")?;
        }
        let mut chain = Vec::new();
        for t in tensors {
            chain.push(b.cast(t, wide(dtype))?);
        }
        let count = chain.len();
        if first.ndim() == 1 {
            chain[0] = b.unsqueeze(&chain[0], 0)?;
        }
        if last.ndim() == 1 {
            chain[count - 1] = b.unsqueeze(&chain[count - 1], 1)?;
        }
        let mut sizes = vec![known(&chain[0], 0)?];
        for t in &chain {
            sizes.push(known(t, 1)?);
        }
        let product = multiply_range(b, &chain, &best_splits(&sizes), 0, count - 1)?;
        let ends = [(first, 0), (last, 1)].into_iter();
        let shape: Shape = ends
            .filter(|(t, _)| t.ndim() == 2)
            .map(|(_, a)| product.dims()[a].clone())
            .collect();
        let product = b.reshape(&product, &shape)?;
        b.cast(&product, dtype)
    })
}

/// Returns the best splits of a matrix chain (Cormen et al., Introduction to Algorithms): the product of the matrices
/// i to j is split after matrix `[i][j]`. Matrix i is `sizes[i]` by `sizes[i + 1]`.
fn best_splits(sizes: &[i64]) -> Vec<Vec<usize>> {
    let n = sizes.len() - 1;
    let mut cost = vec![vec![0f64; n]; n];
    let mut split = vec![vec![0; n]; n];
    for length in 1..n {
        for i in 0..n - length {
            let j = i + length;
            let split_cost = |k: usize, cost: &[Vec<f64>]| {
                let own = [i, k + 1, j + 1].map(|s| sizes[s] as f64);
                cost[i][k] + cost[k + 1][j] + own.iter().product::<f64>()
            };
            let mut best = i;
            for k in i + 1..j {
                if split_cost(k, &cost) < split_cost(best, &cost) {
                    best = k;
                }
            }
            cost[i][j] = split_cost(best, &cost);
            split[i][j] = best;
        }
    }
    split
}

/// Returns the product of matrices i to j, split as [`best_splits`] says.
fn multiply_range(
    b: &mut Recorder,
    chain: &[Tensor],
    split: &[Vec<usize>],
    i: usize,
    j: usize,
) -> Recorded {
    if i == j {
        return Ok(chain[i].clone());
    }
    let k = split[i][j];
    let left = multiply_range(b, chain, split, i, k)?;
    let right = multiply_range(b, chain, split, k + 1, j)?;
    matmul(b, &left, &right)
}
