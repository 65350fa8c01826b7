//! Comparisons: their results are masks, or lanes with all bits set.

use crate::cpu::Action;
use crate::cpu::{Cpu, Flags};
use crate::fault::Outcome;
use crate::number::Float;
use crate::step::{OperandLocation, Step};
use crate::vector::{Lane, Vector, mask};
use iced_x86::Mnemonic::*;

pub(super) fn action(step: &Step) -> Option<Action> {
    actions! { step;
        Vcmpps: f32, Vcmppd: f64 => |c, s| c.compare(s, |a: T, b| holds(s.immediate(), a, b));
        Vpcmpb: i8, Vpcmpw: i16, Vpcmpd: i32, Vpcmpq: i64, Vpcmpub: u8, Vpcmpuw: u16, Vpcmpud: u32, Vpcmpuq: u64
            => |c, s| c.compare(s, |a: T, b| orders(s.immediate(), a, b));
        Vpcmpeqb: u8, Vpcmpeqw: u16, Vpcmpeqd: u32, Vpcmpeqq: u64 => |c, s| c.compare(s, |a: T, b| a == b);
        Vpcmpgtb: i8, Vpcmpgtw: i16, Vpcmpgtd: i32, Vpcmpgtq: i64 => |c, s| c.compare(s, |a: T, b| a > b);
        Vptestmb: u8, Vptestmw: u16, Vptestmd: u32, Vptestmq: u64
            => |c, s| c.compare(s, |a: T, b| a & b != 0);
        Vptestnmb: u8, Vptestnmw: u16, Vptestnmd: u32, Vptestnmq: u64
            => |c, s| c.compare(s, |a: T, b| a & b == 0);
        Vucomiss | Vcomiss: f32, Vucomisd | Vcomisd: f64 => |c, s| c.compare_first::<T>(s);
    }
}

impl Cpu<'_, '_> {
    /// Compares the lowest lanes of operands 0 and 1, and sets flags.
    fn compare_first<T: Float>(&mut self, step: &Step) -> Outcome<()> {
        let a: T = self.lanes::<T>(step, 0, 1)?.get(0);
        let b: T = self.lanes::<T>(step, 1, 1)?.get(0);
        let unordered = a.is_nan() || b.is_nan();
        self.flags = Flags {
            zero: Some(unordered || a == b),
            parity: Some(unordered),
            carry: Some(unordered || a < b),
            ..Flags::CLEARED
        };
        Ok(())
    }

    fn compare<T: Lane>(&mut self, step: &Step, f: impl Fn(T, T) -> bool) -> Outcome<()> {
        let OperandLocation::Mask(k) = step.operands[0] else {
            return self.zip(step, |a: T, b: T| T::all(f(a, b)));
        };
        let active = self.active(step);
        let (a, b) = (
            self.lanes::<T>(step, 1, active)?,
            self.lanes::<T>(step, 2, active)?,
        );
        let holds = mask(step.bytes(1) / T::SIZE, |i| f(a.get(i), b.get(i)));
        self.masks[k] = active & holds;
        Ok(())
    }

    /// Expands a mask to a vector: each lane has all bits set or none.
    pub fn spread_mask<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let (mask, count) = (self.value(step, 1)?, step.bytes(0) / T::SIZE);
        let result = Vector::from(count, |i| T::all(mask >> i & 1 == 1));
        self.set_lanes::<T>(step, &result, count)
    }

    /// Collects the signs of lanes as the bits of a mask or a general register.
    pub fn signs<T: Lane>(&mut self, step: &Step) -> Outcome<()> {
        let bits = self.vector(step, 1)?.signs::<T>(step.bytes(1));
        self.set_value(step, 0, bits)
    }
}

/// A predicate of floating point. The upper 16 of the 32 predicates differ from the lower ones in exceptions only.
fn holds<T: Float>(predicate: u8, a: T, b: T) -> bool {
    let unordered = a.is_nan() || b.is_nan();
    match predicate & 15 {
        0 => a == b,
        1 => a < b,
        2 => a <= b,
        3 => unordered,
        4 => a != b,
        5 => unordered || a >= b,
        6 => unordered || a > b,
        7 => !unordered,
        8 => unordered || a == b,
        9 => unordered || a < b,
        10 => unordered || a <= b,
        11 => false,
        12 => !unordered && a != b,
        13 => a >= b,
        14 => a > b,
        _ => true,
    }
}

/// A predicate of integers.
fn orders<T: Ord>(predicate: u8, a: T, b: T) -> bool {
    match predicate & 7 {
        0 => a == b,
        1 => a < b,
        2 => a <= b,
        3 => false,
        4 => a != b,
        5 => a >= b,
        6 => a > b,
        _ => true,
    }
}
