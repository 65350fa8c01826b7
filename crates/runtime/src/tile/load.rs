//! Loads, stores and index numbers.

use super::code::{Call, Code, Ctx, Op};
use super::compute::with_compute;
use super::lanes::{Elem, from_bits};
use super::walk::{Shape, Walk};
use crate::simd::convert::{Mem, with_dtype};
use crate::simd::copy::Stream;
use crate::simd::{Isa, Kernel, Level, compiled};
use kiln_base::{Compute, DType};
use std::marker::PhantomData;

/// What the operands of a load or store point at.
struct At<'a> {
    ctx: &'a mut Ctx,
    code: &'a Code,
    walk: &'a Walk,
    /// The argument's element zero.
    memory: *mut u8,
    /// The address for lane index zero.
    base: i64,
}

/// # Safety
/// As for every instruction; `x` is a walk.
#[inline(always)]
unsafe fn at<'a>((ctx, code): Call) -> At<'a> {
    // SAFETY: the context is the program's, which has the walk `x` and the argument that it is over.
    unsafe {
        let (ctx, code) = (&mut *ctx, &*code);
        let walk = &*ctx.walks.add(code.x as usize);
        let memory = *ctx.args.add(walk.arg);
        let base = *ctx.bases.add(walk.base_at);
        At {
            ctx,
            code,
            walk,
            memory,
            base,
        }
    }
}

#[inline(always)]
fn element<T>(memory: *mut u8, index: i64) -> *mut T {
    memory.cast::<T>().wrapping_offset(index as isize)
}

/// The same element in every lane.
struct LoadSplat<M>(PhantomData<M>);
impl<M: Mem> Kernel<Call> for LoadSplat<M> {
    #[inline(always)]
    unsafe fn run<I: Isa>(call: Call) {
        // SAFETY: binding proved the element within the argument.
        unsafe {
            let l = at(call);
            let d = l.ctx.reg::<M::C>(l.code.dst);
            let value = M::load(*element::<M::Raw>(l.memory, l.base));
            for i in 0..l.ctx.n {
                *d.add(i) = value;
            }
        }
    }
}

/// Consecutive elements, converted.
struct LoadLine<M>(PhantomData<M>);
impl<M: Mem> Kernel<Call> for LoadLine<M> {
    #[inline(always)]
    unsafe fn run<I: Isa>(call: Call) {
        // SAFETY: binding proved the elements within the argument.
        unsafe {
            let l = at(call);
            let d = l.ctx.reg::<M::C>(l.code.dst);
            let s = element::<M::Raw>(l.memory, l.base + l.ctx.start);
            for i in 0..l.ctx.n {
                *d.add(i) = M::load(*s.add(i));
            }
        }
    }
}

/// Consecutive elements that are read where they are.
struct LoadDirect<M>(PhantomData<M>);
impl<M: Mem> Kernel<Call> for LoadDirect<M> {
    #[inline(always)]
    unsafe fn run<I: Isa>(call: Call) {
        // SAFETY: linking gave the register no other writer, and no store comes between.
        unsafe {
            let l = at(call);
            let s = element::<M::Raw>(l.memory, l.base + l.ctx.start);
            *l.ctx.ptrs.add(l.code.dst as usize) = s.cast();
        }
    }
}

/// Any access. With `b` set, the register may point at memory where the tile is one run.
struct LoadAny<M>(PhantomData<M>);
impl<M: Mem> Kernel<Call> for LoadAny<M>
where
    M::C: Elem,
{
    #[inline(always)]
    unsafe fn run<I: Isa>(call: Call) {
        // SAFETY: binding proved what the limits allow to be within the argument.
        unsafe {
            let l = at(call);
            let (ctx, code) = (l.ctx, l.code);
            let ptrs = ctx.ptrs;
            let home = *ctx.homes.add(code.dst as usize);
            *ptrs.add(code.dst as usize) = home;
            let d = home.cast::<M::C>();
            let fill = from_bits::<M::C>(l.walk.fill);
            let n = ctx.n;
            l.walk.runs(
                ctx,
                #[inline(always)]
                |lane, address, stride, len, low, high| {
                    if M::DIRECT && code.b != 0 && stride == 1 && low == 0 && high == n {
                        *ptrs.add(code.dst as usize) = element::<M::Raw>(l.memory, address).cast();
                        return;
                    }
                    let d = d.add(lane);
                    for i in 0..low {
                        *d.add(i) = fill;
                    }
                    for i in high..len {
                        *d.add(i) = fill;
                    }
                    if low < high {
                        let s = element::<M::Raw>(l.memory, address + low as i64 * stride);
                        load_run::<M>(d.add(low), s, stride, high - low);
                    }
                },
            );
        }
    }
}

/// # Safety
/// Both sides have `n` elements, the source `stride` apart.
#[inline(always)]
unsafe fn load_run<M: Mem>(d: *mut M::C, s: *const M::Raw, stride: i64, n: usize) {
    // SAFETY: every index is below `n`.
    unsafe {
        match stride {
            1 => {
                for i in 0..n {
                    *d.add(i) = M::load(*s.add(i));
                }
            }
            0 => {
                let value = M::load(*s);
                for i in 0..n {
                    *d.add(i) = value;
                }
            }
            _ => {
                for i in 0..n {
                    *d.add(i) = M::load(*s.offset(i as isize * stride as isize));
                }
            }
        }
    }
}

/// Consecutive elements.
struct StoreLine<M>(PhantomData<M>);
impl<M: Mem> Kernel<Call> for StoreLine<M> {
    #[inline(always)]
    unsafe fn run<I: Isa>(call: Call) {
        // SAFETY: binding proved the elements within the argument.
        unsafe {
            let l = at(call);
            let s = l.ctx.reg::<M::C>(l.code.a);
            let d = element::<M::Raw>(l.memory, l.base + l.ctx.start);
            if M::DIRECT {
                // The register may be this very memory.
                std::ptr::copy(s.cast::<M::Raw>(), d, l.ctx.n);
            } else {
                for i in 0..l.ctx.n {
                    *d.add(i) = M::store(*s.add(i));
                }
            }
        }
    }
}

/// Consecutive elements of a result too large for the cache.
struct StoreStream<M>(PhantomData<M>);
impl<M: Mem> Kernel<Call> for StoreStream<M> {
    #[inline(always)]
    unsafe fn run<I: Isa>(call: Call) {
        // SAFETY: binding proved the elements within the argument; the source is a register's own
        // memory, or memory that is read (linking streams only into what is not read).
        unsafe {
            let l = at(call);
            let s = l.ctx.reg::<u8>(l.code.a);
            let d = element::<M::Raw>(l.memory, l.base + l.ctx.start);
            Stream::run::<I>((d.cast(), s, l.ctx.n * size_of::<M::Raw>()));
        }
    }
}

/// Any access.
struct StoreAny<M>(PhantomData<M>);
impl<M: Mem> Kernel<Call> for StoreAny<M> {
    #[inline(always)]
    unsafe fn run<I: Isa>(call: Call) {
        // SAFETY: binding proved what the limits allow to be within the argument.
        unsafe {
            let l = at(call);
            let s = l.ctx.reg::<M::C>(l.code.a);
            l.walk.runs(
                l.ctx,
                #[inline(always)]
                |lane, address, stride, _len, low, high| {
                    if low >= high {
                        return;
                    }
                    let s = s.add(lane);
                    let d = element::<M::Raw>(l.memory, address);
                    if stride == 1 {
                        for i in low..high {
                            *d.wrapping_add(i) = M::store(*s.add(i));
                        }
                    } else {
                        for i in low..high {
                            *d.wrapping_offset(i as isize * stride as isize) = M::store(*s.add(i));
                        }
                    }
                },
            );
        }
    }
}

/// The affine number itself.
struct Index;
impl Kernel<Call> for Index {
    #[inline(always)]
    unsafe fn run<I: Isa>((ctx, code): Call) {
        // SAFETY: the register's elements are i64, by the checks.
        unsafe {
            let (ctx, code) = (&*ctx, &*code);
            let walk = &*ctx.walks.add(code.x as usize);
            let d = ctx.reg::<i64>(code.dst);
            walk.runs(
                ctx,
                #[inline(always)]
                |lane, value, stride, len, _, _| {
                    let d = d.add(lane);
                    for i in 0..len {
                        *d.add(i) = value + i as i64 * stride;
                    }
                },
            );
        }
    }
}

/// The instruction of a load. `direct` says that the register may point at memory.
pub(super) fn load(shape: Shape, dtype: DType, direct: bool, level: Level) -> Op {
    with_dtype!(dtype, M => match shape {
        Shape::Splat => compiled::<LoadSplat<M>, Call>(level),
        Shape::Contiguous if M::DIRECT && direct => compiled::<LoadDirect<M>, Call>(Level::Baseline),
        Shape::Contiguous => compiled::<LoadLine<M>, Call>(level),
        Shape::General => compiled::<LoadAny<M>, Call>(level),
    })
}

/// The instruction of a store. `stream` says that the result should bypass the cache.
pub(super) fn store(shape: Shape, dtype: DType, stream: bool, level: Level) -> Op {
    with_dtype!(dtype, M => match shape {
        Shape::Contiguous if M::DIRECT && stream => compiled::<StoreStream<M>, Call>(level),
        Shape::Contiguous => compiled::<StoreLine<M>, Call>(level),
        Shape::Splat | Shape::General => compiled::<StoreAny<M>, Call>(level),
    })
}

/// The instruction of an index number.
pub(super) fn index(level: Level) -> Op {
    compiled::<Index, Call>(level)
}

/// Whether elements of `dtype` are the same bits in memory and in a register.
pub(super) fn is_direct(dtype: DType) -> bool {
    with_dtype!(dtype, M => M::DIRECT)
}

/// The element in memory whose load gives these bits of a register, which are those of an element.
pub(super) fn in_memory(bits: u64, dtype: DType) -> Vec<u8> {
    fn bytes<M: Mem>(bits: u64) -> Vec<u8>
    where
        M::C: Elem,
    {
        let raw = M::store(from_bits::<M::C>(bits));
        let at = (&raw const raw).cast::<u8>();
        // SAFETY: elements in memory are numbers, which are bytes without gaps.
        unsafe { std::slice::from_raw_parts(at, size_of::<M::Raw>()) }.to_vec()
    }
    with_dtype!(dtype, M => bytes::<M>(bits))
}

/// Writes a register to its row slot.
struct Keep<T>(PhantomData<T>);
impl<T: Elem> Kernel<Call> for Keep<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>((ctx, code): Call) {
        // SAFETY: a slot has room for every inner point of a row or of a tile of rows.
        unsafe {
            let (ctx, code) = (&*ctx, &*code);
            let d = (*ctx.slots.add(code.x as usize))
                .cast::<T>()
                .add(ctx.slot_at);
            std::ptr::copy(ctx.reg::<T>(code.a), d, ctx.n);
        }
    }
}

/// Makes a register point at its place in a row slot.
struct Aim<T>(PhantomData<T>);
impl<T: Elem> Kernel<Call> for Aim<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>((ctx, code): Call) {
        // SAFETY: as for `Keep`; linking made sure that the register points nowhere else meanwhile.
        unsafe {
            let (ctx, code) = (&*ctx, &*code);
            let s = (*ctx.slots.add(code.x as usize))
                .cast::<T>()
                .add(ctx.slot_at);
            *ctx.ptrs.add(code.dst as usize) = s.cast();
        }
    }
}

/// The instruction that writes a row slot.
pub(super) fn keep(ty: Compute, level: Level) -> Op {
    with_compute!(ty, T => compiled::<Keep<T>, Call>(level))
}

/// The instruction after which a register is its place in a row slot.
pub(super) fn aim(ty: Compute) -> Op {
    with_compute!(ty, T => compiled::<Aim<T>, Call>(Level::Baseline))
}
