//! Rust types of registers.

pub use kiln_base::Compute;
use kiln_base::DType;

/// Evaluates `$body` with the type `$T` of a register's elements.
#[macro_export]
macro_rules! with_compute {
    ($ty:expr, $T:ident => $body:expr) => {
        match $ty {
            $crate::compute::Compute::F32 => {
                type $T = f32;
                $body
            }
            $crate::compute::Compute::F64 => {
                type $T = f64;
                $body
            }
            $crate::compute::Compute::I32 => {
                type $T = i32;
                $body
            }
            $crate::compute::Compute::I64 => {
                type $T = i64;
                $body
            }
            $crate::compute::Compute::Mask => {
                type $T = u8;
                $body
            }
        }
    };
}
pub use crate::with_compute;

/// Returns the bits of a constant in a register of type `ty`, in the low bytes.
pub fn scalar_bits(value: kiln_base::Scalar, ty: Compute) -> u64 {
    match ty {
        Compute::F32 => (value.as_f64() as f32).to_bits() as u64,
        Compute::F64 => value.as_f64().to_bits(),
        Compute::I32 => value.as_i64() as i32 as u32 as u64,
        Compute::I64 => value.as_i64() as u64,
        Compute::Mask => value.as_bool() as u64,
    }
}

/// Returns the dtype that a register type is stored as without any change.
pub fn plain_dtype(ty: Compute) -> DType {
    ty.dtype()
}
