//! Moves, selections, packing, and logic of predicates.

use super::{
    LANES, Loop, Operands, Registers, Run, Value, compiled, lanes, store, unary, with_number,
};
use std::marker::PhantomData;

struct Select<V>(PhantomData<fn() -> V>);

impl<V: Value> Loop for Select<V> {
    #[inline(always)]
    fn run(registers: &mut Registers, o: &Operands, mask: u32) {
        let chosen = registers.predicates[o.c as usize];
        let (a, b) = (*lanes::<V>(registers, o.a), lanes::<V>(registers, o.b));
        let mut out = a;
        for l in 0..LANES {
            if chosen >> l & 1 == 0 {
                out[l] = b[l];
            }
        }
        store::<V>(registers, o.d, mask, out);
    }
}

/// `d = c ? a : b`, `c` a predicate.
pub(crate) fn select(wide: bool) -> Run {
    if wide {
        compiled::<Select<u64>>()
    } else {
        compiled::<Select<u32>>()
    }
}

/// `d = a`.
pub(crate) fn copy(wide: bool) -> Run {
    if wide {
        unary(|x: u64| x)
    } else {
        unary(|x: u32| x)
    }
}

/// `bits` bits of `a` from bit `x` on: part of a register, for unpacking. `bits` is 8, 16 or 32.
pub(crate) fn extract_part(wide: bool, bits: u32) -> Option<Run> {
    Some(match (wide, bits) {
        (false, 8) => with_number(|a: u32, _: u32, _: u32, x| a >> x & 0xff),
        (false, 16) => with_number(|a: u32, _: u32, _: u32, x| a >> x & 0xffff),
        (true, 16) => with_number(|a: u64, _: u32, _: u32, x| (a >> x) as u32 & 0xffff),
        (true, 32) => with_number(|a: u64, _: u32, _: u32, x| (a >> x) as u32),
        _ => return None,
    })
}

/// `a` with `bits` bits from bit `x` on replaced by `b`, for packing.
pub(crate) fn join(wide: bool, bits: u32) -> Option<Run> {
    Some(match (wide, bits) {
        (false, 8) => with_number(|a: u32, b: u32, _: u32, x| a & !(0xff << x) | (b & 0xff) << x),
        (false, 16) => {
            with_number(|a: u32, b: u32, _: u32, x| a & !(0xffff << x) | (b & 0xffff) << x)
        }
        (true, 16) => {
            with_number(|a: u64, b: u32, _: u32, x| a & !(0xffff << x) | (b as u64 & 0xffff) << x)
        }
        (true, 32) => {
            with_number(|a: u64, b: u32, _: u32, x| a & !(0xffff_ffff << x) | (b as u64) << x)
        }
        _ => return None,
    })
}

/// Logic of predicates: `x` is a truth table of (a, b).
struct PredicateLogic;

impl Loop for PredicateLogic {
    #[inline(always)]
    fn run(registers: &mut Registers, o: &Operands, mask: u32) {
        let (a, b) = (
            registers.predicates[o.a as usize],
            registers.predicates[o.b as usize],
        );
        let mut out = 0;
        for (row, lanes) in [!a & !b, !a & b, a & !b, a & b].into_iter().enumerate() {
            if o.x >> row & 1 != 0 {
                out |= lanes;
            }
        }
        registers.set_predicate(o.d, out, mask);
    }
}

/// `d = table(a, b)` of predicates; bit `2a + b` of the number is the result.
pub(crate) fn predicate_logic() -> Run {
    compiled::<PredicateLogic>()
}
