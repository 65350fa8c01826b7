//! The assembler.

use crate::op::{Kind, Op};
use crate::operand::{Base, Gpr, Index, Mask, Mem, Operand, Operands, Width};
use iced_x86::{Code, Encoder, IcedError, Instruction, MemoryOperand, OpKind, Register};

/// An assembler: collects instructions and the constants that they read.
///
/// Instructions have the encoding of the level that the code is for: VEX, or EVEX, which has 32 vector registers, masks
/// and broadcasts from memory.
///
/// An instruction that does not exist, or that does not take operands of the given kind, is a bug of the caller: it
/// panics.
pub struct Asm {
    evex: bool,
    encoder: Encoder,
    /// The bytes of the instructions so far.
    at: usize,
    labels: Vec<Option<usize>>,
    /// The places of four bytes that hold the distance to a label.
    jumps: Vec<(usize, Label)>,
    /// The places of four bytes that hold the distance to a constant, with the end of the instruction, and the
    /// constant.
    reads: Vec<(usize, usize, u32)>,
    constants: Vec<u8>,
}

/// A place in the code.
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
    /// Makes an assembler for EVEX encoding, or for VEX.
    pub fn new(evex: bool) -> Asm {
        Asm {
            evex,
            encoder: Encoder::new(64),
            at: 0,
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

    /// Appends a masked vector instruction: lanes whose mask bit is 0 keep their value, or are cleared.
    pub fn masked(
        &mut self,
        op: Op,
        width: Width,
        (mask, clears): (Mask, bool),
        operands: impl Operands,
    ) {
        let form = op.form(self.evex, width);
        let takes = form.name.contains("_k1") && mask.0 > 0;
        assert!(takes, "{} does not take {mask:?}", op.name);
        let mut instruction = self.instruction(op, width, operands);
        let may = form.name.contains("_k1z") && instruction.op0_kind() == OpKind::Register;
        assert!(may || !clears, "{} does not clear", op.name);
        instruction.set_op_mask(mask.register());
        instruction.set_zeroing_masking(clears);
        self.encode(&instruction);
    }

    fn instruction(&self, op: Op, width: Width, operands: impl Operands) -> Instruction {
        let (operands, count) = operands.list();
        self.of_operands(op, width, &operands[..count])
    }

    fn of_operands(&self, op: Op, width: Width, operands: &[Operand]) -> Instruction {
        let form = op.form(self.evex, width);
        assert!(form.code != Code::INVALID, "no {} of {width:?}", op.name);
        let takes = form.operands.iter().filter(|k| **k != Kind::None);
        assert_eq!(takes.count(), operands.len(), "the operands of {}", op.name);
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
                    let wide = form.operands[i] == Kind::Gpr64;
                    let register = if wide { r.wide() } else { r.narrow() };
                    set_register(&mut instruction, i, register);
                }
                Operand::Memory(m, broadcast) => {
                    let may = ["b16", "b32", "b64"].iter().any(|b| form.name.contains(b));
                    assert!(may || !broadcast, "no broadcast of {width:?} {}", op.name);
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

    /// Appends any instruction.
    ///
    /// # Panics
    /// If it can't be encoded.
    pub(crate) fn encode(&mut self, instruction: &Instruction) {
        let encoded = self.encoder.encode(instruction, self.at as u64);
        match encoded {
            Ok(len) => {
                let end = self.at + len;
                if let Some(constant) = constant_of(instruction) {
                    let at = self.encoder.get_constant_offsets().displacement_offset();
                    self.reads.push((self.at + at, end, constant));
                }
                self.at = end;
            }
            Err(e) => panic!("{instruction:?}: {e}"),
        }
    }

    /// Appends an instruction made by `iced_x86`.
    ///
    /// # Panics
    /// If its operands are not those of its code.
    pub(crate) fn made(&mut self, instruction: Result<Instruction, IcedError>) {
        self.encode(&instruction.unwrap_or_else(|e| panic!("{e}")));
    }

    /// Appends an instruction on two general registers, or a register and memory.
    fn two(&mut self, code: Code, a: Gpr, b: Operand) {
        let done = match b {
            Operand::Gpr(b) => Instruction::with2(code, a.wide(), b.wide()),
            Operand::Memory(m, _) => Instruction::with2(code, a.wide(), address(m)),
            _ => panic!("{code:?} of {b:?}"),
        };
        self.made(done);
    }

    fn with_immediate(&mut self, code: Code, a: Gpr, n: i32) {
        self.made(Instruction::with2(code, a.wide(), n));
    }

    /// Appends `a = b`, 64 bits.
    pub fn mov(&mut self, a: Gpr, b: impl Into<Operand>) {
        self.two(Code::Mov_r64_rm64, a, b.into());
    }

    /// Appends a store of a register, 64 bits.
    pub fn store(&mut self, to: Mem, a: Gpr) {
        self.made(Instruction::with2(
            Code::Mov_rm64_r64,
            address(to),
            a.wide(),
        ));
    }

    /// Appends `a = n`.
    pub fn mov_number(&mut self, a: Gpr, n: i64) {
        let done = match (i32::try_from(n), u32::try_from(n)) {
            (_, Ok(n)) => Instruction::with2(Code::Mov_r32_imm32, a.narrow(), n),
            (Ok(n), _) => Instruction::with2(Code::Mov_rm64_imm32, a.wide(), n),
            _ => Instruction::with2(Code::Mov_r64_imm64, a.wide(), n),
        };
        self.made(done);
    }

    /// Appends `a += b`, which sets the flags, as do all that follow.
    pub fn add(&mut self, a: Gpr, b: impl Into<Operand>) {
        self.two(Code::Add_r64_rm64, a, b.into());
    }

    /// Appends `a += n`.
    pub fn add_number(&mut self, a: Gpr, n: i32) {
        self.with_immediate(Code::Add_rm64_imm32, a, n);
    }

    /// Appends the addition of `n` to eight bytes in memory.
    pub fn add_at(&mut self, at: Mem, n: i32) {
        self.made(Instruction::with2(Code::Add_rm64_imm32, address(at), n));
    }

    /// Appends `a -= b`.
    pub fn sub(&mut self, a: Gpr, b: impl Into<Operand>) {
        self.two(Code::Sub_r64_rm64, a, b.into());
    }

    /// Appends `a &= n`.
    pub fn and_number(&mut self, a: Gpr, n: i32) {
        self.with_immediate(Code::And_rm64_imm32, a, n);
    }

    /// Appends `a *= b`.
    pub fn mul(&mut self, a: Gpr, b: impl Into<Operand>) {
        self.two(Code::Imul_r64_rm64, a, b.into());
    }

    /// Appends `a <<= n`.
    pub fn shl(&mut self, a: Gpr, n: u8) {
        self.made(Instruction::with2(
            Code::Shl_rm64_imm8,
            a.wide(),
            u32::from(n),
        ));
    }

    /// Appends a comparison of `a` and `b`.
    pub fn cmp(&mut self, a: Gpr, b: impl Into<Operand>) {
        self.two(Code::Cmp_r64_rm64, a, b.into());
    }

    /// Appends a comparison with a number.
    pub fn cmp_number(&mut self, a: Gpr, n: i32) {
        self.with_immediate(Code::Cmp_rm64_imm32, a, n);
    }

    /// Appends the computation of an address.
    pub fn lea(&mut self, a: Gpr, of: Mem) {
        self.two(Code::Lea_r64_m, a, of.into());
    }

    /// Appends a prefetch of a cache line into the caches of this level (0 to 2) and higher levels.
    pub fn prefetch(&mut self, level: u8, of: Mem) {
        let code = [
            Code::Prefetcht0_m8,
            Code::Prefetcht1_m8,
            Code::Prefetcht2_m8,
        ];
        let code = code[usize::from(level)];
        self.made(Instruction::with1(code, address(of)));
    }

    /// Appends a move of the low bits of a register, up to 64, to a mask.
    pub fn kmov(&mut self, mask: Mask, from: Gpr) {
        self.made(Instruction::with2(
            Code::VEX_Kmovq_kr_r64,
            mask.register(),
            from.wide(),
        ));
    }

    /// Appends a move of a mask to the low bits of a register.
    pub fn kmov_to(&mut self, to: Gpr, mask: Mask) {
        self.made(Instruction::with2(
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
        self.made(Instruction::with3(
            code,
            a.register(),
            b.register(),
            c.register(),
        ));
    }

    /// Appends a load of a mask of up to 64 bits.
    pub fn kmov_load(&mut self, mask: Mask, from: Mem) {
        self.made(Instruction::with2(
            Code::VEX_Kmovq_kr_km64,
            mask.register(),
            address(from),
        ));
    }

    /// Appends a store of a mask of up to 64 bits.
    pub fn kmov_store(&mut self, to: Mem, mask: Mask) {
        self.made(Instruction::with2(
            Code::VEX_Kmovq_m64_kr,
            address(to),
            mask.register(),
        ));
    }

    /// Appends a shift of the upper bits of a mask to the lower end.
    pub fn kshiftr(&mut self, to: Mask, from: Mask, by: u8) {
        let (to, from) = (to.register(), from.register());
        self.made(Instruction::with3(
            Code::VEX_Kshiftrq_kr_kr_imm8,
            to,
            from,
            u32::from(by),
        ));
    }

    /// Appends the concatenation of the lower eight bits of two masks; those of `high` are the upper ones.
    pub fn kunpack(&mut self, to: Mask, high: Mask, low: Mask) {
        let (to, high, low) = (to.register(), high.register(), low.register());
        self.made(Instruction::with3(
            Code::VEX_Kunpckbw_kr_kr_kr,
            to,
            high,
            low,
        ));
    }

    /// Appends a call of the function that a register points to.
    pub fn call(&mut self, to: Gpr) {
        self.made(Instruction::with1(Code::Call_rm64, to.wide()));
    }

    /// Makes a label for a place that is not known yet.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds a label to the current place.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.at);
    }

    /// Makes a label for the current place.
    pub fn here(&mut self) -> Label {
        let label = self.label();
        self.bind(label);
        label
    }

    /// Appends a jump.
    pub fn jump(&mut self, to: Label) {
        self.raw(&[0xE9, 0, 0, 0, 0]);
        self.jumps.push((self.at - 4, to));
    }

    /// Appends a jump that is taken if the condition holds.
    pub fn jump_if(&mut self, condition: Condition, to: Label) {
        self.raw(&[0x0F, 0x80 | condition as u8, 0, 0, 0, 0]);
        self.jumps.push((self.at - 4, to));
    }

    /// Appends raw bytes.
    fn raw(&mut self, bytes: &[u8]) {
        // The encoder takes only instructions, so bytes are declared as data.
        self.made(Instruction::with_declare_byte(bytes));
    }

    /// Fills up to a multiple of `to` bytes.
    pub fn align(&mut self, to: usize) {
        const NOPS: [&[u8]; 4] = [
            &[0x90],
            &[0x66, 0x90],
            &[0x0F, 0x1F, 0x00],
            &[0x0F, 0x1F, 0x40, 0x00],
        ];
        while !self.at.is_multiple_of(to) {
            let gap = to - self.at % to;
            self.raw(NOPS[gap.min(NOPS.len()) - 1]);
        }
    }

    /// Appends the prologue: it saves general registers and makes room on the stack. The stack is then aligned to 64
    /// bytes, if there is room, and `RBP` is used. [`Asm::leave`] takes the same arguments.
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

    /// Appends the epilogue, which undoes [`Asm::enter`] and returns.
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

    /// Appends the clearing of vector registers above the low 128 bits, so that code of another level does not stall.
    pub fn zero_upper(&mut self) {
        self.encode(&Instruction::with(Code::VEX_Vzeroupper));
    }

    /// Appends a push of a register onto the stack.
    pub fn push(&mut self, r: Gpr) {
        self.made(Instruction::with1(Code::Push_r64, r.wide()));
    }

    /// Appends a pop of a register from the stack.
    pub fn pop(&mut self, r: Gpr) {
        self.made(Instruction::with1(Code::Pop_r64, r.wide()));
    }

    /// Returns the address of a constant of 4, 8, 16, 32 or 64 bytes. It is after the code, without duplicates, aligned
    /// to its size.
    ///
    /// # Panics
    /// If it has another size.
    pub fn constant(&mut self, bytes: &[u8]) -> Mem {
        let size = bytes.len();
        assert!(matches!(size, 4 | 8 | 16 | 32 | 64), "a constant of {size}");
        let found = (self.constants.chunks_exact(size)).position(|c| c == bytes);
        let at = found.map_or_else(
            || {
                self.constants
                    .resize(self.constants.len().next_multiple_of(size), 0);
                self.constants.extend(bytes);
                self.constants.len() - size
            },
            |i| i * size,
        );
        Mem {
            base: Base::Constant(at as u32),
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
        let mut patch = |at: usize, from: usize, to: usize| {
            let distance = (to as i64 - from as i64) as i32;
            code[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        };
        for (at, label) in &self.jumps {
            match self.labels[label.0] {
                Some(to) => patch(*at, at + 4, to),
                None => panic!("a jump to nowhere"),
            }
        }
        let constants = self.at.next_multiple_of(ALIGN);
        for (at, end, constant) in &self.reads {
            patch(*at, *end, constants + *constant as usize);
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
    /// Bits that are equal.
    Equal,
}

fn set_register(instruction: &mut Instruction, i: usize, register: Register) {
    instruction.set_op_kind(i as u32, OpKind::Register);
    instruction.set_op_register(i as u32, register);
}

/// Returns an address in the encoder's form. The address of a constant is patched when the code is finished. Until then
/// it has a displacement of four bytes, which identifies the constant.
pub(crate) fn address(m: Mem) -> MemoryOperand {
    let index = match m.index {
        None => Register::None,
        Some(Index::Gpr(r)) => r.wide(),
        Some(Index::Vector(v, width)) => {
            let first = [Register::XMM0, Register::YMM0, Register::ZMM0][width as usize];
            first + u32::from(v.0)
        }
    };
    let (base, displacement, size) = match m.base {
        Base::Gpr(r) => (r.wide(), i64::from(m.offset), u32::from(m.offset != 0)),
        Base::Constant(at) => (Register::RIP, i64::from(at) + i64::from(m.offset), 8),
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

/// Returns the constant that an instruction reads.
fn constant_of(instruction: &Instruction) -> Option<u32> {
    let constant = instruction.memory_base() == Register::RIP;
    constant.then(|| instruction.memory_displacement64() as u32)
}
