//! Kernels of the engine's own, which loops and branches need beside their bodies.

use super::device::Device;
use super::launch::{GRID, Launch};
use super::module::Unloaded;
use crate::error::{Result, damaged};
use kiln_plan::cuda::ErrorRecord;
use std::sync::Arc;

/// The records of both sides of a branch.
pub(crate) const SIDES: usize = 2 * size_of::<ErrorRecord>();

fn kernel(entry: &'static str, source: &'static str) -> Unloaded<'static> {
    Unloaded {
        name: entry,
        entry,
        source: source.into(),
        shared: 0,
    }
}

/// From a condition to the records of the two sides, of which one says that it is left out. Guarded by
/// what is around the branch.
pub(crate) fn branch(device: &Device) -> Result<Arc<Launch>> {
    let kernel = kernel("kiln_branch", include_str!("control/branch.cu"));
    Launch::of(device, kernel, [1; 3], [1; 3], Vec::new())
}

/// From a guard of so many bytes to the record of a step that it may leave out. Guarded by what is around the step.
pub(crate) fn guard(device: &Device, bytes: usize) -> Result<Arc<Launch>> {
    let kernel = kernel("kiln_guard", include_str!("control/guard.cu"));
    Launch::of(device, kernel, [1; 3], [1; 3], vec![bytes as i64])
}

/// From the records of the two sides to the record of what is around the branch.
pub(crate) fn joined(device: &Device) -> Result<Arc<Launch>> {
    let kernel = kernel("kiln_joined", include_str!("control/joined.cu"));
    Launch::of(device, kernel, [1; 3], [1; 3], Vec::new())
}

/// From bytes to as many others.
pub(crate) fn copy(device: &Device, bytes: usize) -> Result<Arc<Launch>> {
    let kernel = kernel("kiln_copy", include_str!("control/copy.cu"));
    let blocks = u32::try_from(bytes.div_ceil(256)).ok();
    let blocks = blocks.filter(|n| i64::from(*n) <= GRID[0]);
    let blocks = blocks.ok_or_else(|| damaged!("a copy of {bytes} bytes"))?;
    Launch::of(
        device,
        kernel,
        [blocks, 1, 1],
        [256, 1, 1],
        vec![bytes as i64],
    )
}
