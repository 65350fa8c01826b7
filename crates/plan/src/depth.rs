//! The nesting depth of programs. Code that reads, checks or runs a program calls itself for its bodies, so the depth
//! must not depend on untrusted bytes.

pub use kiln_base::MAX_DEPTH;
use kiln_base::Scoped;
use serde::{Deserialize, Deserializer, de::Error};
use std::cell::Cell;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Reads a value that contains bodies.
pub(crate) fn read<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    let depth = DEPTH.get() + 1;
    let _inside = Scoped::new(&DEPTH, depth);
    if depth > MAX_DEPTH {
        return Err(D::Error::custom("too many bodies in each other"));
    }
    T::deserialize(from)
}
