//! Kernel IR printed as tile programs.
//!
//! A kernel becomes alternating stages: stage `2p` computes what has one value a row and stage `2p + 1`
//! walks the inner points for the reductions of depth `p` (how many reductions lie below them) and for
//! the stores of that depth. What a later walk needs of an earlier one is computed again, or kept in a
//! row slot where that holds something costly and the slot stays small.

use crate::kir::Kernel;
use kiln_plan::tile::TileProgram;

mod inst;
mod regs;
mod stages;
mod text;
mod variants;

pub(crate) use stages::{Keep, Plan, Step, dear, in_place, in_place_behind, may_share, plan, same};
pub use text::tile_text;
pub(crate) use variants::variants;

/// The tile program of a kernel.
pub(crate) fn print(kernel: &Kernel) -> TileProgram {
    inst::print(kernel, stages::schedule(kernel))
}

/// The tile program of what is behind a product, of whose rows a block holds all.
pub(crate) fn print_epilogue(kernel: &Kernel) -> TileProgram {
    inst::print(kernel, stages::schedule_behind(kernel))
}
