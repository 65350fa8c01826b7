//! Executing a block: its warps take turns; the lanes of a warp run in lockstep and reconverge at the lowest program
//! counter.

mod access;
mod atomic;
mod barrier;
mod block;
mod bulk;
mod bulk_stores;
mod cluster;
mod collective;
mod copy;
mod core;
mod elements;
mod footprint;
mod im2col;
mod matrix;
mod mbarrier;
mod races;
mod run;
mod step;
mod traffic;
mod warp;
mod warpgroup;

pub(crate) use atomic::is_atomic;
pub use bulk::TensorMap;
pub use footprint::Trail;
pub use im2col::Pixels;
pub use traffic::Traffic;

use crate::code::Address;
use crate::lanes::{LANES, Registers};

/// The kind of an access to memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum AccessKind {
    Read,
    Write,
    Atomic,
}

/// Generic addresses of shared memory start here.
pub(crate) const SHARED_WINDOW: u64 = 1 << 56;
/// Generic addresses of local memory start here.
pub(crate) const LOCAL_WINDOW: u64 = 2 << 56;
/// Generic addresses of parameters start here.
pub(crate) const PARAMETER_WINDOW: u64 = 3 << 56;

/// Addresses of shared memory above this bit say in which block of the cluster they are: its number and 1.
pub(crate) const BLOCK_SHIFT: u32 = 24;

/// The index along x, y and z of number `i` of a box of these extents.
pub(crate) fn index_in([x, y, _]: [u32; 3], i: u32) -> [u32; 3] {
    [i % x, i / x % y, i / x / y]
}

/// The lanes of a mask, lowest first.
#[inline(always)]
pub(crate) fn lanes_of(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let lane = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            lane
        })
    })
}

/// The address of every lane.
#[inline(always)]
pub(super) fn addresses(registers: &Registers, address: Address) -> [u64; LANES] {
    let mut out = [0; LANES];
    if address.wide {
        let base = registers.wide(address.base);
        for l in 0..LANES {
            out[l] = base[l].wrapping_add(address.offset as u64);
        }
    } else {
        let base = registers.word(address.base);
        for l in 0..LANES {
            out[l] = base[l].wrapping_add(address.offset as u32) as u64;
        }
    }
    out
}
