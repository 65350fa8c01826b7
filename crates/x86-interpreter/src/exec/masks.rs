//! Mask registers, and signs of lanes.

use crate::cpu::Action;
use crate::cpu::{Cpu, Flags, ones};
use crate::fault::Outcome;
use crate::step::Step;
use crate::vector::Lane;
use iced_x86::Mnemonic::*;

/// The type of an instruction on masks is as wide as the mask, for `kunpck` that of the result.
pub(super) fn action(step: &Step) -> Option<Action> {
    actions! { step;
        Kmovb: u8, Kmovw: u16, Kmovd: u32, Kmovq: u64 => |c, s| c.map_mask::<T>(s, |a| a);
        Knotb: u8, Knotw: u16, Knotd: u32, Knotq: u64 => |c, s| c.map_mask::<T>(s, |a| !a);
        Kshiftlb: u8, Kshiftlw: u16, Kshiftld: u32, Kshiftlq: u64
            => |c, s| c.map_mask::<T>(s, |a| a.checked_shl(s.immediate().into()).unwrap_or(0));
        Kshiftrb: u8, Kshiftrw: u16, Kshiftrd: u32, Kshiftrq: u64
            => |c, s| c.map_mask::<T>(s, |a| a.checked_shr(s.immediate().into()).unwrap_or(0));
        Kandb: u8, Kandw: u16, Kandd: u32, Kandq: u64 => |c, s| c.zip_masks::<T>(s, |a, b| a & b);
        Korb: u8, Korw: u16, Kord: u32, Korq: u64 => |c, s| c.zip_masks::<T>(s, |a, b| a | b);
        Kxorb: u8, Kxorw: u16, Kxord: u32, Kxorq: u64 => |c, s| c.zip_masks::<T>(s, |a, b| a ^ b);
        Kandnb: u8, Kandnw: u16, Kandnd: u32, Kandnq: u64 => |c, s| c.zip_masks::<T>(s, |a, b| !a & b);
        Kxnorb: u8, Kxnorw: u16, Kxnord: u32, Kxnorq: u64 => |c, s| c.zip_masks::<T>(s, |a, b| !(a ^ b));
        Kunpckbw: u16 => |c, s| c.zip_masks::<T>(s, |a, b| a << 8 | b & 0xFF);
        Kunpckwd: u32 => |c, s| c.zip_masks::<T>(s, |a, b| a << 16 | b & 0xFFFF);
        Kunpckdq: u64 => |c, s| c.zip_masks::<T>(s, |a, b| a << 32 | b & 0xFFFF_FFFF);
        Kortestb: u8, Kortestw: u16, Kortestd: u32, Kortestq: u64
            => |c, s| c.test_masks::<T>(s, |a, b| [a | b, !(a | b)]);
        Ktestb: u8, Ktestw: u16, Ktestd: u32, Ktestq: u64 => |c, s| c.test_masks::<T>(s, |a, b| [a & b, !a & b]);
        Vpmovm2b: u8, Vpmovm2w: u16, Vpmovm2d: u32, Vpmovm2q: u64 => |c, s| c.spread_mask::<T>(s);
        Vpmovb2m | Vpmovmskb: u8, Vpmovw2m: u16, Vpmovd2m | Vmovmskps: u32, Vpmovq2m | Vmovmskpd: u64
            => |c, s| c.signs::<T>(s);
    }
}

impl Cpu<'_, '_> {
    fn map_mask<T: Lane>(&mut self, step: &Step, f: impl Fn(u64) -> u64) -> Outcome<()> {
        let all = ones(8 * T::SIZE);
        self.apply(step, 1, |x| f(x & all) & all)
    }

    fn zip_masks<T: Lane>(&mut self, step: &Step, f: impl Fn(u64, u64) -> u64) -> Outcome<()> {
        let x = f(self.value(step, 1)?, self.value(step, 2)?) & ones(8 * T::SIZE);
        self.set_value(step, 0, x)
    }

    /// Sets the zero flag if the first result is zero, and the carry flag if the second one is.
    fn test_masks<T: Lane>(
        &mut self,
        step: &Step,
        f: impl Fn(u64, u64) -> [u64; 2],
    ) -> Outcome<()> {
        let results = f(self.value(step, 0)?, self.value(step, 1)?);
        let [zero, carry] = results.map(|x| Some(x & ones(8 * T::SIZE) == 0));
        self.flags = Flags {
            zero,
            carry,
            ..Flags::CLEARED
        };
        Ok(())
    }
}
