//! Checks that kernels access only elements within their arguments.

use crate::affine::{Affine, Limit, Proof, extent, prove};
use crate::error::{Result, damaged};
use kiln_plan::Footprint;

/// Returns an error unless all that a kernel accesses of an argument exists.
pub fn within(name: &str, reach: &Footprint, values: &[i64], lens: &[i64]) -> Result<()> {
    let extents = reach.extents.iter().map(|d| extent(d, values));
    let extents: Vec<i64> = extents.collect::<Result<_>>()?;
    let rank = extents.len();
    let address = Affine::new(&reach.offset, &reach.strides, rank, values)?;
    let limits = reach.bounds.iter().map(|b| Limit::new(b, rank, values));
    let limits: Vec<Limit> = limits.collect::<Result<_>>()?;
    let len = lens.get(usize::from(reach.arg)).copied().unwrap_or(0);
    match prove(&address, &limits, &extents, len) {
        Proof::Inside => Ok(()),
        // It is not always known which elements conditions exclude; then the code must respect them.
        Proof::Unknown if !limits.is_empty() => Ok(()),
        Proof::Unknown => Err(damaged!("{name} is larger than argument {}", reach.arg)),
    }
}
