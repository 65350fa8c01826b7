//! Machine code for x86-64: an assembler for the instructions that kernels are emitted in, and the memory that emitted
//! code runs from. It knows nothing of tensors.
//!
//! [`Asm`] collects instructions; [`Asm::finish`] returns bytes, and [`Code::new`] makes them executable. Memory is
//! never writable and executable at once; it exists only on Unix. With the feature `disassembly`, `disassemble` turns
//! bytes into readable text.

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
