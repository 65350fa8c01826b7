//! Kernels of the engine's own, which loops and branches need beside their bodies.

use super::launch::{GRID, Launch};
use super::loader::Loader;
use super::module::{Parameters, Unloaded};
use kiln_kernel::error::{Result, damaged};
use kiln_plan::Plan;
use kiln_plan::cuda::ErrorRecord;
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
            sites: 0,
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
    kernel("kiln_copy", include_str!("control/copy.cu"), [2, 1])
}

/// Those that a run of a plan may need.
pub(super) fn of_plan(plan: &Plan) -> Vec<Unloaded<'static>> {
    fn needs(plan: &Plan) -> bool {
        let mut steps = plan.prepare.iter().chain(&plan.run);
        steps.any(|s| s.guard.is_some()) || plan.kernels.iter().any(|k| !k.bodies().is_empty())
    }
    match needs(plan) {
        true => vec![
            branch_kernel(),
            guard_kernel(),
            joined_kernel(),
            copy_kernel(),
        ],
        false => Vec::new(),
    }
}

/// From a condition to the records of the two sides, of which one says that it is left out. Guarded by
/// what is around the branch.
pub fn branch(loader: &Loader) -> Result<Arc<Launch>> {
    let kernel = branch_kernel();
    Launch::of(loader, kernel, [1; 3], [1; 3], Vec::new())
}

/// From a guard of so many bytes to the record of a step that it may leave out. Guarded by what is around the step.
pub fn guard(loader: &Loader, bytes: usize) -> Result<Arc<Launch>> {
    let kernel = guard_kernel();
    Launch::of(loader, kernel, [1; 3], [1; 3], vec![bytes as i64])
}

/// From the records of the two sides to the record of what is around the branch.
pub fn joined(loader: &Loader) -> Result<Arc<Launch>> {
    let kernel = joined_kernel();
    Launch::of(loader, kernel, [1; 3], [1; 3], Vec::new())
}

/// From bytes to as many others.
pub fn copy(loader: &Loader, bytes: usize) -> Result<Arc<Launch>> {
    let kernel = copy_kernel();
    let blocks = u32::try_from(bytes.div_ceil(256)).ok();
    let blocks = blocks.filter(|n| i64::from(*n) <= GRID[0]);
    let blocks = blocks.ok_or_else(|| damaged!("a copy of {bytes} bytes"))?;
    Launch::of(
        loader,
        kernel,
        [blocks, 1, 1],
        [256, 1, 1],
        vec![bytes as i64],
    )
}
