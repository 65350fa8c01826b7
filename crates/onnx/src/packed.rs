//! Numbers of few bits. Kiln holds them one by one: integers as i8 or u8, floats as f32. They are unpacked when they are
//! read and packed when they are written.

use crate::proto::DataType;
use kiln_tensor::{DType, Tensor};

/// A dtype of ONNX whose numbers Kiln holds in a wider one.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Packed {
    /// Integers of 2 bits.
    Int2,
    /// Integers of 2 bits without sign.
    Uint2,
    /// Integers of 4 bits.
    Int4,
    /// Integers of 4 bits without sign.
    Uint4,
    /// Floats of 4 bits, up to 6.
    Float4E2M1,
    /// Powers of 2, in 8 bits.
    Float8E8M0,
}

/// The magnitudes of the floats of 4 bits, by their lower 3 bits.
const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

impl Packed {
    pub(crate) fn from_number(number: DataType) -> Option<Packed> {
        Some(match number {
            DataType::Int2 => Packed::Int2,
            DataType::Uint2 => Packed::Uint2,
            DataType::Int4 => Packed::Int4,
            DataType::Uint4 => Packed::Uint4,
            DataType::Float4e2m1 => Packed::Float4E2M1,
            DataType::Float8e8m0 => Packed::Float8E8M0,
            _ => return None,
        })
    }

    pub(crate) fn number(self) -> DataType {
        match self {
            Packed::Int2 => DataType::Int2,
            Packed::Uint2 => DataType::Uint2,
            Packed::Int4 => DataType::Int4,
            Packed::Uint4 => DataType::Uint4,
            Packed::Float4E2M1 => DataType::Float4e2m1,
            Packed::Float8E8M0 => DataType::Float8e8m0,
        }
    }

    /// The number of bits.
    pub const fn bits(self) -> usize {
        match self {
            Packed::Int2 | Packed::Uint2 => 2,
            Packed::Int4 | Packed::Uint4 | Packed::Float4E2M1 => 4,
            Packed::Float8E8M0 => 8,
        }
    }

    /// The dtype of the tensors that hold the numbers.
    pub const fn storage(self) -> DType {
        match self {
            Packed::Int2 | Packed::Int4 => DType::I8,
            Packed::Uint2 | Packed::Uint4 => DType::U8,
            Packed::Float4E2M1 | Packed::Float8E8M0 => DType::F32,
        }
    }

    /// Returns the least and largest integer, of integers.
    pub(crate) fn range(self) -> Option<(i64, i64)> {
        match self {
            Packed::Int2 => Some((-2, 1)),
            Packed::Uint2 => Some((0, 3)),
            Packed::Int4 => Some((-8, 7)),
            Packed::Uint4 => Some((0, 15)),
            Packed::Float4E2M1 | Packed::Float8E8M0 => None,
        }
    }

    /// Returns the bytes of `count` numbers as they are held.
    pub(crate) fn unpack(self, bytes: &[u8], count: usize) -> Vec<u8> {
        let bits = self.bits();
        let mask = u8::MAX >> (8 - bits);
        let code = |i: usize| bytes[i * bits / 8] >> (i * bits % 8) & mask;
        let codes = (0..count).map(code);
        match self {
            Packed::Uint2 | Packed::Uint4 => codes.collect(),
            Packed::Int2 | Packed::Int4 => codes
                .map(|c| ((c << (8 - bits)) as i8 >> (8 - bits)) as u8)
                .collect(),
            Packed::Float4E2M1 => codes
                .flat_map(|c| {
                    let sign = if c & 8 != 0 { -1.0 } else { 1.0 };
                    (sign * MAGNITUDES[usize::from(c & 7)]).to_le_bytes()
                })
                .collect(),
            Packed::Float8E8M0 => codes
                .flat_map(|c| match c {
                    0xFF => f32::NAN.to_le_bytes(),
                    // 2⁻¹²⁷ is subnormal.
                    0 => (1u32 << 22).to_le_bytes(),
                    c => (u32::from(c) << 23).to_le_bytes(),
                })
                .collect(),
        }
    }

    /// Returns packed numbers, of bytes as they are held.
    pub(crate) fn pack(self, bytes: &[u8]) -> Vec<u8> {
        let (floats, _) = bytes.as_chunks::<4>();
        let codes: Vec<u8> = match self {
            Packed::Int2 | Packed::Uint2 | Packed::Int4 | Packed::Uint4 => bytes.to_vec(),
            Packed::Float4E2M1 => {
                let code = |b: &[u8; 4]| {
                    let f = f32::from_le_bytes(*b);
                    let code = MAGNITUDES.iter().position(|m| *m == f.abs());
                    code.unwrap_or(0) as u8 | u8::from(f.is_sign_negative()) << 3
                };
                floats.iter().map(code).collect()
            }
            Packed::Float8E8M0 => {
                let exponent = |b: &[u8; 4]| (u32::from_le_bytes(*b) >> 23) as u8;
                floats.iter().map(exponent).collect()
            }
        };
        let bits = self.bits();
        let mask = u8::MAX >> (8 - bits);
        let byte = |codes: &[u8]| {
            let shifted = codes.iter().enumerate();
            shifted.fold(0, |byte, (i, c)| byte | (c & mask) << (i * bits))
        };
        codes.chunks(8 / bits).map(byte).collect()
    }

    /// Casts numbers. Integers keep their lower bits, floats of 4 bits are rounded to even and bounded, and powers of 2
    /// are found as `round_mode` says (`up`, `down`, `nearest`).
    pub(crate) fn cast(self, x: &Tensor, round_mode: &str) -> Tensor {
        match self {
            Packed::Int2 | Packed::Uint2 | Packed::Int4 | Packed::Uint4 => {
                let kept = x
                    .to_dtype(DType::I32)
                    .bitwise_and((1i64 << self.bits()) - 1);
                let sign = self.range().map_or(0, |(lowest, _)| -lowest);
                match sign {
                    0 => kept.to_dtype(self.storage()),
                    sign => (kept.bitwise_xor(sign) - sign).to_dtype(self.storage()),
                }
            }
            Packed::Float4E2M1 => {
                let x = x.to_dtype(DType::F32).clamp(-6.0, 6.0);
                let size = x.abs();
                let coarse = size
                    .full_like(2.0)
                    .where_cond(size.ge(4.0), size.ones_like());
                let step = coarse.where_cond(size.ge(2.0), 0.5);
                let y = (&x / &step).round() * step;
                y.masked_fill(x.isnan(), 0.0)
            }
            Packed::Float8E8M0 => {
                let x = x.to_dtype(DType::F32);
                let (mantissa, exponent) = x.abs().frexp();
                // The least number is 2⁻¹²⁷, also for 0.
                let field = (exponent.to_dtype(DType::F64) + 126.0).masked_fill(x.eq(0.0), 0.0);
                let field = field.clamp_min(0.0);
                let field = match round_mode {
                    "down" => field,
                    "nearest" => field + mantissa.ge(0.75),
                    _ => field + mantissa.gt(0.5),
                };
                let y = (field.clamp_max(254.0) - 127.0).exp2().to_dtype(DType::F32);
                y.masked_fill(x.isfinite().logical_not(), f64::NAN)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each code is read as its number and written back.
    #[test]
    fn codes_are_kept() {
        for packed in [
            Packed::Int2,
            Packed::Uint2,
            Packed::Int4,
            Packed::Uint4,
            Packed::Float4E2M1,
            Packed::Float8E8M0,
        ] {
            let bytes: Vec<u8> = (0..=255).collect();
            let count = 256 * 8 / packed.bits();
            let held = packed.unpack(&bytes, count);
            assert_eq!(held.len(), count * packed.storage().size());
            assert_eq!(packed.pack(&held), bytes, "{packed:?}");
            // A last byte that is not full.
            assert_eq!(packed.pack(&held[..packed.storage().size()]).len(), 1);
        }
        assert_eq!(Packed::Int4.unpack(&[0x8F], 2), [0xFF, 0xF8]);
    }
}
