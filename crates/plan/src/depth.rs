//! How deep programs lie in each other. Whoever reads one, checks it or runs it calls itself for its bodies, so
//! that bytes must not decide how deep that goes.

use kiln_base::Scoped;
use serde::{Deserialize, Deserializer, de::Error};
use std::cell::Cell;

/// The most bodies of loops and branches in each other.
pub const MAX_DEPTH: usize = 64;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Reads what holds bodies.
pub(crate) fn read<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    let depth = DEPTH.get() + 1;
    let _inside = Scoped::new(&DEPTH, depth);
    if depth > MAX_DEPTH {
        return Err(D::Error::custom("too many bodies in each other"));
    }
    T::deserialize(from)
}
