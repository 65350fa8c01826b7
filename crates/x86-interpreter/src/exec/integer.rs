//! Arithmetic of integers.

use crate::cpu::Action;
use crate::step::Step;
use iced_x86::Mnemonic::*;

pub(super) fn action(step: &Step) -> Option<Action> {
    actions! { step;
        Vpaddb: u8, Vpaddw: u16, Vpaddd: u32, Vpaddq: u64 => |c, s| c.zip(s, T::wrapping_add);
        Vpsubb: u8, Vpsubw: u16, Vpsubd: u32, Vpsubq: u64 => |c, s| c.zip(s, T::wrapping_sub);
        Vpaddsb: i8, Vpaddsw: i16, Vpaddusb: u8, Vpaddusw: u16 => |c, s| c.zip(s, T::saturating_add);
        Vpsubsb: i8, Vpsubsw: i16, Vpsubusb: u8, Vpsubusw: u16 => |c, s| c.zip(s, T::saturating_sub);
        Vpmullw: u16, Vpmulld: u32, Vpmullq: u64 => |c, s| c.zip(s, T::wrapping_mul);
        Vpmulhw => |c, s| c.zip(s, |a: i16, b| ((i32::from(a) * i32::from(b)) >> 16) as i16);
        Vpmulhuw => |c, s| c.zip(s, |a: u16, b| ((u32::from(a) * u32::from(b)) >> 16) as u16);
        Vpavgb: u8, Vpavgw: u16 => |c, s| c.zip(s, |a: T, b| (u32::from(a) + u32::from(b)).div_ceil(2) as T);
        // Products of the low halves.
        Vpmuludq => |c, s| c.zip(s, |a: u64, b| (a & 0xFFFF_FFFF) * (b & 0xFFFF_FFFF));
        Vpmuldq => |c, s| c.zip(s, |a: i64, b| i64::from(a as i32) * i64::from(b as i32));
        Vpmaddwd => |c, s| c.zip(s, |a: i32, b| add_words(0, a, b));
        // Unsigned bytes times signed bytes.
        Vpmaddubsw => |c, s| {
            c.zip(s, |a: u16, b| {
                let product = |i: u32| i32::from((a >> i) as u8) * i32::from((b >> i) as i8);
                (product(0) + product(8)).clamp(-32768, 32767) as i16
            })
        };
        Vpdpwssd => |c, s| c.zip3(s, add_words);
        Vpdpbusd => |c, s| c.zip3(s, add_bytes);
        Vpmaxsb: i8, Vpmaxsw: i16, Vpmaxsd: i32, Vpmaxsq: i64, Vpmaxub: u8, Vpmaxuw: u16, Vpmaxud: u32, Vpmaxuq: u64
            => |c, s| c.zip(s, T::max);
        Vpminsb: i8, Vpminsw: i16, Vpminsd: i32, Vpminsq: i64, Vpminub: u8, Vpminuw: u16, Vpminud: u32, Vpminuq: u64
            => |c, s| c.zip(s, T::min);
        Vpabsb: i8, Vpabsw: i16, Vpabsd: i32, Vpabsq: i64 => |c, s| c.map(s, T::wrapping_abs);
    }
}

/// `sum += a · b` of two signed words.
fn add_words(sum: i32, a: i32, b: i32) -> i32 {
    let product = |i: u32| i32::from((a >> i) as i16) * i32::from((b >> i) as i16);
    (0..2).fold(sum, |sum, i| sum.wrapping_add(product(16 * i)))
}

/// `sum += a · b` of four unsigned bytes and four signed ones.
pub(super) fn add_bytes(sum: i32, a: i32, b: i32) -> i32 {
    let product = |i: u32| i32::from((a >> i) as u8) * i32::from((b >> i) as i8);
    (0..4).fold(sum, |sum, i| sum.wrapping_add(product(8 * i)))
}
