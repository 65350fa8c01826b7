//! Code as a list of steps.

use crate::step::{OperandLocation, Step};
use iced_x86::{Decoder, DecoderOptions, Mnemonic, Register};

/// 64 bytes, the alignment of constants.
#[derive(Copy, Clone)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Decoded code, and a copy of its bytes that its constants are read from.
pub(crate) struct Program {
    lines: Vec<Line>,
    len: usize,
    steps: Vec<Step>,
    /// The index of the step that begins at each byte, if one does.
    at: Vec<Option<u32>>,
    /// The offset of the constants: the lowest one that the code reads.
    data: usize,
}

impl Program {
    pub fn new(code: &[u8]) -> Program {
        let line = |bytes: &[u8]| {
            let mut line = Line([0; 64]);
            line.0[..bytes.len()].copy_from_slice(bytes);
            line
        };
        let mut program = Program {
            lines: code.chunks(64).map(line).collect(),
            len: code.len(),
            steps: Vec::new(),
            at: vec![None; code.len()],
            data: code.len(),
        };
        program.decode(code);
        program
    }

    /// Decodes the reachable code.
    fn decode(&mut self, code: &[u8]) {
        let start = self.start();
        let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
        let mut open = vec![0];
        while let Some(at) = open.pop() {
            if self.at.get(at).is_none_or(Option::is_some) || decoder.set_position(at).is_err() {
                continue;
            }
            decoder.set_ip(start + at as u64);
            let instruction = decoder.decode();
            let step = Step::new(&instruction, at);
            if instruction.memory_base() == Register::RIP {
                let target = instruction.memory_displacement64().wrapping_sub(start);
                self.data = self.data.min(target as usize);
            }
            if let OperandLocation::Branch(to) = step.operands[0] {
                open.push(to.wrapping_sub(start) as usize);
            }
            let ends = [Mnemonic::Jmp, Mnemonic::Ret, Mnemonic::INVALID];
            if !ends.contains(&step.mnemonic) {
                open.push(step.end);
            }
            self.at[at] = Some(self.steps.len() as u32);
            self.steps.push(step);
        }
    }

    /// The address of the code.
    pub fn start(&self) -> u64 {
        self.lines.as_ptr() as u64
    }

    /// The bytes of the code.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the lines hold at least `len` bytes, without gaps.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }

    /// The constants.
    pub fn constants(&self) -> &[u8] {
        &self.bytes()[self.data..]
    }

    /// The instruction at an address, if code is there.
    pub fn step(&self, address: u64) -> Option<&Step> {
        let at = address.wrapping_sub(self.start());
        let step = *self.at.get(usize::try_from(at).ok()?)?;
        let step = &self.steps[step? as usize];
        (step.end <= self.data && step.mnemonic != Mnemonic::Int3).then_some(step)
    }
}
