//! Machine code for x86-64: an assembler for the instructions of kernels, and executable memory. It is independent of
//! tensors.
//!
//! [`Asm`] collects instructions, [`Asm::finish`] returns their bytes, and [`Code::new`] makes them executable, on
//! Unix. Memory is never writable and executable at once. With the feature `disassembly`, `disassemble` converts bytes
//! to text.

mod asm;
#[cfg(feature = "disassembly")]
mod disassembly;
#[cfg(unix)]
mod memory;
pub mod op;
mod operand;
mod tiles;

pub use asm::{Asm, Condition, Label, MaskOp};
#[cfg(feature = "disassembly")]
pub use disassembly::disassemble;
#[cfg(unix)]
pub use memory::{Code, CodeError};
pub use op::Op;
pub use operand::{Gpr, Mask, Mem, Operand, Operands, Vreg, Width};
pub use tiles::{Tile, TileProduct, TileSizes};
