//! Bits and shifts. A shift by at least the width of a lane gives 0, or the sign in all bits.

use super::Action;
use crate::cpu::{Cpu, Flags};
use crate::fault::Outcome;
use crate::step::{OperandLocation, Step};
use crate::vector::Lane;
use iced_x86::Mnemonic::*;

pub(super) fn action(step: &Step) -> Option<Action> {
    logic(step)
        .or_else(|| by_lanes(step))
        .or_else(|| match step.operands[2] {
            OperandLocation::Immediate(_) => by_immediate(step),
            _ => by_one(step),
        })
}

fn logic(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vandps | Vpand | Vpandd => |c, s| c.zip(s, |a: u32, b| a & b),
        Vandpd | Vpandq => |c, s| c.zip(s, |a: u64, b| a & b),
        Vorps | Vpor | Vpord => |c, s| c.zip(s, |a: u32, b| a | b),
        Vorpd | Vporq => |c, s| c.zip(s, |a: u64, b| a | b),
        Vxorps | Vpxor | Vpxord => |c, s| c.zip(s, |a: u32, b| a ^ b),
        Vxorpd | Vpxorq => |c, s| c.zip(s, |a: u64, b| a ^ b),
        Vandnps | Vpandn | Vpandnd => |c, s| c.zip(s, |a: u32, b| !a & b),
        Vandnpd | Vpandnq => |c, s| c.zip(s, |a: u64, b| !a & b),
        Vpternlogd => |c, s| {
            c.zip3(s, |x: u32, y, z| {
                ternary(s.immediate(), [x, y, z].map(u64::from)) as u32
            })
        },
        Vpternlogq => |c, s| c.zip3(s, |x: u64, y, z| ternary(s.immediate(), [x, y, z])),
        Vptest => test,
        Vpopcntd => |c, s| c.map(s, u32::count_ones),
        Vpopcntq => |c, s| c.map(s, |x: u64| u64::from(x.count_ones())),
        Vplzcntd => |c, s| c.map(s, u32::leading_zeros),
        Vplzcntq => |c, s| c.map(s, |x: u64| u64::from(x.leading_zeros())),
        _ => return None,
    })
}

/// A bitwise function of three operands; the immediate is its truth table.
fn ternary(table: u8, [x, y, z]: [u64; 3]) -> u64 {
    let row = |i: u8| {
        let bit = |v: u64, at: u8| if i >> at & 1 == 1 { v } else { !v };
        bit(x, 2) & bit(y, 1) & bit(z, 0)
    };
    (0..8)
        .filter(|i| table >> i & 1 == 1)
        .fold(0, |all, i| all | row(i))
}

fn test(cpu: &mut Cpu, step: &Step) -> Outcome<()> {
    let (a, b) = (cpu.vector(step, 0)?, cpu.vector(step, 1)?);
    let bytes = 0..step.bytes(0);
    cpu.flags = Flags {
        zero: Some(bytes.clone().all(|i| a.0[i] & b.0[i] == 0)),
        carry: Some(bytes.clone().all(|i| !a.0[i] & b.0[i] == 0)),
        parity: Some(false),
        sign: Some(false),
        overflow: Some(false),
    };
    Ok(())
}

fn by_lanes(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vpsllvw => |c, s| c.zip(s, |a: u16, n| shifted(a.checked_shl(n.into()))),
        Vpsllvd => |c, s| c.zip(s, |a: u32, n| shifted(a.checked_shl(n))),
        Vpsllvq => |c, s| c.zip(s, |a: u64, n| shifted(a.checked_shl(amount(n)))),
        Vpsrlvw => |c, s| c.zip(s, |a: u16, n| shifted(a.checked_shr(n.into()))),
        Vpsrlvd => |c, s| c.zip(s, |a: u32, n| shifted(a.checked_shr(n))),
        Vpsrlvq => |c, s| c.zip(s, |a: u64, n| shifted(a.checked_shr(amount(n)))),
        Vpsravw => |c, s| c.zip(s, |a: i16, n| a >> (n as u16).min(15)),
        Vpsravd => |c, s| c.zip(s, |a: i32, n| a >> (n as u32).min(31)),
        Vpsravq => |c, s| c.zip(s, |a: i64, n| a >> (n as u64).min(63)),
        Vprolvq => |c, s| c.zip(s, |a: u64, n| a.rotate_left((n % 64) as u32)),
        Vprorvq => |c, s| c.zip(s, |a: u64, n| a.rotate_right((n % 64) as u32)),
        Vprolvd => |c, s| c.zip(s, |a: u32, n| a.rotate_left(n % 32)),
        Vprorvd => |c, s| c.zip(s, |a: u32, n| a.rotate_right(n % 32)),
        _ => return None,
    })
}

fn by_immediate(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vpsllw => |c, s| c.map(s, |a: u16| shifted(a.checked_shl(s.immediate().into()))),
        Vpslld => |c, s| c.map(s, |a: u32| shifted(a.checked_shl(s.immediate().into()))),
        Vpsllq => |c, s| c.map(s, |a: u64| shifted(a.checked_shl(s.immediate().into()))),
        Vpsrlw => |c, s| c.map(s, |a: u16| shifted(a.checked_shr(s.immediate().into()))),
        Vpsrld => |c, s| c.map(s, |a: u32| shifted(a.checked_shr(s.immediate().into()))),
        Vpsrlq => |c, s| c.map(s, |a: u64| shifted(a.checked_shr(s.immediate().into()))),
        Vpsraw => |c, s| c.map(s, |a: i16| a >> s.immediate().min(15)),
        Vpsrad => |c, s| c.map(s, |a: i32| a >> s.immediate().min(31)),
        Vpsraq => |c, s| c.map(s, |a: i64| a >> s.immediate().min(63)),
        Vprolq => |c, s| c.map(s, |a: u64| a.rotate_left(u32::from(s.immediate()) % 64)),
        Vprorq => |c, s| c.map(s, |a: u64| a.rotate_right(u32::from(s.immediate()) % 64)),
        Vprold => |c, s| c.map(s, |a: u32| a.rotate_left(u32::from(s.immediate()) % 32)),
        Vprord => |c, s| c.map(s, |a: u32| a.rotate_right(u32::from(s.immediate()) % 32)),
        _ => return None,
    })
}

/// Shifts all lanes by the low 64 bits of operand 2.
fn by_one(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vpsllw => |c, s| by_one_amount(c, s, |a: u16, n| shifted(a.checked_shl(n))),
        Vpslld => |c, s| by_one_amount(c, s, |a: u32, n| shifted(a.checked_shl(n))),
        Vpsllq => |c, s| by_one_amount(c, s, |a: u64, n| shifted(a.checked_shl(n))),
        Vpsrlw => |c, s| by_one_amount(c, s, |a: u16, n| shifted(a.checked_shr(n))),
        Vpsrld => |c, s| by_one_amount(c, s, |a: u32, n| shifted(a.checked_shr(n))),
        Vpsrlq => |c, s| by_one_amount(c, s, |a: u64, n| shifted(a.checked_shr(n))),
        Vpsraw => |c, s| by_one_amount(c, s, |a: i16, n| a >> n.min(15)),
        Vpsrad => |c, s| by_one_amount(c, s, |a: i32, n| a >> n.min(31)),
        Vpsraq => |c, s| by_one_amount(c, s, |a: i64, n| a >> n.min(63)),
        _ => return None,
    })
}

fn by_one_amount<T: Lane>(cpu: &mut Cpu, step: &Step, f: impl Fn(T, u32) -> T) -> Outcome<()> {
    let by = amount(cpu.vector(step, 2)?.get(0));
    cpu.map(step, |a| f(a, by))
}

fn shifted<T: Default>(x: Option<T>) -> T {
    x.unwrap_or_default()
}

fn amount(n: u64) -> u32 {
    n.min(64) as u32
}
