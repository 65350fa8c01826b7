//! The interpreter agrees with the processor, and finds the faults of code.
#![cfg(all(target_arch = "x86_64", unix))]

mod conversions;
mod encodings;
mod faults;
#[path = "../../../x86/tests/assembler/forms.rs"]
mod forms;
mod harness;
mod inputs;
mod scalar;
mod tiles;
mod vector;
