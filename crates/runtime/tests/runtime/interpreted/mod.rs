//! Programs whose machine code is interpreted, so that what is emitted for a level is proven on processors that lack it,
//! and touches only what it was given.

mod attention;
mod bugs;
mod layers;
mod programs;
