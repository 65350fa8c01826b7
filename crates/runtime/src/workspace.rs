//! How much memory the algorithms of a kernel take beside its arguments.

use crate::conv::Conv;
use crate::error::Result;
use crate::matmul::MatMul;
use crate::simd::Level;
use kiln_base::plan::{self, Kernel};

/// Bytes that a matrix product or convolution takes beside its arguments, by its algorithm, on so many threads
/// and where symbols have these values: copies of operands and what lies between its steps, but neither what
/// an epilogue keeps hot nor the few hundred kilobytes a thread that the `gemm` crates pack. None for other
/// kernels.
///
/// # Errors
/// If the kernel's sizes or its algorithm are impossible.
pub fn workspace(kernel: &Kernel, values: &[i64], threads: usize) -> Result<Option<usize>> {
    let lens = [i64::MAX; 3];
    let elements = match kernel {
        Kernel::MatMul(m) => {
            let alone = plan::MatMul {
                lhs: plan::Matrix {
                    arg: 0,
                    ..m.lhs.clone()
                },
                rhs: plan::Matrix {
                    arg: 1,
                    ..m.rhs.clone()
                },
                out: 2,
                epilogue: None,
                ..m.clone()
            };
            let linked = MatMul::new(&alone, values, &lens, Level::current()?)?;
            linked.workspace(threads as i64) * m.dtype.size() as i64
        }
        Kernel::Conv(c) => {
            let alone = plan::Conv {
                operands: [0, 1],
                out: 2,
                epilogue: None,
                ..c.clone()
            };
            let linked = Conv::new(&alone, values, &lens, Level::current()?)?;
            linked.workspace(threads as i64) * c.dtype.size() as i64
        }
        _ => return Ok(None),
    };
    Ok(Some(elements as usize))
}
