//! Arithmetic as the processor does it, bit for bit.

mod float;
mod half;
mod rounding;

pub(crate) use float::{Float, flushed};
pub(crate) use half::{bfloat, from_half, narrow, to_half, widen};
pub(crate) use rounding::Rounding;
