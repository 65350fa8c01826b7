//! Element types.

use crate::Float8;
use serde::{Deserialize, Serialize};
use std::fmt;

named_enum! {
    /// The element type of a tensor.
    DType[17] {
        Bool = "bool", U8 = "u8", I8 = "i8", I16 = "i16", I32 = "i32", I64 = "i64",
        U16 = "u16", U32 = "u32", U64 = "u64", F16 = "f16", BF16 = "bf16", F32 = "f32", F64 = "f64",
        F8E4M3 = "f8_e4m3", F8E5M2 = "f8_e5m2", F8E4M3FNUZ = "f8_e4m3fnuz", F8E5M2FNUZ = "f8_e5m2fnuz",
    }
}

/// The values that an element type can hold, from least to most general.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `true` and `false`.
    Bool,
    /// Integers.
    Int,
    /// Floating-point numbers.
    Float,
}

/// The properties of a float dtype.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Float {
    /// The bits of the significand, including the leading one.
    pub digits: i32,
    /// The exponent of the smallest normal number.
    pub least: i32,
    /// The largest finite number.
    pub largest: f64,
}

named_enum! {
    /// The types that kernels compute in; other dtypes convert when loaded and stored. A mask has one byte for each
    /// element, 0 or 1.
    Compute { F32 = "f32", F64 = "f64", I32 = "i32", I64 = "i64", Mask = "mask" }
}

impl DType {
    /// Returns the size of an element in bytes.
    pub const fn size(self) -> usize {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::F8E4M3 | DType::F8E5M2 | DType::F8E4M3FNUZ | DType::F8E5M2FNUZ => 1,
            DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::U64 | DType::F64 => 8,
        }
    }

    /// Returns the dtype with this short name.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Returns the kind of values that the dtype can hold.
    pub const fn kind(self) -> Kind {
        match self {
            DType::Bool => Kind::Bool,
            _ if self.float().is_some() => Kind::Float,
            _ => Kind::Int,
        }
    }

    /// True for a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self.kind(), Kind::Float)
    }

    /// True for f16 and bf16.
    pub const fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// Returns the format of a float dtype of 8 bits.
    pub const fn float8(self) -> Option<Float8> {
        Some(match self {
            DType::F8E4M3 => Float8::E4M3,
            DType::F8E5M2 => Float8::E5M2,
            DType::F8E4M3FNUZ => Float8::E4M3FNUZ,
            DType::F8E5M2FNUZ => Float8::E5M2FNUZ,
            _ => return None,
        })
    }

    /// True for a float dtype that kernels widen to f32: f16, bf16 and those of 8 bits.
    pub const fn is_narrow_float(self) -> bool {
        self.is_half() || self.float8().is_some()
    }

    /// Returns the properties of a float dtype.
    pub const fn float(self) -> Option<Float> {
        if let Some(float) = self.float8() {
            return Some(Float {
                digits: float.fraction as i32 + 1,
                least: 1 - float.bias as i32,
                largest: float.to_f32(float.largest as u8) as f64,
            });
        }
        let (digits, least, largest) = match self {
            DType::F16 => (11, -14, 65504.0),
            DType::BF16 => (8, -126, 255.0 * (1u128 << 120) as f64),
            DType::F32 => (24, -126, f32::MAX as f64),
            DType::F64 => (53, -1022, f64::MAX),
            _ => return None,
        };
        Some(Float {
            digits,
            least,
            largest,
        })
    }

    /// True for an integer type (`bool` is not).
    pub const fn is_int(self) -> bool {
        matches!(self.kind(), Kind::Int)
    }

    /// True for integers of 8 bits.
    pub const fn is_byte(self) -> bool {
        matches!(self, DType::U8 | DType::I8)
    }

    /// True if arithmetic is defined on this dtype: u16, u32, u64 and floats of 8 bits are only stored, compared and
    /// cast.
    pub const fn computes(self) -> bool {
        !matches!(self, DType::U16 | DType::U32 | DType::U64) && self.float8().is_none()
    }

    /// Returns the type that kernels compute this dtype in.
    pub const fn compute(self) -> Compute {
        match self {
            DType::Bool => Compute::Mask,
            DType::U8 | DType::I8 | DType::I16 | DType::U16 | DType::I32 => Compute::I32,
            DType::I64 | DType::U32 | DType::U64 => Compute::I64,
            DType::F16 | DType::BF16 | DType::F32 => Compute::F32,
            DType::F8E4M3 | DType::F8E5M2 | DType::F8E4M3FNUZ | DType::F8E5M2FNUZ => Compute::F32,
            DType::F64 => Compute::F64,
        }
    }

    /// Returns the inclusive bounds of an integer dtype's values as `(min, max)`; `u64`'s upper bound is `u64::MAX`.
    pub const fn int_range(self) -> Option<(i128, i128)> {
        Some(match self {
            DType::Bool => (0, 1),
            DType::U8 => (0, u8::MAX as i128),
            DType::I8 => (i8::MIN as i128, i8::MAX as i128),
            DType::I16 => (i16::MIN as i128, i16::MAX as i128),
            DType::I32 => (i32::MIN as i128, i32::MAX as i128),
            DType::I64 => (i64::MIN as i128, i64::MAX as i128),
            DType::U16 => (0, u16::MAX as i128),
            DType::U32 => (0, u32::MAX as i128),
            DType::U64 => (0, u64::MAX as i128),
            _ => return None,
        })
    }

    /// Returns the dtype that an operation on both operands computes in (PyTorch's `torch.promote_types`). The more
    /// general kind wins, and within a kind the smallest type that holds both. Returns `None` for u16, u32 and u64 with
    /// another integer type, and for floats of 8 bits with any other, as in PyTorch.
    pub fn promote(self, other: DType) -> Option<DType> {
        use DType::*;
        let (low, high) = if (self.kind(), self.size()) <= (other.kind(), other.size()) {
            (self, other)
        } else {
            (other, self)
        };
        Some(match (low, high) {
            (low, high) if low == high => high,
            (low, high) if low.float8().or(high.float8()).is_some() => return None,
            (low, high) if low.kind() != high.kind() => high,
            (F16, BF16) | (BF16, F16) => F32,
            (U8, I8) | (I8, U8) => I16,
            (low, high) if !low.computes() || !high.computes() => return None,
            (_, high) => high,
        })
    }
}

impl Float {
    /// Returns the distance from 1 to the next number.
    pub fn epsilon(self) -> f64 {
        2f64.powi(1 - self.digits)
    }

    /// Returns the exponent of the smallest positive number.
    pub const fn smallest(self) -> i32 {
        self.least + 1 - self.digits
    }
}

impl Compute {
    /// Returns the size of an element of a tile register in bytes.
    pub const fn size(self) -> usize {
        match self {
            Compute::Mask => 1,
            Compute::F32 | Compute::I32 => 4,
            Compute::F64 | Compute::I64 => 8,
        }
    }

    /// Returns the dtype whose elements are the same in registers and in memory.
    pub const fn dtype(self) -> DType {
        match self {
            Compute::F32 => DType::F32,
            Compute::F64 => DType::F64,
            Compute::I32 => DType::I32,
            Compute::I64 => DType::I64,
            Compute::Mask => DType::Bool,
        }
    }

    /// True for a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, Compute::F32 | Compute::F64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_round_as_their_properties_say() {
        for dtype in DType::ALL {
            let Some(float) = dtype.float() else {
                assert!(!dtype.is_float());
                continue;
            };
            let rounds = |x: f64| crate::round_float(x, dtype);
            assert_eq!(rounds(float.largest), float.largest, "{dtype}");
            assert!(!rounds(float.largest * (1.0 + float.epsilon())).is_finite());
            let next = 1.0 + float.epsilon();
            assert_eq!(rounds(next), next, "{dtype}");
            assert_eq!(rounds(1.0 + float.epsilon() * 0.25), 1.0, "{dtype}");
            let smallest = 2f64.powi(float.smallest());
            assert_eq!(rounds(smallest), smallest, "{dtype}");
            assert_eq!(rounds(smallest * 0.25), 0.0, "{dtype}");
        }
    }

    #[test]
    fn promotion_is_commutative_and_idempotent() {
        for a in DType::ALL {
            assert_eq!(a.promote(a), Some(a));
            for b in DType::ALL {
                assert_eq!(a.promote(b), b.promote(a), "{a} {b}");
            }
        }
        assert_eq!(DType::U8.promote(DType::I8), Some(DType::I16));
        assert_eq!(DType::F16.promote(DType::BF16), Some(DType::F32));
        assert_eq!(DType::I64.promote(DType::F16), Some(DType::F16));
        assert_eq!(DType::Bool.promote(DType::U8), Some(DType::U8));
        assert_eq!(DType::U8.promote(DType::I16), Some(DType::I16));
        assert_eq!(DType::U16.promote(DType::I16), None);
        assert_eq!(DType::I64.promote(DType::F8E5M2), None);
        assert_eq!(DType::F8E4M3.promote(DType::F32), None);
    }
}
