//! Tests of vector instructions.

use crate::forms::{self, Choice, Form, Kind, List};
use fastrand::Rng;
use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind, Register};
use kiln_x86::{Asm, Gpr, Mask, Mem, Operand, Vreg, Width, op};

pub const GPRS: [Gpr; 16] = [
    Gpr::RAX,
    Gpr::RCX,
    Gpr::RDX,
    Gpr::RBX,
    Gpr::RSP,
    Gpr::RBP,
    Gpr::RSI,
    Gpr::RDI,
    Gpr::R8,
    Gpr::R9,
    Gpr::R10,
    Gpr::R11,
    Gpr::R12,
    Gpr::R13,
    Gpr::R14,
    Gpr::R15,
];

pub const NAMES: [&str; 16] = [
    "RAX", "RCX", "RDX", "RBX", "RSP", "RBP", "RSI", "RDI", "R8", "R9", "R10", "R11", "R12", "R13",
    "R14", "R15",
];

/// An address, as it should be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub base: usize,
    pub index: Option<(usize, u8)>,
    pub offset: i32,
}

impl Address {
    /// Returns an address with any base, any valid index, and offsets of no, one and four bytes.
    pub fn random(rng: &mut Rng) -> Address {
        let index = match rng.usize(..16) {
            4 => None, // the stack's register can't be one
            i => rng.bool().then(|| (i, 1 << rng.u8(..4))),
        };
        let offset = match rng.u8(..5) {
            0 => 0,
            1 => rng.i32(-128..128),
            // EVEX stores these offsets divided by the size of the operand.
            2 => 64 * rng.i32(-130..130),
            3 => rng.i32(-100_000..100_000),
            _ => [i32::MIN, i32::MAX, 127, -128, 128, -129][rng.usize(..6)],
        };
        Address {
            base: rng.usize(..16),
            index,
            offset,
        }
    }

    pub fn mem(&self) -> Mem {
        let m = Mem::at(GPRS[self.base]).plus(self.offset);
        self.index.map_or(m, |(i, scale)| m.index(GPRS[i], scale))
    }

    pub fn check(&self, i: &Instruction) {
        assert_eq!(name(i.memory_base()), NAMES[self.base]);
        match self.index {
            Some((index, scale)) => {
                assert_eq!(name(i.memory_index()), NAMES[index]);
                assert_eq!(i.memory_index_scale(), u32::from(scale));
            }
            None => assert_eq!(i.memory_index(), Register::None),
        }
        assert_eq!(i.memory_displacement64() as i64, i64::from(self.offset));
    }
}

pub fn name(register: Register) -> String {
    format!("{register:?}")
}

/// Decodes the only instruction of code.
pub fn only(code: &[u8]) -> Instruction {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let instruction = decoder.decode();
    assert!(!instruction.is_invalid(), "{code:02x?}");
    assert_eq!(instruction.len(), code.len(), "{code:02x?}");
    instruction
}

fn emit(a: &mut Asm, form: &Form, operands: Vec<Operand>, mask: Option<(Mask, bool)>) {
    match mask {
        Some(mask) => a.masked(form.op, form.width, mask, List(operands)),
        None => a.op(form.op, form.width, List(operands)),
    }
}

/// Checks that registers, immediates and the mask are as requested.
fn check(form: &Form, i: &Instruction, operands: &[Operand], mask: Option<(Mask, bool)>) {
    assert_eq!(format!("{:?}", i.code()), form.name);
    for (n, (operand, kind)) in operands.iter().zip(&form.operands).enumerate() {
        let register = || name(i.op_register(n as u32));
        match (operand, kind) {
            (Operand::Vector(v), Kind::Vector(Some(bytes), ..)) => {
                let class = [(16, "XMM"), (32, "YMM"), (64, "ZMM")].map(|(b, c)| (b == *bytes, c));
                let class = class.iter().find(|c| c.0).unwrap().1;
                assert_eq!(register(), format!("{class}{}", v.0));
            }
            (Operand::Mask(k), Kind::Mask) => assert_eq!(register(), format!("K{}", k.0)),
            (Operand::Gpr(r), Kind::Gpr(bytes, _)) => {
                let at = GPRS.iter().position(|g| g == r).unwrap();
                let class = if *bytes == 8 {
                    Register::RAX
                } else {
                    Register::EAX
                };
                assert_eq!(i.op_register(n as u32), class + at as u32);
            }
            (Operand::Memory(_, broadcast), _) => {
                assert_eq!(i.op_kind(n as u32), OpKind::Memory);
                assert_eq!(i.is_broadcast(), *broadcast);
            }
            (Operand::Immediate(x), Kind::Immediate) => assert_eq!(i.immediate8(), *x),
            _ => panic!("{operand:?} for {kind:?}"),
        }
    }
    let expected = mask.map_or("None".to_string(), |(k, _)| format!("K{}", k.0));
    assert_eq!(name(i.op_mask()), expected);
    assert_eq!(i.zeroing_masking(), mask.is_some_and(|(_, clears)| clears));
}

/// Every encoding of every instruction, with every kind of operand.
#[test]
fn instructions_are_what_was_asked() {
    let mut rng = Rng::with_seed(1);
    for form in forms::all() {
        for choice in form.choices() {
            for _ in 0..32 {
                let mut address = Address::random(&mut rng);
                if form.gathers() {
                    address.index = None;
                }
                let operands = form.operands(choice, &mut rng, &GPRS, address.mem());
                let mask = form.mask(choice, &mut rng);
                let mut a = Asm::new(form.evex);
                emit(&mut a, &form, operands.clone(), mask);
                let i = only(&a.finish());
                check(&form, &i, &operands, mask);
                match choice {
                    Choice::Register => assert_eq!(i.memory_base(), Register::None),
                    _ if form.gathers() => {
                        assert_eq!(name(i.memory_base()), NAMES[address.base]);
                        let offset = i.memory_displacement64() as i64;
                        assert_eq!(offset, i64::from(address.offset));
                    }
                    _ => address.check(&i),
                }
            }
        }
    }
}

#[test]
fn gathers_have_their_index() {
    for (evex, width, class) in [(false, Width::Y, "YMM"), (true, Width::Z, "ZMM")] {
        for (index, scale) in [(3, 1), (7, 2), (11, 4), (15, 8)] {
            let mut a = Asm::new(evex);
            let m = Mem::at(Gpr::R13).gather(Vreg(index), width, scale);
            match evex {
                true => a.masked(op::VPGATHERDD, width, (Mask(2), false), (Vreg(1), m)),
                false => a.op(op::VPGATHERDD, width, (Vreg(1), m, Vreg(2))),
            }
            let i = only(&a.finish());
            assert_eq!(name(i.memory_index()), format!("{class}{index}"));
            assert_eq!(i.memory_index_scale(), u32::from(scale));
        }
    }
}

/// Tests constants of the size that each instruction reads: after the code, aligned to their size.
#[test]
fn instructions_read_their_constants() {
    let mut rng = Rng::with_seed(2);
    for form in forms::all() {
        for choice in form.choices() {
            let bytes = form.memory_bytes(choice);
            let stores = matches!(
                form.operands[0],
                Kind::Vector(_, Some(_), _) | Kind::Gpr(_, Some(_))
            );
            if form.gathers() || stores || !matches!(bytes, 4 | 8 | 16 | 32 | 64) {
                continue;
            }
            let constant: Vec<u8> = (0..bytes).map(|_| rng.u8(..)).collect();
            let mut a = Asm::new(form.evex);
            let before = a.constant(&[1, 2, 3, 4]);
            a.lea(Gpr::RAX, before);
            let m = a.constant(&constant);
            let operands = form.operands(choice, &mut rng, &GPRS, m);
            let mask = form.mask(choice, &mut rng);
            emit(&mut a, &form, operands.clone(), mask);
            let code = a.finish();
            let mut decoder = Decoder::with_ip(64, &code, 0, DecoderOptions::NONE);
            let first = decoder.decode();
            assert_eq!(
                code[first.memory_displacement64() as usize..][..4],
                [1, 2, 3, 4]
            );
            let i = decoder.decode();
            check(&form, &i, &operands, mask);
            assert_eq!(i.memory_base(), Register::RIP);
            let at = i.memory_displacement64() as usize;
            assert_eq!(at % bytes, 0);
            assert_eq!(code[at..][..bytes], constant);
        }
    }
}

#[test]
fn what_there_is_not_panics() {
    let panics = |f: fn()| std::panic::catch_unwind(f).is_err();
    assert!(panics(|| Asm::new(false).op(
        op::VADDPS,
        Width::Z,
        (Vreg(0), Vreg(0), Vreg(0))
    )));
    assert!(panics(|| Asm::new(false).op(
        op::VPMULLQ,
        Width::Y,
        (Vreg(0), Vreg(0), Vreg(0))
    )));
    assert!(panics(|| Asm::new(true).op(
        op::VBLENDVPS,
        Width::Y,
        (Vreg(0), Vreg(0), Vreg(0), Vreg(0))
    )));
    assert!(panics(|| Asm::new(false).op(
        op::VADDPS,
        Width::Y,
        (Vreg(16), Vreg(0), Vreg(0))
    )));
    assert!(panics(|| Asm::new(true).op(
        op::VADDPS,
        Width::Z,
        (Vreg(32), Vreg(0), Vreg(0))
    )));
    assert!(panics(|| Asm::new(true).op(
        op::VADDPS,
        Width::Z,
        (Vreg(1), Mask(1), Vreg(0))
    )));
    assert!(panics(|| Asm::new(true).op(
        op::VADDPS,
        Width::Z,
        (Vreg(1), Vreg(1))
    )));
    assert!(panics(|| Asm::new(true).op(
        op::VSQRTPS,
        Width::Z,
        (Vreg(1), Vreg(1), Vreg(2))
    )));
    assert!(panics(|| {
        let mask = (Mask(1), false);
        Asm::new(false).masked(op::VADDPS, Width::Y, mask, (Vreg(1), Vreg(0), Vreg(0)));
    }));
    assert!(panics(|| {
        let mask = (Mask(0), false);
        Asm::new(true).masked(op::VADDPS, Width::Y, mask, (Vreg(1), Vreg(0), Vreg(0)));
    }));
    assert!(panics(|| {
        let mask = (Mask(1), false);
        let to = Mem::at(Gpr::RAX);
        Asm::new(true).masked(op::VMOVNTPS, Width::Y, mask, (to, Vreg(0)));
    }));
    assert!(panics(|| {
        let clears = (Mask(1), true);
        let to = Mem::at(Gpr::RAX);
        Asm::new(true).masked(op::VMOVUPS_STORE, Width::Y, clears, (to, Vreg(0)));
    }));
    assert!(panics(|| {
        let one = Mem::at(Gpr::RAX).broadcast();
        Asm::new(false).op(op::VADDPS, Width::Y, (Vreg(1), Vreg(0), one));
    }));
    assert!(panics(|| {
        let one = Mem::at(Gpr::RAX).broadcast();
        Asm::new(true).op(op::VPACKUSWB, Width::Y, (Vreg(1), Vreg(0), one));
    }));
    assert!(panics(|| {
        let mut a = Asm::new(true);
        let to = a.label();
        a.jump(to);
        a.finish();
    }));
}
