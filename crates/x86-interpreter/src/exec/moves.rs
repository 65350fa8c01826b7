//! Loads, stores, broadcasts and selections.

use crate::cpu::Action;
use crate::cpu::{Cpu, ones};
use crate::fault::Outcome;
use crate::step::{OperandLocation, Step};
use crate::vector::{Lane, Vector, mask};
use iced_x86::Mnemonic::*;

pub(super) fn action(step: &Step) -> Option<Action> {
    actions! { step;
        Vmovups | Vmovdqu | Vmovdqu32 | Vlddqu: u32, Vmovupd | Vmovdqu64: u64, Vmovdqu8: u8, Vmovdqu16: u16
            => |c, s| c.map(s, |x: T| x);
        Vmovaps | Vmovdqa | Vmovdqa32 | Vmovntps | Vmovntdq | Vmovntdqa: u32, Vmovapd | Vmovdqa64 | Vmovntpd: u64
            => |c, s| {
                c.check_aligned(s, 0)?;
                c.check_aligned(s, 1)?;
                c.map(s, |x: T| x)
            };
        Vmovd => |c, s| c.apply(s, 1, |x| x & 0xFFFF_FFFF);
        Vmovq => |c, s| c.apply(s, 1, |x| x);
        Vpextrb: u8, Vpextrw: u16, Vpextrd | Vextractps: u32, Vpextrq: u64 => |c, s| c.pick::<T>(s);
        Vpinsrb: u8, Vpinsrw: u16, Vpinsrd: u32, Vpinsrq: u64 => |c, s| c.put::<T>(s);
        Vmovss: u32, Vmovsd: u64 => |c, s| c.move_first::<T>(s);
        Vbroadcastss | Vpbroadcastd: u32, Vbroadcastsd | Vpbroadcastq: u64, Vpbroadcastb: u8, Vpbroadcastw: u16,
            Vbroadcastf128 | Vbroadcasti128: u128 => |c, s| c.broadcast::<T>(s);
        Vbroadcastf32x4 | Vbroadcasti32x4 | Vbroadcastf32x2 | Vbroadcasti32x2 | Vbroadcastf32x8 | Vbroadcasti32x8: u32,
            Vbroadcastf64x2 | Vbroadcasti64x2 | Vbroadcastf64x4 | Vbroadcasti64x4: u64 => |c, s| c.repeat::<T>(s);
        Vblendvps: u32, Vblendvpd: u64, Vpblendvb: u8 => |c, s| c.blend::<T>(s, |_, selector| selector.sign());
        Vblendps | Vpblendd: u32, Vblendpd: u64, Vpblendw: u16
            => |c, s| c.blend::<T>(s, |i, _| s.immediate() >> (i % 8) & 1 == 1);
        Vblendmps | Vpblendmd: u32, Vblendmpd | Vpblendmq: u64, Vpblendmb: u8, Vpblendmw: u16
            => |c, s| c.blend_by_mask::<T>(s);
        Vmaskmovps | Vpmaskmovd: u32, Vmaskmovpd | Vpmaskmovq: u64 => |c, s| c.move_masked::<T>(s);
    }
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
        let wanted = mask(lanes, |lane| {
            (lane..count).step_by(lanes).any(|i| active >> i & 1 == 1)
        });
        let x = self.lanes::<T>(step, 1, wanted)?;
        let result = Vector::from(count, |i| x.get::<T>(i % lanes));
        self.set_lanes::<T>(step, &result, count)
    }

    /// Extracts one lane of operand 1 to a general register or memory.
    fn pick<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let x = self.vector(step, 1)?;
        let at = usize::from(step.immediate()) % (16 / T::SIZE);
        let lane = Vector::from(1, |_| x.get::<T>(at));
        self.set_value(step, 0, lane.get(0))
    }

    /// Inserts a value from a general register or memory into one lane of operand 1.
    fn put<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let (mut x, lane) = (self.vector(step, 1)?, self.lanes::<u8>(step, 2, !0)?);
        let at = usize::from(step.immediate()) % (16 / T::SIZE);
        x.set(at, lane.get::<T>(0));
        self.set_lanes_masked::<T>(step, &x, 16 / T::SIZE, !0)
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
        self.set_lanes_masked::<T>(step, &result, count, active & 1 | !1)
    }

    /// Selects operand 2 where `second` of the lane's number and operand 3 is true, else operand 1.
    fn blend<T: Lane>(&mut self, step: &Step, second: impl Fn(usize, T) -> bool) -> Outcome<()> {
        let selector = self.vector(step, 3)?;
        self.zip_indexed(step, |i, a: T, b| match second(i, selector.get(i)) {
            true => b,
            false => a,
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
        self.set_lanes_masked::<T>(step, &result, count, !0)
    }

    /// Moves the lanes whose sign in operand 1 is set.
    fn move_masked<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let active = self.vector(step, 1)?.signs::<T>(step.bytes(1));
        let x = self.lanes::<T>(step, 2, active)?;
        let stores = matches!(step.operands[0], OperandLocation::Memory(_));
        let written = if stores { active } else { !0 };
        self.set_lanes_masked::<T>(step, &x, step.bytes(1) / T::SIZE, written)
    }
}
