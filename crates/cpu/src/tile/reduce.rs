//! Reductions. Every order of combination is fixed by the shapes alone.

use super::code::{Call, Op};
use kiln_base::prim::Reduction;
use kiln_base::{Compute, DType};
use kiln_kernel::compute::with_compute;
use kiln_kernel::element::{Elem, Number};
use kiln_kernel::simd::tree_reduce;

/// Returns the identity element of the reduction.
#[inline(always)]
fn identity<T: Elem, const OP: usize>() -> T {
    match Reduction::ALL[OP] {
        Reduction::Sum => T::ZERO,
        Reduction::Prod => T::ONE,
        Reduction::Max => T::LOWEST,
        Reduction::Min => T::HIGHEST,
    }
}

#[inline(always)]
fn combine<T: Elem, const OP: usize>(a: T, b: T) -> T {
    match Reduction::ALL[OP] {
        Reduction::Sum => a.add(b),
        Reduction::Prod => a.mul(b),
        Reduction::Max => a.max(b),
        Reduction::Min => a.min(b),
    }
}

const SUM: usize = Reduction::Sum as usize;
const PROD: usize = Reduction::Prod as usize;
const MAX: usize = Reduction::Max as usize;
const MIN: usize = Reduction::Min as usize;

/// Instantiates a generic function for a type and a reduction.
macro_rules! dispatch {
    ($f:ident, $op:expr, $ty:expr) => {
        with_compute!($ty, T => match $op {
            Reduction::Sum => $f::<T, SUM>(),
            Reduction::Prod => $f::<T, PROD>(),
            Reduction::Max => $f::<T, MAX>(),
            Reduction::Min => $f::<T, MIN>(),
        })
    };
}

/// The number of lane accumulators of a row's reduction.
const WIDTH: usize = 64;

/// Reduces `n` elements: into lane accumulators, which are then combined pairwise.
///
/// # Safety
/// There are `n` elements at `a`.
unsafe fn fold<T: Elem, const OP: usize>(a: *const T, n: usize) -> T {
    let mut acc = [identity::<T, OP>(); WIDTH];
    for from in (0..n).step_by(WIDTH) {
        for (j, acc) in acc.iter_mut().enumerate().take(n - from) {
            // SAFETY: every index is below `n`.
            *acc = combine::<T, OP>(*acc, unsafe { *a.add(from + j) });
        }
    }
    tree_reduce(acc, combine::<T, OP>)
}

/// The inner steps after which a lane's f32 sum is added to an f64.
pub(super) const FLUSH: i64 = 256;

/// The instructions of a reduction before the first tile or step, at each, and after the last.
pub(super) struct FoldCode {
    pub begin: Vec<Op>,
    pub body: Op,
    /// Runs after `body`, with an additional f64 register, which the last instruction of `begin` clears.
    pub after: Option<Op>,
    pub end: Option<Op>,
}

impl FoldCode {
    fn new(begin: Op, body: Op, end: Option<Op>) -> FoldCode {
        FoldCode {
            begin: vec![begin],
            body,
            after: None,
            end,
        }
    }
}

// SAFETY, of all that follows: the types were checked. State `x` and the one after it belong to the reduction and can
// hold a value of its type. Linking made `b` a register of the extra type that the reduction needs.

/// True if the running value of a row is an f64 sum.
const fn sums_in_f64<T: Elem, const OP: usize>() -> bool {
    T::IS_F32 && OP == SUM
}

unsafe fn row_begin<T: Elem, const OP: usize>((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let state = (*ctx).states.add((*code).x as usize);
        match sums_in_f64::<T, OP>() {
            true => *state.cast::<f64>() = 0.0,
            false => *state.cast::<T>() = identity::<T, OP>(),
        }
    }
}

unsafe fn row_body<T: Elem, const OP: usize>((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let (ctx, code) = (&*ctx, &*code);
        let state = ctx.states.add(code.x as usize);
        let tile = fold::<T, OP>(ctx.reg::<T>(code.a), ctx.n);
        match sums_in_f64::<T, OP>() {
            true => *state.cast::<f64>() += tile.number().float(),
            false => {
                let state = state.cast::<T>();
                *state = combine::<T, OP>(*state, tile);
            }
        }
    }
}

unsafe fn row_end<T: Elem, const OP: usize>((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let (ctx, code) = (&*ctx, &*code);
        let state = ctx.states.add(code.x as usize);
        *ctx.reg::<T>(code.dst) = match sums_in_f64::<T, OP>() {
            true => T::cast(Number::Float(*state.cast()), DType::F32),
            false => *state.cast(),
        };
    }
}

/// Returns the code of a reduction across the lanes of a row; `x` is its state.
pub(super) fn row_reduction(op: Reduction, ty: Compute) -> FoldCode {
    fn instantiate<T: Elem, const OP: usize>() -> FoldCode {
        let end = Some(row_end::<T, OP> as Op);
        FoldCode::new(row_begin::<T, OP>, row_body::<T, OP>, end)
    }
    dispatch!(instantiate, op, ty)
}

unsafe fn lane_begin<T: Elem, const OP: usize>((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let d = (*ctx).reg::<T>((*code).dst);
        (0..(*ctx).n).for_each(|i| *d.add(i) = identity::<T, OP>());
    }
}

unsafe fn lane_body<T: Elem, const OP: usize>((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let (d, a) = ((*ctx).reg::<T>((*code).dst), (*ctx).reg::<T>((*code).a));
        (0..(*ctx).n).for_each(|i| *d.add(i) = combine::<T, OP>(*d.add(i), *a.add(i)));
    }
}

/// Flushes f32 sums into the f64 register `b`, every [`FLUSH`] steps.
unsafe fn flush((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let (ctx, code) = (&*ctx, &*code);
        if ctx.pos.outer % FLUSH == FLUSH - 1 {
            let (d, f64_sums) = (ctx.reg::<f32>(code.dst), ctx.reg::<f64>(code.b));
            for i in 0..ctx.n {
                *f64_sums.add(i) += *d.add(i) as f64;
                *d.add(i) = 0.0;
            }
        }
    }
}

unsafe fn f64_end((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let (ctx, code) = (&*ctx, &*code);
        let (d, f64_sums) = (ctx.reg::<f32>(code.dst), ctx.reg::<f64>(code.b));
        (0..ctx.n).for_each(|i| *d.add(i) = (*f64_sums.add(i) + *d.add(i) as f64) as f32);
    }
}

/// Returns the code of a lane-by-lane reduction over `steps` inner points.
pub(super) fn lane_reduction(op: Reduction, ty: Compute, steps: i64) -> FoldCode {
    fn instantiate<T: Elem, const OP: usize>() -> FoldCode {
        FoldCode::new(lane_begin::<T, OP>, lane_body::<T, OP>, None)
    }
    if (op, ty) == (Reduction::Sum, Compute::F32) && steps > FLUSH {
        return FoldCode {
            begin: vec![lane_begin::<f32, SUM>, lane_begin::<f64, SUM>],
            body: lane_body::<f32, SUM>,
            after: Some(flush),
            end: Some(f64_end),
        };
    }
    dispatch!(instantiate, op, ty)
}

/// True if `x` replaces `best`: it is strictly better, or the first NaN so far.
#[inline(always)]
fn is_better<T: Elem, const IS_MAX: bool>(x: T, best: T) -> bool {
    let better = if IS_MAX { x > best } else { x < best };
    better | (x.is_nan() & !best.is_nan())
}

fn worst<T: Elem, const IS_MAX: bool>() -> T {
    if IS_MAX { T::LOWEST } else { T::HIGHEST }
}

/// Initialises state `x`, the best value so far, and state `x + 1`, its index.
unsafe fn arg_row_begin<T: Elem, const IS_MAX: bool>((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let state = (*ctx).states.add((*code).x as usize);
        *state.cast::<T>() = worst::<T, IS_MAX>();
        *state.add(1).cast::<i64>() = 0;
    }
}

unsafe fn arg_row_body<T: Elem, const IS_MAX: bool>((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let (ctx, code) = (&*ctx, &*code);
        let a = ctx.reg::<T>(code.a);
        let state = ctx.states.add(code.x as usize);
        let best = state.cast::<T>();
        let tile = match IS_MAX {
            true => fold::<T, MAX>(a, ctx.n),
            false => fold::<T, MIN>(a, ctx.n),
        };
        if !is_better::<T, IS_MAX>(tile, *best) {
            return;
        }
        let is_best = |x: T| x == tile || x.is_nan() && tile.is_nan();
        if let Some(i) = (0..ctx.n).find(|i| is_best(*a.add(*i))) {
            *best = tile;
            *state.add(1).cast::<i64>() = ctx.pos.start + i as i64;
        }
    }
}

/// Writes the index, which is the state after `x`.
unsafe fn arg_row_end((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let value = *(*ctx).states.add((*code).x as usize + 1).cast::<i64>();
        *(*ctx).reg::<i64>((*code).dst) = value;
    }
}

/// Initialises the result, and register `b`, the best value so far.
unsafe fn arg_lane_begin<T: Elem, const IS_MAX: bool>((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let (d, best) = ((*ctx).reg::<i64>((*code).dst), (*ctx).reg::<T>((*code).b));
        for i in 0..(*ctx).n {
            *d.add(i) = 0;
            *best.add(i) = worst::<T, IS_MAX>();
        }
    }
}

unsafe fn arg_lane_body<T: Elem, const IS_MAX: bool>((ctx, code): Call) {
    // SAFETY: see above.
    unsafe {
        let (ctx, code) = (&*ctx, &*code);
        let (d, best) = (ctx.reg::<i64>(code.dst), ctx.reg::<T>(code.b));
        let a = ctx.reg::<T>(code.a);
        for i in 0..ctx.n {
            let (x, old) = (*a.add(i), *best.add(i));
            let better = is_better::<T, IS_MAX>(x, old);
            *best.add(i) = if better { x } else { old };
            *d.add(i) = if better { ctx.pos.outer } else { *d.add(i) };
        }
    }
}

/// Returns the code of an arg-reduction across the lanes of a row; `x` is the first of its two states.
pub(super) fn arg_rows(op: Reduction, ty: Compute) -> FoldCode {
    fn instantiate<T: Elem, const IS_MAX: bool>() -> FoldCode {
        let end = Some(arg_row_end as Op);
        FoldCode::new(arg_row_begin::<T, IS_MAX>, arg_row_body::<T, IS_MAX>, end)
    }
    match op {
        Reduction::Max => with_compute!(ty, T => instantiate::<T, true>()),
        _ => with_compute!(ty, T => instantiate::<T, false>()),
    }
}

/// Returns the code of a lane-by-lane arg-reduction; register `b` holds the best value.
pub(super) fn arg_lanes(op: Reduction, ty: Compute) -> FoldCode {
    fn instantiate<T: Elem, const IS_MAX: bool>() -> FoldCode {
        FoldCode::new(
            arg_lane_begin::<T, IS_MAX>,
            arg_lane_body::<T, IS_MAX>,
            None,
        )
    }
    match op {
        Reduction::Max => with_compute!(ty, T => instantiate::<T, true>()),
        _ => with_compute!(ty, T => instantiate::<T, false>()),
    }
}
