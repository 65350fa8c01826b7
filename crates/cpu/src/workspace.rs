//! The memory that kernels take besides their arguments.

use crate::kernels::conv::Conv;
use crate::kernels::matmul::MatMul;
use crate::tile;
use kiln_kernel::error::Result;
use kiln_kernel::simd::Features;
use kiln_plan::schedule::Cpu;
use kiln_plan::{self as plan, Decision, Kernel};

/// Returns the schedule of a matrix product or convolution without its prologues and epilogue, linked to arguments of
/// any size, and the bytes of its workspace on `threads` threads.
fn linked_alone(kernel: &Kernel, values: &[i64], threads: i64) -> Result<Option<(Cpu, i64)>> {
    let (lens, level) = ([i64::MAX; 3], Features::current()?);
    // The schedule of the whole kernel.
    let algorithm = kernel
        .schedule(values)
        .map_or_else(Decision::default, Decision::from);
    Ok(match kernel {
        Kernel::MatMul(m) => {
            let matrix = |x: &plan::Matrix, arg| plan::Matrix { arg, ..x.clone() };
            let alone = plan::MatMul {
                lhs: matrix(&m.lhs, 0),
                rhs: matrix(&m.rhs, 1),
                out: 2,
                prologues: [None, None],
                epilogue: None,
                algorithm,
                ..m.clone()
            };
            let linked = MatMul::new(&alone, values, &lens, level)?;
            let bytes = linked.workspace(threads) * m.sums().size() as i64;
            Some((linked.resolved(), bytes))
        }
        Kernel::Conv(c) => {
            let alone = plan::Conv {
                operands: [0, 1],
                out: 2,
                prologue: None,
                epilogue: None,
                algorithm,
                ..c.clone()
            };
            let linked = Conv::new(&alone, values, &lens, level)?;
            let bytes = linked.workspace(threads) * c.sums().size() as i64;
            Some((linked.resolved(), bytes))
        }
        _ => None,
    })
}

/// Returns the number of bytes that a matrix product or convolution takes besides its arguments, by its algorithm, on
/// `threads` threads, with these values of symbols. It counts copies of operands and intermediate results. It does not
/// count memory that an epilogue keeps hot, or the few hundred kilobytes that a thread copies parts of matrices into.
/// Returns `None` for other kernels.
///
/// # Errors
/// If the kernel's sizes or its algorithm are impossible.
pub fn workspace(kernel: &Kernel, values: &[i64], threads: usize) -> Result<Option<usize>> {
    let linked = linked_alone(kernel, values, threads as i64)?;
    Ok(linked.map(|(_, bytes)| bytes as usize))
}

/// Returns the schedule of a matrix product or convolution, without its epilogue, with all the sizes that it is
/// computed by for these values of symbols. Returns `None` for other kernels.
///
/// # Errors
/// If the kernel's sizes or its schedule are impossible.
pub fn schedule(kernel: &Kernel, values: &[i64]) -> Result<Option<Cpu>> {
    let linked = linked_alone(kernel, values, 1)?;
    Ok(linked.map(|(schedule, _)| schedule))
}

/// Returns the number of elements of a full tile of a tile program for these values of symbols, or `None` for other
/// kernels.
///
/// # Errors
/// If the program is contradictory.
pub fn tile_elements(kernel: &Kernel, values: &[i64]) -> Result<Option<usize>> {
    let Kernel::Tile(program) = kernel else {
        return Ok(None);
    };
    let lens = vec![i64::MAX; program.args.len()];
    let linked = tile::link(&tile::bind(program, values, &lens)?, Features::current()?)?;
    Ok(Some(linked.tile))
}
