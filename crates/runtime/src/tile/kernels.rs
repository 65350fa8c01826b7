//! Pointwise primitives: which exist for which type, and their loops.

use super::code::{Call, Op};
use super::compute::with_compute;
use super::lanes::{Elem, map1, map2, map3};
use super::wide;
use crate::simd::{Isa, Kernel, Level, baseline, compiled, math};
use kiln_base::prim::{self, Binary, Unary};
use kiln_base::{Compute, special};
use std::marker::PhantomData;

/// The type a primitive on one operand of type `ty` gives, if there is one.
pub(super) fn unary_result(op: Unary, ty: Compute) -> Option<Compute> {
    use Unary::*;
    let exists = match ty {
        Compute::F32 | Compute::F64 => true,
        Compute::I32 | Compute::I64 => {
            matches!(
                op,
                Neg | Abs | Not | Floor | Ceil | Round | Trunc | IsNan | IsInf
            )
        }
        Compute::Mask => op == Not,
    };
    exists.then_some(if op.gives_mask() { Compute::Mask } else { ty })
}

/// The type a primitive on two operands of type `ty` gives, if there is one.
pub(super) fn binary_result(op: Binary, ty: Compute) -> Option<Compute> {
    use Binary::*;
    let exists = match ty {
        Compute::Mask => {
            matches!(op, And | Or | Xor | Eq | Ne | Lt | Le | Gt | Ge | Max | Min)
        }
        _ => true,
    };
    exists.then_some(if op.gives_mask() { Compute::Mask } else { ty })
}

/// A loop that applies one function to every lane.
macro_rules! kernel {
    ($name:ident $(<$T:ident: $bound:path>)?, $I:ident, $call:ident => $body:expr) => {{
        struct $name $(<$T>(PhantomData<$T>))?;
        impl $(<$T: $bound>)? Kernel<Call> for $name $(<$T>)? {
            #[inline(always)]
            unsafe fn run<$I: Isa>($call: Call) {
                // SAFETY: the call is of this instruction, with the types that the loop was chosen for.
                unsafe { $body }
            }
        }
        PhantomData::<$name $(<$T>)?>
    }};
}

/// Compiles a one-operand loop for the level.
macro_rules! one {
    ($level:expr, $A:ty => $R:ty, |$x:ident, $I:ident| $e:expr) => {{
        struct K;
        impl Kernel<Call> for K {
            #[inline(always)]
            unsafe fn run<$I: Isa>(call: Call) {
                // SAFETY: the call is of this instruction, whose operand's type was checked.
                unsafe {
                    map1::<$A, $R>(
                        call,
                        #[inline(always)]
                        |$x| $e,
                    )
                }
            }
        }
        compiled::<K, Call>($level)
    }};
}

/// Compiles a loop around a library call, which no level makes faster.
macro_rules! slow {
    ($A:ty => $R:ty, |$x:ident| $e:expr) => {{
        struct K;
        impl Kernel<Call> for K {
            #[inline(always)]
            unsafe fn run<I: Isa>(call: Call) {
                // SAFETY: the call is of this instruction, whose operand's type was checked.
                unsafe { map1::<$A, $R>(call, |$x| $e) }
            }
        }
        baseline::<K, Call>()
    }};
}

macro_rules! two {
    ($level:expr, $A:ty => $R:ty, |$x:ident, $y:ident| $e:expr) => {{
        struct K;
        impl Kernel<Call> for K {
            #[inline(always)]
            unsafe fn run<I: Isa>(call: Call) {
                // SAFETY: the call is of this instruction, whose operands' types were checked.
                unsafe {
                    map2::<$A, $A, $R>(
                        call,
                        #[inline(always)]
                        |$x, $y| $e,
                    )
                }
            }
        }
        compiled::<K, Call>($level)
    }};
}

macro_rules! float_unary {
    ($name:ident, $t:ident, |$op:ident, $level:ident| $($fast:tt)*) => {
        fn $name($op: Unary, $level: Level) -> Op {
            use Unary::*;
            let l = $level;
            match $op {
                Neg => one!(l, $t => $t, |x, I| -x),
                Abs => one!(l, $t => $t, |x, I| x.abs()),
                Not => one!(l, $t => $t, |x, I| (x == 0.0) as i32 as $t),
                Sqrt => one!(l, $t => $t, |x, I| x.sqrt()),
                Rsqrt => one!(l, $t => $t, |x, I| 1.0 / x.sqrt()),
                Recip => one!(l, $t => $t, |x, I| 1.0 / x),
                Floor => one!(l, $t => $t, |x, I| x.floor()),
                Ceil => one!(l, $t => $t, |x, I| x.ceil()),
                Round => one!(l, $t => $t, |x, I| x.round_ties_even()),
                Trunc => one!(l, $t => $t, |x, I| x.trunc()),
                IsNan => one!(l, $t => u8, |x, I| x.is_nan() as u8),
                IsInf => one!(l, $t => u8, |x, I| (x.abs() == $t::INFINITY) as u8),
                SignBit => one!(l, $t => u8, |x, I| x.is_sign_negative() as u8),
                Erfc => slow!($t => $t, |x| special::erfc(x as f64) as $t),
                ErfInv => slow!($t => $t, |x| special::erfinv(x as f64) as $t),
                LogNdtr => slow!($t => $t, |x| special::log_ndtr(x as f64) as $t),
                Ndtri => slow!($t => $t, |x| special::ndtri(x as f64) as $t),
                Lgamma => slow!($t => $t, |x| special::lgamma(x as f64) as $t),
                Digamma => slow!($t => $t, |x| special::digamma(x as f64) as $t),
                I0 => slow!($t => $t, |x| special::i0(x as f64) as $t),
                I0e => slow!($t => $t, |x| special::i0e(x as f64) as $t),
                I1 => slow!($t => $t, |x| special::i1(x as f64) as $t),
                I1e => slow!($t => $t, |x| special::i1e(x as f64) as $t),
                Tan => slow!($t => $t, |x| x.tan()),
                Asin => slow!($t => $t, |x| x.asin()),
                Acos => slow!($t => $t, |x| x.acos()),
                Atan => slow!($t => $t, |x| x.atan()),
                Sinh => slow!($t => $t, |x| x.sinh()),
                Cosh => slow!($t => $t, |x| x.cosh()),
                Asinh => slow!($t => $t, |x| (x as f64).asinh() as $t),
                Acosh => slow!($t => $t, |x| (x as f64).acosh() as $t),
                Atanh => slow!($t => $t, |x| (x as f64).atanh() as $t),
                $($fast)*
            }
        }
    };
}

float_unary!(unary_f32, f32, |op, level|
    Exp => wide::exp(level),
    Exp2 => one!(level, f32 => f32, |x, I| math::exp2::<I>(x)),
    Expm1 => one!(level, f32 => f32, |x, I| math::expm1::<I>(x)),
    Log => one!(level, f32 => f32, |x, I| math::log::<I>(x)),
    Log2 => one!(level, f32 => f32, |x, I| math::log2::<I>(x)),
    Log10 => one!(level, f32 => f32, |x, I| math::log10::<I>(x)),
    Log1p => one!(level, f32 => f32, |x, I| math::log1p::<I>(x)),
    Tanh => one!(level, f32 => f32, |x, I| math::tanh::<I>(x)),
    Sigmoid => one!(level, f32 => f32, |x, I| math::sigmoid::<I>(x)),
    Erf => wide::erf(level),
    Sin => trig::<true>(level),
    Cos => trig::<false>(level),
);

float_unary!(unary_f64, f64, |op, level|
    Exp => slow!(f64 => f64, |x| x.exp()),
    Exp2 => slow!(f64 => f64, |x| x.exp2()),
    Expm1 => slow!(f64 => f64, |x| x.exp_m1()),
    Log => slow!(f64 => f64, |x| x.ln()),
    Log2 => slow!(f64 => f64, |x| x.log2()),
    Log10 => slow!(f64 => f64, |x| x.log10()),
    Log1p => slow!(f64 => f64, |x| x.ln_1p()),
    Tanh => slow!(f64 => f64, |x| x.tanh()),
    Sigmoid => slow!(f64 => f64, |x| Unary::Sigmoid.eval_f64(x)),
    Erf => slow!(f64 => f64, |x| special::erf(x)),
    Sin => slow!(f64 => f64, |x| x.sin()),
    Cos => slow!(f64 => f64, |x| x.cos()),
);

/// Sine or cosine: vectors first, then the lanes whose argument is out of their range.
fn trig<const SINE: bool>(level: Level) -> Op {
    struct K<const SINE: bool>;
    impl<const SINE: bool> Kernel<Call> for K<SINE> {
        #[inline(always)]
        unsafe fn run<I: Isa>(call: Call) {
            // SAFETY: the call is of this instruction, whose operand's type was checked.
            unsafe {
                map1::<f32, f32>(
                    call,
                    #[inline(always)]
                    |x| {
                        if SINE {
                            math::sin::<I>(x)
                        } else {
                            math::cos::<I>(x)
                        }
                    },
                );
                let (ctx, c) = (&*call.0, &*call.1);
                let (d, a) = (ctx.reg::<f32>(c.dst), ctx.reg::<f32>(c.a));
                let mut far = false;
                for i in 0..ctx.n {
                    far |= (*a.add(i)).abs() > math::TRIG_LIMIT;
                }
                for i in 0..if far { ctx.n } else { 0 } {
                    let x = *a.add(i);
                    if x.abs() > math::TRIG_LIMIT {
                        *d.add(i) = if SINE { x.sin() } else { x.cos() };
                    }
                }
            }
        }
    }
    compiled::<K<SINE>, Call>(level)
}

macro_rules! int_unary {
    ($name:ident, $t:ident) => {
        fn $name(op: Unary, l: Level) -> Op {
            use Unary::*;
            match op {
                Neg => one!(l, $t => $t, |x, I| x.wrapping_neg()),
                Abs => one!(l, $t => $t, |x, I| x.wrapping_abs()),
                Not => one!(l, $t => $t, |x, I| !x),
                IsNan | IsInf => one!(l, $t => u8, |_x, I| 0),
                _ => one!(l, $t => $t, |x, I| x),
            }
        }
    };
}
int_unary!(unary_i32, i32);
int_unary!(unary_i64, i64);

/// The loop of a primitive on one operand; [`unary_result`] says that it exists.
pub(super) fn unary(op: Unary, ty: Compute, level: Level) -> Op {
    match ty {
        Compute::F32 => unary_f32(op, level),
        Compute::F64 => unary_f64(op, level),
        Compute::I32 => unary_i32(op, level),
        Compute::I64 => unary_i64(op, level),
        Compute::Mask => one!(level, u8 => u8, |x, I| x ^ 1),
    }
}

/// The comparisons and the extrema, alike for every type.
macro_rules! ordered {
    ($op:expr, $l:expr, $t:ident, $($more:tt)*) => {
        match $op {
            Binary::Max => two!($l, $t => $t, |x, y| Elem::max(x, y)),
            Binary::Min => two!($l, $t => $t, |x, y| Elem::min(x, y)),
            Binary::Eq => two!($l, $t => u8, |x, y| (x == y) as u8),
            Binary::Ne => two!($l, $t => u8, |x, y| (x != y) as u8),
            Binary::Lt => two!($l, $t => u8, |x, y| (x < y) as u8),
            Binary::Le => two!($l, $t => u8, |x, y| (x <= y) as u8),
            Binary::Gt => two!($l, $t => u8, |x, y| (x > y) as u8),
            Binary::Ge => two!($l, $t => u8, |x, y| (x >= y) as u8),
            $($more)*
        }
    };
}

macro_rules! float_binary {
    ($name:ident, $t:ident) => {
        fn $name(op: Binary, l: Level) -> Op {
            ordered!(op, l, $t,
                Binary::Add => two!(l, $t => $t, |x, y| x + y),
                Binary::Sub => two!(l, $t => $t, |x, y| x - y),
                Binary::Mul => two!(l, $t => $t, |x, y| x * y),
                Binary::Div => two!(l, $t => $t, |x, y| x / y),
                Binary::FloorDiv => two!(l, $t => $t, |x, y| (x / y).floor()),
                Binary::Rem => two!(Level::Baseline, $t => $t, |x, y| x % y),
                Binary::FloorMod => two!(Level::Baseline, $t => $t, |x, y| {
                    let r = x % y;
                    if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r }
                }),
                Binary::Pow => two!(Level::Baseline, $t => $t, |x, y| x.powf(y)),
                Binary::Atan2 => two!(Level::Baseline, $t => $t, |x, y| x.atan2(y)),
                Binary::Hypot => two!(Level::Baseline, $t => $t, |x, y| x.hypot(y)),
                Binary::Zeta => two!(Level::Baseline, $t => $t, |x, y| {
                    special::zeta(x as f64, y as f64) as $t
                }),
                Binary::And => two!(l, $t => $t, |x, y| ((x != 0.0) & (y != 0.0)) as i32 as $t),
                Binary::Or => two!(l, $t => $t, |x, y| ((x != 0.0) | (y != 0.0)) as i32 as $t),
                Binary::Xor => two!(l, $t => $t, |x, y| ((x != 0.0) ^ (y != 0.0)) as i32 as $t),
                Binary::Shl | Binary::Shr | Binary::Gcd | Binary::Lcm => {
                    two!(l, $t => $t, |_x, _y| $t::NAN)
                }
            )
        }
    };
}
float_binary!(binary_f32, f32);
float_binary!(binary_f64, f64);

macro_rules! int_binary {
    ($name:ident, $t:ident) => {
        fn $name(op: Binary, l: Level) -> Op {
            const BITS: $t = $t::BITS as $t;
            ordered!(op, l, $t,
                Binary::Add => two!(l, $t => $t, |x, y| x.wrapping_add(y)),
                Binary::Sub => two!(l, $t => $t, |x, y| x.wrapping_sub(y)),
                Binary::Mul => two!(l, $t => $t, |x, y| x.wrapping_mul(y)),
                Binary::Div => divide::<$t, 0>(),
                Binary::FloorDiv => divide::<$t, 1>(),
                Binary::Rem => divide::<$t, 2>(),
                Binary::FloorMod => divide::<$t, 3>(),
                Binary::Pow => two!(Level::Baseline, $t => $t, |x, y| {
                    prim::int_pow(x as i64, y as i64) as $t
                }),
                Binary::Atan2 => two!(Level::Baseline, $t => $t, |x, y| {
                    (x as f64).atan2(y as f64) as $t
                }),
                // Of no use on integers; as the definition has it.
                Binary::Hypot => two!(Level::Baseline, $t => $t, |x, y| {
                    (x as f64).hypot(y as f64) as i64 as $t
                }),
                Binary::Zeta => two!(Level::Baseline, $t => $t, |x, y| {
                    special::zeta(x as f64, y as f64) as i64 as $t
                }),
                Binary::Gcd => two!(Level::Baseline, $t => $t, |x, y| {
                    prim::gcd(x as i64, y as i64) as $t
                }),
                Binary::Lcm => two!(Level::Baseline, $t => $t, |x, y| {
                    prim::lcm(x as i64, y as i64) as $t
                }),
                Binary::And => two!(l, $t => $t, |x, y| x & y),
                Binary::Or => two!(l, $t => $t, |x, y| x | y),
                Binary::Xor => two!(l, $t => $t, |x, y| x ^ y),
                Binary::Shl => two!(l, $t => $t, |x, y| {
                    if (0..BITS).contains(&y) { x.wrapping_shl(y as u32) } else { 0 }
                }),
                Binary::Shr => two!(l, $t => $t, |x, y| {
                    if (0..BITS).contains(&y) { x.wrapping_shr(y as u32) } else { x >> (BITS - 1) }
                }),
            )
        }
    };
}
int_binary!(binary_i32, i32);
int_binary!(binary_i64, i64);

fn binary_mask(op: Binary, l: Level) -> Op {
    ordered!(op, l, u8,
        Binary::And => two!(l, u8 => u8, |x, y| x & y),
        Binary::Or => two!(l, u8 => u8, |x, y| x | y),
        _ => two!(l, u8 => u8, |x, y| x ^ y),
    )
}

/// The loop of a primitive on two operands; [`binary_result`] says that it exists.
pub(super) fn binary(op: Binary, ty: Compute, level: Level) -> Op {
    match ty {
        Compute::F32 => binary_f32(op, level),
        Compute::F64 => binary_f64(op, level),
        Compute::I32 => binary_i32(op, level),
        Compute::I64 => binary_i64(op, level),
        Compute::Mask => binary_mask(op, level),
    }
}

/// An integer division; `OP` counts Div, FloorDiv, Rem, FloorMod. A divisor of 0 is reported at the
/// site `x` and gives 0.
fn divide<T: Elem + Into<i64> + TryFrom<i64>, const OP: u8>() -> Op {
    struct K<T, const OP: u8>(PhantomData<T>);
    impl<T: Elem + Into<i64> + TryFrom<i64>, const OP: u8> Kernel<Call> for K<T, OP> {
        #[inline(always)]
        unsafe fn run<I: Isa>((ctx, c): Call) {
            let op = [Binary::Div, Binary::FloorDiv, Binary::Rem, Binary::FloorMod][OP as usize];
            // SAFETY: the call is of this instruction, whose operands' types were checked.
            unsafe {
                let (ctx, c) = (&*ctx, &*c);
                let (d, a, b) = (ctx.reg::<T>(c.dst), ctx.reg::<T>(c.a), ctx.reg::<T>(c.b));
                for i in 0..ctx.n {
                    let (x, y): (i64, i64) = ((*a.add(i)).into(), (*b.add(i)).into());
                    let value = op.eval_i64(x, y).unwrap_or_else(|_| {
                        ctx.fail(c.x, i, x, 0);
                        0
                    });
                    // Only MIN / -1 does not fit, and wraps to MIN.
                    *d.add(i) = T::try_from(value).unwrap_or(T::LEAST);
                }
            }
        }
    }
    baseline::<K<T, OP>, Call>()
}

/// The loop of `mask ? a : b`; the mask is operand `a` of the code.
pub(super) fn select(ty: Compute, level: Level) -> Op {
    fn of<T: Elem>(level: Level) -> Op {
        let k = kernel!(K<T: Elem>, I, call => {
            map3::<u8, T, T, T>(call, #[inline(always)] |m, a, b| if m != 0 { a } else { b })
        });
        of_kernel(k, level)
    }
    with_compute!(ty, T => of::<T>(level))
}

/// The loop that copies a register.
pub(super) fn copy(ty: Compute, level: Level) -> Op {
    fn of<T: Elem>(level: Level) -> Op {
        let k = kernel!(K<T: Elem>, I, call => map1::<T, T>(call, #[inline(always)] |a| a));
        of_kernel(k, level)
    }
    with_compute!(ty, T => of::<T>(level))
}

/// The loop that spreads the first element over the tile.
pub(super) fn spread(ty: Compute, level: Level) -> Op {
    fn of<T: Elem>(level: Level) -> Op {
        let k = kernel!(K<T: Elem>, I, call => {
            let (ctx, c) = (&*call.0, &*call.1);
            let d = ctx.reg::<T>(c.dst);
            let value = *d;
            for i in 1..ctx.n {
                *d.add(i) = value;
            }
        });
        of_kernel(k, level)
    }
    with_compute!(ty, T => of::<T>(level))
}

fn of_kernel<K: Kernel<Call>>(_: PhantomData<K>, level: Level) -> Op {
    compiled::<K, Call>(level)
}
