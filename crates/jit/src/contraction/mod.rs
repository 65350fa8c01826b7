//! Contractions: products of matrices, and what comes down to them, in register tiles.
//!
//! A [`Tile`] describes some sums that stay in registers. A [`Kernel`] computes them: machine code that is printed for
//! the description, or, on processors that nothing is printed for, one portable loop. How much of an operand is
//! walked over, and in which order, is the caller's.

mod each;
mod finish;
#[cfg(all(feature = "testing", target_arch = "x86_64", not(portable), unix))]
mod interpreted;
mod kernel;
mod portable;
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
mod print;
mod product;
#[cfg(test)]
pub mod tests;
mod tile;
mod transform;

pub use each::{Each, most_each_rows};
pub use finish::{Accesses, Finish};
pub use kernel::{Kernel, Kernels};
pub use product::{Matrix, Right, TERMS, multiply, multiply_as, pack, pack_panels, shape};
pub use tile::{Call, RightSide, Rows, Tile, even_rows, shown, strips};
pub use transform::Transform;
