//! Tests that decode the assembler's output, and compare it with the request.
#![cfg(target_arch = "x86_64")]

mod code;
mod forms;
mod memory;
mod objdump;
mod scalar;
mod vector;
