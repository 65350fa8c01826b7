//! Disassembly of machine code.

use iced_x86::{
    Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter, Mnemonic, OpKind, Register,
    SymbolResolver, SymbolResult,
};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Disassembles the output of [`Asm::finish`](crate::Asm::finish). Instructions are listed with their offsets and jump
/// targets with labels, and the constants follow the code.
///
/// ```
/// use kiln_x86::{Asm, Condition, Gpr, disassemble};
///
/// let mut a = Asm::new(false);
/// let top = a.here();
/// a.add_number(Gpr::RDI, -1);
/// a.jump_if(Condition::NotEqual, top);
/// a.leave(&[], 0);
/// let text = "L0:
///     0000  add rdi,0FFFFFFFFFFFFFFFFh
///     0007  jne L0
///     000d  vzeroupper
///     0010  ret
/// ";
/// assert_eq!(disassemble(&a.finish()), text);
/// ```
pub fn disassemble(code: &[u8]) -> String {
    let (instructions, data) = decode(code);
    let targets = instructions.iter().filter_map(jump_target);
    let mut labels: BTreeMap<u64, usize> = targets.map(|at| (at, 0)).collect();
    (labels.values_mut().enumerate()).for_each(|(i, label)| *label = i);
    let names = AddressNames {
        labels: labels.clone(),
    };
    let mut formatter = IntelFormatter::with_options(Some(Box::new(names)), None);
    let mut text = String::new();
    for instruction in &instructions {
        if let Some(label) = labels.get(&instruction.ip()) {
            text += &format!("L{label}:\n");
        }
        let mut line = String::new();
        formatter.format(instruction, &mut line);
        text += &format!("    {:04x}  {line}\n", instruction.ip());
    }
    for (i, bytes) in code[data..].chunks(16).enumerate() {
        let mut line = format!("    {:04x}  ", data + 16 * i);
        for word in bytes.chunks(4) {
            line.push(' ');
            for byte in word {
                // Writing to a string can't fail.
                let _ = write!(line, "{byte:02x}");
            }
        }
        text += &(line + "\n");
    }
    text
}

/// Returns the instructions, and the start of the constants after them: the lowest address that is read, or the end of
/// the padding before the constants.
fn decode(code: &[u8]) -> (Vec<Instruction>, usize) {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut instructions = Vec::new();
    let mut data = code.len();
    while decoder.position() < data {
        let position = decoder.position();
        let instruction = decoder.decode();
        if instruction.mnemonic() == Mnemonic::Int3 {
            return (instructions, position.next_multiple_of(64).min(data));
        }
        if instruction.memory_base() == Register::RIP {
            data = data.min(instruction.memory_displacement64() as usize);
        }
        instructions.push(instruction);
    }
    (instructions, data)
}

/// Returns the target of a jump.
fn jump_target(instruction: &Instruction) -> Option<u64> {
    let is_jump = instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64;
    is_jump.then(|| instruction.near_branch64())
}

/// The names of addresses: labels of jump targets, and constants.
struct AddressNames {
    labels: BTreeMap<u64, usize>,
}

impl SymbolResolver for AddressNames {
    fn symbol(
        &mut self,
        instruction: &Instruction,
        _operand: u32,
        _instruction_operand: Option<u32>,
        address: u64,
        _address_size: u32,
    ) -> Option<SymbolResult<'_>> {
        let name = match jump_target(instruction) {
            Some(to) => format!("L{}", self.labels.get(&to)?),
            None if instruction.memory_base() == Register::RIP => format!("data_{address:04x}"),
            None => return None,
        };
        Some(SymbolResult::with_string(address, name))
    }
}
