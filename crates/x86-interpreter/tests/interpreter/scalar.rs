//! Instructions on general registers and masks, jumps, frames.

use crate::harness::{GPRS, Registers, difference, interpreted, native, runs_here, wrapped};
use fastrand::Rng;
use kiln_x86::{Asm, Code, Condition, Gpr, Mask, MaskOp, Mem, Operand, disassemble};
use kiln_x86_interpreter::{FaultKind, Machine};

const CONDITIONS: [Condition; 8] = [
    Condition::Below,
    Condition::AboveOrEqual,
    Condition::Equal,
    Condition::NotEqual,
    Condition::Less,
    Condition::GreaterOrEqual,
    Condition::LessOrEqual,
    Condition::Greater,
];

fn number(rng: &mut Rng) -> i64 {
    match rng.u8(..4) {
        0 => rng.i64(-2..3),
        1 => [i64::MIN, i64::MAX, -1 << 32, 1 << 31, -1 << 31][rng.usize(..5)],
        _ => rng.i64(..) >> rng.u8(..64),
    }
}

/// Emits a random instruction; true if the flags after it are defined.
fn random(a: &mut Asm, rng: &mut Rng) -> bool {
    let [x, y] = [(); 2].map(|()| GPRS[rng.usize(..GPRS.len())]);
    let m = Mem::at(Gpr::RDX).plus(8 * rng.i32(0..16));
    let operand: Operand = if rng.bool() { y.into() } else { m.into() };
    let n = number(rng);
    match rng.u8(..if a.is_evex() { 14 } else { 11 }) {
        0 => a.mov(x, operand),
        1 => a.store(m, x),
        2 => a.mov_number(x, n),
        3 => a.mul(x, operand),
        4 => a.shl(x, rng.u8(..64)),
        5 => a.lea(
            x,
            Mem::at(y)
                .index(GPRS[rng.usize(..6)], 1 << rng.u8(..4))
                .plus(n as i32),
        ),
        6 => {
            a.add(x, operand);
            return true;
        }
        7 => {
            a.sub(x, operand);
            return true;
        }
        8 => {
            a.cmp(x, operand);
            return true;
        }
        9 => {
            a.add_number(x, n as i32);
            return true;
        }
        10 => {
            a.cmp_number(x, n as i32);
            return true;
        }
        11 => a.kmov(Mask(rng.u8(..8)), x),
        12 => a.kmov_to(x, Mask(rng.u8(..8))),
        _ => {
            let ops = [
                MaskOp::And,
                MaskOp::Or,
                MaskOp::Xor,
                MaskOp::AndNot,
                MaskOp::Equal,
            ];
            let [a1, b, c] = [(); 3].map(|()| Mask(rng.u8(..8)));
            a.mask_op(ops[rng.usize(..5)], a1, b, c);
        }
    }
    false
}

#[test]
fn programs_do_what_the_processor_does() {
    let mut rng = Rng::with_seed(9);
    for round in 0..1500 {
        let code = wrapped(round % 2 == 1, |a| {
            for _ in 0..rng.u8(1..16) {
                if random(a, &mut rng) {
                    let over = a.label();
                    a.jump_if(CONDITIONS[rng.usize(..8)], over);
                    random(a, &mut rng);
                    a.bind(over);
                }
            }
        });
        if !runs_here(&code) {
            continue;
        }
        let native_code = Code::new(&code).unwrap();
        for _ in 0..4 {
            let mut before = Registers::zero();
            before.gprs = std::array::from_fn(|_| number(&mut rng) as u64);
            before.masks = std::array::from_fn(|_| rng.u64(..));
            let mut data: Vec<u8> = (0..16)
                .flat_map(|_| number(&mut rng).to_le_bytes())
                .collect();
            let mut same = data.clone();
            let here = interpreted(&code, &before, &mut same).unwrap();
            let there = native(&native_code, &before, &mut data);
            let equal = there == here && data == same;
            assert!(
                equal,
                "{}{}",
                difference(&there, &here, &before),
                disassemble(&code)
            );
        }
    }
}

/// A loop that keeps numbers in a frame, with six arguments.
#[test]
fn functions_with_frames_return() {
    let mut a = Asm::new(false);
    a.enter(&Gpr::SAVED, 200);
    for (i, r) in Gpr::ARGUMENTS.into_iter().enumerate() {
        a.store(Mem::at(Gpr::RSP).plus(8 * i as i32), r);
    }
    a.mov_number(Gpr::RAX, 0);
    a.mov_number(Gpr::RBX, 0);
    let top = a.here();
    a.mov(Gpr::R15, Mem::at(Gpr::RSP).index(Gpr::RBX, 8));
    a.shl(Gpr::RAX, 1);
    a.add(Gpr::RAX, Gpr::R15);
    a.add_number(Gpr::RBX, 1);
    a.cmp_number(Gpr::RBX, 6);
    a.jump_if(Condition::Less, top);
    for r in [Gpr::R12, Gpr::R13, Gpr::R14] {
        a.mov_number(r, -1);
    }
    a.leave(&Gpr::SAVED, 200);
    let code = a.finish();
    let arguments = [1, 20, 300, 4000, 50_000, u64::MAX];
    let expected = arguments
        .iter()
        .fold(0, |sum: u64, x| (sum << 1).wrapping_add(*x));
    let mut machine = Machine::new();
    assert_eq!(machine.call(&code, &arguments), Ok(expected));
    assert_eq!(machine.call(&code, &arguments), Ok(expected));
}

extern "sysv64" fn sum(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> u64 {
    a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f
}

/// `call rax`, which the assembler need not support, between instructions that align the stack.
fn calls(aligned: bool) -> Vec<u8> {
    const MARK: i64 = 0x0123_4567_89AB_CDEF;
    let mut a = Asm::new(false);
    a.mov_number(Gpr::RAX, sum as *const () as i64);
    a.add_number(Gpr::RSP, if aligned { -8 } else { -16 });
    a.mov_number(Gpr::RCX, MARK);
    a.add_number(Gpr::RSP, if aligned { 8 } else { 16 });
    a.leave(&[], 0);
    let mut code = a.finish();
    let found = code.windows(8).position(|w| w == MARK.to_le_bytes());
    let begin = found.unwrap() - 2;
    code.splice(begin..begin + 10, [0xFF, 0xD0]);
    code
}

#[test]
fn code_calls_the_functions_that_it_was_given() {
    let arguments = [1, 2, 3, 4, 5, 6];
    // SAFETY: the function takes any small numbers.
    let mut machine = unsafe { Machine::new().function(sum) };
    assert_eq!(machine.call(&calls(true), &arguments), Ok(91));
    let found = machine.call(&calls(false), &arguments).unwrap_err();
    assert_eq!(found.kind, FaultKind::Misaligned);
    let found = Machine::new().call(&calls(true), &arguments).unwrap_err();
    assert_eq!(found.kind, FaultKind::NotCode);
}
