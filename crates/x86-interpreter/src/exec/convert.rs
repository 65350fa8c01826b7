//! Conversions.

use crate::cpu::Action;
use crate::cpu::Cpu;
use crate::fault::Outcome;
use crate::number::{Float, Rounding, bfloat, from_half, narrow, to_half, widen};
use crate::step::Step;
use crate::vector::Lane;
use iced_x86::Mnemonic::*;

const NEAREST: Rounding = Rounding::Nearest;
const ZERO: Rounding = Rounding::Zero;

pub(super) fn action(step: &Step) -> Option<Action> {
    vectors(step).or_else(|| scalars(step))
}

fn vectors(step: &Step) -> Option<Action> {
    actions! { step;
        Vcvtdq2ps: i32, Vcvtudq2ps: u32, Vcvtqq2ps: i64, Vcvtuqq2ps: u64 => |c, s| c.map(s, |x: T| x as f32);
        Vcvtdq2pd: i32, Vcvtudq2pd: u32, Vcvtqq2pd: i64, Vcvtuqq2pd: u64 => |c, s| c.map(s, |x: T| x as f64);
        Vcvtps2dq: f32, Vcvtpd2dq: f64 => |c, s| c.map(s, |x: T| x.to_i32(NEAREST));
        Vcvttps2dq: f32, Vcvttpd2dq: f64 => |c, s| c.map(s, |x: T| x.to_i32(ZERO));
        Vcvtps2qq: f32, Vcvtpd2qq: f64 => |c, s| c.map(s, |x: T| x.to_i64(NEAREST));
        Vcvttps2qq: f32, Vcvttpd2qq: f64 => |c, s| c.map(s, |x: T| x.to_i64(ZERO));
        Vcvtps2pd => |c, s| c.map(s, widen);
        Vcvtpd2ps => |c, s| c.map(s, narrow);
        Vcvtph2ps => |c, s| c.map(s, from_half);
        Vcvtps2ph => |c, s| c.map(s, |x: f32| to_half(x, Rounding::of(s.immediate())));
        Vcvtneps2bf16 => |c, s| c.map(s, bfloat);
        Vpmovzxbw: u16, Vpmovzxbd: u32, Vpmovzxbq: u64 => |c, s| c.map(s, |x: u8| x as T);
        Vpmovzxwd: u32, Vpmovzxwq: u64 => |c, s| c.map(s, |x: u16| x as T);
        Vpmovzxdq => |c, s| c.map(s, |x: u32| u64::from(x));
        Vpmovsxbw: i16, Vpmovsxbd: i32, Vpmovsxbq: i64 => |c, s| c.map(s, |x: i8| x as T);
        Vpmovsxwd: i32, Vpmovsxwq: i64 => |c, s| c.map(s, |x: i16| x as T);
        Vpmovsxdq => |c, s| c.map(s, |x: i32| i64::from(x));
        Vpmovwb: u16, Vpmovdb: u32, Vpmovqb: u64 => |c, s| c.map(s, |x: T| x as u8);
        Vpmovdw: u32, Vpmovqw: u64 => |c, s| c.map(s, |x: T| x as u16);
        Vpmovqd => |c, s| c.map(s, |x: u64| x as u32);
        Vpmovswb: i16, Vpmovsdb: i32, Vpmovsqb: i64 => |c, s| c.map(s, |x: T| x.clamp(-128, 127) as i8);
        Vpmovsdw: i32, Vpmovsqw: i64 => |c, s| c.map(s, |x: T| x.clamp(-32768, 32767) as i16);
        Vpmovsqd => |c, s| c.map(s, |x: i64| x.clamp(i32::MIN.into(), i32::MAX.into()) as i32);
        Vpmovuswb: u16, Vpmovusdb: u32, Vpmovusqb: u64 => |c, s| c.map(s, |x: T| x.min(255) as u8);
        Vpmovusdw: u32, Vpmovusqw: u64 => |c, s| c.map(s, |x: T| x.min(65535) as u16);
        Vpmovusqd => |c, s| c.map(s, |x: u64| x.min(u32::MAX.into()) as u32);
    }
}

/// Conversions of the lowest lane, between floats, or to and from a general register.
fn scalars(step: &Step) -> Option<Action> {
    actions! { step;
        Vcvtss2sd => |c, s| convert_first(c, s, widen);
        Vcvtsd2ss => |c, s| convert_first(c, s, narrow);
        Vcvtsi2ss: f32, Vcvtsi2sd: f64 => |c, s| {
            let x = integer(c, s)? as T;
            c.first(s, |_: T, _| x)
        };
        Vcvtss2si: f32, Vcvtsd2si: f64 => |c, s| set_integer::<T>(c, s, NEAREST);
        Vcvttss2si: f32, Vcvttsd2si: f64 => |c, s| set_integer::<T>(c, s, ZERO);
    }
}

/// Converts the lowest lane of operand 2; the rest up to 128 bits is operand 1's.
fn convert_first<A: Lane, R: Lane>(cpu: &mut Cpu, step: &Step, f: fn(A) -> R) -> Outcome<()> {
    let active = cpu.active(step);
    let x = cpu.lanes::<A>(step, 2, active & 1)?;
    let mut result = cpu.vector(step, 1)?;
    result.set(0, f(x.get(0)));
    cpu.set_lanes_masked::<R>(step, &result, 16 / R::SIZE, active | !1)
}

/// Operand 2 as a signed integer.
fn integer(cpu: &Cpu, step: &Step) -> Outcome<i64> {
    let x = cpu.value(step, 2)?;
    Ok(match step.bytes(2) {
        4 => i64::from(x as i32),
        _ => x as i64,
    })
}

/// Sets operand 0 to the lowest lane of operand 1, as an integer.
fn set_integer<T: Float>(cpu: &mut Cpu, step: &Step, rounding: Rounding) -> Outcome<()> {
    let x: T = cpu.lanes::<T>(step, 1, 1)?.get(0);
    let x = match step.bytes(0) {
        4 => x.to_i32(rounding) as u64,
        _ => x.to_i64(rounding) as u64,
    };
    cpu.set_value(step, 0, x)
}
