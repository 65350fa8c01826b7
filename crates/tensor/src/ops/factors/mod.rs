//! Matrix decompositions and operations based on them: `torch.linalg`, with the feature `linalg`.
//!
//! Matrices of f32 or f64 are in the last two dims; the others are a batch. They are computed on the host: operands
//! on a GPU are copied there when an operation is recorded, and results are copied back.

mod decompose;
mod solve;
mod spectrum;

pub use decompose::{QrMode, Triangle};
pub use solve::{Solve, SolveTriangular};
pub use spectrum::{Cutoff, Rank, Svd};

use crate::record::{Recorder, compose_many};
use crate::{Device, Tensor};
use kiln_base::linalg::Routine;
use kiln_base::{DType, Dim};
use kiln_ir::linalg::{apply, matrices};
use kiln_ir::{Builder, OpError, Shape, ensure};

/// Records `f` on the host: moves the operands there and the results back. An error gives poisoned tensors.
#[track_caller]
pub(super) fn on_host<const N: usize, const M: usize>(
    called: &'static str,
    operands: [&Tensor; N],
    f: impl FnOnce(&mut Recorder, &[Tensor; N]) -> Result<[Tensor; M], OpError>,
) -> [Tensor; M] {
    kiln_linalg::register();
    let gpu = operands.iter().find_map(|t| t.handle.node.device);
    let gpu = gpu.filter(|device| *device != Device::Cpu);
    let mut host_operands = operands.map(Tensor::clone);
    if gpu.is_some() {
        for t in &mut host_operands {
            *t = t.to(Device::Cpu);
        }
    }
    let refs: Vec<&Tensor> = host_operands.iter().collect();
    let results = compose_many(called, &refs, M, |b| Ok(f(b, &host_operands)?.into()));
    let Ok(mut results) = <[Tensor; M]>::try_from(results) else {
        unreachable!("as many tensors as were recorded, or poisoned");
    };
    for t in &mut results {
        t.names = None;
        if let Some(device) = gpu {
            *t = t.to(device);
        }
    }
    results
}

/// [`on_host`] with one result.
#[track_caller]
pub(super) fn one_on_host<const N: usize>(
    called: &'static str,
    operands: [&Tensor; N],
    f: impl FnOnce(&mut Recorder, &[Tensor; N]) -> Result<Tensor, OpError>,
) -> Tensor {
    let [y] = on_host(called, operands, |b, x| Ok([f(b, x)?]));
    y
}

/// The singular values of the last two dims, descending.
pub(super) fn singular_values(b: &mut Recorder, x: &Tensor) -> Result<Tensor, OpError> {
    routine(b, Routine::SingularValues, &[x])
}

/// The inverse of square matrices; a singular one is an error.
pub(super) fn inverse(b: &mut Recorder, x: &Tensor) -> Result<Tensor, OpError> {
    routine(b, Routine::Inverse, &[x])
}

fn routine(b: &mut Recorder, routine: Routine, x: &[&Tensor]) -> Result<Tensor, OpError> {
    let x: Vec<Tensor> = x.iter().map(|t| (*t).clone()).collect();
    apply(b, routine, &x)
}

/// Returns the batch dims, rows and columns of matrices.
fn matrix_sizes(x: &Tensor) -> Result<(Shape, Dim, Dim), OpError> {
    let (batch, m, n) = matrices(x.fact())?;
    Ok((batch.into(), m.clone(), n.clone()))
}

/// Returns the batch dims and size of square matrices.
fn square_size(x: &Tensor) -> Result<(Shape, Dim), OpError> {
    let (batch, m, n) = matrix_sizes(x)?;
    ensure!(
        m == n,
        "A must be batches of square matrices, but they are {m} by {n} matrices"
    );
    Ok((batch, n))
}

/// Broadcasts both to the same batch dims.
fn broadcast_batches(b: &mut Recorder, x: &Tensor, y: &Tensor) -> Result<[Tensor; 2], OpError> {
    let ((left, ..), (right, ..)) = (matrix_sizes(x)?, matrix_sizes(y)?);
    let batch = crate::ops::matmul::common_batch((x, &left), (y, &right))?;
    let mut stretched = |t: &Tensor| {
        let mut shape = batch.clone();
        shape.extend(t.dims()[t.ndim() - 2..].iter().cloned());
        b.broadcast_to(t, &shape)
    };
    Ok([stretched(x)?, stretched(y)?])
}

/// The machine epsilon of a float dtype.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        _ => f32::EPSILON as f64,
    }
}
