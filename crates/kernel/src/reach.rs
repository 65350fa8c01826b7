//! What kernels touch lies within their arguments.

use crate::affine::{Affine, Limit, Proof, extent, prove};
use crate::error::{Result, damaged};
use kiln_plan::Reach;

/// Errs unless all that a kernel touches of an argument is there.
pub fn within(name: &str, reach: &Reach, values: &[i64], lens: &[i64]) -> Result<()> {
    let extents = reach.extents.iter().map(|d| extent(d, values));
    let extents: Vec<i64> = extents.collect::<Result<_>>()?;
    let rank = extents.len();
    let address = Affine::new(&reach.offset, &reach.strides, rank, values)?;
    let limits = reach.bounds.iter().map(|b| Limit::new(b, rank, values));
    let limits: Vec<Limit> = limits.collect::<Result<_>>()?;
    let len = lens.get(usize::from(reach.arg)).copied().unwrap_or(0);
    match prove(&address, &limits, &extents, len) {
        Proof::Inside => Ok(()),
        // What conditions leave of an access is not always known: these are the code's to hold.
        Proof::Unknown if !limits.is_empty() => Ok(()),
        Proof::Unknown => Err(damaged!("{name} is larger than argument {}", reach.arg)),
    }
}
