//! Decoding of instructions into steps.

use crate::exec;
use crate::step::{Address, Index, OperandLocation, Step};
use iced_x86::{Instruction, OpKind, Register};

impl Step {
    pub fn new(instruction: &Instruction, at: usize) -> Step {
        // Rounding within the instruction, which the operands do not show, is not interpreted.
        let mut known = instruction.rounding_control() == iced_x86::RoundingControl::None;
        let mut operands = [OperandLocation::None; 5];
        for (operand, i) in operands.iter_mut().zip(0..instruction.op_count()) {
            let place = place(instruction, i);
            known &= place.is_some();
            *operand = place.unwrap_or(OperandLocation::None);
        }
        let step = Step {
            mnemonic: instruction.mnemonic(),
            action: None,
            operands,
            mask: number(instruction.op_mask(), Register::K0, 8),
            clears: instruction.zeroing_masking(),
            at,
            end: at + instruction.len(),
            instruction: *instruction,
        };
        let action = exec::action(&step).filter(|_| known);
        Step { action, ..step }
    }
}

/// The number of a register, counted from `first`; `None` outside of `count` registers.
fn number(register: Register, first: Register, count: usize) -> Option<usize> {
    let n = (register as usize).wrapping_sub(first as usize);
    (n < count).then_some(n)
}

fn vector(register: Register) -> Option<(usize, usize)> {
    let classes = [
        (Register::XMM0, 16),
        (Register::YMM0, 32),
        (Register::ZMM0, 64),
    ];
    let found = |(first, bytes)| Some((number(register, first, 32)?, bytes));
    classes.into_iter().find_map(found)
}

fn gpr(register: Register) -> Option<(usize, usize)> {
    let classes = [(Register::AX, 2), (Register::EAX, 4), (Register::RAX, 8)];
    let found = |(first, bytes)| Some((number(register, first, 16)?, bytes));
    let low = match register {
        Register::AL | Register::CL | Register::DL | Register::BL => {
            number(register, Register::AL, 4)
        }
        _ => number(register, Register::SPL, 12).map(|n| n + 4),
    };
    (classes.into_iter().find_map(found)).or(low.map(|n| (n, 1)))
}

fn place(instruction: &Instruction, i: u32) -> Option<OperandLocation> {
    match instruction.op_kind(i) {
        OpKind::Register => {
            let register = instruction.op_register(i);
            let mask = || number(register, Register::K0, 8).map(OperandLocation::Mask);
            let tile = || number(register, Register::TMM0, 8).map(OperandLocation::Tile);
            (vector(register).map(|(n, bytes)| OperandLocation::Vector(n, bytes)))
                .or_else(|| gpr(register).map(|(n, bytes)| OperandLocation::Gpr(n, bytes)))
                .or_else(mask)
                .or_else(tile)
        }
        OpKind::Memory => memory(instruction).map(OperandLocation::Memory),
        OpKind::NearBranch64 => Some(OperandLocation::Branch(instruction.near_branch64())),
        _ => instruction
            .try_immediate(i)
            .ok()
            .map(OperandLocation::Immediate),
    }
}

fn memory(instruction: &Instruction) -> Option<Address> {
    // These segments do not begin at address 0.
    if [Register::FS, Register::GS].contains(&instruction.memory_segment()) {
        return None;
    }
    let base = match instruction.memory_base() {
        // The displacement is the whole address.
        Register::None | Register::RIP => None,
        register => match gpr(register) {
            Some((n, 8)) => Some(n),
            _ => return None,
        },
    };
    let index = match instruction.memory_index() {
        Register::None => Index::None,
        register => match (gpr(register), vector(register)) {
            (Some((n, 8)), _) => Index::Gpr(n),
            (_, Some((n, bytes))) => Index::Vector(n, bytes),
            _ => return None,
        },
    };
    Some(Address {
        base,
        index,
        scale: u64::from(instruction.memory_index_scale()),
        displacement: instruction.memory_displacement64(),
        bytes: instruction.memory_size().size(),
        spread: spread(instruction),
    })
}

/// The bytes that an element in memory is broadcast to. The decoder offers them only inside names, such as
/// `Broadcast512_Float32`.
fn spread(instruction: &Instruction) -> Option<usize> {
    if !instruction.is_broadcast() {
        return None;
    }
    let name = format!("{:?}", instruction.memory_size());
    let bits = name.strip_prefix("Broadcast")?.split('_').next()?;
    bits.parse().ok().map(|bits: usize| bits / 8)
}
