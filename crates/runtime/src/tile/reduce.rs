//! Reductions. Every order of combination is fixed by the shapes alone.

use super::code::{Call, Op};
use super::compute::with_compute;
use super::lanes::Elem;
use kiln_base::Compute;
use kiln_base::prim::Reduction;
use std::marker::PhantomData;

/// How a reduction combines, at compile time.
trait Combine<T>: 'static {
    fn identity() -> T;
    fn combine(a: T, b: T) -> T;
}

macro_rules! combine {
    ($($name:ident: $identity:ident, $f:ident;)*) => {$(
        struct $name;
        impl<T: Elem> Combine<T> for $name {
            #[inline(always)]
            fn identity() -> T {
                T::$identity
            }
            #[inline(always)]
            fn combine(a: T, b: T) -> T {
                a.$f(b)
            }
        }
    )*};
}
combine! {
    Sum: ZERO, add;
    Prod: ONE, mul;
    Max: LEAST, max;
    Min: MOST, min;
}

/// Lanes that one row's reduction runs in.
const WIDTH: usize = 64;

/// Combines `n` elements: lane accumulators first, then pairwise.
///
/// # Safety
/// There are `n` elements at `a`.
#[inline(always)]
unsafe fn fold<T: Elem, C: Combine<T>>(a: *const T, n: usize) -> T {
    let mut acc = [C::identity(); WIDTH];
    let mut rest = [C::identity(); WIDTH];
    let whole = n / WIDTH * WIDTH;
    // SAFETY: every index is below `n`.
    unsafe {
        let mut i = 0;
        while i < whole {
            // Not in place: a maximum that leaves its accumulator would become a conditional store,
            // and `acc` live in memory.
            let mut next = acc;
            for (j, (next, acc)) in next.iter_mut().zip(&acc).enumerate() {
                *next = C::combine(*acc, *a.add(i + j));
            }
            acc = next;
            i += WIDTH;
        }
        if whole < n {
            std::ptr::copy_nonoverlapping(a.add(whole), rest.as_mut_ptr(), n - whole);
        }
    }
    // Nothing but loops of known length may touch `acc`, or it would live in memory.
    for (acc, rest) in acc.iter().zip(&mut rest) {
        *rest = C::combine(*acc, *rest);
    }
    let acc = halve::<T, C, 32>(&rest);
    let acc = halve::<T, C, 16>(&acc);
    let acc = halve::<T, C, 8>(&acc);
    let acc = halve::<T, C, 4>(&acc);
    let acc = halve::<T, C, 2>(&acc);
    halve::<T, C, 1>(&acc)[0]
}

/// Combines the first `N` elements with the `N` after them.
#[inline(always)]
fn halve<T: Elem, C: Combine<T>, const N: usize>(acc: &[T]) -> [T; N] {
    std::array::from_fn(
        #[inline(always)]
        |j| C::combine(acc[j], acc[j + N]),
    )
}

/// How a row's running value is kept between tiles: f32 sums in f64.
trait Carry<T>: 'static {
    type State: Copy;
    fn start() -> Self::State;
    fn add(state: Self::State, tile: T) -> Self::State;
    fn finish(state: Self::State) -> T;
}

struct Plain<C>(PhantomData<C>);
impl<T: Elem, C: Combine<T>> Carry<T> for Plain<C> {
    type State = T;
    fn start() -> T {
        C::identity()
    }
    fn add(state: T, tile: T) -> T {
        C::combine(state, tile)
    }
    fn finish(state: T) -> T {
        state
    }
}

struct Wide;
impl Carry<f32> for Wide {
    type State = f64;
    fn start() -> f64 {
        0.0
    }
    fn add(state: f64, tile: f32) -> f64 {
        state + tile as f64
    }
    fn finish(state: f64) -> f32 {
        state as f32
    }
}

/// Inner steps after which a lane's f32 sum moves on into an f64.
pub(super) const FLUSH: i64 = 256;

/// The instructions before the first, at each, and after the last tile or step.
pub(super) struct Parts {
    pub begin: Vec<Op>,
    pub body: Op,
    /// After `body`, with an f64 register beside the reduction's own; `begin` clears that one last.
    pub after: Option<Op>,
    pub end: Option<Op>,
}

impl Parts {
    fn new(begin: Op, body: Op, end: Option<Op>) -> Parts {
        Parts {
            begin: vec![begin],
            body,
            after: None,
            end,
        }
    }
}

// SAFETY, of all that follows: the types were checked, state `x` and the one after it belong to the reduction and hold
// any of its kinds, and linking made `b` a register of the type that the reduction wants beside its own.

unsafe fn row_begin<T: Elem, K: Carry<T>>((ctx, code): Call) {
    // SAFETY: see above.
    unsafe { *(*ctx).states.add((*code).x as usize).cast::<K::State>() = K::start() }
}

unsafe fn row_body<T: Elem, C: Combine<T>, K: Carry<T>>((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let (ctx, code) = (&*ctx, &*code);
        let state = ctx.states.add(code.x as usize).cast::<K::State>();
        *state = K::add(*state, fold::<T, C>(ctx.reg::<T>(code.a), ctx.n));
    }
}

unsafe fn row_end<T: Elem, K: Carry<T>>((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let (ctx, code) = (&*ctx, &*code);
        let state = ctx.states.add(code.x as usize).cast::<K::State>();
        *ctx.reg::<T>(code.dst) = K::finish(*state);
    }
}

/// A reduction across the lanes of a row; `x` is its state.
pub(super) fn rows(op: Reduction, ty: Compute) -> Parts {
    fn parts<T: Elem, C: Combine<T>, K: Carry<T>>() -> Parts {
        let end = Some(row_end::<T, K> as Op);
        Parts::new(row_begin::<T, K>, row_body::<T, C, K>, end)
    }
    match (op, ty) {
        (Reduction::Sum, Compute::F32) => parts::<f32, Sum, Wide>(),
        (Reduction::Sum, ty) => with_compute!(ty, T => parts::<T, Sum, Plain<Sum>>()),
        (Reduction::Prod, ty) => with_compute!(ty, T => parts::<T, Prod, Plain<Prod>>()),
        (Reduction::Max, ty) => with_compute!(ty, T => parts::<T, Max, Plain<Max>>()),
        (Reduction::Min, ty) => with_compute!(ty, T => parts::<T, Min, Plain<Min>>()),
    }
}

unsafe fn lane_begin<T: Elem, C: Combine<T>>((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let d = (*ctx).reg::<T>((*code).dst);
        (0..(*ctx).n).for_each(|i| *d.add(i) = C::identity());
    }
}

unsafe fn lane_body<T: Elem, C: Combine<T>>((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let (d, a) = ((*ctx).reg::<T>((*code).dst), (*ctx).reg::<T>((*code).a));
        (0..(*ctx).n).for_each(|i| *d.add(i) = C::combine(*d.add(i), *a.add(i)));
    }
}

/// An f32 sum is now and then flushed into the f64 register `b`.
unsafe fn flush((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let (ctx, code) = (&*ctx, &*code);
        if ctx.outer % FLUSH == FLUSH - 1 {
            let (d, long) = (ctx.reg::<f32>(code.dst), ctx.reg::<f64>(code.b));
            for i in 0..ctx.n {
                *long.add(i) += *d.add(i) as f64;
                *d.add(i) = 0.0;
            }
        }
    }
}

unsafe fn long_end((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let (ctx, code) = (&*ctx, &*code);
        let (d, long) = (ctx.reg::<f32>(code.dst), ctx.reg::<f64>(code.b));
        (0..ctx.n).for_each(|i| *d.add(i) = (*long.add(i) + *d.add(i) as f64) as f32);
    }
}

/// A reduction lane by lane over `steps` inner points.
pub(super) fn lanes(op: Reduction, ty: Compute, steps: i64) -> Parts {
    fn parts<T: Elem, C: Combine<T>>() -> Parts {
        Parts::new(lane_begin::<T, C>, lane_body::<T, C>, None)
    }
    match (op, ty) {
        (Reduction::Sum, Compute::F32) if steps > FLUSH => Parts {
            begin: vec![lane_begin::<f32, Sum>, lane_begin::<f64, Sum>],
            body: lane_body::<f32, Sum>,
            after: Some(flush),
            end: Some(long_end),
        },
        (Reduction::Sum, ty) => with_compute!(ty, T => parts::<T, Sum>()),
        (Reduction::Prod, ty) => with_compute!(ty, T => parts::<T, Prod>()),
        (Reduction::Max, ty) => with_compute!(ty, T => parts::<T, Max>()),
        (Reduction::Min, ty) => with_compute!(ty, T => parts::<T, Min>()),
    }
}

/// Whether `x` takes the place of `best`: strictly better, or the first NaN.
#[inline(always)]
fn beats<T: Elem, const LARGEST: bool>(x: T, best: T) -> bool {
    let better = if LARGEST { x > best } else { x < best };
    better | (x.is_nan() & !best.is_nan())
}

fn worst<T: Elem, const LARGEST: bool>() -> T {
    if LARGEST { T::LEAST } else { T::MOST }
}

/// Row state `x`: the best so far; state `x + 1`: its index.
unsafe fn best_row_begin<T: Elem, const L: bool>((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let state = (*ctx).states.add((*code).x as usize);
        *state.cast::<T>() = worst::<T, L>();
        *state.add(1).cast::<i64>() = 0;
    }
}

unsafe fn best_row_body<T: Elem, const L: bool>((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let (ctx, code) = (&*ctx, &*code);
        let a = ctx.reg::<T>(code.a);
        let state = ctx.states.add(code.x as usize);
        let best = state.cast::<T>();
        let tile = match L {
            true => fold::<T, Max>(a, ctx.n),
            false => fold::<T, Min>(a, ctx.n),
        };
        if !beats::<T, L>(tile, *best) {
            return;
        }
        let same = |x: T| x == tile || x.is_nan() && tile.is_nan();
        if let Some(i) = (0..ctx.n).find(|i| same(*a.add(*i))) {
            *best = tile;
            *state.add(1).cast::<i64>() = ctx.start + i as i64;
        }
    }
}

/// The index, which is the state after `x`.
unsafe fn best_row_end((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let value = *(*ctx).states.add((*code).x as usize + 1).cast::<i64>();
        *(*ctx).reg::<i64>((*code).dst) = value;
    }
}

/// The best so far is register `b`.
unsafe fn best_lane_begin<T: Elem, const L: bool>((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let (d, best) = ((*ctx).reg::<i64>((*code).dst), (*ctx).reg::<T>((*code).b));
        for i in 0..(*ctx).n {
            *d.add(i) = 0;
            *best.add(i) = worst::<T, L>();
        }
    }
}

unsafe fn best_lane_body<T: Elem, const L: bool>((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let (ctx, code) = (&*ctx, &*code);
        let (d, best) = (ctx.reg::<i64>(code.dst), ctx.reg::<T>(code.b));
        let a = ctx.reg::<T>(code.a);
        for i in 0..ctx.n {
            let (x, old) = (*a.add(i), *best.add(i));
            let wins = beats::<T, L>(x, old);
            *best.add(i) = if wins { x } else { old };
            *d.add(i) = if wins { ctx.outer } else { *d.add(i) };
        }
    }
}

/// An arg-reduction across the lanes of a row; `x` is the first of its two states.
pub(super) fn arg_rows(op: Reduction, ty: Compute) -> Parts {
    fn parts<T: Elem, const L: bool>() -> Parts {
        let end = Some(best_row_end as Op);
        Parts::new(best_row_begin::<T, L>, best_row_body::<T, L>, end)
    }
    match op {
        Reduction::Max => with_compute!(ty, T => parts::<T, true>()),
        _ => with_compute!(ty, T => parts::<T, false>()),
    }
}

/// An arg-reduction lane by lane; register `b` keeps the best.
pub(super) fn arg_lanes(op: Reduction, ty: Compute) -> Parts {
    fn parts<T: Elem, const L: bool>() -> Parts {
        Parts::new(best_lane_begin::<T, L>, best_lane_body::<T, L>, None)
    }
    match op {
        Reduction::Max => with_compute!(ty, T => parts::<T, true>()),
        _ => with_compute!(ty, T => parts::<T, false>()),
    }
}
