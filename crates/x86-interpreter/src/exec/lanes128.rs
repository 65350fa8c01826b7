//! Instructions that treat each block of 128 bits alike.

use crate::cpu::Action;
use crate::cpu::Cpu;
use crate::fault::Outcome;
use crate::step::{OperandLocation, Step};
use crate::vector::{Lane, Vector};
use iced_x86::Mnemonic::*;

pub(super) fn action(step: &Step) -> Option<Action> {
    let by_immediate = matches!(step.operands[2], OperandLocation::Immediate(_));
    let permuted = if by_immediate {
        by_immediate_operand(step)
    } else {
        by_lanes(step)
    };
    permuted.or_else(|| blocks(step))
}

fn by_immediate_operand(step: &Step) -> Option<Action> {
    actions! { step;
        Vpermilps | Vpshufd
            => |c, s| c.within1::<u32>(s, |i, _, a| a[usize::from(s.immediate() >> (2 * i) & 3)]);
        Vpermilpd
            => |c, s| c.within1::<u64>(s, |i, block, a| a[usize::from(s.immediate() >> (2 * block + i) & 1)]);
    }
}

fn by_lanes(step: &Step) -> Option<Action> {
    actions! { step;
        Vpermilps => |c, s| {
            let by = c.vector(s, 2)?;
            c.within1::<u32>(s, |i, block, a| a[by.get::<u32>(4 * block + i) as usize & 3])
        };
        Vpermilpd => |c, s| {
            let by = c.vector(s, 2)?;
            c.within1::<u64>(s, |i, block, a| a[by.get::<u64>(2 * block + i) as usize >> 1 & 1])
        };
    }
}

fn blocks(step: &Step) -> Option<Action> {
    actions! { step;
        Vunpcklps | Vpunpckldq: u32, Vunpcklpd | Vpunpcklqdq: u64, Vpunpcklbw: u8, Vpunpcklwd: u16
            => |c, s| c.interleave::<T>(s, 0);
        Vunpckhps | Vpunpckhdq: u32, Vunpckhpd | Vpunpckhqdq: u64, Vpunpckhbw: u8, Vpunpckhwd: u16
            => |c, s| c.interleave::<T>(s, 8 / T::SIZE);
        Vshufps => |c, s| {
            c.within2::<u32>(s, |i, _, [a, b]| {
                let from = if i < 2 { a } else { b };
                from[usize::from(s.immediate() >> (2 * i) & 3)]
            })
        };
        Vshufpd => |c, s| {
            c.within2::<u64>(s, |i, block, [a, b]| {
                let from = if i < 1 { a } else { b };
                from[usize::from(s.immediate() >> (2 * block + i) & 1)]
            })
        };
        Vpshuflw => |c, s| {
            c.within1::<u16>(s, |i, _, a| match i {
                0..4 => a[usize::from(s.immediate() >> (2 * i) & 3)],
                _ => a[i],
            })
        };
        Vpshufhw => |c, s| {
            c.within1::<u16>(s, |i, _, a| match i {
                0..4 => a[i],
                _ => a[4 + usize::from(s.immediate() >> (2 * (i - 4)) & 3)],
            })
        };
        Vmovsldup => |c, s| c.within1::<u32>(s, |i, _, a| a[i & !1]);
        Vmovshdup => |c, s| c.within1::<u32>(s, |i, _, a| a[i | 1]);
        Vmovddup => |c, s| c.within1::<u64>(s, |_, _, a| a[0]);
        Vpshufb => |c, s| {
            let by = c.vector(s, 2)?;
            c.within1::<u8>(s, |i, block, a| match by.0[16 * block + i] {
                n if n & 0x80 != 0 => 0,
                n => a[usize::from(n & 15)],
            })
        };
        Vpalignr => |c, s| {
            c.within2::<u8>(s, |i, _, [a, b]| {
                let at = i + usize::from(s.immediate());
                b.iter().chain(a).copied().nth(at).unwrap_or(0)
            })
        };
        Vpslldq => |c, s| {
            let by = usize::from(s.immediate());
            c.within1::<u8>(s, |i, _, a| i.checked_sub(by).map_or(0, |i| a[i]))
        };
        Vpsrldq => |c, s| {
            let by = usize::from(s.immediate());
            c.within1::<u8>(s, |i, _, a| a.get(i + by).copied().unwrap_or(0))
        };
        Vpsadbw => |c, s| {
            c.zip(s, |a: u64, b: u64| {
                let pairs = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
                pairs.map(|(a, b)| u64::from(a.abs_diff(b))).sum::<u64>()
            })
        };
        Vpackssdw => |c, s| c.pack(s, |x: i32| x.clamp(-32768, 32767) as i16);
        Vpackusdw => |c, s| c.pack(s, |x: i32| x.clamp(0, 65535) as u16);
        Vpacksswb => |c, s| c.pack(s, |x: i16| x.clamp(-128, 127) as i8);
        Vpackuswb => |c, s| c.pack(s, |x: i16| x.clamp(0, 255) as u8);
    }
}

/// The lanes of one block of 128 bits.
fn block<T: Lane>(v: &Vector, block: usize) -> [T; 16] {
    let count = 16 / T::SIZE;
    std::array::from_fn(|i| v.get(block * count + i % count))
}

impl Cpu<'_, '_> {
    /// Computes each lane from its block of 128 bits in operand 1. The arguments of `f` are the lane's place in the
    /// block, the number of the block, and the block's lanes.
    fn within1<T: Lane>(
        &mut self,
        step: &Step,
        f: impl Fn(usize, usize, &[T]) -> T,
    ) -> Outcome<()> {
        let a = self.vector(step, 1)?;
        self.blocks(step, |i, at| f(i, at, &block::<T>(&a, at)[..16 / T::SIZE]))
    }

    /// Does the same from operands 1 and 2.
    fn within2<T: Lane>(
        &mut self,
        step: &Step,
        f: impl Fn(usize, usize, [&[T]; 2]) -> T,
    ) -> Outcome<()> {
        let (a, b) = (self.vector(step, 1)?, self.vector(step, 2)?);
        self.blocks(step, |i, at| {
            let (a, b) = (block::<T>(&a, at), block::<T>(&b, at));
            f(i, at, [&a[..16 / T::SIZE], &b[..16 / T::SIZE]])
        })
    }

    fn blocks<T: Lane>(&mut self, step: &Step, f: impl Fn(usize, usize) -> T) -> Outcome<()> {
        let (count, each) = (step.bytes(0) / T::SIZE, 16 / T::SIZE);
        let result = Vector::from(count, |i| f(i % each, i / each));
        self.set_lanes::<T>(step, &result, count)
    }

    /// Interleaves the lanes of both operands, from lane `first` of each block on.
    fn interleave<T: Lane>(&mut self, step: &Step, first: usize) -> Outcome<()> {
        self.within2::<T>(step, |i, _, from| from[i % 2][first + i / 2])
    }

    /// Packs to lanes half as wide: within each block, those of operand 1, then those of operand 2.
    fn pack<A: Lane, R: Lane>(&mut self, step: &Step, f: impl Fn(A) -> R) -> Outcome<()> {
        let from = [self.vector(step, 1)?, self.vector(step, 2)?];
        let half = 8 / R::SIZE;
        self.blocks::<R>(step, |i, at| {
            f(from[i / half].get::<A>(at * half + i % half))
        })
    }
}
