//! Emission of Kernel IR as tile programs.
//!
//! A kernel becomes alternating stages. Stage `2p` computes the values with one element per row. Stage `2p + 1` loops
//! over the inner points for the reductions and stores of depth `p`, the number of reductions that they depend on.
//! Values that a later loop needs again are rematerialised, or kept in a row slot if they are costly and the slot is
//! small.

use crate::kir::Kernel;
use kiln_plan::tile::TileProgram;

mod inst;
mod regs;
mod stages;
mod text;
mod variants;

pub(crate) use stages::{
    SlotPolicy, StagePlan, ValueSource, expensive, in_place, in_place_epilogue, may_alias, plan,
    without_casts,
};
pub use text::tile_text;
pub(crate) use variants::variants;

/// Emits the tile program of a kernel.
pub(crate) fn emit(kernel: &Kernel) -> TileProgram {
    inst::emit(kernel, stages::schedule(kernel))
}

/// Emits the tile program of an epilogue of a product, whose blocks hold whole rows.
pub(crate) fn emit_epilogue(kernel: &Kernel) -> TileProgram {
    inst::emit(kernel, stages::epilogue_schedule(kernel))
}
