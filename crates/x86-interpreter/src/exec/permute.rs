//! Instructions that move lanes across the whole vector.

use crate::cpu::Action;
use crate::cpu::{Cpu, ones};
use crate::fault::Outcome;
use crate::step::{OperandLocation, Step};
use crate::vector::{Lane, Vector};
use iced_x86::Mnemonic::*;

pub(super) fn action(step: &Step) -> Option<Action> {
    if let (Vpermq | Vpermpd, OperandLocation::Immediate(_)) = (step.mnemonic, step.operands[2]) {
        return Some(|c, s| {
            let a = c.vector(s, 1)?;
            c.lanes_from(s, |i| {
                a.get::<u64>(i & !3 | usize::from(s.immediate() >> (2 * (i & 3)) & 3))
            })
        });
    }
    actions! { step;
        Vpermq | Vpermpd: u64, Vpermps | Vpermd: u32, Vpermw: u16, Vpermb: u8 => |c, s| c.permute::<T>(s);
        Vpermt2ps | Vpermt2d: u32, Vpermt2pd | Vpermt2q: u64, Vpermt2w: u16, Vpermt2b: u8
            => |c, s| c.permute2::<T>(s, 1);
        Vpermi2ps | Vpermi2d: u32, Vpermi2pd | Vpermi2q: u64, Vpermi2w: u16, Vpermi2b: u8
            => |c, s| c.permute2::<T>(s, 0);
        Vperm2f128 | Vperm2i128 => |c, s| {
            let both = [c.vector(s, 1)?, c.vector(s, 2)?];
            c.lanes_from::<u128>(s, |i| match s.immediate() >> (4 * i) {
                by if by & 8 != 0 => 0,
                by => both[usize::from(by >> 1 & 1)].get(usize::from(by & 1)),
            })
        };
        Vshuff32x4 | Vshufi32x4: u32, Vshuff64x2 | Vshufi64x2: u64 => |c, s| c.shuffle_blocks::<T>(s);
        Valignd: u32, Valignq: u64 => |c, s| c.align::<T>(s);
        Vextractf128 | Vextracti128 | Vextractf32x4 | Vextracti32x4 | Vextractf32x8 | Vextracti32x8: u32,
            Vextractf64x2 | Vextracti64x2 | Vextractf64x4 | Vextracti64x4: u64 => |c, s| c.extract::<T>(s);
        Vinsertf128 | Vinserti128 | Vinsertf32x4 | Vinserti32x4 | Vinsertf32x8 | Vinserti32x8: u32,
            Vinsertf64x2 | Vinserti64x2 | Vinsertf64x4 | Vinserti64x4: u64 => |c, s| c.insert::<T>(s);
        Vcompressps | Vpcompressd: u32, Vcompresspd | Vpcompressq: u64 => |c, s| c.compress::<T>(s);
        Vexpandps | Vpexpandd: u32, Vexpandpd | Vpexpandq: u64 => |c, s| c.expand::<T>(s);
    }
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
        let both = [self.vector(step, 1 - by)?, self.vector(step, 2)?];
        let (by, count) = (self.vector(step, by)?, step.bytes(0) / T::SIZE);
        self.lanes_from(step, |i| {
            let at = low::<T>(&by, i);
            both[at / count % 2].get::<T>(at % count)
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
        self.set_lanes_masked::<T>(step, &result, count, ones(from.len()))
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
