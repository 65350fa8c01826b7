//! Mask registers, and signs of lanes.

use super::Action;
use crate::cpu::{Cpu, Flags, ones};
use crate::fault::Outcome;
use crate::step::Step;
use iced_x86::Mnemonic::*;

pub(super) fn action(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Kmovb | Kmovw | Kmovd | Kmovq => |c, s| {
            let x = c.value(s, 1)? & ones(bits(s));
            c.set_value(s, 0, x)
        },
        Kandb | Kandw | Kandd | Kandq => |c, s| c.combine(s, |a, b| a & b),
        Korb | Korw | Kord | Korq => |c, s| c.combine(s, |a, b| a | b),
        Kxorb | Kxorw | Kxord | Kxorq => |c, s| c.combine(s, |a, b| a ^ b),
        Kandnb | Kandnw | Kandnd | Kandnq => |c, s| c.combine(s, |a, b| !a & b),
        Kxnorb | Kxnorw | Kxnord | Kxnorq => |c, s| c.combine(s, |a, b| !(a ^ b)),
        Knotb | Knotw | Knotd | Knotq => |c, s| {
            let x = !c.value(s, 1)? & ones(bits(s));
            c.set_value(s, 0, x)
        },
        Kshiftlb | Kshiftlw | Kshiftld | Kshiftlq => |c, s| {
            let x = c.value(s, 1)?.checked_shl(s.immediate().into());
            c.set_value(s, 0, x.unwrap_or(0) & ones(bits(s)))
        },
        Kshiftrb | Kshiftrw | Kshiftrd | Kshiftrq => |c, s| {
            let x = (c.value(s, 1)? & ones(bits(s))).checked_shr(s.immediate().into());
            c.set_value(s, 0, x.unwrap_or(0))
        },
        Kunpckbw => |c, s| c.combine(s, |a, b| a << 8 | b & 0xFF),
        Kunpckwd => |c, s| c.combine(s, |a, b| a << 16 | b & 0xFFFF),
        Kunpckdq => |c, s| c.combine(s, |a, b| a << 32 | b & 0xFFFF_FFFF),
        Kortestb | Kortestw | Kortestd | Kortestq => |c, s| {
            let or = (c.value(s, 0)? | c.value(s, 1)?) & ones(bits(s));
            c.test_flags(or == 0, or == ones(bits(s)))
        },
        Ktestb | Ktestw | Ktestd | Ktestq => |c, s| {
            let (a, b) = (c.value(s, 0)?, c.value(s, 1)?);
            let all = ones(bits(s));
            c.test_flags(a & b & all == 0, !a & b & all == 0)
        },
        Vpmovm2b => |c, s| c.spread_mask::<u8>(s),
        Vpmovm2w => |c, s| c.spread_mask::<u16>(s),
        Vpmovm2d => |c, s| c.spread_mask::<u32>(s),
        Vpmovm2q => |c, s| c.spread_mask::<u64>(s),
        Vpmovb2m | Vpmovmskb => |c, s| c.signs::<u8>(s),
        Vpmovw2m => |c, s| c.signs::<u16>(s),
        Vpmovd2m | Vmovmskps => |c, s| c.signs::<u32>(s),
        Vpmovq2m | Vmovmskpd => |c, s| c.signs::<u64>(s),
        _ => return None,
    })
}

/// The number of bits that an instruction on masks works on. The last letter of its name encodes it; for `kunpck`
/// that is the width of the result.
fn bits(step: &Step) -> usize {
    match step.mnemonic {
        Kmovb | Kandb | Korb | Kxorb | Kandnb | Kxnorb | Knotb | Kshiftlb | Kshiftrb | Kortestb
        | Ktestb => 8,
        Kmovw | Kandw | Korw | Kxorw | Kandnw | Kxnorw | Knotw | Kshiftlw | Kshiftrw | Kunpckbw
        | Kortestw | Ktestw => 16,
        Kmovd | Kandd | Kord | Kxord | Kandnd | Kxnord | Knotd | Kshiftld | Kshiftrd | Kunpckwd
        | Kortestd | Ktestd => 32,
        _ => 64,
    }
}

impl Cpu<'_, '_> {
    fn combine(&mut self, step: &Step, f: impl Fn(u64, u64) -> u64) -> Outcome<()> {
        let x = f(self.value(step, 1)?, self.value(step, 2)?) & ones(bits(step));
        self.set_value(step, 0, x)
    }

    fn test_flags(&mut self, zero: bool, carry: bool) -> Outcome<()> {
        self.flags = Flags {
            zero: Some(zero),
            carry: Some(carry),
            parity: Some(false),
            sign: Some(false),
            overflow: Some(false),
        };
        Ok(())
    }
}
