//! Loads, stores, index numbers and row slots.

use super::code::{Call, Ctx, Instruction, Op};
use super::walk::Walk;
use kiln_base::{Compute, DType};
use kiln_kernel::compute::with_compute;
use kiln_kernel::element::Elem;
use kiln_kernel::simd::convert::{Mem, with_dtype};

/// Returns the operands of a load or store: the context, its code, the walk, and the argument's element zero.
///
/// # Safety
/// As for every instruction; `x` is a walk.
#[inline(always)]
pub(super) unsafe fn args_of<'a, T>(
    (ctx, code): Call,
) -> (&'a Ctx, &'a Instruction, &'a Walk, *mut T) {
    // SAFETY: the context is the program's, which has the walk `x` and the walk's argument.
    unsafe {
        let (ctx, code) = (&*ctx, &*code);
        let walk = &*ctx.walks.add(code.x as usize);
        (ctx, code, walk, (*ctx.args.add(walk.arg)).cast())
    }
}

/// Returns the instruction of a load.
pub(super) fn load(dtype: DType) -> Op {
    unsafe fn run<M: Mem>(call: Call)
    where
        M::C: Elem,
    {
        // SAFETY: binding proved what the limits allow to be within the argument.
        unsafe {
            let (ctx, code, walk, memory) = args_of::<M::Raw>(call);
            let d = ctx.reg::<M::C>(code.dst);
            let fill = <M::C>::from_bits(walk.fill);
            walk.runs(ctx, |lane, address, stride, len, low, high| {
                let d = d.add(lane);
                for i in (0..low).chain(high..len) {
                    *d.add(i) = fill;
                }
                let s = memory.wrapping_offset(address as isize);
                match stride {
                    1 => (low..high).for_each(|i| *d.add(i) = M::load(*s.wrapping_add(i))),
                    _ => (low..high).for_each(|i| {
                        *d.add(i) = M::load(*s.wrapping_offset(i as isize * stride as isize));
                    }),
                }
            });
        }
    }
    with_dtype!(dtype, M => run::<M>)
}

/// Returns the instruction of a store.
pub(super) fn store(dtype: DType) -> Op {
    unsafe fn run<M: Mem>(call: Call) {
        // SAFETY: binding proved what the limits allow to be within the argument.
        unsafe {
            let (ctx, code, walk, memory) = args_of::<M::Raw>(call);
            let s = ctx.reg::<M::C>(code.a);
            walk.runs(ctx, |lane, address, stride, _, low, high| {
                let (s, d) = (s.add(lane), memory.wrapping_offset(address as isize));
                match stride {
                    1 => (low..high).for_each(|i| *d.wrapping_add(i) = M::store(*s.add(i))),
                    _ => (low..high).for_each(|i| {
                        *d.wrapping_offset(i as isize * stride as isize) = M::store(*s.add(i));
                    }),
                }
            });
        }
    }
    with_dtype!(dtype, M => run::<M>)
}

/// Returns the instruction of a lane-by-lane load at data-dependent addresses. `x` is the walk, `a` the list of dynamic
/// parts.
pub(super) fn load_at(dtype: DType) -> Op {
    unsafe fn run<M: Mem>(call: Call)
    where
        M::C: Elem,
    {
        // SAFETY: every address is checked against the argument's length before it is read.
        unsafe {
            let (ctx, code, walk, memory) = args_of::<M::Raw>(call);
            let dynamic = &*ctx.dynamics.add(code.a as usize);
            let d = ctx.reg::<M::C>(code.dst);
            let fill = <M::C>::from_bits(walk.fill);
            walk.runs(ctx, |lane, address, stride, len, low, high| {
                for i in (0..low).chain(high..len) {
                    *d.add(lane + i) = fill;
                }
                for i in low..high {
                    let mut address = address.wrapping_add(stride.wrapping_mul(i as i64));
                    for part in dynamic {
                        let index = *ctx.reg::<i64>(part.index).add(lane + i);
                        if index as u64 >= part.extent as u64 {
                            let failure = ctx.pos.failure(part.site, lane + i, index, part.extent);
                            (*ctx.pos.failures).report(failure);
                        } else {
                            address = address.wrapping_add(index.wrapping_mul(part.stride));
                        }
                    }
                    // Without an address in bounds, nothing is read.
                    *d.add(lane + i) = if (address as u64) < walk.len as u64 {
                        M::load(*memory.add(address as usize))
                    } else {
                        fill
                    };
                }
            });
        }
    }
    with_dtype!(dtype, M => run::<M>)
}

/// Writes the affine number itself, or with `LANES` only the part that the lanes contribute.
pub(super) unsafe fn index<const LANES: bool>((ctx, code): Call) {
    // SAFETY: the register's elements are i64, by the checks; an index has a walk, but no argument.
    unsafe {
        let (ctx, code) = (&*ctx, &*code);
        let d = ctx.reg::<i64>(code.dst);
        let walk = &*ctx.walks.add(code.x as usize);
        let base = if LANES {
            *ctx.bases.add(walk.base_index)
        } else {
            0
        };
        walk.runs(ctx, |lane, value, stride, len, _, _| {
            for i in 0..len {
                *d.add(lane + i) = value - base + i as i64 * stride;
            }
        });
    }
}

/// True if elements of `dtype` have the same bits in memory and in a register.
pub(super) fn is_direct(dtype: DType) -> bool {
    with_dtype!(dtype, M => M::DIRECT)
}

/// Converts an element from its bits in a register to its bytes in memory.
pub(super) fn memory_bytes(bits: u64, dtype: DType) -> Vec<u8> {
    fn bytes<M: Mem>(bits: u64) -> Vec<u8>
    where
        M::C: Elem,
    {
        let raw = M::store(<M::C>::from_bits(bits));
        let data = (&raw const raw).cast::<u8>();
        // SAFETY: elements in memory are numbers, which are bytes without gaps.
        unsafe { std::slice::from_raw_parts(data, size_of::<M::Raw>()) }.to_vec()
    }
    with_dtype!(dtype, M => bytes::<M>(bits))
}

/// Returns the instruction that copies a register to the row slot `x`, or with `reads` from it.
pub(super) fn copy_slot(ty: Compute, reads: bool) -> Op {
    unsafe fn run<T: Elem, const READS: bool>((ctx, code): Call) {
        // SAFETY: a slot has room for every inner point of a row or of a tile of rows.
        unsafe {
            let (ctx, code) = (&*ctx, &*code);
            let slot = *ctx.slots.add(code.x as usize);
            let slot = slot.cast::<T>().add(ctx.slot_offset);
            let (src, dst) = match READS {
                true => (slot, ctx.reg::<T>(code.dst)),
                false => (ctx.reg::<T>(code.a), slot),
            };
            std::ptr::copy_nonoverlapping(src, dst, ctx.n);
        }
    }
    with_compute!(ty, T => if reads { run::<T, true> } else { run::<T, false> })
}
