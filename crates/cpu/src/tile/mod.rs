//! The tile-program engine.
//!
//! A [`TileProgram`](kiln_plan::tile::TileProgram) goes through [`bind`] (symbols get values, everything is checked),
//! [`link`] (each stage becomes an emitted function, or its instructions become loops) and [`run`]. After `bind`, no
//! access can leave its buffer.

mod blocks;
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
mod builder;
mod call;
mod code;
mod cost;
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
mod emit;
mod emitted;
mod fills;
mod kernels;
mod link;
mod linked;
mod live;
mod load;
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
mod located;
mod pieces;
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
mod prefetch;
mod reduce;
mod run;
mod runs;
#[cfg(all(test, target_arch = "x86_64", not(portable), unix))]
mod tests;
mod walk;
mod work;

pub(crate) use blocks::split as split_blocks;
pub(crate) use code::Ctx;
pub(crate) use kiln_kernel::bind::bind;
pub(crate) use link::link;
pub(crate) use linked::Linked;
pub(crate) use pieces::split as split_pieces;
pub(crate) use run::{ProgramLaunch, run_all, run_lines};
