//! Contractions: products of matrices, and operations that reduce to them, in register tiles.
//!
//! A [`Tile`] describes accumulators that stay in registers. A [`Kernel`] computes them, by machine code that is
//! emitted for the description, or by one portable loop on processors without emission. The caller chooses the blocking
//! and the loop order.

mod depthwise;
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
mod emit;
mod epilogue;
mod footprint;
mod grid;
mod kernel;
mod portable;
mod product;
#[cfg(test)]
pub mod tests;
mod tile;
mod transform;

pub use depthwise::max_depthwise_rows;
pub use epilogue::{Accesses, RegisterEpilogue};
pub use grid::{Columns, Order, PanelSource, TileGrid};
pub use kernel::{Description, Kernel, Left, Lines, Output};
pub use product::{Matrix, PackedPanels, Right, TERMS, multiply, pack, shape};
pub use tile::{RightSide, Rows, Tile, even_rows, shown};
pub use transform::Transform;
