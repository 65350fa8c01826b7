//! Tests of instructions on general registers and masks.

use crate::vector::{Address, GPRS, NAMES, name, only};
use fastrand::Rng;
use iced_x86::{Instruction, Mnemonic, OpKind};
use kiln_x86::{Asm, Gpr, Mask, MaskOp};

fn one(f: impl FnOnce(&mut Asm)) -> Instruction {
    let mut a = Asm::new(true);
    f(&mut a);
    only(&a.finish())
}

fn check_registers(i: &Instruction, mnemonic: Mnemonic, a: usize, b: usize) {
    assert_eq!(i.mnemonic(), mnemonic);
    assert_eq!(name(i.op0_register()), NAMES[a]);
    assert_eq!(name(i.op1_register()), NAMES[b]);
}

#[test]
fn instructions_of_two_operands() {
    type Two = (Mnemonic, fn(&mut Asm, Gpr, kiln_x86::Operand));
    let two: [Two; 5] = [
        (Mnemonic::Mov, |a, x, y| a.mov(x, y)),
        (Mnemonic::Add, |a, x, y| a.add(x, y)),
        (Mnemonic::Sub, |a, x, y| a.sub(x, y)),
        (Mnemonic::Imul, |a, x, y| a.mul(x, y)),
        (Mnemonic::Cmp, |a, x, y| a.cmp(x, y)),
    ];
    let mut rng = Rng::with_seed(3);
    for (mnemonic, f) in two {
        for a in 0..16 {
            for (b, register) in GPRS.into_iter().enumerate() {
                let i = one(|asm| f(asm, GPRS[a], register.into()));
                check_registers(&i, mnemonic, a, b);
            }
            for _ in 0..32 {
                let address = Address::random(&mut rng);
                let i = one(|asm| f(asm, GPRS[a], address.mem().into()));
                assert_eq!(i.mnemonic(), mnemonic);
                assert_eq!(name(i.op0_register()), NAMES[a]);
                assert_eq!(i.op1_kind(), OpKind::Memory);
                address.check(&i);
            }
        }
    }
}

#[test]
fn addresses_stores_and_prefetches() {
    let mut rng = Rng::with_seed(4);
    for a in (0..16).cycle().take(512) {
        let address = Address::random(&mut rng);
        let i = one(|asm| asm.lea(GPRS[a], address.mem()));
        assert_eq!(
            (i.mnemonic(), name(i.op0_register())),
            (Mnemonic::Lea, NAMES[a].into())
        );
        address.check(&i);
        let i = one(|asm| asm.store(address.mem(), GPRS[a]));
        assert_eq!(
            (i.mnemonic(), name(i.op1_register())),
            (Mnemonic::Mov, NAMES[a].into())
        );
        assert_eq!(i.op0_kind(), OpKind::Memory);
        address.check(&i);
        let levels = [
            Mnemonic::Prefetcht0,
            Mnemonic::Prefetcht1,
            Mnemonic::Prefetcht2,
        ];
        let i = one(|asm| asm.prefetch(a as u8 % 3, address.mem()));
        assert_eq!(i.mnemonic(), levels[a % 3]);
        address.check(&i);
    }
}

#[test]
fn numbers() {
    let mut rng = Rng::with_seed(5);
    for a in 0..16 {
        let special = [
            0,
            1,
            -1,
            127,
            -128,
            128,
            i64::MAX,
            i64::MIN,
            0x8000_0000,
            0xFFFF_FFFF,
        ];
        let random = (0..32).map(|_| rng.i64(..) >> rng.u32(..64));
        for n in special.into_iter().chain(random) {
            let i = one(|asm| asm.mov_number(GPRS[a], n));
            assert_eq!(i.mnemonic(), Mnemonic::Mov);
            // With 32 bits, the rest becomes 0.
            let wide = name(i.op0_register()) == NAMES[a];
            assert!(wide || i.op0_register() == iced_x86::Register::EAX + a as u32);
            let value = if wide {
                i.immediate(1) as i64
            } else {
                i64::from(i.immediate32())
            };
            assert_eq!(value, n);
            let n = n as i32;
            for (f, mnemonic) in [
                (Asm::add_number as fn(&mut Asm, Gpr, i32), Mnemonic::Add),
                (Asm::cmp_number, Mnemonic::Cmp),
            ] {
                let i = one(|asm| f(asm, GPRS[a], n));
                assert_eq!(
                    (i.mnemonic(), name(i.op0_register())),
                    (mnemonic, NAMES[a].into())
                );
                assert_eq!(i.immediate(1) as i64, i64::from(n));
            }
        }
        for n in 0..64 {
            let i = one(|asm| asm.shl(GPRS[a], n));
            assert_eq!(
                (i.mnemonic(), name(i.op0_register())),
                (Mnemonic::Shl, NAMES[a].into())
            );
            assert_eq!(i.immediate(1), u64::from(n));
        }
    }
}

#[test]
fn masks() {
    for k in 0..8 {
        for r in 0..16 {
            let i = one(|asm| asm.kmov(Mask(k), GPRS[r]));
            assert_eq!(i.mnemonic(), Mnemonic::Kmovq);
            assert_eq!(
                (name(i.op0_register()), name(i.op1_register())),
                (format!("K{k}"), NAMES[r].into())
            );
            let i = one(|asm| asm.kmov_to(GPRS[r], Mask(k)));
            assert_eq!(i.mnemonic(), Mnemonic::Kmovq);
            assert_eq!(
                (name(i.op0_register()), name(i.op1_register())),
                (NAMES[r].into(), format!("K{k}"))
            );
        }
    }
    for (op, mnemonic) in [
        (MaskOp::And, Mnemonic::Kandq),
        (MaskOp::Or, Mnemonic::Korq),
        (MaskOp::Xor, Mnemonic::Kxorq),
        (MaskOp::AndNot, Mnemonic::Kandnq),
        (MaskOp::Equal, Mnemonic::Kxnorq),
    ] {
        for (a, b, c) in [(0, 1, 2), (7, 7, 0), (3, 6, 5)] {
            let i = one(|asm| asm.mask_op(op, Mask(a), Mask(b), Mask(c)));
            assert_eq!(i.mnemonic(), mnemonic);
            let registers = [i.op0_register(), i.op1_register(), i.op2_register()].map(name);
            assert_eq!(registers, [a, b, c].map(|k| format!("K{k}")));
        }
    }
}
