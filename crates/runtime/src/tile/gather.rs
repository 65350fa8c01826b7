//! Loads at data-dependent addresses.

use super::code::{Call, Op};
use super::lanes::{Elem, from_bits};
use crate::simd::convert::{Mem, with_dtype};
use crate::simd::{Isa, Kernel, Level, compiled};
use kiln_base::DType;
use std::marker::PhantomData;

/// Reads lane by lane: `x` is the walk, `a` the list of dynamic parts.
struct LoadAt<M>(PhantomData<M>);
impl<M: Mem> Kernel<Call> for LoadAt<M>
where
    M::C: Elem,
{
    #[inline(always)]
    unsafe fn run<I: Isa>((ctx, code): Call) {
        // SAFETY: every address is checked against the argument's length before it is read.
        unsafe {
            let (ctx, code) = (&*ctx, &*code);
            let walk = &*ctx.walks.add(code.x as usize);
            let memory = (*ctx.args.add(walk.arg)).cast::<M::Raw>();
            let dynamic = &*ctx.dynamics.add(code.a as usize);
            let d = ctx.reg::<M::C>(code.dst);
            let fill = from_bits::<M::C>(walk.fill);
            walk.runs(
                ctx,
                #[inline(always)]
                |lane, address, stride, len, low, high| {
                    for i in (0..low).chain(high..len) {
                        *d.add(lane + i) = fill;
                    }
                    for i in low..high {
                        let mut address = address.wrapping_add(stride.wrapping_mul(i as i64));
                        for part in dynamic {
                            let index = *ctx.reg::<i64>(part.index as u32).add(lane + i);
                            if index as u64 >= part.extent as u64 {
                                ctx.fail(part.site, lane + i, index, part.extent);
                            } else {
                                address = address.wrapping_add(index.wrapping_mul(part.stride));
                            }
                        }
                        // An empty or badly described argument has nothing to read.
                        *d.add(lane + i) = if (address as u64) < walk.len as u64 {
                            M::load(*memory.add(address as usize))
                        } else {
                            fill
                        };
                    }
                },
            );
        }
    }
}

/// The instruction of a load at a data-dependent address.
pub(super) fn load_at(dtype: DType, level: Level) -> Op {
    with_dtype!(dtype, M => compiled::<LoadAt<M>, Call>(level))
}
