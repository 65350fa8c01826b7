//! Kernels of linear algebra, based on the crate `faer`: decompositions of batches of small and medium matrices, on
//! the thread that runs the plan.
//!
//! They are custom operators ([`kiln_base::custom`]) under the names of [`Routine`]. A plan that calls them runs in
//! every program that has called [`register`]. Errors have PyTorch's text, which names the element of the batch.

mod batch;
mod factor;
mod solve;
mod spectrum;

use batch::Real;
use kiln_base::DType;
use kiln_base::custom::{self, ArrayView, ArrayViewMut, KernelError};
use kiln_base::linalg::Routine;
use std::sync::Once;

/// Registers every routine for the rest of the process; further calls do nothing.
pub fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for routine in Routine::ALL {
            let kernel = move |x: &[ArrayView<'_>], y: &mut ArrayViewMut<'_>| run(routine, x, y);
            // A name that is taken can only belong to another copy of this crate.
            let _ = custom::register(routine.name(), kernel);
        }
    });
}

fn run(
    routine: Routine,
    inputs: &[ArrayView<'_>],
    output: &mut ArrayViewMut<'_>,
) -> Result<(), KernelError> {
    match (routine, inputs.first().map(ArrayView::dtype)) {
        (Routine::Rows, _) => factor::rows(inputs, output),
        (_, Some(DType::F32)) => typed::<f32>(routine, inputs, output),
        (_, Some(DType::F64)) => typed::<f64>(routine, inputs, output),
        _ => Err("takes matrices of f32 or f64".into()),
    }
}

/// A kernel: takes a matrix with its rows and columns, and writes the result or returns the reason for failure.
type Kernel<T> = fn(&[T], usize, usize, &mut [T]) -> Result<(), String>;

fn typed<T: Real>(
    routine: Routine,
    inputs: &[ArrayView<'_>],
    output: &mut ArrayViewMut<'_>,
) -> Result<(), KernelError> {
    let mut run_batched = |f: Kernel<T>| batch::each(&inputs[0], output, f);
    match routine {
        Routine::Cholesky => run_batched(factor::cholesky),
        Routine::Lu => run_batched(factor::lu_and_pivots),
        Routine::Rows => Err("takes pivots".into()),
        Routine::Qr => run_batched(|a, m, n, out| factor::qr(a, m, n, out, m.min(n))),
        Routine::QrComplete => run_batched(|a, m, n, out| factor::qr(a, m, n, out, m)),
        Routine::Svd => run_batched(|a, m, n, out| spectrum::svd(a, m, n, out, false)),
        Routine::SvdFull => run_batched(|a, m, n, out| spectrum::svd(a, m, n, out, true)),
        Routine::SingularValues => run_batched(spectrum::singular_values),
        Routine::Eigh => run_batched(spectrum::eigh),
        Routine::Eigenvalues => run_batched(spectrum::eigenvalues),
        Routine::Inverse => run_batched(|a, _, n, out| solve::inverse(a, n, out, true)),
        Routine::InverseUnchecked => run_batched(|a, _, n, out| solve::inverse(a, n, out, false)),
        Routine::Determinant => run_batched(solve::determinant),
        Routine::SignAndLog => run_batched(solve::sign_and_log),
        Routine::Cofactors => run_batched(solve::cofactors),
        Routine::SolveTriangular { upper, unit } => {
            let f = |a: &[T], n, b: &[T], columns, x: &mut [T]| {
                solve::triangular(a, n, b, columns, x, upper, unit)
            };
            batch::each_pair(inputs, output, f)
        }
        Routine::Solve => batch::each_pair(inputs, output, solve::solve::<T>),
        Routine::PseudoInverse => {
            let (absolute, relative) = (inputs[1].as_slice::<T>()?, inputs[2].as_slice::<T>()?);
            batch::each_numbered(&inputs[0], output, |i, a, m, n, out| {
                spectrum::pseudo_inverse(a, m, n, out, absolute[i], relative[i])
            })
        }
    }
}
