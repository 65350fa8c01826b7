//! Rust types of register elements.

pub use kiln_base::Compute;

/// Evaluates `$body` with the type `$T` of a register's elements.
#[macro_export]
macro_rules! with_compute {
    ($ty:expr, $T:ident => $body:expr) => {
        $crate::with_compute!($ty, $T => $body; F32 f32, F64 f64, I32 i32, I64 i64, Mask u8)
    };
    ($ty:expr, $T:ident => $body:expr; $($name:ident $element:ty),*) => {
        match $ty {
            $($crate::compute::Compute::$name => {
                type $T = $element;
                $body
            })*
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
