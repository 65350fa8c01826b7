//! Kernels of the engine's own, which loops and branches need beside their bodies.

use super::device::Device;
use super::launch::Launch;
use crate::error::Result;
use kiln_base::{DType, Dim};
use kiln_plan::cuda::{Blocks, CudaKernel, ErrorRecord};
use kiln_plan::tile::Arg;
use std::sync::Arc;

/// The records of both sides of a branch.
pub(crate) const SIDES: usize = 2 * size_of::<ErrorRecord>();

fn kernel(entry: &str, source: &str, args: usize) -> CudaKernel {
    // None of them is checked against a plan: their pointers are whatever their text says.
    let arg = Arg {
        dtype: DType::U8,
        written: false,
    };
    CudaKernel {
        name: entry.into(),
        entry: entry.into(),
        source: source.into(),
        args: vec![arg; args],
        scalars: Vec::new(),
        grid: [Blocks::one(), Blocks::one(), Blocks::one()],
        block: [1, 1, 1],
        shared: 0,
        sites: 0,
    }
}

/// From a condition to the records of the two sides, of which one says that it is left out. Guarded by
/// what is around the branch.
pub(crate) fn branch(device: &Device) -> Result<Arc<Launch>> {
    let kernel = kernel("kiln_branch", include_str!("control/branch.cu"), 2);
    Launch::of(device, &kernel, &[])
}

/// From the records of the two sides to the record of what is around the branch.
pub(crate) fn joined(device: &Device) -> Result<Arc<Launch>> {
    let kernel = kernel("kiln_joined", include_str!("control/joined.cu"), 1);
    Launch::of(device, &kernel, &[])
}

/// From bytes to as many others.
pub(crate) fn copy(device: &Device, bytes: usize) -> Result<Arc<Launch>> {
    let mut kernel = kernel("kiln_copy", include_str!("control/copy.cu"), 2);
    let points = Dim::from(bytes);
    kernel.scalars = vec![points.clone()];
    kernel.grid[0] = Blocks { points, each: 256 };
    kernel.block = [256, 1, 1];
    Launch::of(device, &kernel, &[])
}
