//! Tests of labels, gaps, frames and constants.

use crate::vector::{NAMES, name};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register};
use kiln_x86::{Asm, Condition, Gpr, Vreg, Width, op};

fn decoded(code: &[u8]) -> Vec<Instruction> {
    let decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    decoder.into_iter().collect()
}

#[test]
fn jumps_reach_their_labels() {
    let conditions = [
        (Condition::Below, Mnemonic::Jb),
        (Condition::AboveOrEqual, Mnemonic::Jae),
        (Condition::Equal, Mnemonic::Je),
        (Condition::NotEqual, Mnemonic::Jne),
        (Condition::Less, Mnemonic::Jl),
        (Condition::GreaterOrEqual, Mnemonic::Jge),
        (Condition::LessOrEqual, Mnemonic::Jle),
        (Condition::Greater, Mnemonic::Jg),
    ];
    for gap in [0, 1, 100, 40_000] {
        let mut a = Asm::new(false);
        let end = a.label();
        let begin = a.here();
        for (condition, _) in conditions {
            a.jump_if(condition, end);
        }
        (0..gap).for_each(|_| a.mov(Gpr::RAX, Gpr::RCX));
        for (condition, _) in conditions {
            a.jump_if(condition, begin);
        }
        a.jump(end);
        a.jump(begin);
        a.bind(end);
        let code = a.finish();
        let all = decoded(&code);
        for (i, (_, mnemonic)) in conditions.iter().enumerate() {
            let (forth, back) = (all[i], all[conditions.len() + gap + i]);
            assert_eq!((forth.mnemonic(), back.mnemonic()), (*mnemonic, *mnemonic));
            assert_eq!(forth.near_branch64(), code.len() as u64);
            assert_eq!(back.near_branch64(), 0);
        }
        let [forth, back] = all[all.len() - 2..] else {
            unreachable!()
        };
        assert_eq!(
            (forth.mnemonic(), back.mnemonic()),
            (Mnemonic::Jmp, Mnemonic::Jmp)
        );
        assert_eq!(
            (forth.near_branch64(), back.near_branch64()),
            (code.len() as u64, 0)
        );
    }
}

#[test]
fn gaps_are_filled_with_nothing_to_do() {
    for before in 0..20usize {
        for to in [1, 2, 4, 8, 16, 32, 64] {
            let mut a = Asm::new(false);
            // Each instruction has three bytes.
            (0..before).for_each(|_| a.mov(Gpr::RAX, Gpr::RCX));
            a.align(to);
            let code = a.finish();
            assert_eq!(code.len(), (3 * before).next_multiple_of(to));
            let nops = &decoded(&code)[before..];
            assert!(
                nops.iter().all(|i| i.mnemonic() == Mnemonic::Nop),
                "{nops:?}"
            );
        }
    }
}

/// Registers are popped in the reverse order of the pushes, and the stack pointer is restored.
#[test]
fn frames_are_taken_down() {
    for saved in [&[][..], &Gpr::SAVED, &[Gpr::R12, Gpr::RBX]] {
        for room in [0, 1, 64, 100_000] {
            let mut a = Asm::new(false);
            a.enter(saved, room);
            a.leave(saved, room);
            let all = decoded(&a.finish());
            let with = |m: Mnemonic| all.iter().filter(move |i| i.mnemonic() == m);
            let of = |m| with(m).map(|i| i.op0_register()).collect::<Vec<_>>();
            let (pushed, mut popped) = (of(Mnemonic::Push), of(Mnemonic::Pop));
            popped.reverse();
            assert_eq!(pushed, popped);
            assert_eq!(pushed.len(), saved.len() + usize::from(room > 0));
            if room > 0 {
                let moves: Vec<_> = with(Mnemonic::Mov)
                    .map(|i| [i.op0_register(), i.op1_register()].map(name))
                    .collect();
                assert_eq!(moves, [[NAMES[5], NAMES[4]], [NAMES[4], NAMES[5]]]);
                let add = with(Mnemonic::Add).next().unwrap();
                assert_eq!(
                    (add.op0_register(), add.immediate(1) as i64),
                    (Register::RSP, -i64::from(room))
                );
                let and = with(Mnemonic::And).next().unwrap();
                assert_eq!(
                    (and.op0_register(), and.immediate(1) as i64),
                    (Register::RSP, -64)
                );
            }
            let last: Vec<_> = all.iter().rev().take(2).map(|i| i.mnemonic()).collect();
            assert_eq!(last, [Mnemonic::Ret, Mnemonic::Vzeroupper]);
        }
    }
}

#[test]
fn constants_lie_there_once_and_aligned() {
    let mut a = Asm::new(true);
    let sizes = [4, 64, 8, 32, 4, 16, 64, 8];
    let constants: Vec<Vec<u8>> = (sizes.iter().enumerate())
        .map(|(i, size)| (0..*size).map(|b| (16 * i + b) as u8).collect())
        .collect();
    for c in constants.iter().chain(&constants) {
        let m = a.constant(c);
        a.op(op::VMOVUPS, Width::X, (Vreg(0), m));
        // A part of the constant.
        a.op(op::VMOVUPS, Width::X, (Vreg(0), m.plus(4)));
    }
    let code = a.finish();
    let all = decoded(&code);
    let reads: Vec<usize> = (all.iter().take(4 * sizes.len()))
        .map(|i| i.memory_displacement64() as usize)
        .collect();
    let (first, second) = reads.split_at(reads.len() / 2);
    assert_eq!(first, second);
    for (i, c) in constants.iter().enumerate() {
        let at = first[2 * i];
        assert_eq!(at % c.len(), 0);
        assert_eq!(code[at..][..c.len()], c[..]);
        assert_eq!(first[2 * i + 1], at + 4);
    }
    let instructions: usize = all[..4 * sizes.len()].iter().map(Instruction::len).sum();
    let begin = instructions.next_multiple_of(64);
    assert!(code[instructions..begin].iter().all(|b| *b == 0xCC));
    assert_eq!(*first.iter().min().unwrap(), begin);
}

/// A constant that is a part of another takes no place of its own.
#[test]
fn parts_of_constants_are_found() {
    let mut a = Asm::new(true);
    let whole: Vec<u8> = (0..64).collect();
    a.constant(&whole);
    let part = a.constant(&whole[32..40]);
    a.op(op::VMOVUPS, Width::X, (Vreg(0), part));
    let code = a.finish();
    assert_eq!(code.len(), 128);
    let at = decoded(&code)[0].memory_displacement64();
    assert_eq!(at, 64 + 32);
}
