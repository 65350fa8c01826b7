//! A small deterministic source of random numbers.

use kiln_base::prim::{SPLIT_MIX_STEP, split_mix};

/// SplitMix64 (Steele et al., 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ SPLIT_MIX_STEP)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(SPLIT_MIX_STEP);
        split_mix(self.0)
    }

    /// A number in `0..n`; 0 where n is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 11) as usize % n.max(1)
    }

    /// A number in `low..=high`.
    pub fn range(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as usize) as i64
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of these; `None` where there are none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len()))
    }

    /// Returns a random element.
    pub fn one<T: Copy, const N: usize>(&mut self, values: [T; N]) -> T {
        values[self.below(N)]
    }
}
