//! Arithmetic with the carry flag, for integers of several words. The flag is a predicate.

use super::{CARRY, LANES, Loop, Operands, Registers, Run, Value, closure, compiled, lanes, store};
use crate::ptx::Type::{self, *};
use std::marker::PhantomData;

/// The number of a loop: bit 0 is set if it takes the flag in, bit 1 if it sets the flag.
pub(crate) fn number(takes: bool, sets: bool) -> u32 {
    takes as u32 | (sets as u32) << 1
}

struct WithCarry<V, F>(PhantomData<fn() -> (V, F)>);

impl<V: Value, F: Fn(V, V, V, bool) -> (V, bool) + Copy> Loop for WithCarry<V, F> {
    #[inline(always)]
    fn run(registers: &mut Registers, o: &Operands, mask: u32) {
        let f = closure::<F>();
        let flags = if o.x & 1 != 0 {
            registers.predicates[CARRY as usize]
        } else {
            0
        };
        let a = lanes::<V>(registers, o.a);
        let b = lanes::<V>(registers, o.b);
        let c = lanes::<V>(registers, o.c);
        let mut out = [V::Bits::default(); LANES];
        let mut carries = 0;
        for l in 0..LANES {
            let (a, b, c) = (V::from_bits(a[l]), V::from_bits(b[l]), V::from_bits(c[l]));
            let (value, carry) = f(a, b, c, flags >> l & 1 != 0);
            out[l] = value.to_bits();
            carries |= (carry as u32) << l;
        }
        store::<V>(registers, o.d, mask, out);
        if o.x & 2 != 0 {
            registers.set_predicate(CARRY, carries, mask);
        }
    }
}

fn with_carry<V: Value, F: Fn(V, V, V, bool) -> (V, bool) + Copy>(_: F) -> Run {
    compiled::<WithCarry<V, F>>()
}

/// `x + y + carry`, and true if it overflows.
macro_rules! sum {
    ($x:expr, $y:expr, $carry:expr) => {{
        let (sum, first) = $x.overflowing_add($y);
        let (sum, second) = sum.overflowing_add($carry as _);
        (sum, first | second)
    }};
}

/// `x - y - borrow`, and true if it underflows.
macro_rules! difference {
    ($x:expr, $y:expr, $borrow:expr) => {{
        let (difference, first) = $x.overflowing_sub($y);
        let (difference, second) = difference.overflowing_sub($borrow as _);
        (difference, first | second)
    }};
}

/// The loop of `add`, `sub`, `mad.lo` and `mad.hi` with the flag.
pub(crate) fn pick(name: &str, ty: Type) -> Option<Run> {
    Some(match (name, ty) {
        ("add", U32 | S32) => with_carry(|x: u32, y: u32, _, flag| sum!(x, y, flag)),
        ("add", U64 | S64) => with_carry(|x: u64, y: u64, _, flag| sum!(x, y, flag)),
        ("sub", U32 | S32) => with_carry(|x: u32, y: u32, _, flag| difference!(x, y, flag)),
        ("sub", U64 | S64) => with_carry(|x: u64, y: u64, _, flag| difference!(x, y, flag)),
        ("mad.lo", U32 | S32) => {
            with_carry(|x: u32, y: u32, z: u32, flag| sum!(x.wrapping_mul(y), z, flag))
        }
        ("mad.lo", U64 | S64) => {
            with_carry(|x: u64, y: u64, z: u64, flag| sum!(x.wrapping_mul(y), z, flag))
        }
        ("mad.hi", U32) => with_carry(|x: u32, y: u32, z: u32, flag| {
            sum!(((x as u64 * y as u64) >> 32) as u32, z, flag)
        }),
        ("mad.hi", U64) => with_carry(|x: u64, y: u64, z: u64, flag| {
            sum!(((x as u128 * y as u128) >> 64) as u64, z, flag)
        }),
        _ => return None,
    })
}
