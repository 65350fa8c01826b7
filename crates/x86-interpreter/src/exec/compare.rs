//! Comparisons: their results are masks, or lanes with all bits set.

use super::Action;
use crate::cpu::{Cpu, Flags};
use crate::fault::Outcome;
use crate::number::Float;
use crate::step::{OperandLocation, Step};
use crate::vector::{Lane, Vector};
use iced_x86::Mnemonic::*;

pub(super) fn action(step: &Step) -> Option<Action> {
    predicates(step)
        .or_else(|| fixed(step))
        .or_else(|| scalars(step))
}

fn predicates(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vcmpps => |c, s| c.compare(s, |a: f32, b| holds(s.immediate(), a, b)),
        Vcmppd => |c, s| c.compare(s, |a: f64, b| holds(s.immediate(), a, b)),
        Vpcmpb => |c, s| c.compare(s, |a: i8, b| orders(s.immediate(), a, b)),
        Vpcmpw => |c, s| c.compare(s, |a: i16, b| orders(s.immediate(), a, b)),
        Vpcmpd => |c, s| c.compare(s, |a: i32, b| orders(s.immediate(), a, b)),
        Vpcmpq => |c, s| c.compare(s, |a: i64, b| orders(s.immediate(), a, b)),
        Vpcmpub => |c, s| c.compare(s, |a: u8, b| orders(s.immediate(), a, b)),
        Vpcmpuw => |c, s| c.compare(s, |a: u16, b| orders(s.immediate(), a, b)),
        Vpcmpud => |c, s| c.compare(s, |a: u32, b| orders(s.immediate(), a, b)),
        Vpcmpuq => |c, s| c.compare(s, |a: u64, b| orders(s.immediate(), a, b)),
        _ => return None,
    })
}

fn fixed(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vpcmpeqb => |c, s| c.compare(s, |a: u8, b| a == b),
        Vpcmpeqw => |c, s| c.compare(s, |a: u16, b| a == b),
        Vpcmpeqd => |c, s| c.compare(s, |a: u32, b| a == b),
        Vpcmpeqq => |c, s| c.compare(s, |a: u64, b| a == b),
        Vpcmpgtb => |c, s| c.compare(s, |a: i8, b| a > b),
        Vpcmpgtw => |c, s| c.compare(s, |a: i16, b| a > b),
        Vpcmpgtd => |c, s| c.compare(s, |a: i32, b| a > b),
        Vpcmpgtq => |c, s| c.compare(s, |a: i64, b| a > b),
        Vptestmb => |c, s| c.compare(s, |a: u8, b| a & b != 0),
        Vptestmw => |c, s| c.compare(s, |a: u16, b| a & b != 0),
        Vptestmd => |c, s| c.compare(s, |a: u32, b| a & b != 0),
        Vptestmq => |c, s| c.compare(s, |a: u64, b| a & b != 0),
        Vptestnmb => |c, s| c.compare(s, |a: u8, b| a & b == 0),
        Vptestnmw => |c, s| c.compare(s, |a: u16, b| a & b == 0),
        Vptestnmd => |c, s| c.compare(s, |a: u32, b| a & b == 0),
        Vptestnmq => |c, s| c.compare(s, |a: u64, b| a & b == 0),
        _ => return None,
    })
}

/// Comparisons of the lowest lane, which set flags.
fn scalars(step: &Step) -> Option<Action> {
    Some(match step.mnemonic {
        Vucomiss | Vcomiss => |c, s| {
            let [a, b] = [c.value(s, 0)?, c.value(s, 1)?].map(|x| f32::from_bits(x as u32));
            c.order_flags(a, b)
        },
        Vucomisd | Vcomisd => |c, s| {
            let [a, b] = [c.value(s, 0)?, c.value(s, 1)?].map(f64::from_bits);
            c.order_flags(a, b)
        },
        _ => return None,
    })
}

impl Cpu<'_, '_> {
    fn order_flags<T: Float>(&mut self, a: T, b: T) -> Outcome<()> {
        let unordered = a.is_nan() || b.is_nan();
        self.flags = Flags {
            zero: Some(unordered || a == b),
            parity: Some(unordered),
            carry: Some(unordered || a < b),
            sign: Some(false),
            overflow: Some(false),
        };
        Ok(())
    }

    fn compare<T: Lane>(&mut self, step: &Step, f: impl Fn(T, T) -> bool) -> Outcome<()> {
        let OperandLocation::Mask(k) = step.operands[0] else {
            return self.zip(step, |a: T, b: T| T::all(f(a, b)));
        };
        let count = step.bytes(1) / T::SIZE;
        let active = self.active(step);
        let (a, b) = (
            self.lanes::<T>(step, 1, active)?,
            self.lanes::<T>(step, 2, active)?,
        );
        let holds = |i: &usize| active >> i & 1 == 1 && f(a.get(*i), b.get(*i));
        let bits = (0..count).filter(holds).fold(0, |bits, i| bits | 1 << i);
        self.masks[usize::from(k)] = bits;
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
        let (v, count) = (self.vector(step, 1)?, step.bytes(1) / T::SIZE);
        let signs = (0..count).filter(|i| v.get::<T>(*i).sign());
        let bits = signs.fold(0, |bits, i| bits | 1 << i);
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
