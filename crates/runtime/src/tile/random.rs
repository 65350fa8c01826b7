//! Counter-based random numbers.

use super::code::{Call, Op};
use super::lanes::map3;
use crate::simd::{Isa, Kernel, Level, compiled};
use kiln_base::Compute;
use kiln_base::prim::{self, RandomKind};

/// [`prim::philox`], inlined so that loops of it vectorise.
#[inline(always)]
fn philox(counter: u64, key: u64) -> [u32; 4] {
    let mut c = [counter as u32, (counter >> 32) as u32, 0, 0];
    let mut k = [key as u32, (key >> 32) as u32];
    for _ in 0..10 {
        let a = c[0] as u64 * 0xD251_1F53;
        let b = c[2] as u64 * 0xCD9E_8D57;
        c = [
            (b >> 32) as u32 ^ c[1] ^ k[0],
            b as u32,
            (a >> 32) as u32 ^ c[3] ^ k[1],
            a as u32,
        ];
        k[0] = k[0].wrapping_add(0x9E37_79B9);
        k[1] = k[1].wrapping_add(0xBB67_AE85);
    }
    c
}

/// The loop of random numbers: seed, offset and index are operands `a`, `b` and `c`.
pub(super) fn random(kind: RandomKind, ty: Compute, level: Level) -> Op {
    macro_rules! random {
        ($R:ty, |$w:ident| $e:expr) => {{
            struct K;
            impl Kernel<Call> for K {
                #[inline(always)]
                unsafe fn run<I: Isa>(call: Call) {
                    // SAFETY: the call is of this instruction, whose operands' types were checked.
                    unsafe {
                        map3::<i64, i64, i64, $R>(
                            call,
                            #[inline(always)]
                            |seed, offset, index| {
                                let $w = philox(offset.wrapping_add(index) as u64, seed as u64);
                                $e
                            },
                        )
                    }
                }
            }
            compiled::<K, Call>(level)
        }};
    }
    match (kind, ty) {
        (RandomKind::Uniform, Compute::F32) => random!(f32, |w| (w[0] >> 8) as i32 as f32
            * (1.0 / (1 << 24) as f32)),
        (RandomKind::Uniform, _) => random!(f64, |w| prim::random_uniform_f64(w)),
        (RandomKind::Normal, Compute::F32) => random!(f32, |w| prim::random_normal(w) as f32),
        (RandomKind::Normal, _) => random!(f64, |w| prim::random_normal(w)),
        (RandomKind::Bits, _) => random!(i64, |w| prim::random_bits(w)),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_inlined_philox_is_the_defined_one() {
        for i in 0..1000u64 {
            let (c, k) = (i.wrapping_mul(0x9E37_79B9_7F4A_7C15), i << 40 | i);
            assert_eq!(super::philox(c, k), kiln_base::prim::philox(c, k));
        }
    }
}
