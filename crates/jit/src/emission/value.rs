//! Values of a group of lanes.

use super::ir::Ir;
use super::step::{Src, Virt};
use kiln_base::Compute;
use kiln_x86::op;

/// The error for an instruction that can't be emitted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct NotEmitted;

/// A value of a group of lanes.
#[derive(Copy, Clone, Debug)]
pub(super) struct Value {
    pub ty: Compute,
    /// The registers; the second is used only with 64 bits per lane.
    pub parts: [Src; 2],
}

impl Value {
    /// Returns a value in one register.
    pub(super) fn new(ty: Compute, part: impl Into<Src>) -> Value {
        let part = part.into();
        Value {
            ty,
            parts: [part, part],
        }
    }

    /// Returns the value with these parts: two for 64 bits per lane, otherwise one.
    pub(super) fn from_parts(ty: Compute, mut part: impl FnMut(u8) -> Src) -> Value {
        if is_wide(ty) {
            let low = part(0);
            let parts = [low, part(1)];
            return Value { ty, parts };
        }
        Value::new(ty, part(0))
    }

    /// Returns the register of a mask.
    pub(super) fn mask(&self) -> Result<Virt, NotEmitted> {
        match self.parts[0] {
            Src::Virt(v) => Ok(v),
            Src::Const(_) => Err(NotEmitted),
        }
    }
}

/// True if a type has 64 bits per lane.
pub(super) fn is_wide(ty: Compute) -> bool {
    matches!(ty, Compute::F64 | Compute::I64)
}

/// Returns the registers of a value's parts; constants are loaded.
pub(super) fn to_registers(ir: &mut Ir, parts: [Src; 2]) -> [Virt; 2] {
    parts.map(|s| match s {
        Src::Virt(v) => v,
        s @ Src::Const(_) => ir.op2(op::VPOR, s, s),
    })
}
