//! A single number of any dtype.

use crate::{DType, Kind, round_float};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::hash::{Hash, Hasher};

/// A number as the user wrote it. Equality and hashing are by bits, so `NaN == NaN` and `0.0 != -0.0`.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Scalar {
    Bool(bool),
    Int(i64),
    Float(f64),
}

impl Scalar {
    /// Returns the kind of values that the scalar can hold.
    pub fn kind(self) -> Kind {
        match self {
            Scalar::Bool(_) => Kind::Bool,
            Scalar::Int(_) => Kind::Int,
            Scalar::Float(_) => Kind::Float,
        }
    }

    /// Returns the value as `f64`.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => b as i64 as f64,
            Scalar::Int(i) => i as f64,
            Scalar::Float(f) => f,
        }
    }

    /// Returns the value as `i64`: floats truncate and saturate, NaN gives 0.
    pub fn as_i64(self) -> i64 {
        match self {
            Scalar::Bool(b) => b as i64,
            Scalar::Int(i) => i,
            Scalar::Float(f) => f as i64,
        }
    }

    /// Returns the value as `bool`: everything except zero is true.
    pub fn as_bool(self) -> bool {
        match self {
            Scalar::Bool(b) => b,
            Scalar::Int(i) => i != 0,
            Scalar::Float(f) => f != 0.0,
        }
    }

    /// Returns the scalar as an element of `dtype` would hold it: floats round, narrow integers wrap.
    pub fn cast(self, dtype: DType) -> Scalar {
        match dtype.kind() {
            Kind::Bool => Scalar::Bool(self.as_bool()),
            Kind::Float => Scalar::Float(round_float(self.as_f64(), dtype)),
            Kind::Int => Scalar::Int(match self {
                Scalar::Float(f) => float_to_int(f, dtype),
                other => wrap_int(other.as_i64(), dtype),
            }),
        }
    }
}

/// Wraps `x` into an integer `dtype`; `u64` values are kept as the `i64` of the same bits.
#[inline]
pub fn wrap_int(x: i64, dtype: DType) -> i64 {
    match dtype {
        DType::Bool => (x != 0) as i64,
        DType::U8 => x as u8 as i64,
        DType::I8 => x as i8 as i64,
        DType::I16 => x as i16 as i64,
        DType::I32 => x as i32 as i64,
        DType::U16 => x as u16 as i64,
        DType::U32 => x as u32 as i64,
        _ => x,
    }
}

/// Converts a float to an integer `dtype`: truncates, saturates, and NaN becomes 0.
pub fn float_to_int(x: f64, dtype: DType) -> i64 {
    match dtype {
        DType::Bool => (x != 0.0) as i64,
        DType::U8 => x as u8 as i64,
        DType::I8 => x as i8 as i64,
        DType::I16 => x as i16 as i64,
        DType::I32 => x as i32 as i64,
        DType::U16 => x as u16 as i64,
        DType::U32 => x as u32 as i64,
        DType::U64 => x as u64 as i64,
        _ => x as i64,
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Scalar) -> bool {
        match (self, other) {
            (Scalar::Bool(a), Scalar::Bool(b)) => a == b,
            (Scalar::Int(a), Scalar::Int(b)) => a == b,
            (Scalar::Float(a), Scalar::Float(b)) => a.to_bits() == b.to_bits(),
            _ => false,
        }
    }
}

impl Eq for Scalar {}

impl Hash for Scalar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Scalar::Bool(b) => (0u8, *b as u64).hash(state),
            Scalar::Int(i) => (1u8, *i as u64).hash(state),
            Scalar::Float(f) => (2u8, f.to_bits()).hash(state),
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Bool(b) => write!(f, "{b}"),
            Scalar::Int(i) => write!(f, "{i}"),
            Scalar::Float(x) => write!(f, "{x:?}"),
        }
    }
}

macro_rules! from_number {
    ($variant:ident: $($t:ty),*) => {$(
        impl From<$t> for Scalar {
            fn from(x: $t) -> Scalar {
                Scalar::$variant(x.into())
            }
        }
    )*};
}
from_number!(Bool: bool);
from_number!(Int: i8, i16, i32, i64, u8, u16, u32);
from_number!(Float: f32, f64);

impl From<usize> for Scalar {
    fn from(x: usize) -> Scalar {
        Scalar::Int(x as i64)
    }
}
