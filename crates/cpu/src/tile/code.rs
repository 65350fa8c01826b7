//! Instructions, their context, and lane-by-lane loops.

use super::emitted::Emitted;
use super::walk::Walk;
use kiln_kernel::bound::BoundDynamic;
use kiln_kernel::failures::Position;

/// The arguments of an instruction.
pub(crate) type Call = (*mut Ctx, *const Instruction);
/// A compiled instruction.
///
/// # Safety
/// The context is that of a runner of the linked program that the code belongs to.
pub(crate) type Op = unsafe fn(Call);

/// An instruction with its operands.
#[derive(Copy, Clone)]
pub(crate) struct Instruction {
    pub f: Op,
    /// Physical registers.
    pub dst: u32,
    pub a: u32,
    pub b: u32,
    pub c: u32,
    /// The index of a walk, slot, state, site or emitted function, depending on the instruction.
    pub x: u32,
    /// True if it calls an emitted function, whose number is `x`.
    pub is_call: bool,
}

/// The state that instructions see while a program runs.
pub(crate) struct Ctx {
    /// The address of each physical register's elements.
    pub homes: *const *mut u8,
    pub args: *const *mut u8,
    pub walks: *const Walk,
    pub bases: *mut i64,
    pub coords: *mut i64,
    pub dynamics: *const Vec<BoundDynamic>,
    pub emitted: *const Emitted,
    pub slots: *const *mut u8,
    pub states: *mut [u64; 2],
    /// The number of lanes of this tile.
    pub n: usize,
    /// The first element of this tile in each slot.
    pub slot_offset: usize,
    pub pos: Position,
}

impl Ctx {
    /// Returns a register's elements.
    ///
    /// # Safety
    /// `reg` is a register of the program whose elements are `T`.
    #[inline(always)]
    pub(crate) unsafe fn reg<T>(&self, reg: u32) -> *mut T {
        // SAFETY: there is a pointer for each register of the program.
        unsafe { (*self.homes.add(reg as usize)).cast() }
    }
}

/// `dst[i] = f(a[i])`.
///
/// # Safety
/// As for every instruction; the registers' elements are `R` and `A`, and differ in memory.
#[inline(always)]
pub(crate) unsafe fn map1<A: Copy, R>(
    (ctx, c): (*mut Ctx, *const Instruction),
    f: impl Fn(A) -> R,
) {
    // SAFETY: the context is the program's, whose registers have `n` elements, of these types.
    unsafe {
        let (ctx, c) = (&*ctx, &*c);
        let (d, a) = (ctx.reg::<R>(c.dst), ctx.reg::<A>(c.a));
        for i in 0..ctx.n {
            *d.add(i) = f(*a.add(i));
        }
    }
}

/// `dst[i] = f(a[i], b[i])`.
///
/// # Safety
/// As for [`map1`].
#[inline(always)]
pub(crate) unsafe fn map2<A: Copy, B: Copy, R>(
    (ctx, c): (*mut Ctx, *const Instruction),
    f: impl Fn(A, B) -> R,
) {
    // SAFETY: the context is the program's, whose registers have `n` elements, of these types.
    unsafe {
        let (ctx, c) = (&*ctx, &*c);
        let (d, a, b) = (ctx.reg::<R>(c.dst), ctx.reg::<A>(c.a), ctx.reg::<B>(c.b));
        for i in 0..ctx.n {
            *d.add(i) = f(*a.add(i), *b.add(i));
        }
    }
}

/// `dst[i] = f(a[i], b[i], c[i])`.
///
/// # Safety
/// As for [`map1`].
#[inline(always)]
pub(crate) unsafe fn map3<A: Copy, B: Copy, C: Copy, R>(
    (ctx, c): (*mut Ctx, *const Instruction),
    f: impl Fn(A, B, C) -> R,
) {
    // SAFETY: the context is the program's, whose registers have `n` elements, of these types.
    unsafe {
        let (ctx, c) = (&*ctx, &*c);
        let (d, x) = (ctx.reg::<R>(c.dst), ctx.reg::<A>(c.a));
        let (y, z) = (ctx.reg::<B>(c.b), ctx.reg::<C>(c.c));
        for i in 0..ctx.n {
            *d.add(i) = f(*x.add(i), *y.add(i), *z.add(i));
        }
    }
}
