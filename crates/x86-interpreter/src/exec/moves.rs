//! Loads, stores, broadcasts and selections.

use super::Action;
use crate::cpu::{Cpu, ones};
use crate::fault::Outcome;
use crate::step::{OperandLocation, Step};
use crate::vector::{Lane, Vector};
use iced_x86::Mnemonic::*;

pub(super) fn action(step: &Step) -> Option<Action> {
    whole(step)
        .or_else(|| parts(step))
        .or_else(|| selections(step))
}

fn whole(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vmovups | Vmovdqu | Vmovdqu32 | Vlddqu => |c, s| c.map(s, |x: u32| x),
        Vmovupd | Vmovdqu64 => |c, s| c.map(s, |x: u64| x),
        Vmovdqu8 => |c, s| c.map(s, |x: u8| x),
        Vmovdqu16 => |c, s| c.map(s, |x: u16| x),
        Vmovaps | Vmovdqa | Vmovdqa32 | Vmovntps | Vmovntdq | Vmovntdqa => |c, s| {
            c.check_aligned(s, 0)?;
            c.check_aligned(s, 1)?;
            c.map(s, |x: u32| x)
        },
        Vmovapd | Vmovdqa64 | Vmovntpd => |c, s| {
            c.check_aligned(s, 0)?;
            c.check_aligned(s, 1)?;
            c.map(s, |x: u64| x)
        },
        _ => return None,
    })
}

fn parts(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vmovd => |c, s| {
            let x = c.value(s, 1)? & 0xFFFF_FFFF;
            c.set_value(s, 0, x)
        },
        Vmovq => |c, s| {
            let x = c.value(s, 1)?;
            c.set_value(s, 0, x)
        },
        Vpextrb => |c, s| c.pick::<u8>(s),
        Vpextrw => |c, s| c.pick::<u16>(s),
        Vpextrd | Vextractps => |c, s| c.pick::<u32>(s),
        Vpextrq => |c, s| c.pick::<u64>(s),
        Vpinsrb => |c, s| c.put::<u8>(s),
        Vpinsrw => |c, s| c.put::<u16>(s),
        Vpinsrd => |c, s| c.put::<u32>(s),
        Vpinsrq => |c, s| c.put::<u64>(s),
        Vmovss => |c, s| c.move_first::<u32>(s),
        Vmovsd => |c, s| c.move_first::<u64>(s),
        Vbroadcastss | Vpbroadcastd => |c, s| c.broadcast::<u32>(s),
        Vbroadcastsd | Vpbroadcastq => |c, s| c.broadcast::<u64>(s),
        Vpbroadcastb => |c, s| c.broadcast::<u8>(s),
        Vpbroadcastw => |c, s| c.broadcast::<u16>(s),
        Vbroadcastf128 | Vbroadcasti128 => |c, s| c.broadcast::<u128>(s),
        Vbroadcastf32x4 | Vbroadcasti32x4 | Vbroadcastf32x2 | Vbroadcasti32x2 | Vbroadcastf32x8
        | Vbroadcasti32x8 => |c, s| c.repeat::<u32>(s),
        Vbroadcastf64x2 | Vbroadcasti64x2 | Vbroadcastf64x4 | Vbroadcasti64x4 => {
            |c, s| c.repeat::<u64>(s)
        }
        _ => return None,
    })
}

fn selections(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vblendvps => |c, s| c.blend::<u32>(s, |_, selector| selector.sign()),
        Vblendvpd => |c, s| c.blend::<u64>(s, |_, selector| selector.sign()),
        Vpblendvb => |c, s| c.blend::<u8>(s, |_, selector| selector.sign()),
        Vblendps | Vpblendd => |c, s| c.blend::<u32>(s, |i, _| s.immediate() >> i & 1 == 1),
        Vblendpd => |c, s| c.blend::<u64>(s, |i, _| s.immediate() >> i & 1 == 1),
        Vpblendw => |c, s| c.blend::<u16>(s, |i, _| s.immediate() >> (i % 8) & 1 == 1),
        Vblendmps | Vpblendmd => |c, s| c.blend_by_mask::<u32>(s),
        Vblendmpd | Vpblendmq => |c, s| c.blend_by_mask::<u64>(s),
        Vpblendmb => |c, s| c.blend_by_mask::<u8>(s),
        Vpblendmw => |c, s| c.blend_by_mask::<u16>(s),
        Vmaskmovps | Vpmaskmovd => |c, s| c.move_masked::<u32>(s),
        Vmaskmovpd | Vpmaskmovq => |c, s| c.move_masked::<u64>(s),
        _ => return None,
    })
}

impl Cpu<'_, '_> {
    /// Broadcasts one lane: the lowest of a vector, or an element of memory or a general register.
    fn broadcast<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let count = step.bytes(0) / T::SIZE;
        let active = self.active(step) & ones(count);
        // Memory is not read if no lane is active.
        let x = match active {
            0 => Vector::ZERO,
            _ => self.lanes::<T>(step, 1, 1)?,
        };
        let result = Vector::from(count, |_| x.get::<T>(0));
        self.set_lanes::<T>(step, &result, count)
    }

    /// Broadcasts a group of lanes: those in memory, or two of a register.
    fn repeat<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let count = step.bytes(0) / T::SIZE;
        let lanes = match &step.operands[1] {
            OperandLocation::Memory(m) => m.bytes / T::SIZE,
            _ => 2,
        };
        // Only the lanes in memory that an active lane needs are read.
        let active = self.active(step) & ones(count);
        let wanted = (0..count).filter(|i| active >> i & 1 == 1);
        let wanted = wanted.fold(0, |bits, i| bits | 1 << (i % lanes));
        let x = self.lanes::<T>(step, 1, wanted)?;
        let result = Vector::from(count, |i| x.get::<T>(i % lanes));
        self.set_lanes::<T>(step, &result, count)
    }

    /// Extracts one lane of operand 1 to a general register or memory.
    fn pick<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let x = self.vector(step, 1)?;
        let lane = Vector::from(1, |_| {
            x.get::<T>(usize::from(step.immediate()) % (16 / T::SIZE))
        });
        self.set_value(step, 0, lane.get(0))
    }

    /// Inserts a value from a general register or memory into one lane of operand 1.
    fn put<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let (mut x, lane) = (self.vector(step, 1)?, self.lanes::<u8>(step, 2, !0)?);
        x.set(
            usize::from(step.immediate()) % (16 / T::SIZE),
            lane.get::<T>(0),
        );
        self.set_active::<T>(step, &x, 16 / T::SIZE, !0)
    }

    /// Moves the lowest lane. From memory, the rest becomes 0; between registers, the rest up to 128 bits is operand
    /// 1's.
    fn move_first<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let active = self.active(step);
        if step.operands[2] != OperandLocation::None {
            return self.first(step, |_: T, b| b);
        }
        let x = self.lanes::<T>(step, 1, active & 1)?;
        let stores = matches!(step.operands[0], OperandLocation::Memory(_));
        let count = if stores { 1 } else { 16 / T::SIZE };
        let result = Vector::from(1, |_| x.get::<T>(0));
        self.set_active::<T>(step, &result, count, active & 1 | !1)
    }

    /// Selects operand 2 where `second` of the lane's number and operand 3 is true, else operand 1.
    fn blend<T: Lane>(&mut self, step: &Step, second: impl Fn(usize, T) -> bool) -> Outcome<()> {
        let selector = self.vector(step, 3)?;
        self.zip_indexed(step, |i, a: T, b| {
            if second(i, selector.get(i % (64 / T::SIZE))) {
                b
            } else {
                a
            }
        })
    }

    /// Selects operand 2 where the mask is set, else operand 1, or 0 if the instruction clears.
    fn blend_by_mask<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let (count, active) = (step.bytes(0) / T::SIZE, self.active(step));
        let (a, b) = (self.vector(step, 1)?, self.lanes::<T>(step, 2, active)?);
        let result = Vector::from(count, |i| match active >> i & 1 {
            1 => b.get::<T>(i),
            _ if step.clears => T::all(false),
            _ => a.get(i),
        });
        self.set_active::<T>(step, &result, count, !0)
    }

    /// Moves the lanes whose sign in operand 1 is set.
    fn move_masked<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let (signs, count) = (self.vector(step, 1)?, step.bytes(1) / T::SIZE);
        let signs = (0..count).filter(|i| signs.get::<T>(*i).sign());
        let active = signs.fold(0, |bits, i| bits | 1 << i);
        let x = self.lanes::<T>(step, 2, active)?;
        let stores = matches!(step.operands[0], OperandLocation::Memory(_));
        let written = if stores { active } else { !0 };
        self.set_active::<T>(step, &x, count, written)
    }
}
