//! Instructions that move lanes across the whole vector.

use super::Action;
use crate::cpu::{Cpu, ones};
use crate::fault::Outcome;
use crate::step::{OperandLocation, Step};
use crate::vector::{Lane, Vector};
use iced_x86::Mnemonic::*;

pub(super) fn action(step: &Step) -> Option<Action> {
    permuted(step)
        .or_else(|| of_two(step))
        .or_else(|| parts(step))
        .or_else(|| compressed(step))
}

fn permuted(step: &Step) -> Option<Action> {
    let by_immediate = matches!(step.operands[2], OperandLocation::Immediate(_));
    Some(match step.mnemonic {
        Vpermq | Vpermpd if by_immediate => |c, s| {
            let a = c.vector(s, 1)?;
            c.lanes_from(s, |i| {
                a.get::<u64>(i & !3 | usize::from(s.immediate() >> (2 * (i & 3)) & 3))
            })
        },
        Vpermq | Vpermpd => |c, s| c.permute::<u64>(s),
        Vpermps | Vpermd => |c, s| c.permute::<u32>(s),
        Vpermw => |c, s| c.permute::<u16>(s),
        Vpermb => |c, s| c.permute::<u8>(s),
        Vpermt2ps | Vpermt2d => |c, s| c.permute2::<u32>(s, 1),
        Vpermt2pd | Vpermt2q => |c, s| c.permute2::<u64>(s, 1),
        Vpermt2w => |c, s| c.permute2::<u16>(s, 1),
        Vpermt2b => |c, s| c.permute2::<u8>(s, 1),
        Vpermi2ps | Vpermi2d => |c, s| c.permute2::<u32>(s, 0),
        Vpermi2pd | Vpermi2q => |c, s| c.permute2::<u64>(s, 0),
        Vpermi2w => |c, s| c.permute2::<u16>(s, 0),
        Vpermi2b => |c, s| c.permute2::<u8>(s, 0),
        _ => return None,
    })
}

fn of_two(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vperm2f128 | Vperm2i128 => |c, s| {
            let (a, b) = (c.vector(s, 1)?, c.vector(s, 2)?);
            c.lanes_from::<u128>(s, |i| {
                let by = s.immediate() >> (4 * i);
                let from = if by & 2 == 0 { &a } else { &b };
                if by & 8 != 0 {
                    0
                } else {
                    from.get(usize::from(by & 1))
                }
            })
        },
        Vshuff32x4 | Vshufi32x4 => |c, s| c.shuffle_blocks::<u32>(s),
        Vshuff64x2 | Vshufi64x2 => |c, s| c.shuffle_blocks::<u64>(s),
        Valignd => |c, s| c.align::<u32>(s),
        Valignq => |c, s| c.align::<u64>(s),
        _ => return None,
    })
}

fn parts(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vextractf128 | Vextracti128 | Vextractf32x4 | Vextracti32x4 => |c, s| c.extract::<u32>(s),
        Vextractf64x2 | Vextracti64x2 | Vextractf64x4 | Vextracti64x4 => |c, s| c.extract::<u64>(s),
        Vextractf32x8 | Vextracti32x8 => |c, s| c.extract::<u32>(s),
        Vinsertf128 | Vinserti128 | Vinsertf32x4 | Vinserti32x4 => |c, s| c.insert::<u32>(s),
        Vinsertf64x2 | Vinserti64x2 | Vinsertf64x4 | Vinserti64x4 => |c, s| c.insert::<u64>(s),
        Vinsertf32x8 | Vinserti32x8 => |c, s| c.insert::<u32>(s),
        _ => return None,
    })
}

fn compressed(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vcompressps | Vpcompressd => |c, s| c.compress::<u32>(s),
        Vcompresspd | Vpcompressq => |c, s| c.compress::<u64>(s),
        Vexpandps | Vpexpandd => |c, s| c.expand::<u32>(s),
        Vexpandpd | Vpexpandq => |c, s| c.expand::<u64>(s),
        _ => return None,
    })
}

/// The low bits of a lane as a number.
fn low<T: Lane>(v: &Vector, i: usize) -> usize {
    usize::from(v.0[i * T::SIZE])
}

impl Cpu<'_, '_> {
    fn lanes_from<T: Lane>(&mut self, step: &Step, f: impl Fn(usize) -> T) -> Outcome<()> {
        let count = step.bytes(0) / T::SIZE;
        let result = Vector::from(count, f);
        self.set_lanes::<T>(step, &result, count)
    }

    /// Permutes the lanes of operand 2 by the indices in operand 1.
    fn permute<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let (by, a) = (self.vector(step, 1)?, self.vector(step, 2)?);
        let count = step.bytes(0) / T::SIZE;
        self.lanes_from(step, |i| a.get::<T>(low::<T>(&by, i) % count))
    }

    /// Permutes the lanes of two vectors by the indices in operand `by`; the vectors are operands 0 and 2, or 1 and
    /// 2.
    fn permute2<T: Lane>(&mut self, step: &Step, by: usize) -> Outcome<()> {
        let (by, a) = (self.vector(step, by)?, self.vector(step, 1 - by)?);
        let b = self.vector(step, 2)?;
        let count = step.bytes(0) / T::SIZE;
        self.lanes_from(step, |i| {
            let at = low::<T>(&by, i);
            let from = if (at / count).is_multiple_of(2) {
                &a
            } else {
                &b
            };
            from.get::<T>(at % count)
        })
    }

    /// Shuffles blocks of 128 bits: the lower half of the result comes from operand 1, the upper from operand 2.
    fn shuffle_blocks<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let (a, b) = (self.vector(step, 1)?, self.vector(step, 2)?);
        let blocks = step.bytes(0) / 16;
        let bits = blocks / 2;
        let result = Vector::from(blocks, |i| {
            let at = usize::from(step.immediate()) >> (i * bits) & (blocks - 1);
            let from = if i < blocks / 2 { &a } else { &b };
            from.get::<u128>(at)
        });
        self.set_lanes::<T>(step, &result, step.bytes(0) / T::SIZE)
    }

    /// Takes the lanes of operand 2 followed by those of operand 1, from the immediate's lane on.
    fn align<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let (a, b) = (self.vector(step, 1)?, self.vector(step, 2)?);
        let count = step.bytes(0) / T::SIZE;
        let by = usize::from(step.immediate()) % count;
        self.lanes_from(step, |i| match i + by {
            at if at < count => b.get::<T>(at),
            at => a.get(at - count),
        })
    }

    /// Extracts a part of operand 1, as wide as the result.
    fn extract<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let (a, count) = (self.vector(step, 1)?, step.bytes(0) / T::SIZE);
        let parts = step.bytes(1) / step.bytes(0);
        let part = usize::from(step.immediate()) % parts;
        if let OperandLocation::Memory(m) = &step.operands[0] {
            // Lanes that are masked off fault too.
            self.memory.check_writable(self.address(m), m.bytes)?;
        }
        self.lanes_from(step, |i| a.get::<T>(part * count + i))
    }

    /// Replaces a part of operand 1 by operand 2.
    fn insert<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let (a, b) = (self.vector(step, 1)?, self.vector(step, 2)?);
        let parts = step.bytes(0) / step.bytes(2);
        let count = step.bytes(2) / T::SIZE;
        let part = usize::from(step.immediate()) % parts;
        self.lanes_from(step, |i| match i / count == part {
            true => b.get::<T>(i % count),
            false => a.get(i),
        })
    }

    /// Makes the active lanes of operand 1 contiguous.
    fn compress<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let (a, active) = (self.vector(step, 1)?, self.active(step));
        let count = step.bytes(1) / T::SIZE;
        let from: Vec<usize> = (0..count).filter(|i| active >> i & 1 == 1).collect();
        let result = Vector::from(from.len(), |i| a.get::<T>(from[i]));
        let stores = matches!(step.operands[0], OperandLocation::Memory(_));
        let count = if stores { from.len() } else { count };
        self.set_active::<T>(step, &result, count, ones(from.len()))
    }

    /// Distributes contiguous lanes of operand 1 to the active lanes.
    fn expand<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let (active, count) = (self.active(step), step.bytes(0) / T::SIZE);
        let read = (active & ones(count)).count_ones();
        let a = self.lanes::<T>(step, 1, ones(read as usize))?;
        self.lanes_from(step, |i| {
            a.get::<T>((active & ones(i)).count_ones() as usize)
        })
    }
}
