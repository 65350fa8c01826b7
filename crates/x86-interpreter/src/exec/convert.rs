//! Conversions.

use super::Action;
use crate::cpu::Cpu;
use crate::fault::Outcome;
use crate::number::{Float, Rounding, bfloat, from_half, narrow, to_half, widen};
use crate::step::Step;
use iced_x86::Mnemonic::*;

const NEAREST: Rounding = Rounding::Nearest;
const ZERO: Rounding = Rounding::Zero;

pub(super) fn action(step: &Step) -> Option<Action> {
    floats(step)
        .or_else(|| widened(step))
        .or_else(|| narrowed(step))
        .or_else(|| scalars(step))
}

fn floats(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vcvtdq2ps => |c, s| c.map(s, |x: i32| x as f32),
        Vcvtdq2pd => |c, s| c.map(s, |x: i32| f64::from(x)),
        Vcvtudq2ps => |c, s| c.map(s, |x: u32| x as f32),
        Vcvtudq2pd => |c, s| c.map(s, |x: u32| f64::from(x)),
        Vcvtuqq2ps => |c, s| c.map(s, |x: u64| x as f32),
        Vcvtuqq2pd => |c, s| c.map(s, |x: u64| x as f64),
        Vcvtqq2ps => |c, s| c.map(s, |x: i64| x as f32),
        Vcvtqq2pd => |c, s| c.map(s, |x: i64| x as f64),
        Vcvtps2dq => |c, s| c.map(s, |x: f32| x.to_i32(NEAREST)),
        Vcvttps2dq => |c, s| c.map(s, |x: f32| x.to_i32(ZERO)),
        Vcvtpd2dq => |c, s| c.map(s, |x: f64| x.to_i32(NEAREST)),
        Vcvttpd2dq => |c, s| c.map(s, |x: f64| x.to_i32(ZERO)),
        Vcvtps2qq => |c, s| c.map(s, |x: f32| x.to_i64(NEAREST)),
        Vcvttps2qq => |c, s| c.map(s, |x: f32| x.to_i64(ZERO)),
        Vcvtpd2qq => |c, s| c.map(s, |x: f64| x.to_i64(NEAREST)),
        Vcvttpd2qq => |c, s| c.map(s, |x: f64| x.to_i64(ZERO)),
        Vcvtps2pd => |c, s| c.map(s, widen),
        Vcvtpd2ps => |c, s| c.map(s, narrow),
        Vcvtph2ps => |c, s| c.map(s, from_half),
        Vcvtps2ph => |c, s| c.map(s, |x: f32| to_half(x, Rounding::of(s.immediate()))),
        Vcvtneps2bf16 => |c, s| c.map(s, bfloat),
        _ => return None,
    })
}

fn widened(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vpmovzxbw => |c, s| c.map(s, |x: u8| u16::from(x)),
        Vpmovzxbd => |c, s| c.map(s, |x: u8| u32::from(x)),
        Vpmovzxbq => |c, s| c.map(s, |x: u8| u64::from(x)),
        Vpmovzxwd => |c, s| c.map(s, |x: u16| u32::from(x)),
        Vpmovzxwq => |c, s| c.map(s, |x: u16| u64::from(x)),
        Vpmovzxdq => |c, s| c.map(s, |x: u32| u64::from(x)),
        Vpmovsxbw => |c, s| c.map(s, |x: i8| i16::from(x)),
        Vpmovsxbd => |c, s| c.map(s, |x: i8| i32::from(x)),
        Vpmovsxbq => |c, s| c.map(s, |x: i8| i64::from(x)),
        Vpmovsxwd => |c, s| c.map(s, |x: i16| i32::from(x)),
        Vpmovsxwq => |c, s| c.map(s, |x: i16| i64::from(x)),
        Vpmovsxdq => |c, s| c.map(s, |x: i32| i64::from(x)),
        _ => return None,
    })
}

fn narrowed(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vpmovwb => |c, s| c.map(s, |x: u16| x as u8),
        Vpmovdb => |c, s| c.map(s, |x: u32| x as u8),
        Vpmovdw => |c, s| c.map(s, |x: u32| x as u16),
        Vpmovqb => |c, s| c.map(s, |x: u64| x as u8),
        Vpmovqw => |c, s| c.map(s, |x: u64| x as u16),
        Vpmovqd => |c, s| c.map(s, |x: u64| x as u32),
        Vpmovswb => |c, s| c.map(s, |x: i16| x.clamp(-128, 127) as i8),
        Vpmovsdb => |c, s| c.map(s, |x: i32| x.clamp(-128, 127) as i8),
        Vpmovsdw => |c, s| c.map(s, |x: i32| x.clamp(-32768, 32767) as i16),
        Vpmovsqd => |c, s| c.map(s, |x: i64| x.clamp(i32::MIN.into(), i32::MAX.into()) as i32),
        Vpmovuswb => |c, s| c.map(s, |x: u16| x.min(255) as u8),
        Vpmovusdb => |c, s| c.map(s, |x: u32| x.min(255) as u8),
        Vpmovsqb => |c, s| c.map(s, |x: i64| x.clamp(-128, 127) as i8),
        Vpmovsqw => |c, s| c.map(s, |x: i64| x.clamp(-32768, 32767) as i16),
        Vpmovusqb => |c, s| c.map(s, |x: u64| x.min(255) as u8),
        Vpmovusqw => |c, s| c.map(s, |x: u64| x.min(65535) as u16),
        Vpmovusqd => |c, s| c.map(s, |x: u64| x.min(u32::MAX.into()) as u32),
        Vpmovusdw => |c, s| c.map(s, |x: u32| x.min(65535) as u16),
        _ => return None,
    })
}

/// Conversions of the lowest lane, between floats, or to and from a general register.
fn scalars(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vcvtss2sd => |c, s| {
            let (x, active) = (c.lanes::<f32>(s, 2, c.active(s) & 1)?, c.active(s));
            let mut result = c.vector(s, 1)?;
            result.set(0, widen(x.get(0)));
            c.set_active::<f64>(s, &result, 2, active | !1)
        },
        Vcvtsd2ss => |c, s| {
            let (x, active) = (c.lanes::<f64>(s, 2, c.active(s) & 1)?, c.active(s));
            let mut result = c.vector(s, 1)?;
            result.set(0, narrow(x.get(0)));
            c.set_active::<f32>(s, &result, 4, active | !1)
        },
        Vcvtsi2ss => |c, s| {
            let x = integer(c, s)? as f32;
            c.first(s, |_: f32, _| x)
        },
        Vcvtsi2sd => |c, s| {
            let x = integer(c, s)? as f64;
            c.first(s, |_: f64, _| x)
        },
        Vcvtss2si | Vcvttss2si => |c, s| {
            let x = f32::from_bits(c.value(s, 1)? as u32);
            let rounding = if s.mnemonic == Vcvtss2si {
                NEAREST
            } else {
                ZERO
            };
            set_integer(c, s, x, rounding)
        },
        Vcvtsd2si | Vcvttsd2si => |c, s| {
            let x = f64::from_bits(c.value(s, 1)?);
            let rounding = if s.mnemonic == Vcvtsd2si {
                NEAREST
            } else {
                ZERO
            };
            set_integer(c, s, x, rounding)
        },
        _ => return None,
    })
}

/// Operand 2 as a signed integer.
fn integer(cpu: &Cpu, step: &Step) -> Outcome<i64> {
    let x = cpu.value(step, 2)?;
    Ok(if step.bytes(2) == 4 {
        i64::from(x as i32)
    } else {
        x as i64
    })
}

fn set_integer(cpu: &mut Cpu, step: &Step, x: impl Float, rounding: Rounding) -> Outcome<()> {
    let x = match step.bytes(0) {
        4 => x.to_i32(rounding) as u64,
        _ => x.to_i64(rounding) as u64,
    };
    cpu.set_value(step, 0, x)
}
