//! Rust types that are elements of tensors, and the bytes of elements in memory.

use crate::{DType, Kind, Scalar, wrap_int};
use half::{bf16, f16};

mod sealed {
    pub trait Sealed {}
}

/// A Rust type whose values are the elements of a [`DType`].
pub trait Element: Copy + Send + Sync + 'static + sealed::Sealed {
    /// The dtype.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($t:ty = $d:ident),*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$d;
        }
    )*};
}
elements!(
    bool = Bool,
    u8 = U8,
    i8 = I8,
    i16 = I16,
    i32 = I32,
    i64 = I64,
    u16 = U16,
    u32 = U32,
    u64 = U64,
    f16 = F16,
    bf16 = BF16,
    f32 = F32,
    f64 = F64
);

/// Returns the elements of a dtype that aligned native-endian bytes hold.
///
/// # Errors
/// If `T` is another dtype's type, the bytes are not aligned, or a bool is neither 0 nor 1.
pub fn elements<T: Element>(dtype: DType, bytes: &[u8]) -> Result<&[T], String> {
    if T::DTYPE != dtype {
        return Err(format!("asked for {} elements of {dtype}", T::DTYPE));
    }
    if bytes.is_empty() {
        return Ok(&[]);
    }
    if !bytes.as_ptr().cast::<T>().is_aligned() {
        return Err(format!("the bytes are not aligned for {dtype}"));
    }
    // A bool of another value would be undefined behaviour; no valid plan produces one.
    if dtype == DType::Bool && bytes.iter().any(|b| *b > 1) {
        return Err("a bool is neither 0 nor 1".into());
    }
    let len = bytes.len() / size_of::<T>();
    // SAFETY: the bytes are aligned for T, every bit pattern is a number, and bools were checked.
    Ok(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), len) })
}

impl DType {
    /// Returns the elements of a float dtype; none for other dtypes.
    pub fn floats(self, bytes: &[u8]) -> Vec<f64> {
        fn read<const N: usize>(bytes: &[u8], float: impl Fn([u8; N]) -> f64) -> Vec<f64> {
            let (elements, _) = bytes.as_chunks::<N>();
            elements.iter().map(|b| float(*b)).collect()
        }
        match self {
            DType::F16 => read(bytes, |b| f16::from_le_bytes(b).to_f64()),
            DType::BF16 => read(bytes, |b| bf16::from_le_bytes(b).to_f64()),
            DType::F32 => read(bytes, |b| f32::from_le_bytes(b) as f64),
            DType::F64 => read(bytes, f64::from_le_bytes),
            _ => match self.float8() {
                Some(float) => read(bytes, |[b]| float.to_f32(b).into()),
                None => Vec::new(),
            },
        }
    }

    /// Returns the elements of an integer dtype or of bool; none for other dtypes. Every byte of a bool except 0 is
    /// true; u64 values keep their bits.
    pub fn ints(self, bytes: &[u8]) -> Vec<i64> {
        if self.is_float() {
            return Vec::new();
        }
        let int = |b: &[u8]| {
            let mut word = [0; 8];
            word[..b.len()].copy_from_slice(b);
            wrap_int(i64::from_le_bytes(word), self)
        };
        bytes.chunks_exact(self.size()).map(int).collect()
    }

    /// Returns floats as elements of a float dtype, rounded if the dtype is narrower.
    pub fn float_bytes(self, floats: &[f64]) -> Vec<u8> {
        fn write<const N: usize>(floats: &[f64], bytes: impl Fn(f64) -> [u8; N]) -> Vec<u8> {
            floats.iter().flat_map(|x| bytes(*x)).collect()
        }
        match self {
            DType::F16 => write(floats, |x| f16::from_f32(to_odd(x)).to_le_bytes()),
            DType::BF16 => write(floats, |x| bf16::from_f32(to_odd(x)).to_le_bytes()),
            DType::F32 => write(floats, |x| (x as f32).to_le_bytes()),
            _ => match self.float8() {
                Some(float) => write(floats, |x| [float.from_f32(to_odd(x))]),
                None => write(floats, f64::to_le_bytes),
            },
        }
    }

    /// Returns integers as elements of an integer dtype or of bool, wrapped if the dtype is narrower.
    pub fn int_bytes(self, ints: &[i64]) -> Vec<u8> {
        let bytes = |x: &i64| {
            let bytes = wrap_int(*x, self).to_le_bytes();
            bytes.into_iter().take(self.size())
        };
        ints.iter().flat_map(bytes).collect()
    }
}

/// Rounds `x` to the nearest value of a floating `dtype`.
pub fn round_float(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::from_f32(to_odd(x)).to_f64(),
        DType::BF16 => bf16::from_f32(to_odd(x)).to_f64(),
        DType::F32 => x as f32 as f64,
        _ => match dtype.float8() {
            Some(float) => float.to_f32(float.from_f32(to_odd(x))).into(),
            None => x,
        },
    }
}

/// Returns an f32 that rounds to narrower floats as `x` does: `x` truncated towards 0, and made odd if it is not exact.
fn to_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let widened = f64::from(nearest);
    if widened == x || x.is_nan() {
        return nearest;
    }
    f32::from_bits((nearest.to_bits() - u32::from(widened.abs() > x.abs())) | 1)
}

impl Scalar {
    /// Returns the bytes of an element of a dtype.
    pub fn to_bytes(self, dtype: DType) -> Vec<u8> {
        match self.cast(dtype) {
            Scalar::Float(x) => dtype.float_bytes(&[x]),
            other => dtype.int_bytes(&[other.as_i64()]),
        }
    }

    /// Returns the single element in these bytes, or `None` if their number is wrong.
    pub fn from_bytes(dtype: DType, bytes: &[u8]) -> Option<Scalar> {
        if bytes.len() != dtype.size() {
            return None;
        }
        let int = || dtype.ints(bytes).first().copied();
        match dtype.kind() {
            Kind::Float => dtype.floats(bytes).first().copied().map(Scalar::Float),
            Kind::Int => int().map(Scalar::Int),
            Kind::Bool => int().map(|i| Scalar::Bool(i != 0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_pass_through_memory() {
        for dtype in DType::ALL {
            for x in [0.0, 1.0, -2.5, 3e38, f64::INFINITY, -1e300] {
                let held = Scalar::Float(x).cast(dtype);
                let bytes = Scalar::Float(x).to_bytes(dtype);
                assert_eq!(bytes.len(), dtype.size());
                assert_eq!(Scalar::from_bytes(dtype, &bytes), Some(held), "{dtype} {x}");
            }
            assert_eq!(Scalar::from_bytes(dtype, &[0; 3]), None);
        }
        assert_eq!(DType::I16.ints(&[0xfe, 0xff, 1, 0]), [-2, 1]);
        assert_eq!(DType::Bool.ints(&[0, 7]), [0, 1]);
        assert_eq!(DType::U64.int_bytes(&[-1]), [0xff; 8]);
        assert!(DType::F16.floats(&f16::NAN.to_le_bytes())[0].is_nan());
        assert_eq!(DType::F32.float_bytes(&[0.1]), 0.1f32.to_le_bytes());
    }

    #[test]
    fn wide_numbers_round_once() {
        let two = |n: i32| 2f64.powi(n);
        for dtype in DType::ALL.into_iter().filter(|d| d.is_narrow_float()) {
            let float = dtype.float().unwrap();
            let (digits, least) = (float.digits - 1, float.smallest());
            // Ties between neighbours, of which the first or the second is even; and slightly less and more.
            for low in [1.0, 1.0 + two(-digits)] {
                let (tie, high) = (low + two(-digits - 1), low + two(-digits));
                for little in [two(-30), two(-50)] {
                    let near = [tie - little, tie + little].map(|x| round_float(x, dtype));
                    assert_eq!(near, [low, high], "{dtype} {little}");
                }
                let even = if low == 1.0 { low } else { high };
                assert_eq!(round_float(-tie, dtype), -even, "{dtype}");
                assert_eq!(dtype.floats(&dtype.float_bytes(&[tie])), [even]);
            }
            let tiny = [1.0, 1.0 + two(-50)].map(|x| round_float(x * two(least - 1), dtype));
            assert_eq!(tiny, [0.0, two(least)], "{dtype}");
            let ends = [1e-300, -1e-300].map(|x| round_float(x, dtype));
            assert_eq!(ends, [0.0, 0.0], "{dtype}");
            let fnuz = dtype.float8().is_some_and(|f| f.fnuz);
            assert_eq!(ends[1].is_sign_negative(), !fnuz, "{dtype}");
            assert!(!round_float(1e300, dtype).is_finite(), "{dtype}");
        }
    }
}
