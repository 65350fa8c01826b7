//! Bits and shifts. A shift by at least the width of a lane gives 0, or the sign in all bits.

use crate::cpu::Action;
use crate::cpu::{Cpu, Flags};
use crate::fault::Outcome;
use crate::step::{OperandLocation, Step};
use crate::vector::Lane;
use iced_x86::Mnemonic::*;

pub(super) fn action(step: &Step) -> Option<Action> {
    by_lanes(step).or_else(|| match step.operands[2] {
        OperandLocation::Immediate(_) => by_immediate(step),
        _ => by_one(step),
    })
}

fn by_lanes(step: &Step) -> Option<Action> {
    actions! { step;
        Vandps | Vpand | Vpandd: u32, Vandpd | Vpandq: u64 => |c, s| c.zip(s, |a: T, b| a & b);
        Vorps | Vpor | Vpord: u32, Vorpd | Vporq: u64 => |c, s| c.zip(s, |a: T, b| a | b);
        Vxorps | Vpxor | Vpxord: u32, Vxorpd | Vpxorq: u64 => |c, s| c.zip(s, |a: T, b| a ^ b);
        Vandnps | Vpandn | Vpandnd: u32, Vandnpd | Vpandnq: u64 => |c, s| c.zip(s, |a: T, b| !a & b);
        Vpternlogd: u32, Vpternlogq: u64 => |c, s| {
            c.zip3(s, |x: T, y, z| ternary(s.immediate(), [x as u64, y as u64, z as u64]) as T)
        };
        Vptest => test;
        Vpopcntd: u32, Vpopcntq: u64 => |c, s| c.map(s, |x: T| x.count_ones() as T);
        Vplzcntd: u32, Vplzcntq: u64 => |c, s| c.map(s, |x: T| x.leading_zeros() as T);
        Vpsllvw: u16, Vpsllvd: u32, Vpsllvq: u64
            => |c, s| c.zip(s, |a: T, n| shifted(a.checked_shl(amount(n as u64))));
        Vpsrlvw: u16, Vpsrlvd: u32, Vpsrlvq: u64
            => |c, s| c.zip(s, |a: T, n| shifted(a.checked_shr(amount(n as u64))));
        Vpsravw: i16, Vpsravd: i32, Vpsravq: i64
            => |c, s| c.zip(s, |a: T, n| a >> n.cast_unsigned().min((T::BITS - 1) as _));
        Vprolvd: u32, Vprolvq: u64 => |c, s| c.zip(s, |a: T, n| a.rotate_left(n as u32));
        Vprorvd: u32, Vprorvq: u64 => |c, s| c.zip(s, |a: T, n| a.rotate_right(n as u32));
    }
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
        ..Flags::CLEARED
    };
    Ok(())
}

fn by_immediate(step: &Step) -> Option<Action> {
    actions! { step;
        Vpsllw: u16, Vpslld: u32, Vpsllq: u64
            => |c, s| c.map(s, |a: T| shifted(a.checked_shl(s.immediate().into())));
        Vpsrlw: u16, Vpsrld: u32, Vpsrlq: u64
            => |c, s| c.map(s, |a: T| shifted(a.checked_shr(s.immediate().into())));
        Vpsraw: i16, Vpsrad: i32, Vpsraq: i64
            => |c, s| c.map(s, |a: T| a >> u32::from(s.immediate()).min(T::BITS - 1));
        Vprold: u32, Vprolq: u64 => |c, s| c.map(s, |a: T| a.rotate_left(s.immediate().into()));
        Vprord: u32, Vprorq: u64 => |c, s| c.map(s, |a: T| a.rotate_right(s.immediate().into()));
    }
}

/// Shifts all lanes by the low 64 bits of operand 2.
fn by_one(step: &Step) -> Option<Action> {
    actions! { step;
        Vpsllw: u16, Vpslld: u32, Vpsllq: u64
            => |c, s| by_one_amount(c, s, |a: T, n| shifted(a.checked_shl(n)));
        Vpsrlw: u16, Vpsrld: u32, Vpsrlq: u64
            => |c, s| by_one_amount(c, s, |a: T, n| shifted(a.checked_shr(n)));
        Vpsraw: i16, Vpsrad: i32, Vpsraq: i64
            => |c, s| by_one_amount(c, s, |a: T, n| a >> n.min(T::BITS - 1));
    }
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
