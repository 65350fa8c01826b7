//! Counter-based random numbers.

use super::code::{Call, Op};
use super::lanes::map3;
use kiln_base::Compute;
use kiln_base::prim::{self, RandomKind, random_words};
use kiln_kernel::simd::math;

/// Implements [`prim::random_normal_f32`] by functions of f32.
fn normal_f32(words: [u32; 4]) -> f32 {
    let (u, angle) = prim::random_polar(words);
    (-2.0 * math::log(u)).sqrt() * math::cos(angle)
}

/// Returns the loop of random numbers: seed, offset and index are operands `a`, `b` and `c`.
pub(super) fn random(kind: RandomKind, ty: Compute) -> Op {
    macro_rules! random {
        ($kind:ident, $R:ty, $f:expr) => {{
            unsafe fn of(call: Call) {
                // SAFETY: the call is of this instruction, whose operands' types were checked.
                unsafe {
                    map3::<i64, i64, i64, $R>(call, |seed, offset, index| {
                        let (position, wide) = (offset.wrapping_add(index), size_of::<$R>() == 8);
                        let kind = RandomKind::$kind;
                        $f(random_words(kind, wide, position as u64, seed as u64)) as $R
                    })
                }
            }
            of
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
