//! Conversions. The common ones have loops of their own; all others convert lane by lane through an exact value.

use super::float::{flush, saturate};
use super::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use super::rounding::{Down, Nearest, Rounding, Up, Zero, odd_f32, to_f32, to_tf32};
use super::{Bf, Half, LANES, Loop, Operands, Registers, Run, binary, compiled, unary};
use crate::ptx::Type::{self, *};

/// The parameters of a `cvt`.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Conversion {
    pub from: Type,
    pub to: Type,
    pub rounding: Rounding,
    /// True if a float is rounded to an integer, as by `rni`.
    pub whole: bool,
    pub saturate: bool,
    pub flush: bool,
}

const TYPES: [Type; 12] = [U8, S8, U16, S16, U32, S32, U64, S64, F16, Bf16, F32, F64];
const ROUNDINGS: [Rounding; 4] = [
    Rounding::Nearest,
    Rounding::Zero,
    Rounding::Down,
    Rounding::Up,
];

impl Conversion {
    /// The loop and its number.
    pub fn pick(&self) -> Option<(Run, u32)> {
        if let Some(run) = self.fast() {
            return Some((run, 0));
        }
        let index = |ty: Type| TYPES.iter().position(|&t| t == ty).map(|i| i as u32);
        let number = index(self.from)?
            | index(self.to)? << 4
            | (self.rounding as u32) << 8
            | (self.whole as u32) << 10
            | (self.saturate as u32) << 11
            | (self.flush as u32) << 12;
        Some((compiled::<General>(), number))
    }

    fn from_number(n: u32) -> Conversion {
        Conversion {
            from: TYPES[(n & 15) as usize],
            to: TYPES[(n >> 4 & 15) as usize],
            rounding: ROUNDINGS[(n >> 8 & 3) as usize],
            whole: n >> 10 & 1 != 0,
            saturate: n >> 11 & 1 != 0,
            flush: n >> 12 & 1 != 0,
        }
    }

    fn fast(&self) -> Option<Run> {
        let nearest = self.rounding == Rounding::Nearest;
        if self.flush {
            return match (self.from, self.to) {
                (F32, F64) => Some(unary(|x: f32| flush(x) as f64)),
                _ => None,
            };
        }
        if self.saturate {
            return match (self.from, self.to) {
                (F32, F32) if !self.whole => Some(unary(saturate)),
                _ => None,
            };
        }
        if self.from.is_float() {
            return self.fast_of_float(nearest);
        }
        self.fast_of_integer(nearest)
    }

    fn fast_of_integer(&self, nearest: bool) -> Option<Run> {
        Some(match (self.from, self.to) {
            (U8, U16 | U32 | S16 | S32) => unary(|x: u8| x as u32),
            (S8, U16 | U32 | S16 | S32) => unary(|x: i8| x as i32),
            (U16, U32 | S32) => unary(|x: u16| x as u32),
            (S16, U32 | S32) => unary(|x: i16| x as i32),
            (U8, U64 | S64) => unary(|x: u8| x as u64),
            (S8, U64 | S64) => unary(|x: i8| x as i64),
            (U16, U64 | S64) => unary(|x: u16| x as u64),
            (S16, U64 | S64) => unary(|x: i16| x as i64),
            (U32, U64 | S64) => unary(|x: u32| x as u64),
            (S32, U64 | S64) => unary(|x: i32| x as i64),
            (U64 | S64, U64 | S64) => unary(|x: u64| x),
            (U32 | S32, U32 | S32) => unary(|x: u32| x),
            (U16 | S16 | U32 | S32, U8) => unary(|x: u32| x as u8),
            (U16 | S16 | U32 | S32, S8) => unary(|x: u32| x as i8),
            (U32 | S32, U16) => unary(|x: u32| x as u16),
            (U32 | S32, S16) => unary(|x: u32| x as i16),
            (U64 | S64, U8) => unary(|x: u64| x as u8),
            (U64 | S64, S8) => unary(|x: u64| x as i8),
            (U64 | S64, U16) => unary(|x: u64| x as u16),
            (U64 | S64, S16) => unary(|x: u64| x as i16),
            (U64 | S64, U32 | S32) => unary(|x: u64| x as u32),
            _ if !nearest => return None,
            (U8, F32) => unary(|x: u8| x as f32),
            (S8, F32) => unary(|x: i8| x as f32),
            (U16, F32) => unary(|x: u16| x as f32),
            (S16, F32) => unary(|x: i16| x as f32),
            (U32, F32) => unary(|x: u32| x as f32),
            (S32, F32) => unary(|x: i32| x as f32),
            (U64, F32) => unary(|x: u64| x as f32),
            (S64, F32) => unary(|x: i64| x as f32),
            (U32, F64) => unary(|x: u32| x as f64),
            (S32, F64) => unary(|x: i32| x as f64),
            (U64, F64) => unary(|x: u64| x as f64),
            (S64, F64) => unary(|x: i64| x as f64),
            _ => return None,
        })
    }

    fn fast_of_float(&self, nearest: bool) -> Option<Run> {
        /// Float to integer by each rounding.
        macro_rules! whole {
            ($float:ty, $int:ty) => {
                match self.rounding {
                    Rounding::Nearest => unary(|x: $float| x.round_ties_even() as $int),
                    Rounding::Zero => unary(|x: $float| x as $int),
                    Rounding::Down => unary(|x: $float| x.floor() as $int),
                    Rounding::Up => unary(|x: $float| x.ceil() as $int),
                }
            };
        }
        /// Float to a float of integer value by each rounding.
        macro_rules! integral {
            ($float:ty) => {
                match self.rounding {
                    Rounding::Nearest => unary(<$float>::round_ties_even),
                    Rounding::Zero => unary(<$float>::trunc),
                    Rounding::Down => unary(<$float>::floor),
                    Rounding::Up => unary(<$float>::ceil),
                }
            };
        }
        Some(match (self.from, self.to) {
            (F32, S32) => whole!(f32, i32),
            (F32, U32) => whole!(f32, u32),
            (F32, S64) => whole!(f32, i64),
            (F32, U64) => whole!(f32, u64),
            (F64, S32) => whole!(f64, i32),
            (F64, U32) => whole!(f64, u32),
            (F64, S64) => whole!(f64, i64),
            (F64, U64) => whole!(f64, u64),
            (F32, F32) if self.whole => integral!(f32),
            (F64, F64) if self.whole => integral!(f64),
            (F32, F32) => unary(|x: f32| x),
            (F64, F64) => unary(|x: f64| x),
            (F32, F64) => unary(|x: f32| x as f64),
            (F16, F32) => unary(|x: Half| x.0),
            (Bf16, F32) => unary(|x: Bf| x.0),
            (F16, F64) => unary(|x: Half| x.0 as f64),
            (Bf16, F64) => unary(|x: Bf| x.0 as f64),
            _ if !nearest || self.whole => return None,
            (F64, F32) => unary(|x: f64| x as f32),
            (F32, F16) => unary(Half),
            (F32, Bf16) => unary(Bf),
            (F64, F16) => unary(|x: f64| Half(odd_f32(x, 0.0))),
            (F64, Bf16) => unary(|x: f64| Bf(odd_f32(x, 0.0))),
            _ => return None,
        })
    }

    /// The bits of `raw` converted.
    fn convert(&self, raw: u64) -> u64 {
        match (self.read(raw), self.to.is_float()) {
            (Exact::Integer(i), false) => self.narrow_integer(i),
            (Exact::Integer(i), true) => {
                let rounded = i as f64;
                self.write_float(rounded, (i - rounded as i128) as f64)
            }
            (Exact::Float(x), false) if x.is_nan() => 0,
            (Exact::Float(x), false) => {
                let (low, high) = self.integer_range();
                self.narrow_integer((self.to_whole(x) as i128).clamp(low, high))
            }
            (Exact::Float(x), true) if self.whole => self.write_float(self.to_whole(x), 0.0),
            (Exact::Float(x), true) => self.write_float(x, 0.0),
        }
    }

    fn read(&self, raw: u64) -> Exact {
        Exact::Float(match self.from {
            U8 => return Exact::Integer(raw as u8 as i128),
            S8 => return Exact::Integer(raw as i8 as i128),
            U16 => return Exact::Integer(raw as u16 as i128),
            S16 => return Exact::Integer(raw as i16 as i128),
            U32 => return Exact::Integer(raw as u32 as i128),
            S32 => return Exact::Integer(raw as i32 as i128),
            U64 => return Exact::Integer(raw as i128),
            S64 => return Exact::Integer(raw as i64 as i128),
            F16 => f16_to_f32(raw as u32) as f64,
            Bf16 => bf16_to_f32(raw as u32) as f64,
            F32 if self.flush => flush(f32::from_bits(raw as u32)) as f64,
            F32 => f32::from_bits(raw as u32) as f64,
            _ => f64::from_bits(raw),
        })
    }

    fn to_whole(self, x: f64) -> f64 {
        match self.rounding {
            Rounding::Nearest => x.round_ties_even(),
            Rounding::Zero => x.trunc(),
            Rounding::Down => x.floor(),
            Rounding::Up => x.ceil(),
        }
    }

    fn integer_range(&self) -> (i128, i128) {
        let bits = 8 * self.to.size() as u32;
        if self.to.is_signed() {
            (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        } else {
            (0, (1 << bits) - 1)
        }
    }

    fn narrow_integer(&self, value: i128) -> u64 {
        let (low, high) = self.integer_range();
        let value = if self.saturate {
            value.clamp(low, high)
        } else {
            value
        } as u64;
        match self.to {
            U8 => value as u8 as u64,
            S8 => value as i8 as u64,
            U16 => value as u16 as u64,
            S16 => value as i16 as u64,
            _ => value,
        }
    }

    /// `value + rest`, rounded once.
    fn write_float(&self, value: f64, remainder: f64) -> u64 {
        let single = |x: f32| {
            let x = if self.saturate { saturate(x) } else { x };
            if self.flush { flush(x) } else { x }
        };
        match self.to {
            F64 => value.to_bits(),
            F32 => single(match self.rounding {
                Rounding::Nearest => to_f32::<Nearest>(odd_sum(value, remainder), 0.0),
                Rounding::Zero => to_f32::<Zero>(value, remainder),
                Rounding::Down => to_f32::<Down>(value, remainder),
                Rounding::Up => to_f32::<Up>(value, remainder),
            })
            .to_bits() as u64,
            F16 => self.narrow_float(value, remainder, f32_to_f16, f16_to_f32),
            _ => self.narrow_float(value, remainder, f32_to_bf16, bf16_to_f32),
        }
    }

    fn narrow_float(
        &self,
        value: f64,
        remainder: f64,
        narrow: fn(f32) -> u32,
        widen: fn(u32) -> f32,
    ) -> u64 {
        let odd = odd_f32(value, remainder);
        let odd = if self.saturate { saturate(odd) } else { odd };
        let nearest = narrow(odd);
        let rounded_back = widen(nearest);
        let towards_zero = match self.rounding {
            Rounding::Nearest => return nearest as u64,
            Rounding::Zero => rounded_back.abs() > odd.abs(),
            Rounding::Down => rounded_back > odd,
            Rounding::Up => rounded_back < odd,
        };
        // The adjacent code in the order of values, which is the order of magnitudes up to the sign.
        let shrink = (rounded_back > 0.0) == (rounded_back > odd);
        (match (towards_zero, shrink) {
            (false, _) => nearest,
            (true, true) => nearest - 1,
            (true, false) => nearest + 1,
        }) as u64
    }
}

/// An f64 near `value + rest` that rounds to the same f32 as the exact sum (rounding to odd).
fn odd_sum(value: f64, remainder: f64) -> f64 {
    if remainder == 0.0 || value.to_bits() & 1 == 1 {
        return value;
    }
    if remainder > 0.0 {
        value.next_up()
    } else {
        value.next_down()
    }
}

enum Exact {
    Integer(i128),
    Float(f64),
}

struct General;

impl Loop for General {
    #[inline(always)]
    fn run(registers: &mut Registers, o: &Operands, mask: u32) {
        let conversion = Conversion::from_number(o.x);
        for l in (0..LANES).filter(|l| mask >> l & 1 != 0) {
            let raw = match conversion.from.is_wide() {
                true => registers.wide(o.a)[l],
                false => registers.word(o.a)[l] as u64,
            };
            let out = conversion.convert(raw);
            match conversion.to.is_wide() {
                true => registers.wide_mut(o.d)[l] = out,
                false => registers.word_mut(o.d)[l] = out as u32,
            }
        }
    }
}

/// Two f32 → a packed pair, the first operand in the high half; `relu` clamps at 0.
pub(crate) fn pick_pair(to: Type, relu: bool) -> Option<Run> {
    #[inline(always)]
    fn clamp(x: f32) -> f32 {
        if x < 0.0 { 0.0 } else { x }
    }
    Some(match (to, relu) {
        (F16x2, false) => binary(|x: f32, y: f32| f32_to_f16(x) << 16 | f32_to_f16(y)),
        (Bf16x2, false) => binary(|x: f32, y: f32| f32_to_bf16(x) << 16 | f32_to_bf16(y)),
        (F16x2, true) => binary(|x: f32, y: f32| f32_to_f16(clamp(x)) << 16 | f32_to_f16(clamp(y))),
        (Bf16x2, true) => {
            binary(|x: f32, y: f32| f32_to_bf16(clamp(x)) << 16 | f32_to_bf16(clamp(y)))
        }
        _ => return None,
    })
}

/// 32 → 64 bits, with the sign of `from`.
pub(crate) fn widening(from: Type) -> Run {
    if from.is_signed() {
        unary(|x: i32| x as i64)
    } else {
        unary(|x: u32| x as u64)
    }
}

/// `cvt.rna.tf32.f32`.
pub(crate) fn pick_tf32() -> Run {
    unary(to_tf32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn general(from: Type, to: Type, rounding: Rounding, raw: u64) -> u64 {
        let whole = from.is_float() && !to.is_float();
        Conversion {
            from,
            to,
            rounding,
            whole,
            saturate: false,
            flush: false,
        }
        .convert(raw)
    }

    #[test]
    fn the_general_path_agrees_with_the_fast_loops() {
        for bits in [
            0u32,
            0x3fc0_0000,
            0xbfc0_0000,
            0x4f80_0000,
            0x7f80_0000,
            0x3380_0001,
        ] {
            let x = f32::from_bits(bits);
            let raw = bits as u64;
            assert_eq!(general(F32, S32, Rounding::Zero, raw) as i32, x as i32);
            assert_eq!(general(F32, U32, Rounding::Up, raw) as u32, x.ceil() as u32);
            assert_eq!(
                general(F32, F16, Rounding::Nearest, raw) as u32,
                f32_to_f16(x)
            );
            assert_eq!(
                general(F32, F64, Rounding::Nearest, raw),
                (x as f64).to_bits()
            );
        }
        let big = (1u64 << 53) + 1 + (1 << 29);
        assert_eq!(
            general(U64, F32, Rounding::Nearest, big) as u32,
            (big as f32).to_bits()
        );
    }

    #[test]
    fn directed_halves_bracket_the_value() {
        for x in [0.1f32, -0.1, 1e-7, 65519.0] {
            let raw = x.to_bits() as u64;
            let down = f16_to_f32(general(F32, F16, Rounding::Down, raw) as u32);
            let up = f16_to_f32(general(F32, F16, Rounding::Up, raw) as u32);
            assert!(down <= x && x <= up && down < up, "{down} {x} {up}");
            let zero = f16_to_f32(general(F32, F16, Rounding::Zero, raw) as u32);
            assert_eq!(zero, if x > 0.0 { down } else { up });
        }
    }
}
