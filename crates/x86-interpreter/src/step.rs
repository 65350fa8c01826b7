//! Decoded instructions.

use crate::cpu::Action;
use iced_x86::{Formatter, Instruction, IntelFormatter, Mnemonic};

/// An instruction: its effect and its operands.
pub(crate) struct Step {
    pub mnemonic: Mnemonic,
    /// The effect; `None` for an instruction that is not interpreted.
    pub action: Option<Action>,
    pub operands: [OperandLocation; 5],
    /// The mask register of the result, if it has one.
    pub mask: Option<usize>,
    /// True if lanes without their mask bit become 0.
    pub clears: bool,
    /// The offsets of the instruction's start and end in the code, in bytes.
    pub at: usize,
    pub end: usize,
    /// The decoded instruction, for messages.
    pub instruction: Instruction,
}

/// The place of an operand.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum OperandLocation {
    None,
    /// A vector register and its bytes.
    Vector(usize, usize),
    Mask(usize),
    Tile(usize),
    /// A general register and its bytes.
    Gpr(usize, usize),
    Memory(Address),
    Immediate(u64),
    /// The target address of a branch.
    Branch(u64),
}

/// The address of an operand in memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// A general register.
    pub base: Option<usize>,
    pub index: Index,
    pub scale: u64,
    pub displacement: u64,
    /// The bytes that are accessed.
    pub bytes: usize,
    /// The bytes of the operand, if one element in memory is broadcast to all its lanes.
    pub spread: Option<usize>,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Index {
    None,
    Gpr(usize),
    /// A vector register and its bytes.
    Vector(usize, usize),
}

impl Step {
    /// The instruction as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        IntelFormatter::new().format(&self.instruction, &mut text);
        text
    }

    /// The last operand, if it is an immediate.
    pub fn immediate(&self) -> u8 {
        let mut places = self.operands.iter().rev();
        match places.find(|p| **p != OperandLocation::None) {
            Some(OperandLocation::Immediate(n)) => *n as u8,
            _ => 0,
        }
    }

    /// Bytes of an operand.
    pub fn bytes(&self, i: usize) -> usize {
        match self.operands[i] {
            OperandLocation::Vector(_, bytes) | OperandLocation::Gpr(_, bytes) => bytes,
            OperandLocation::Memory(m) => m.spread.unwrap_or(m.bytes),
            _ => 8,
        }
    }
}
