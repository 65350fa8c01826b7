//! The engine's own kernels for loops, branches and guards.

use super::launch::{GRID, Launch};
use super::loader::Loader;
use super::module::{Parameters, Unloaded};
use kiln_kernel::error::{Result, damaged};
use kiln_plan::cuda::{ARGUMENT_ALIGN, ErrorRecord};
use kiln_plan::{Kernel, Plan};
use std::sync::Arc;

/// The records of both sides of a branch.
pub const SIDES: usize = 2 * size_of::<ErrorRecord>();

/// A kernel that takes this many pointers and numbers.
fn kernel(
    entry: &'static str,
    source: &'static str,
    [pointers, numbers]: [usize; 2],
) -> Unloaded<'static> {
    Unloaded {
        name: entry,
        entry,
        source: source.into(),
        shared: 0,
        parameters: Parameters {
            pointers,
            numbers,
            ..Parameters::default()
        },
    }
}

fn branch_kernel() -> Unloaded<'static> {
    kernel("kiln_branch", include_str!("control/branch.cu"), [2, 0])
}

fn guard_kernel() -> Unloaded<'static> {
    kernel("kiln_guard", include_str!("control/guard.cu"), [2, 1])
}

fn joined_kernel() -> Unloaded<'static> {
    kernel("kiln_joined", include_str!("control/joined.cu"), [1, 0])
}

fn copy_kernel() -> Unloaded<'static> {
    kernel("kiln_copy", include_str!("control/copy.cu"), [2, 5])
}

fn next_kernel() -> Unloaded<'static> {
    kernel("kiln_next", include_str!("control/next.cu"), [2, 0])
}

/// The control kernels that a run of a plan may need.
pub(super) fn control_kernels(plan: &Plan) -> Vec<Unloaded<'static>> {
    fn has_control(plan: &Plan) -> bool {
        let mut steps = plan.prepare.iter().chain(&plan.run);
        steps.any(|s| s.guard.is_some()) || plan.kernels.iter().any(|k| !k.bodies().is_empty())
    }
    let mut kernels = match has_control(plan) {
        true => vec![
            branch_kernel(),
            guard_kernel(),
            joined_kernel(),
            copy_kernel(),
        ],
        false => Vec::new(),
    };
    let communicates = |kernel: &Arc<Kernel>| matches!(**kernel, Kernel::Collective(_));
    kernels.extend((plan.kernels.iter().any(communicates)).then(next_kernel));
    kernels
}

/// The kernel that writes the records of a branch's two sides from its condition, one of which skips its side. Guarded
/// by the record around the branch.
pub fn branch(loader: &Loader) -> Result<Arc<Launch>> {
    let kernel = branch_kernel();
    Launch::of(loader, kernel, [1; 3], [1; 3], Vec::new())
}

/// The kernel that writes the record of a step from its guard of `bytes` bytes, which may skip the step. Guarded by the
/// record around the step.
pub fn guard(loader: &Loader, bytes: usize) -> Result<Arc<Launch>> {
    let kernel = guard_kernel();
    Launch::of(loader, kernel, [1; 3], [1; 3], vec![bytes as i64])
}

/// The kernel that merges the records of a branch's two sides into the record around the branch.
pub fn joined(loader: &Loader) -> Result<Arc<Launch>> {
    let kernel = joined_kernel();
    Launch::of(loader, kernel, [1; 3], [1; 3], Vec::new())
}

/// The kernel that writes the next token from that of a collective operation.
pub(super) fn next(loader: &Loader) -> Result<Arc<Launch>> {
    Launch::of(loader, next_kernel(), [1; 3], [1; 3], Vec::new())
}

/// The kernel that copies `bytes` bytes.
pub fn copy(loader: &Loader, bytes: usize) -> Result<Arc<Launch>> {
    copy_rows(loader, 1, bytes, [bytes; 2])
}

/// The kernel that copies rows of `bytes` bytes, which begin so many bytes apart in the source and in the destination.
pub fn copy_rows(
    loader: &Loader,
    rows: usize,
    bytes: usize,
    pitches: [usize; 2],
) -> Result<Arc<Launch>> {
    let unit = 1 << (pitches[0] | pitches[1] | bytes | ARGUMENT_ALIGN).trailing_zeros();
    let units = rows.saturating_mul(bytes / unit);
    let blocks = u32::try_from(units.div_ceil(256)).ok();
    let blocks = blocks.filter(|n| i64::from(*n) <= GRID[0]);
    let blocks = blocks.ok_or_else(|| damaged!("a copy of {rows} rows of {bytes} bytes"))?;
    let [from, to] = pitches.map(|pitch| pitch / unit);
    let numbers = [unit, units, bytes / unit, from, to].map(|n| n as i64);
    let kernel = copy_kernel();
    Launch::of(
        loader,
        kernel,
        [blocks, 1, 1],
        [256, 1, 1],
        numbers.to_vec(),
    )
}
