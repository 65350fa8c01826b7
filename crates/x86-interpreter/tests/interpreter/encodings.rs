//! Every instruction that the interpreter knows, also those that the assembler does not emit yet: all encodings, with
//! operands of known kinds.

use crate::forms::{Choice, Kind, Shape};
use crate::harness::{Registers, difference, interpreted, native, runs_here, wrapped};
use crate::inputs;
use fastrand::Rng;
use iced_x86::{Code as Encoding, Encoder, Instruction, OpKind, Register};
use kiln_x86::{Code, Gpr};
use kiln_x86_interpreter::FaultKind;

/// An instruction with random operands, memory at `RDX`; `None` if it cannot be encoded.
fn encoded(encoding: Encoding, shape: &Shape, choice: Choice, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut i = Instruction::new();
    i.set_code(encoding);
    let registers = if shape.evex { 32 } else { 16 };
    for (n, kind) in shape.operands.iter().enumerate() {
        let n = n as u32;
        let mut register = |first: Register, at: u8| {
            i.set_op_kind(n, OpKind::Register);
            i.set_op_register(n, first + u32::from(at));
        };
        let gpr = [0, 1, 8, 9, 10, 11][rng.usize(..6)];
        match (*kind, choice) {
            (Kind::Vector(_, _, Some(_)), Choice::Broadcast)
            | (Kind::Vector(_, Some(_), _) | Kind::Gpr(_, Some(_)), Choice::Memory) => {
                i.set_op_kind(n, OpKind::Memory);
                i.set_memory_base(Register::RDX);
                i.set_memory_index_scale(1);
                i.set_is_broadcast(choice == Choice::Broadcast);
            }
            (Kind::Vector(Some(16), ..), _) => register(Register::XMM0, rng.u8(..registers)),
            (Kind::Vector(Some(32), ..), _) => register(Register::YMM0, rng.u8(..registers)),
            (Kind::Vector(Some(_), ..), _) => register(Register::ZMM0, rng.u8(..registers)),
            (Kind::Mask, _) => register(Register::K0, rng.u8(..8)),
            (Kind::Gpr(4, _), _) => register(Register::EAX, gpr),
            (Kind::Gpr(..), _) => register(Register::RAX, gpr),
            (Kind::Immediate, _) => {
                i.set_op_kind(n, OpKind::Immediate8);
                i.set_immediate8(rng.u8(..));
            }
            _ => return None,
        }
    }
    if let Some((mask, clears)) = shape.mask(choice, rng) {
        i.set_op_mask(Register::K0 + u32::from(mask.0));
        i.set_zeroing_masking(clears);
    }
    let mut encoder = Encoder::new(64);
    encoder.encode(&i, 0).ok()?;
    Some(encoder.take_buffer())
}

/// Code that places an instruction between the loads and stores of all registers.
fn spliced(evex: bool, instruction: &[u8]) -> Vec<u8> {
    const MARK: i64 = 0x0123_4567_89AB_CDEF;
    let mut code = wrapped(evex, |a| a.mov_number(Gpr::RAX, MARK));
    let found = code.windows(8).position(|w| w == MARK.to_le_bytes());
    // The two bytes before the number are the opcode that loads it.
    let begin = found.unwrap() - 2;
    code.splice(begin..begin + 10, instruction.iter().copied());
    code
}

#[test]
fn known_encodings_agree_with_the_processor() {
    let mut rng = Rng::with_seed(11);
    let (mut compared, mut known) = (0, 0);
    for encoding in Encoding::values() {
        let name = format!("{encoding:?}");
        let Some(shape) = Shape::new(&name).filter(|s| !s.operands.is_empty()) else {
            continue;
        };
        let mut counted = false;
        for choice in shape.choices() {
            for _ in 0..2 {
                let Some(bytes) = encoded(encoding, &shape, choice, &mut rng) else {
                    continue;
                };
                let masks = name.starts_with("EVEX") || name.starts_with("VEX_K");
                let code = spliced(masks, &bytes);
                let native_code = runs_here(&code).then(|| Code::new(&code).unwrap());
                for _ in 0..8 {
                    let before = Registers::random(&mut rng);
                    let mut data = Data(inputs::line(&mut rng));
                    let mut same = Data(data.0);
                    let ours = match interpreted(&code, &before, &mut same.0) {
                        Ok(ours) => ours,
                        Err(fault) => {
                            // This test leaves out instructions on the stack and on tiles, and conditions on flags.
                            let vectors = name.starts_with("VEX") || name.starts_with("EVEX");
                            let unknown = [FaultKind::Unknown, FaultKind::Tiles];
                            let unknown = unknown.contains(&fault.kind);
                            assert!(unknown || !vectors, "{name}: {fault}");
                            break;
                        }
                    };
                    known += usize::from(!counted);
                    counted = true;
                    let Some(native_code) = &native_code else {
                        break;
                    };
                    let theirs = native(native_code, &before, &mut data.0);
                    let equal = theirs == ours && data.0 == same.0;
                    assert!(
                        equal,
                        "{name} {bytes:02x?}\n{}",
                        difference(&theirs, &ours, &before)
                    );
                    compared += 1;
                }
            }
        }
    }
    assert!(known > 1000, "{known}");
    println!("{known} encodings are known, {compared} runs compared");
}

#[repr(align(64))]
struct Data([u8; 64]);
