//! Gathers: loads of each lane from an address of its own.

use super::Action;
use crate::cpu::Cpu;
use crate::fault::{FaultKind, Outcome, Raised};
use crate::step::{Index, OperandLocation, Step};
use crate::vector::{Lane, Vector};
use iced_x86::Mnemonic::*;

pub(super) fn action(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vgatherdps | Vpgatherdd => |c, s| c.gather::<i32, u32>(s),
        Vgatherdpd | Vpgatherdq => |c, s| c.gather::<i32, u64>(s),
        Vgatherqps | Vpgatherqd => |c, s| c.gather::<i64, u32>(s),
        Vgatherqpd | Vpgatherqq => |c, s| c.gather::<i64, u64>(s),
        _ => return None,
    })
}

impl Cpu<'_, '_> {
    /// Loads the active lanes from the addresses of operand 1, and clears the mask. With VEX the mask is the sign bits
    /// of operand 2.
    fn gather<I: Lane + std::convert::Into<i64>, T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let (OperandLocation::Vector(to, bytes), OperandLocation::Memory(m)) =
            (step.operands[0], step.operands[1])
        else {
            return Err(Raised::new(
                FaultKind::Unknown,
                "the operands are not those of a gather",
            ));
        };
        let Index::Vector(index, index_bytes) = m.index else {
            return Err(Raised::new(
                FaultKind::Unknown,
                "the operands are not those of a gather",
            ));
        };
        let count = (bytes / T::SIZE).min(index_bytes / I::SIZE);
        let active = match step.operands[2] {
            OperandLocation::Vector(..) => {
                let mask = self.vector(step, 2)?;
                let signs = (0..count).filter(|i| mask.get::<T>(*i).sign());
                signs.fold(0, |bits, i| bits | 1 << i)
            }
            _ => self.active(step),
        };
        let (index, mut result) = (self.vectors[usize::from(index)], Vector::ZERO);
        let base = self.address(&m);
        for i in 0..count {
            let mut lane = self.vectors[usize::from(to)].get::<T>(i);
            if active >> i & 1 == 1 {
                let offset = (std::convert::Into::<i64>::into(index.get::<I>(i)) as u64)
                    .wrapping_mul(m.scale);
                let mut bytes = [0; 8];
                let bytes = &mut bytes[..T::SIZE];
                self.memory.read(base.wrapping_add(offset), bytes)?;
                lane = T::get(bytes);
            }
            result.set(i, lane);
        }
        self.vectors[usize::from(to)] = result;
        match (step.operands[2], step.mask) {
            (OperandLocation::Vector(mask, _), _) => self.vectors[usize::from(mask)] = Vector::ZERO,
            (_, Some(mask)) => self.masks[usize::from(mask)] = 0,
            _ => {}
        }
        Ok(())
    }
}
