//! Tests of the IR: text, verifier, reference evaluation and random programs.

mod ops;
mod oracle;
mod programs;
mod rounding;
mod rows;
mod sorting;
mod symbols;
mod text;
mod verifier;
