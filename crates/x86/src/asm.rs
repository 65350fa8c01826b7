//! The assembler.

use crate::op::{Kind, Op};
use crate::operand::{Base, Gpr, Index, Mask, Mem, Operand, Operands, Width};
use iced_x86::{Code, Encoder, IcedError, Instruction, MemoryOperand, OpKind, Register};

/// An assembler, which collects instructions and their constants.
///
/// Instructions are encoded with VEX, or with EVEX, which has 32 vector registers, masks and broadcasts from memory.
///
/// Instructions that do not exist, or do not take operands of the given kinds, panic.
pub struct Asm {
    evex: bool,
    encoder: Encoder,
    /// The size of the instructions so far, in bytes.
    position: usize,
    labels: Vec<Option<usize>>,
    /// The positions of the displacements of jumps, with their labels.
    jumps: Vec<(usize, Label)>,
    /// The positions of the displacements of reads of constants, with the end of the instruction, and the constant.
    reads: Vec<(usize, usize, u32)>,
    constants: Vec<u8>,
}

/// A position in the code.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// The condition of a jump after a comparison; `Below` and `Above` are unsigned.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Condition {
    Below = 2,
    AboveOrEqual = 3,
    Equal = 4,
    NotEqual = 5,
    BelowOrEqual = 6,
    Less = 12,
    GreaterOrEqual = 13,
    LessOrEqual = 14,
    Greater = 15,
}

/// The alignment of constants, and of the code before them.
const ALIGN: usize = 64;

impl Asm {
    /// Returns an assembler that encodes with EVEX, or else with VEX.
    pub fn new(evex: bool) -> Asm {
        Asm {
            evex,
            encoder: Encoder::new(64),
            position: 0,
            labels: Vec::new(),
            jumps: Vec::new(),
            reads: Vec::new(),
            constants: Vec::new(),
        }
    }

    /// True if the encoding is EVEX.
    pub fn is_evex(&self) -> bool {
        self.evex
    }

    /// Returns the number of vector registers.
    pub fn registers(&self) -> u8 {
        if self.evex { 32 } else { 16 }
    }

    /// Appends a vector instruction; the first operand is the result.
    pub fn op(&mut self, op: Op, width: Width, operands: impl Operands) {
        let instruction = self.instruction(op, width, operands);
        self.encode(&instruction);
    }

    /// Appends a masked vector instruction. Lanes whose mask bit is 0 keep their value, or are cleared.
    pub fn masked(
        &mut self,
        op: Op,
        width: Width,
        (mask, clears): (Mask, bool),
        operands: impl Operands,
    ) {
        let form = op.form(self.evex, width);
        let is_maskable = form.name.contains("_k1") && mask.0 > 0;
        assert!(is_maskable, "{} does not take {mask:?}", op.name);
        let mut instruction = self.instruction(op, width, operands);
        let can_clear = form.name.contains("_k1z") && instruction.op0_kind() == OpKind::Register;
        assert!(can_clear || !clears, "{} does not clear", op.name);
        instruction.set_op_mask(mask.register());
        instruction.set_zeroing_masking(clears);
        self.encode(&instruction);
    }

    fn instruction(&self, op: Op, width: Width, operands: impl Operands) -> Instruction {
        let (operands, count) = operands.list();
        self.build_instruction(op, width, &operands[..count])
    }

    fn build_instruction(&self, op: Op, width: Width, operands: &[Operand]) -> Instruction {
        let form = op.form(self.evex, width);
        assert!(form.code != Code::INVALID, "no {} of {width:?}", op.name);
        let kinds = form.operands.iter().filter(|k| **k != Kind::None);
        assert_eq!(kinds.count(), operands.len(), "the operands of {}", op.name);
        let mut instruction = Instruction::new();
        instruction.set_code(form.code);
        for (i, operand) in operands.iter().enumerate() {
            match *operand {
                Operand::Vector(r) => {
                    let first = match form.operands[i] {
                        Kind::Ymm => Register::YMM0,
                        Kind::Zmm => Register::ZMM0,
                        _ => Register::XMM0,
                    };
                    set_register(&mut instruction, i, first + u32::from(r.0));
                }
                Operand::Mask(k) => set_register(&mut instruction, i, k.register()),
                Operand::Gpr(r) => {
                    let is_64_bit = form.operands[i] == Kind::Gpr64;
                    let register = if is_64_bit { r.wide() } else { r.narrow() };
                    set_register(&mut instruction, i, register);
                }
                Operand::Memory(m, broadcast) => {
                    let can = ["b16", "b32", "b64"].iter().any(|b| form.name.contains(b));
                    assert!(can || !broadcast, "no broadcast of {width:?} {}", op.name);
                    instruction.set_op_kind(i as u32, OpKind::Memory);
                    self.set_memory(&mut instruction, m);
                    instruction.set_is_broadcast(broadcast);
                }
                Operand::Immediate(n) => {
                    instruction.set_op_kind(i as u32, OpKind::Immediate8);
                    instruction.set_immediate8(n);
                }
            }
        }
        instruction
    }

    fn set_memory(&self, instruction: &mut Instruction, m: Mem) {
        let m = address(m);
        instruction.set_memory_base(m.base);
        instruction.set_memory_index(m.index);
        instruction.set_memory_index_scale(m.scale);
        instruction.set_memory_displacement64(m.displacement as u64);
        instruction.set_memory_displ_size(m.displ_size);
    }

    /// Appends an instruction.
    ///
    /// # Panics
    /// If it can't be encoded.
    pub(crate) fn encode(&mut self, instruction: &Instruction) {
        let encoded = self.encoder.encode(instruction, self.position as u64);
        match encoded {
            Ok(len) => {
                let end = self.position + len;
                if let Some(constant) = constant_of(instruction) {
                    let offset = self.encoder.get_constant_offsets().displacement_offset();
                    self.reads.push((self.position + offset, end, constant));
                }
                self.position = end;
            }
            Err(e) => panic!("{instruction:?}: {e}"),
        }
    }

    /// Appends an instruction that `iced_x86` built.
    ///
    /// # Panics
    /// If it has other operands than its code takes.
    pub(crate) fn append(&mut self, instruction: Result<Instruction, IcedError>) {
        self.encode(&instruction.unwrap_or_else(|e| panic!("{e}")));
    }

    /// Appends an instruction on two general registers, or a register and memory.
    fn encode_binary(&mut self, code: Code, a: Gpr, b: Operand) {
        let instruction = match b {
            Operand::Gpr(b) => Instruction::with2(code, a.wide(), b.wide()),
            Operand::Memory(m, _) => Instruction::with2(code, a.wide(), address(m)),
            _ => panic!("{code:?} of {b:?}"),
        };
        self.append(instruction);
    }

    fn encode_with_immediate(&mut self, code: Code, a: Gpr, n: i32) {
        self.append(Instruction::with2(code, a.wide(), n));
    }

    /// Appends `a = b`, 64 bits.
    pub fn mov(&mut self, a: Gpr, b: impl Into<Operand>) {
        self.encode_binary(Code::Mov_r64_rm64, a, b.into());
    }

    /// Appends a store of a register, 64 bits.
    pub fn store(&mut self, to: Mem, a: Gpr) {
        self.append(Instruction::with2(
            Code::Mov_rm64_r64,
            address(to),
            a.wide(),
        ));
    }

    /// Appends `a = n`.
    pub fn mov_number(&mut self, a: Gpr, n: i64) {
        let instruction = match (i32::try_from(n), u32::try_from(n)) {
            (_, Ok(n)) => Instruction::with2(Code::Mov_r32_imm32, a.narrow(), n),
            (Ok(n), _) => Instruction::with2(Code::Mov_rm64_imm32, a.wide(), n),
            _ => Instruction::with2(Code::Mov_r64_imm64, a.wide(), n),
        };
        self.append(instruction);
    }

    /// Appends `a += b`, which sets the flags, like the following operations.
    pub fn add(&mut self, a: Gpr, b: impl Into<Operand>) {
        self.encode_binary(Code::Add_r64_rm64, a, b.into());
    }

    /// Appends `a += n`.
    pub fn add_number(&mut self, a: Gpr, n: i32) {
        self.encode_with_immediate(Code::Add_rm64_imm32, a, n);
    }

    /// Appends the addition of `n` to eight bytes in memory.
    pub fn add_at(&mut self, to: Mem, n: i32) {
        self.append(Instruction::with2(Code::Add_rm64_imm32, address(to), n));
    }

    /// Appends `a -= b`.
    pub fn sub(&mut self, a: Gpr, b: impl Into<Operand>) {
        self.encode_binary(Code::Sub_r64_rm64, a, b.into());
    }

    /// Appends `a &= n`.
    pub fn and_number(&mut self, a: Gpr, n: i32) {
        self.encode_with_immediate(Code::And_rm64_imm32, a, n);
    }

    /// Appends `a *= b`.
    pub fn mul(&mut self, a: Gpr, b: impl Into<Operand>) {
        self.encode_binary(Code::Imul_r64_rm64, a, b.into());
    }

    /// Appends `a <<= n`.
    pub fn shl(&mut self, a: Gpr, n: u8) {
        self.append(Instruction::with2(
            Code::Shl_rm64_imm8,
            a.wide(),
            u32::from(n),
        ));
    }

    /// Appends a comparison of `a` and `b`.
    pub fn cmp(&mut self, a: Gpr, b: impl Into<Operand>) {
        self.encode_binary(Code::Cmp_r64_rm64, a, b.into());
    }

    /// Appends a comparison with a number.
    pub fn cmp_number(&mut self, a: Gpr, n: i32) {
        self.encode_with_immediate(Code::Cmp_rm64_imm32, a, n);
    }

    /// Appends the computation of an address.
    pub fn lea(&mut self, a: Gpr, m: Mem) {
        self.encode_binary(Code::Lea_r64_m, a, m.into());
    }

    /// Appends a prefetch of a cache line into the caches of this level (0 to 2) and higher levels.
    pub fn prefetch(&mut self, level: u8, m: Mem) {
        let code = [
            Code::Prefetcht0_m8,
            Code::Prefetcht1_m8,
            Code::Prefetcht2_m8,
        ];
        let code = code[usize::from(level)];
        self.append(Instruction::with1(code, address(m)));
    }

    /// Appends a move of the low bits of a register, up to 64, to a mask.
    pub fn kmov(&mut self, mask: Mask, from: Gpr) {
        self.append(Instruction::with2(
            Code::VEX_Kmovq_kr_r64,
            mask.register(),
            from.wide(),
        ));
    }

    /// Appends a move of a mask to the low bits of a register.
    pub fn kmov_to(&mut self, to: Gpr, mask: Mask) {
        self.append(Instruction::with2(
            Code::VEX_Kmovq_r64_kr,
            to.wide(),
            mask.register(),
        ));
    }

    /// Appends an operation on masks of up to 64 bits: `and`, `or`, `xor`, `and not` (of the first), `equal` bits.
    pub fn mask_op(&mut self, op: MaskOp, a: Mask, b: Mask, c: Mask) {
        let code = match op {
            MaskOp::And => Code::VEX_Kandq_kr_kr_kr,
            MaskOp::Or => Code::VEX_Korq_kr_kr_kr,
            MaskOp::Xor => Code::VEX_Kxorq_kr_kr_kr,
            MaskOp::AndNot => Code::VEX_Kandnq_kr_kr_kr,
            MaskOp::Equal => Code::VEX_Kxnorq_kr_kr_kr,
        };
        self.append(Instruction::with3(
            code,
            a.register(),
            b.register(),
            c.register(),
        ));
    }

    /// Appends a load of a mask of up to 64 bits.
    pub fn kmov_load(&mut self, mask: Mask, from: Mem) {
        self.append(Instruction::with2(
            Code::VEX_Kmovq_kr_km64,
            mask.register(),
            address(from),
        ));
    }

    /// Appends a store of a mask of up to 64 bits.
    pub fn kmov_store(&mut self, to: Mem, mask: Mask) {
        self.append(Instruction::with2(
            Code::VEX_Kmovq_m64_kr,
            address(to),
            mask.register(),
        ));
    }

    /// Appends a shift of the upper bits of a mask to the lower end.
    pub fn kshiftr(&mut self, to: Mask, from: Mask, by: u8) {
        let (to, from) = (to.register(), from.register());
        self.append(Instruction::with3(
            Code::VEX_Kshiftrq_kr_kr_imm8,
            to,
            from,
            u32::from(by),
        ));
    }

    /// Appends the concatenation of the lower eight bits of two masks; those of `high` are the upper ones.
    pub fn kunpack(&mut self, to: Mask, high: Mask, low: Mask) {
        let (to, high, low) = (to.register(), high.register(), low.register());
        self.append(Instruction::with3(
            Code::VEX_Kunpckbw_kr_kr_kr,
            to,
            high,
            low,
        ));
    }

    /// Appends a call of the function that a register points to.
    pub fn call(&mut self, to: Gpr) {
        self.append(Instruction::with1(Code::Call_rm64, to.wide()));
    }

    /// Returns a new label, to be bound later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds a label to the current position.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.position);
    }

    /// Returns a new label at the current position.
    pub fn here(&mut self) -> Label {
        let label = self.label();
        self.bind(label);
        label
    }

    /// Appends a jump.
    pub fn jump(&mut self, to: Label) {
        self.raw(&[0xE9, 0, 0, 0, 0]);
        self.jumps.push((self.position - 4, to));
    }

    /// Appends a jump that is taken if the condition holds.
    pub fn jump_if(&mut self, condition: Condition, to: Label) {
        self.raw(&[0x0F, 0x80 | condition as u8, 0, 0, 0, 0]);
        self.jumps.push((self.position - 4, to));
    }

    /// Appends raw bytes.
    fn raw(&mut self, bytes: &[u8]) {
        // The encoder takes only instructions, so bytes are declared as data.
        self.append(Instruction::with_declare_byte(bytes));
    }

    /// Pads the code with NOPs to a multiple of `alignment` bytes.
    pub fn align(&mut self, alignment: usize) {
        const NOPS: [&[u8]; 4] = [
            &[0x90],
            &[0x66, 0x90],
            &[0x0F, 0x1F, 0x00],
            &[0x0F, 0x1F, 0x40, 0x00],
        ];
        while !self.position.is_multiple_of(alignment) {
            let gap = alignment - self.position % alignment;
            self.raw(NOPS[gap.min(NOPS.len()) - 1]);
        }
    }

    /// Appends the prologue of a function, which saves general registers and reserves `room` bytes on the stack. With a
    /// reserved area, the stack is aligned to 64 bytes, and `RBP` is in use. [`Asm::leave`] takes the same arguments.
    pub fn enter(&mut self, saved: &[Gpr], room: i32) {
        for r in saved {
            self.push(*r);
        }
        if room > 0 {
            self.push(Gpr::RBP);
            self.mov(Gpr::RBP, Gpr::RSP);
            self.add_number(Gpr::RSP, -room);
            self.and_number(Gpr::RSP, -64);
        }
    }

    /// Appends the epilogue of a function, which restores registers and returns.
    pub fn leave(&mut self, saved: &[Gpr], room: i32) {
        if room > 0 {
            self.mov(Gpr::RSP, Gpr::RBP);
            self.pop(Gpr::RBP);
        }
        for r in saved.iter().rev() {
            self.pop(*r);
        }
        self.zero_upper();
        self.encode(&Instruction::with(Code::Retnq));
    }

    /// Appends `vzeroupper`, which prevents stalls in code of another level.
    pub fn zero_upper(&mut self) {
        self.encode(&Instruction::with(Code::VEX_Vzeroupper));
    }

    /// Appends a push of a register onto the stack.
    pub fn push(&mut self, r: Gpr) {
        self.append(Instruction::with1(Code::Push_r64, r.wide()));
    }

    /// Appends a pop of a register from the stack.
    pub fn pop(&mut self, r: Gpr) {
        self.append(Instruction::with1(Code::Pop_r64, r.wide()));
    }

    /// Returns the address of a constant of 4, 8, 16, 32 or 64 bytes. Constants follow the code without duplicates,
    /// aligned to their size.
    ///
    /// # Panics
    /// If it has another size.
    pub fn constant(&mut self, bytes: &[u8]) -> Mem {
        let size = bytes.len();
        assert!(matches!(size, 4 | 8 | 16 | 32 | 64), "a constant of {size}");
        let existing = (self.constants.chunks_exact(size)).position(|c| c == bytes);
        let start = existing.map_or_else(
            || {
                self.constants
                    .resize(self.constants.len().next_multiple_of(size), 0);
                self.constants.extend(bytes);
                self.constants.len() - size
            },
            |i| i * size,
        );
        Mem {
            base: Base::Constant(start as u32),
            index: None,
            scale: 1,
            offset: 0,
        }
    }

    /// Returns the code, followed by the constants.
    ///
    /// # Panics
    /// If a label that is jumped to is not bound.
    pub fn finish(mut self) -> Vec<u8> {
        let mut code = self.encoder.take_buffer();
        let mut patch_displacement = |at: usize, from: usize, to: usize| {
            let distance = (to as i64 - from as i64) as i32;
            code[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        };
        for (at, label) in &self.jumps {
            match self.labels[label.0] {
                Some(to) => patch_displacement(*at, at + 4, to),
                None => panic!("a jump to an unbound label"),
            }
        }
        let constants = self.position.next_multiple_of(ALIGN);
        for (at, end, constant) in &self.reads {
            patch_displacement(*at, *end, constants + *constant as usize);
        }
        if !self.constants.is_empty() {
            code.resize(constants, 0xCC);
            code.append(&mut self.constants);
        }
        code
    }
}

/// The operation that combines two masks.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MaskOp {
    And,
    Or,
    Xor,
    /// `!b & c`.
    AndNot,
    /// `!(b ^ c)`.
    Equal,
}

fn set_register(instruction: &mut Instruction, i: usize, register: Register) {
    instruction.set_op_kind(i as u32, OpKind::Register);
    instruction.set_op_register(i as u32, register);
}

/// Converts an address for the encoder. [`Asm::finish`] patches addresses of constants; until then the displacement is
/// the offset of the constant.
pub(crate) fn address(m: Mem) -> MemoryOperand {
    let index = match m.index {
        None => Register::None,
        Some(Index::Gpr(r)) => r.wide(),
        Some(Index::Vector(v, width)) => {
            let register_0 = [Register::XMM0, Register::YMM0, Register::ZMM0][width as usize];
            register_0 + u32::from(v.0)
        }
    };
    let (base, displacement, size) = match m.base {
        Base::Gpr(r) => (r.wide(), i64::from(m.offset), u32::from(m.offset != 0)),
        Base::Constant(constant) => (Register::RIP, i64::from(constant) + i64::from(m.offset), 8),
    };
    MemoryOperand {
        segment_prefix: Register::None,
        base,
        index,
        scale: u32::from(m.scale),
        displacement,
        displ_size: size,
        is_broadcast: false,
    }
}

/// Returns the offset of the constant that an instruction reads.
fn constant_of(instruction: &Instruction) -> Option<u32> {
    let reads_constant = instruction.memory_base() == Register::RIP;
    reads_constant.then(|| instruction.memory_displacement64() as u32)
}
