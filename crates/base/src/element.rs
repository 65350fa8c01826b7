//! Rust types that are elements of tensors.

use crate::DType;
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
