//! Arithmetic of integers.

use super::Action;
use crate::step::Step;
use iced_x86::Mnemonic::*;

pub(super) fn action(step: &Step) -> Option<Action> {
    sums(step)
        .or_else(|| products(step))
        .or_else(|| extremes(step))
}

fn sums(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vpaddb => |c, s| c.zip(s, u8::wrapping_add),
        Vpaddw => |c, s| c.zip(s, u16::wrapping_add),
        Vpaddd => |c, s| c.zip(s, u32::wrapping_add),
        Vpaddq => |c, s| c.zip(s, u64::wrapping_add),
        Vpsubb => |c, s| c.zip(s, u8::wrapping_sub),
        Vpsubw => |c, s| c.zip(s, u16::wrapping_sub),
        Vpsubd => |c, s| c.zip(s, u32::wrapping_sub),
        Vpsubq => |c, s| c.zip(s, u64::wrapping_sub),
        Vpaddsb => |c, s| c.zip(s, i8::saturating_add),
        Vpaddsw => |c, s| c.zip(s, i16::saturating_add),
        Vpaddusb => |c, s| c.zip(s, u8::saturating_add),
        Vpaddusw => |c, s| c.zip(s, u16::saturating_add),
        Vpsubsb => |c, s| c.zip(s, i8::saturating_sub),
        Vpsubsw => |c, s| c.zip(s, i16::saturating_sub),
        Vpsubusb => |c, s| c.zip(s, u8::saturating_sub),
        Vpsubusw => |c, s| c.zip(s, u16::saturating_sub),
        _ => return None,
    })
}

fn products(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vpmullw => |c, s| c.zip(s, u16::wrapping_mul),
        Vpmulld => |c, s| c.zip(s, u32::wrapping_mul),
        Vpmullq => |c, s| c.zip(s, u64::wrapping_mul),
        Vpmulhw => |c, s| c.zip(s, |a: i16, b| ((i32::from(a) * i32::from(b)) >> 16) as i16),
        Vpmulhuw => |c, s| c.zip(s, |a: u16, b| ((u32::from(a) * u32::from(b)) >> 16) as u16),
        Vpavgb => |c, s| {
            c.zip(s, |a: u8, b| {
                (u32::from(a) + u32::from(b)).div_ceil(2) as u8
            })
        },
        Vpavgw => |c, s| {
            c.zip(s, |a: u16, b| {
                (u32::from(a) + u32::from(b)).div_ceil(2) as u16
            })
        },
        // Products of the low halves.
        Vpmuludq => |c, s| c.zip(s, |a: u64, b| (a & 0xFFFF_FFFF) * (b & 0xFFFF_FFFF)),
        Vpmuldq => |c, s| c.zip(s, |a: i64, b| i64::from(a as i32) * i64::from(b as i32)),
        Vpmaddwd => |c, s| {
            c.zip(s, |a: u32, b| {
                let product = |i: u32| i32::from((a >> i) as i16) * i32::from((b >> i) as i16);
                product(0).wrapping_add(product(16))
            })
        },
        // Unsigned bytes times signed bytes.
        Vpmaddubsw => |c, s| {
            c.zip(s, |a: u16, b| {
                let product = |i: u32| i32::from((a >> i) as u8) * i32::from((b >> i) as i8);
                (product(0) + product(8)).clamp(-32768, 32767) as i16
            })
        },
        Vpdpwssd => |c, s| {
            c.zip3(s, |d: i32, a, b| {
                let product = |i: u32| i32::from((a >> i) as i16) * i32::from((b >> i) as i16);
                (0..2).fold(d, |sum, i| sum.wrapping_add(product(16 * i)))
            })
        },
        Vpdpbusd => |c, s| c.zip3(s, add_bytes),
        _ => return None,
    })
}

/// `sum += a · b` of four unsigned bytes and four signed ones.
pub(super) fn add_bytes(sum: i32, a: i32, b: i32) -> i32 {
    let product = |i: u32| i32::from((a >> i) as u8) * i32::from((b >> i) as i8);
    (0..4).fold(sum, |sum, i| sum.wrapping_add(product(8 * i)))
}

fn extremes(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vpmaxsb => |c, s| c.zip(s, i8::max),
        Vpmaxsw => |c, s| c.zip(s, i16::max),
        Vpmaxsd => |c, s| c.zip(s, i32::max),
        Vpmaxsq => |c, s| c.zip(s, i64::max),
        Vpmaxub => |c, s| c.zip(s, u8::max),
        Vpmaxuw => |c, s| c.zip(s, u16::max),
        Vpmaxud => |c, s| c.zip(s, u32::max),
        Vpmaxuq => |c, s| c.zip(s, u64::max),
        Vpminsb => |c, s| c.zip(s, i8::min),
        Vpminsw => |c, s| c.zip(s, i16::min),
        Vpminsd => |c, s| c.zip(s, i32::min),
        Vpminsq => |c, s| c.zip(s, i64::min),
        Vpminub => |c, s| c.zip(s, u8::min),
        Vpminuw => |c, s| c.zip(s, u16::min),
        Vpminud => |c, s| c.zip(s, u32::min),
        Vpminuq => |c, s| c.zip(s, u64::min),
        Vpabsb => |c, s| c.map(s, i8::wrapping_abs),
        Vpabsw => |c, s| c.map(s, i16::wrapping_abs),
        Vpabsd => |c, s| c.map(s, i32::wrapping_abs),
        Vpabsq => |c, s| c.map(s, i64::wrapping_abs),
        _ => return None,
    })
}
