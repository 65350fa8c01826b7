//! Gathers: loads of each lane from an address of its own.

use crate::cpu::Action;
use crate::cpu::Cpu;
use crate::fault::{FaultKind, Outcome, raise};
use crate::step::{Index, OperandLocation, Step};
use crate::vector::{Lane, Vector};
use iced_x86::Mnemonic::*;

pub(super) fn action(step: &Step) -> Option<Action> {
    actions! { step;
        Vgatherdps | Vpgatherdd: u32, Vgatherdpd | Vpgatherdq: u64 => |c, s| c.gather::<i32, T>(s);
        Vgatherqps | Vpgatherqd: u32, Vgatherqpd | Vpgatherqq: u64 => |c, s| c.gather::<i64, T>(s);
    }
}

impl Cpu<'_, '_> {
    /// Loads the active lanes from the addresses of operand 1, and clears the mask. With VEX the mask is the sign bits
    /// of operand 2.
    fn gather<I: Lane + std::convert::Into<i64>, T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let (OperandLocation::Vector(to, bytes), OperandLocation::Memory(m)) =
            (step.operands[0], step.operands[1])
        else {
            return raise(FaultKind::Unknown, "the operands are not those of a gather");
        };
        let Index::Vector(index, index_bytes) = m.index else {
            return raise(FaultKind::Unknown, "the index of a gather is no vector");
        };
        let count = (bytes / T::SIZE).min(index_bytes / I::SIZE);
        let active = match step.operands[2] {
            OperandLocation::Vector(..) => self.vector(step, 2)?.signs::<T>(count * T::SIZE),
            _ => self.active(step),
        };
        let (index, mut result) = (self.vectors[index], Vector::ZERO);
        let base = self.address(&m);
        for i in 0..count {
            let mut lane = self.vectors[to].get::<T>(i);
            if active >> i & 1 == 1 {
                let index: i64 = index.get::<I>(i).into();
                let offset = (index as u64).wrapping_mul(m.scale);
                let mut bytes = [0; 8];
                let bytes = &mut bytes[..T::SIZE];
                self.memory.read(base.wrapping_add(offset), bytes)?;
                lane = T::get(bytes);
            }
            result.set(i, lane);
        }
        self.vectors[to] = result;
        match (step.operands[2], step.mask) {
            (OperandLocation::Vector(mask, _), _) => self.vectors[mask] = Vector::ZERO,
            (_, Some(mask)) => self.masks[mask] = 0,
            _ => {}
        }
        Ok(())
    }
}
