//! Pointwise primitives, conversions and random numbers: the types that each has, and their loops.

use super::code::{Call, Op, map1, map2, map3};
use kiln_base::prim::{self, Binary, RandomKind, Unary, random_words};
use kiln_base::{Compute, DType};
use kiln_kernel::compute::with_compute;
use kiln_kernel::element::{Elem, cast_one};
use kiln_kernel::simd::convert::{Mem, with_dtype};
use kiln_kernel::simd::erf::ErfTable;
use kiln_kernel::simd::{Features, math};

/// The loop of each variant, with the variant's number known to the compiler.
macro_rules! dispatch {
    ($op:expr, $Enum:ident, $($f:ident: $($v:ident)*),*) => {
        match $op {
            $($($Enum::$v => $f::<T, { $Enum::$v as usize }>,)*)*
        }
    };
}

/// Returns the loop of a primitive on one operand, which exists according to
/// [`unary_result`](kiln_kernel::check::unary_result).
pub(super) fn unary(op: Unary, ty: Compute, level: Features) -> Op {
    unsafe fn value<T: Elem, const N: usize>(call: Call) {
        // SAFETY: the call is of this instruction, whose operand's type was checked.
        unsafe { map1::<T, T>(call, |x| T::unary(Unary::ALL[N], x)) }
    }
    unsafe fn test<T: Elem, const N: usize>(call: Call) {
        // SAFETY: the call is of this instruction, whose operand's type was checked.
        unsafe { map1::<T, u8>(call, |x| T::test(Unary::ALL[N], x) as u8) }
    }
    unsafe fn erf(call: Call) {
        let table = ErfTable::get();
        // SAFETY: the call is of this instruction, whose operand's type was checked.
        unsafe { map1::<f32, f32>(call, |x| table.eval(x)) }
    }
    if (op, ty, level.width()) == (Unary::Erf, Compute::F32, Features::AVX512) {
        return erf;
    }
    fn for_integer<T: Elem>(op: Unary) -> Op {
        match op {
            Unary::Neg => value::<T, { Unary::Neg as usize }>,
            Unary::Abs => value::<T, { Unary::Abs as usize }>,
            Unary::Not => value::<T, { Unary::Not as usize }>,
            // Floor, Ceil, Round and Trunc, which do nothing to integers.
            _ => value::<T, { Unary::Trunc as usize }>,
        }
    }
    fn for_float<T: Elem>(op: Unary) -> Op {
        dispatch!(op, Unary, value:
            Neg Abs Not Sqrt Rsqrt Recip Exp Exp2 Expm1 Log Log2 Log10 Log1p Sin Cos Tan Asin Acos Atan
            Sinh Cosh Tanh Asinh Acosh Atanh Sigmoid Erf Floor Ceil Round Trunc IsNan IsInf SignBit
            Erfc ErfInv LogNdtr Ndtri Lgamma Digamma I0 I0e I1 I1e)
    }
    if !op.gives_mask() {
        return match ty {
            Compute::F32 => for_float::<f32>(op),
            Compute::F64 => for_float::<f64>(op),
            Compute::I32 => for_integer::<i32>(op),
            Compute::I64 => for_integer::<i64>(op),
            Compute::Mask => for_integer::<u8>(op),
        };
    }
    with_compute!(ty, T => match op {
            Unary::IsNan => test::<T, { Unary::IsNan as usize }>,
            Unary::IsInf => test::<T, { Unary::IsInf as usize }>,
            _ => test::<T, { Unary::SignBit as usize }>,
    })
}

/// Returns the loop of a primitive on two operands, which exists according to
/// [`binary_result`](kiln_kernel::check::binary_result). A divisor of 0 is reported at the site `x` and gives 0.
pub(super) fn binary(op: Binary, ty: Compute) -> Op {
    unsafe fn value<T: Elem, const N: usize>(call: Call) {
        // SAFETY: the call is of this instruction, whose operands' types were checked.
        unsafe {
            let (ctx, c) = (&*call.0, &*call.1);
            let (d, a, b) = (ctx.reg::<T>(c.dst), ctx.reg::<T>(c.a), ctx.reg::<T>(c.b));
            for i in 0..ctx.n {
                let x = *a.add(i);
                *d.add(i) = T::binary(Binary::ALL[N], x, *b.add(i)).unwrap_or_else(|| {
                    let failure = ctx.pos.failure(c.x, i, x.number().int(DType::I64), 0);
                    (*ctx.pos.failures).report(failure);
                    T::ZERO
                });
            }
        }
    }
    unsafe fn compare<T: Elem, const N: usize>(call: Call) {
        // SAFETY: the call is of this instruction, whose operands' types were checked.
        unsafe { map2::<T, T, u8>(call, |x, y| T::compare(Binary::ALL[N], x, y) as u8) }
    }
    with_compute!(ty, T => dispatch!(op, Binary,
        value: Add Sub Mul Div FloorDiv Rem FloorMod Pow Atan2 Hypot Zeta Gcd Lcm Max Min And Or Xor Shl Shr,
        compare: Eq Ne Lt Le Gt Ge))
}

/// Returns the loop of `mask ? a : b`; the mask is operand `a` of the code.
pub(super) fn select(ty: Compute) -> Op {
    unsafe fn run<T: Elem>(call: Call) {
        // SAFETY: the call is of this instruction, whose operands' types were checked.
        unsafe { map3::<u8, T, T, T>(call, |m, a, b| if m != 0 { a } else { b }) }
    }
    with_compute!(ty, T => run::<T>)
}

/// Returns the loop that broadcasts the first element over the tile.
pub(super) fn broadcast(ty: Compute) -> Op {
    unsafe fn run<T: Elem>(call: Call) {
        // SAFETY: the call is of this instruction, whose operand's type was checked.
        unsafe {
            let (ctx, c) = (&*call.0, &*call.1);
            let d = ctx.reg::<T>(c.dst);
            let value = *d;
            for i in 1..ctx.n {
                *d.add(i) = value;
            }
        }
    }
    with_compute!(ty, T => run::<T>)
}

/// Returns the loop that converts a value of dtype `from` to dtype `to`.
pub(super) fn cast(from: DType, to: DType) -> Op {
    unsafe fn run<S: Elem, D: Mem, const UNSIGNED: bool>(call: Call)
    where
        D::C: Elem,
    {
        // SAFETY: the call is of this instruction, whose operand's type was checked.
        unsafe { map1::<S, D::C>(call, |x| cast_one::<S, D, UNSIGNED>(x)) }
    }
    with_dtype!(to, D => with_compute!(from.compute(), S => match from {
        DType::U64 => run::<S, D, true>,
        _ => run::<S, D, false>,
    }))
}

/// Implements [`prim::random_normal_f32`] by functions of f32.
fn normal_f32(words: [u32; 4]) -> f32 {
    let (u, angle) = prim::random_polar(words);
    (-2.0 * math::log(u)).sqrt() * math::cos(angle)
}

/// Returns the loop of random numbers: seed, offset and index are operands `a`, `b` and `c`.
pub(super) fn random(kind: RandomKind, ty: Compute) -> Op {
    macro_rules! random {
        ($kind:ident, $R:ty, $f:expr) => {{
            unsafe fn run(call: Call) {
                // SAFETY: the call is of this instruction, whose operands' types were checked.
                unsafe {
                    map3::<i64, i64, i64, $R>(call, |seed, offset, index| {
                        let (position, wide) = (offset.wrapping_add(index), size_of::<$R>() == 8);
                        let kind = RandomKind::$kind;
                        $f(random_words(kind, wide, position as u64, seed as u64)) as $R
                    })
                }
            }
            run
        }};
    }
    match (kind, ty) {
        (RandomKind::Uniform, Compute::F32) => random!(Uniform, f32, prim::random_uniform_f32),
        (RandomKind::Uniform, _) => random!(Uniform, f64, prim::random_uniform_f64),
        (RandomKind::Normal, Compute::F32) => random!(Normal, f32, normal_f32),
        (RandomKind::Normal, _) => random!(Normal, f64, prim::random_normal_f64),
        (RandomKind::Bits, _) => random!(Bits, i64, prim::random_bits),
    }
}
