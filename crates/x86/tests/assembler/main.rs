//! What the assembler encodes is decoded again, and is what was asked.
#![cfg(target_arch = "x86_64")]

mod code;
mod forms;
mod memory;
mod objdump;
mod scalar;
mod vector;
