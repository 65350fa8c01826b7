//! Random numbers on the host: shuffles, splits and augmentations.

use kiln_base::prim::{SPLIT_MIX_STEP, split_mix};
use kiln_tensor::draw_seed;

/// A stream of random numbers that depends only on its seed: SplitMix64 (Steele et al., 2014).
///
/// Inside [`crate::Dataset::get`], take a stream from [`Rng::from_default`]. A loader seeds it by its own seed, the
/// epoch and the sample's position in the order, so augmentations don't depend on the workers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(split_mix(seed))
    }

    /// A stream seeded from Kiln's default generator; see [`kiln_tensor::manual_seed`].
    pub fn from_default() -> Rng {
        Rng::new(draw_seed())
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(SPLIT_MIX_STEP);
        split_mix(self.0)
    }

    /// A number in `0..n`; 0 where `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Shuffles the items; every order has the same probability (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// `0..n` in a random order.
    ///
    /// # Panics
    /// If there is no memory for `n` numbers.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let order = self.try_permutation(n);
        order.unwrap_or_else(|| panic!("there is no memory for the order of {n} items"))
    }

    /// The same, or `None` if there is no memory for it.
    pub(crate) fn try_permutation(&mut self, n: usize) -> Option<Vec<usize>> {
        let mut order = Vec::new();
        order.try_reserve_exact(n).ok()?;
        order.extend(0..n);
        self.shuffle(&mut order);
        Some(order)
    }

    /// `0..n` in a random order, for any `n`.
    pub(crate) fn order(&mut self, n: usize) -> RandomOrder {
        match n <= MAX_TABLE {
            true => RandomOrder::Table(self.permutation(n)),
            false => RandomOrder::Network {
                n,
                keys: std::array::from_fn(|_| self.bits()),
            },
        }
    }
}

/// The maximum length of an order that is stored; longer ones are computed item by item.
const MAX_TABLE: usize = 1 << 27;

/// A permutation of `0..n`.
pub(crate) enum RandomOrder {
    /// A stored permutation.
    Table(Vec<usize>),
    /// A Feistel network over the smallest even number of bits that holds `0..n` (Black and Rogaway, 2002), which takes
    /// no memory.
    Network {
        /// The number of items.
        n: usize,
        /// The keys of the rounds.
        keys: [u64; 6],
    },
}

impl RandomOrder {
    /// The number at an index, below `n`.
    pub(crate) fn position(&self, index: usize) -> usize {
        let (n, keys) = match self {
            RandomOrder::Table(order) => return order[index],
            RandomOrder::Network { n, keys } => (*n, keys),
        };
        let half = (usize::BITS - (n - 1).leading_zeros()).div_ceil(2);
        let mask = (1u64 << half) - 1;
        let mut x = index as u64;
        // The network permutes a few more numbers than `n`: a result beyond `n` is permuted again.
        loop {
            let (mut left, mut right) = (x >> half, x & mask);
            for key in keys {
                (left, right) = (right, left ^ (split_mix(right ^ key) & mask));
            }
            x = left << half | right;
            if x < n as u64 {
                return x as usize;
            }
        }
    }
}

/// Derives the seed of part `stream` from `seed`.
pub(crate) fn derive(seed: u64, stream: u64) -> u64 {
    Rng::new(seed ^ split_mix(stream.wrapping_add(SPLIT_MIX_STEP))).bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_permutes() {
        for n in [1, 2, 5, 64, 1000] {
            let keys = std::array::from_fn(|k| split_mix(k as u64 + 7));
            let order = RandomOrder::Network { n, keys };
            let mut seen: Vec<usize> = (0..n).map(|i| order.position(i)).collect();
            assert!(n < 64 || seen.windows(2).filter(|w| w[1] == w[0] + 1).count() < n / 8);
            seen.sort();
            assert_eq!(seen, Vec::from_iter(0..n));
        }
    }
}
