//! Checks that kernels access only elements within their arguments.

use crate::affine::{Affine, Limit, extent, stays_inside};
use crate::error::{Result, damaged};
use kiln_plan::Footprint;

/// Returns an error unless a kernel's footprint of an argument is within it.
pub fn check(name: &str, footprint: &Footprint, values: &[i64], lens: &[i64]) -> Result<()> {
    let extents = footprint.extents.iter().map(|d| extent(d, values));
    let extents: Vec<i64> = extents.collect::<Result<_>>()?;
    let rank = extents.len();
    let address = Affine::new(&footprint.offset, &footprint.strides, rank, values)?;
    let limits = footprint.bounds.iter().map(|b| Limit::new(b, rank, values));
    let limits: Vec<Limit> = limits.collect::<Result<_>>()?;
    let len = lens.get(usize::from(footprint.arg)).copied().unwrap_or(0);
    // The elements that limits exclude are not always known here; the code then checks its limits.
    match !limits.is_empty() || stays_inside(&address, &limits, &extents, len) {
        true => Ok(()),
        false => Err(damaged!("{name} is larger than argument {}", footprint.arg)),
    }
}
