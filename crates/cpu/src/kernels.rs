//! The checked kernels of a plan, linked for known sizes. This module alone dispatches on their kinds; each kind has a
//! file.

mod attention;
mod collective;
pub(crate) mod conv;
mod custom;
pub(crate) mod matmul;
mod pack;
mod scan;
mod scatter;
mod sort;
mod terms;

use crate::tile::{self, Linked, ProgramLaunch, run_all};
use attention::{Attention, AttentionGrad, Scores};
use collective::CollectiveWork;
use conv::Conv;
use custom::CustomWork;
use kiln_kernel::custom::{Custom, find_registered};
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::failures::Failures;
use kiln_kernel::pool::Pool;
use kiln_kernel::simd::Features;
use kiln_kernel::work::{Call, LinkedKernel, Sizes};
use kiln_plan::Kernel;
use matmul::MatMul;
use scan::Scan;
use scatter::Scatter;
use sort::ArgSort;
use std::any::Any;
use std::sync::Arc;

/// Returns an error unless the CPU has code for a kernel of these dtypes.
pub fn check_supported(kernel: &Kernel) -> Result<()> {
    let (dtype, computes) = match kernel {
        Kernel::MatMul(m) => (m.dtype(), MatMul::computes(m)),
        Kernel::Conv(c) => (c.dtype(), Conv::computes(c)),
        Kernel::Attention(a) => (a.scores.dtype, Scores::computes(&a.scores)),
        Kernel::AttentionGrad(a) => (a.scores.dtype, Scores::computes(&a.scores)),
        Kernel::Scan(s) => (s.dtype, Scan::computes(s)),
        Kernel::ArgSort(s) => (s.dtype, ArgSort::computes(s)),
        Kernel::Scatter(s) => (s.dtype, Scatter::computes(s)),
        Kernel::Custom(c) => return find_registered(&c.name).map(|_| ()),
        Kernel::Tile(_)
        | Kernel::Loop(_)
        | Kernel::If(_)
        | Kernel::Cuda(_)
        | Kernel::Collective(_)
        | Kernel::Library(_) => return Ok(()),
    };
    match computes {
        true => Ok(()),
        false => Err(damaged!("a {} of {dtype}", kernel.name())),
    }
}

/// Links a kernel of the CPU for known sizes. Returns `None` if it is a GPU's, or has programs that the executor runs.
///
/// # Errors
/// [`Error::Plan`](kiln_kernel::error::Error::Plan) if it contradicts its contract.
pub fn link(
    kernel: &Kernel,
    sizes: Sizes<'_>,
    level: Features,
) -> Result<Option<Arc<dyn LinkedKernel>>> {
    let Sizes { values, lens } = sizes;
    Ok(Some(match kernel {
        Kernel::Cuda(_) | Kernel::Library(_) | Kernel::Loop(_) | Kernel::If(_) => return Ok(None),
        Kernel::Custom(c) => Arc::new(CustomWork(Custom::new(c, values, lens)?)),
        Kernel::Collective(c) => Arc::new(CollectiveWork::new(c, values, lens)?),
        Kernel::Tile(p) => {
            let bound = tile::bind(p, values, lens)?;
            let mut linked = tile::link(&bound, level)?;
            let mut pieces = tile::split_pieces(p, values)?;
            if pieces.is_empty() {
                pieces = tile::split_blocks(p, values)?;
            }
            linked.pieces = (pieces.iter())
                .map(|piece| tile::link(&tile::bind(piece, values, lens)?, level))
                .collect::<Result<_>>()?;
            Arc::new(linked)
        }
        Kernel::MatMul(m) => Arc::new(MatMul::new(m, values, lens, level)?),
        Kernel::Conv(c) => Arc::new(Conv::new(c, values, lens, level)?),
        Kernel::Attention(a) => Arc::new(Attention::new(a, values, lens, level)?),
        Kernel::AttentionGrad(a) => Arc::new(AttentionGrad::new(a, values, lens, level)?),
        Kernel::Scan(s) => Arc::new(Scan::new(s, values, level)?),
        Kernel::ArgSort(s) => Arc::new(ArgSort::new(s, values, level)?),
        Kernel::Scatter(s) => Arc::new(Scatter::new(s, values, level)?),
    }))
}

/// Runs a group of works concurrently. No work accesses memory that another writes.
pub fn run_concurrently(group: &[(&dyn LinkedKernel, &Call<'_>)], failures: &Failures) {
    let mut launches: Vec<ProgramLaunch> = Vec::new();
    let mut jobs: Vec<Box<dyn FnMut() + '_>> = Vec::new();
    for (work, call) in group {
        match work.as_any().and_then(<dyn Any>::downcast_ref::<Linked>) {
            Some(program) => launches.push(ProgramLaunch {
                program,
                args: call.args,
                parallel: call.parallel,
            }),
            None => jobs.push(Box::new(move || {
                if let Err(e) = work.run(call) {
                    failures.report_error(e);
                }
            })),
        }
    }
    let tiles = || run_all(&launches, failures);
    if jobs.is_empty() {
        return tiles();
    }
    if !launches.is_empty() {
        jobs.push(Box::new(tiles));
    }
    Pool::global().run_concurrently(&mut jobs);
}
