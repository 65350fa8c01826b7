//! Values of a group of lanes.

use super::ir::Ir;
use super::step::{Src, Virt};
use kiln_base::Compute;
use kiln_x86::op;

/// The error of a list with an instruction that can't be emitted.
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
    pub(super) fn one(ty: Compute, part: impl Into<Src>) -> Value {
        let part = part.into();
        Value {
            ty,
            parts: [part, part],
        }
    }

    /// Returns the value of its parts: two with 64 bits per lane, otherwise one.
    pub(super) fn of(ty: Compute, mut part: impl FnMut(u8) -> Src) -> Value {
        if is_wide(ty) {
            let low = part(0);
            let parts = [low, part(1)];
            return Value { ty, parts };
        }
        Value::one(ty, part(0))
    }

    pub(super) fn mask(&self) -> Result<Virt, NotEmitted> {
        match self.parts[0] {
            Src::Virt(v) => Ok(v),
            Src::Const(_) => Err(NotEmitted),
        }
    }
}

pub(super) fn is_wide(ty: Compute) -> bool {
    matches!(ty, Compute::F64 | Compute::I64)
}

/// Loads parts that are constants into registers.
pub(super) fn in_registers(ir: &mut Ir, parts: [Src; 2]) -> [Virt; 2] {
    parts.map(|s| match s {
        Src::Virt(v) => v,
        s @ Src::Const(_) => ir.op2(op::VPOR, s, s),
    })
}
