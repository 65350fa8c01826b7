//! The JIT: machine code of the stages of tile programs ([`emission`]) and of the register tiles that products and
//! convolutions consist of ([`contraction`]).
//!
//! It knows neither programs nor kernels: its callers describe a piece of code, and call it with addresses that they
//! have proven valid. Start reading at [`contraction::Tile`].

#![allow(
    missing_docs,
    reason = "a crate of the engines: fields and methods whose names say what they hold have no other text"
)]

pub mod contraction;
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
pub mod emission;
