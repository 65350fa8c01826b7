//! The tile-program engine.
//!
//! A [`TileProgram`](kiln_plan::tile::TileProgram) goes through [`bind`] (symbols get values,
//! everything is checked), [`link`] (registers are allocated, every instruction becomes a function
//! of the CPU level) and [`run`] (the interpreter). After `bind` nothing can reach outside a buffer.

pub(crate) mod affine;
mod ahead;
mod bind;
mod cast;
mod check;
mod frame;
mod gather;
mod inst;
mod kernels;
mod lanes;
mod link;
mod linked;
mod live;
mod load;
mod lower;
mod random;
mod reduce;
mod run;
mod walk;
mod wide;

pub(crate) use bind::bind;
pub(crate) use lanes::Elem;
pub(crate) use link::link;
pub(crate) use linked::Linked;
pub(crate) use run::{Code, Ctx, Failure, Failures, Launch, Runner, run_all};

use kiln_base::Compute;

/// Evaluates `$body` with the type `$T` of a register's elements.
macro_rules! with_compute {
    ($ty:expr, $T:ident => $body:expr) => {
        match $ty {
            kiln_base::Compute::F32 => {
                type $T = f32;
                $body
            }
            kiln_base::Compute::F64 => {
                type $T = f64;
                $body
            }
            kiln_base::Compute::I32 => {
                type $T = i32;
                $body
            }
            kiln_base::Compute::I64 => {
                type $T = i64;
                $body
            }
            kiln_base::Compute::Mask => {
                type $T = u8;
                $body
            }
        }
    };
}
pub(crate) use with_compute;

/// The bits of a constant in a register of type `ty`, in the low bytes.
pub(crate) fn scalar_bits(value: kiln_base::Scalar, ty: Compute) -> u64 {
    match ty {
        Compute::F32 => (value.as_f64() as f32).to_bits() as u64,
        Compute::F64 => value.as_f64().to_bits(),
        Compute::I32 => value.as_i64() as i32 as u32 as u64,
        Compute::I64 => value.as_i64() as u64,
        Compute::Mask => value.as_bool() as u64,
    }
}
