//! The CPU engine: library kernels (products, convolutions, attention, scans, sorts, scatters) and tile programs. The
//! stages of tile programs are machine code where the level has an emitter, and otherwise loops. Results are bitwise
//! identical on every machine of a level, whatever the number of threads.
//!
//! [`link`] makes the [`Work`](kiln_kernel::work::LinkedKernel) of a plan's kernel; start reading there.

#![cfg_attr(
    not(all(target_arch = "x86_64", not(portable), unix)),
    allow(dead_code, reason = "a part of linking is for emitted code alone")
)]

mod combine;
mod kernels;
mod tile;
mod workspace;

pub use kernels::{check_supported, link, run_concurrently};
pub use workspace::{schedule, tile_elements, workspace};
