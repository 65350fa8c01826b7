//! Faults of code are found, and correct code has none.

use crate::forms::{self, Choice};
use crate::harness::{GPRS, Registers, difference, emit, interpreted, native, runs_here, wrapped};
use fastrand::Rng;
use kiln_x86::{Asm, Code, Condition, Gpr, Mask, Mem, Vreg, Width, op};
use kiln_x86_interpreter::{Fault, FaultKind, Machine};

fn code(evex: bool, body: impl FnOnce(&mut Asm)) -> Vec<u8> {
    let mut a = Asm::new(evex);
    body(&mut a);
    a.leave(&[], 0);
    a.finish()
}

/// The fault of code that is called with the address of eight numbers.
fn fault(code: &[u8]) -> Fault {
    let x = [0u64; 8];
    let mut machine = Machine::new().readable(&x).limit(1000);
    machine.call(code, &[x.as_ptr() as u64]).unwrap_err()
}

#[test]
fn accesses_out_of_bounds() {
    let found = fault(&code(false, |a| {
        a.mov_number(Gpr::RAX, 4);
        a.mov(Gpr::RAX, Mem::at(Gpr::RDI).index(Gpr::RAX, 8).plus(29));
    }));
    assert_eq!((found.kind, found.offset), (FaultKind::OutOfBounds, 5));
    assert_eq!(found.instruction, "mov rax,[rdi+rax*8+1Dh]");
    assert!(
        found
            .message
            .contains("byte 61 of the nearest region, which has 64 bytes"),
        "{found}"
    );
    let below = code(false, |a| {
        a.op(op::VMOVUPS, Width::X, (Vreg(0), Mem::at(Gpr::RDI).plus(-1)))
    });
    assert_eq!(fault(&below).kind, FaultKind::OutOfBounds);
    let nowhere = code(false, |a| {
        a.mov_number(Gpr::RAX, -8);
        a.mov(Gpr::RAX, Mem::at(Gpr::RAX));
    });
    assert_eq!(fault(&nowhere).kind, FaultKind::OutOfBounds);
    let deep = code(false, |a| {
        a.enter(&[], 1 << 17);
        a.store(Mem::at(Gpr::RSP), Gpr::RAX);
        a.leave(&[], 1 << 17);
    });
    assert_eq!(fault(&deep).kind, FaultKind::OutOfBounds);
}

#[test]
fn writes_to_what_may_only_be_read() {
    let to_argument = code(false, |a| a.store(Mem::at(Gpr::RDI), Gpr::RAX));
    assert_eq!(fault(&to_argument).kind, FaultKind::ReadOnly);
    let to_constant = code(false, |a| {
        let m = a.constant(&[1; 8]);
        a.store(m, Gpr::RAX);
    });
    assert_eq!(fault(&to_constant).kind, FaultKind::ReadOnly);
}

/// Code reads its constants, not its instructions.
#[test]
fn instructions_are_no_data() {
    let reads = |offset| {
        code(false, |a| {
            let m = a.constant(&7u64.to_le_bytes());
            a.lea(Gpr::RCX, m);
            a.mov(Gpr::RAX, Mem::at(Gpr::RCX).plus(offset));
        })
    };
    assert_eq!(Machine::new().call(&reads(0), &[]), Ok(7));
    assert_eq!(fault(&reads(-64)).kind, FaultKind::OutOfBounds);
    assert_eq!(fault(&reads(8)).kind, FaultKind::OutOfBounds);
}

#[test]
fn misaligned_streams() {
    let mut y = [0u8; 192];
    let aligned = y.as_mut_ptr().align_offset(64) as u64 + y.as_mut_ptr() as u64;
    let mut machine = Machine::new().writable(&mut y);
    for (width, bytes) in [(Width::X, 16), (Width::Y, 32), (Width::Z, 64)] {
        let stream = code(true, |a| {
            a.op(op::VMOVNTPS, width, (Mem::at(Gpr::RDI), Vreg(3)))
        });
        assert!(machine.call(&stream, &[aligned]).is_ok());
        let found = machine.call(&stream, &[aligned + bytes / 2]).unwrap_err();
        assert_eq!(found.kind, FaultKind::Misaligned, "{found}");
    }
}

#[test]
fn execution_of_what_is_no_code() {
    // No return: execution runs into the gap before the constants, into the constants, and past the end of the code.
    for constants in [false, true] {
        for instructions in [3, 8] {
            let mut a = Asm::new(false);
            if constants {
                let m = a.constant(&[0x90; 64]);
                // Eight bytes each.
                (0..instructions).for_each(|_| a.op(op::VMOVUPS, Width::X, (Vreg(0), m)));
            }
            let found = fault(&a.finish());
            assert_eq!(found.kind, FaultKind::NotCode, "{found}");
        }
    }
    // A return to an address that is not the caller's.
    let returns = code(false, |a| a.add_number(Gpr::RSP, -8));
    assert_eq!(fault(&returns).kind, FaultKind::NotCode);
    assert_eq!(fault(&[]).kind, FaultKind::NotCode);
}

#[test]
fn unknown_instructions() {
    // Bytes that are not an instruction, `cpuid`, a load from another segment.
    for bytes in [&[0x06][..], &[0x0F, 0xA2], &[0x64, 0x48, 0x8B, 0x07]] {
        let found = fault(bytes);
        assert_eq!(found.kind, FaultKind::Unknown, "{found}");
    }
}

#[test]
fn endless_loops() {
    let found = fault(&code(false, |a| {
        let top = a.here();
        a.jump(top);
    }));
    assert_eq!(found.kind, FaultKind::Endless);
}

#[test]
fn registers_that_are_not_kept() {
    for r in Gpr::SAVED {
        let found = fault(&code(false, |a| a.add_number(r, 1)));
        assert_eq!(found.kind, FaultKind::NotKept, "{found}");
        assert_eq!(found.instruction, "ret");
    }
    // The return address is in its place, but the stack pointer is not.
    let found = fault(&code(false, |a| {
        a.mov(Gpr::RAX, Mem::at(Gpr::RSP));
        a.add_number(Gpr::RSP, -8);
        a.store(Mem::at(Gpr::RSP), Gpr::RAX);
    }));
    assert!(found.message.starts_with("rsp was"), "{found}");
}

#[test]
fn undefined_flags() {
    let jumps = |before: fn(&mut Asm), condition| {
        code(false, |a| {
            before(a);
            let end = a.label();
            a.jump_if(condition, end);
            a.bind(end);
        })
    };
    assert_eq!(
        fault(&jumps(|_| {}, Condition::Below)).kind,
        FaultKind::UndefinedFlag
    );
    let product = jumps(|a| a.mul(Gpr::RAX, Gpr::RDI), Condition::Equal);
    let found = fault(&product);
    assert_eq!(found.kind, FaultKind::UndefinedFlag);
    assert!(found.message.contains("zero flag"), "{found}");
    let shift = jumps(|a| a.shl(Gpr::RAX, 2), Condition::Less);
    assert_eq!(fault(&shift).kind, FaultKind::UndefinedFlag);
    let compared = jumps(|a| a.cmp(Gpr::RAX, Gpr::RDI), Condition::Less);
    assert!(Machine::new().call(&compared, &[1]).is_ok());
}

/// Allocates two pages of which the second is inaccessible; returns where the second begins.
fn guarded() -> *mut u8 {
    let (bytes, usable) = (8192, libc::PROT_READ | libc::PROT_WRITE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: asks for new pages and changes what may be done with one of them.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), bytes, usable, flags, -1, 0);
        assert!(at != libc::MAP_FAILED);
        let second = at.cast::<u8>().add(4096);
        assert_eq!(libc::mprotect(second.cast(), 4096, libc::PROT_NONE), 0);
        second
    }
}

/// Lanes that are masked off are not accessed. Where the interpreter finds no fault at the end of memory, the
/// processor finds none either, and instructions whose masks leave lanes out complete.
#[test]
fn lanes_that_are_masked_off_do_not_fault() {
    let mut rng = Rng::with_seed(10);
    let (end, mut fine, mut faults) = (guarded(), 0, 0);
    for form in forms::all() {
        let masks = form.masks || form.op.name.starts_with("VMASKMOV");
        for choice in form.choices() {
            // These read whole vectors regardless of the mask.
            let reads_all = form.op.name.starts_with("VPMADD");
            if !masks || choice == Choice::Register || form.gathers() || reads_all {
                continue;
            }
            let bytes = form.memory_bytes(choice);
            for _ in 0..4 {
                let operands = form.operands(choice, &mut rng, &GPRS, Mem::at(Gpr::RDX));
                let mask = form.mask(choice, &mut rng);
                let code = wrapped(form.evex, |a| emit(a, &form, operands.clone(), mask));
                let mut before = Registers::random(&mut rng);
                let inside = rng.usize(..=bytes);
                if let Some((k, _)) = mask {
                    let shift = rng.u32(32..64);
                    before.masks[usize::from(k.0)] = (rng.u64(..) >> shift) & !(1 << rng.u8(..4));
                }
                let start = end.wrapping_sub(inside);
                // SAFETY: the bytes before the end belong to this test.
                let data = unsafe { std::slice::from_raw_parts_mut(start, inside) };
                rng.fill(data);
                // The interpreter gets a copy with the same end and the same alignment.
                let mut copy = vec![0; inside + 64];
                let pad = (start as usize).wrapping_sub(copy.as_ptr() as usize) % 64;
                let same = &mut copy[pad..pad + inside];
                same.copy_from_slice(data);
                match interpreted(&code, &before, same) {
                    Err(found) if found.kind == FaultKind::Misaligned => {}
                    Err(found) => {
                        assert_eq!(found.kind, FaultKind::OutOfBounds, "{found}");
                        faults += 1;
                    }
                    Ok(here) if runs_here(&code) => {
                        let code = Code::new(&code).unwrap();
                        let there = native(&code, &before, data);
                        let text = || format!("{} {operands:?} {mask:?}", form.name);
                        assert!(
                            there == here,
                            "{}{}",
                            text(),
                            difference(&there, &here, &before)
                        );
                        assert!(data == &*same, "{}", text());
                        fine += usize::from(inside < bytes);
                    }
                    Ok(_) => {}
                }
            }
        }
    }
    assert!(faults > 100, "{faults}");
    println!("{fine} instructions at the end of memory, {faults} faults");
}

/// The tail of a row: only its lanes are read and written.
#[test]
fn tails_are_loaded_and_stored() {
    let tail = |width: Width, evex| {
        code(evex, |a| match evex {
            true => {
                a.kmov(Mask(1), Gpr::RDX);
                a.masked(
                    op::VMOVUPS,
                    width,
                    (Mask(1), true),
                    (Vreg(1), Mem::at(Gpr::RDI)),
                );
                let to = Mem::at(Gpr::RSI);
                a.masked(op::VMOVUPS_STORE, width, (Mask(1), false), (to, Vreg(1)));
            }
            false => {
                let lanes: Vec<u8> = [-1i32, -1, -1, 0, 0, 0, 0, 0]
                    .iter()
                    .flat_map(|x| x.to_le_bytes())
                    .collect();
                let lanes = a.constant(&lanes);
                a.op(op::VMOVUPS, width, (Vreg(2), lanes));
                a.op(op::VMASKMOVPS, width, (Vreg(1), Vreg(2), Mem::at(Gpr::RDI)));
                a.op(
                    op::VMASKMOVPS_STORE,
                    width,
                    (Mem::at(Gpr::RSI), Vreg(2), Vreg(1)),
                );
            }
        })
    };
    for (width, evex) in [(Width::Z, true), (Width::Y, true), (Width::Y, false)] {
        let (x, mut y) = ([1.0f32, 2.0, 3.0], [0.0f32; 3]);
        let arguments = [x.as_ptr() as u64, y.as_mut_ptr() as u64, 0b111];
        let mut machine = Machine::new().readable(&x).writable(&mut y);
        machine.call(&tail(width, evex), &arguments).unwrap();
        if evex {
            let found = machine.call(&tail(width, evex), &[arguments[0], arguments[1], 0b1111]);
            assert_eq!(found.unwrap_err().kind, FaultKind::OutOfBounds);
        }
        drop(machine);
        assert_eq!(y, x);
    }
}
