//! Random numbers on the host: shuffles, splits and augmentations.

use kiln_tensor::draw_seed;

/// A stream of random numbers that depends on its seed alone: SplitMix64 (Steele et al., 2014).
///
/// Inside [`crate::Dataset::get`], take one from [`Rng::from_default`]: a loader seeds it by its own
/// seed, the epoch and the sample's place in the order, so augmentations don't depend on the workers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(scramble(seed))
    }

    /// A stream seeded from Kiln's default generator; see [`kiln_tensor::manual_seed`].
    pub fn from_default() -> Rng {
        Rng::new(draw_seed())
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        scramble(self.0)
    }

    /// A number in `0..n`; 0 where `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Brings the items into a random order; every order is as likely (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// `0..n` in a random order.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        self.shuffle(&mut order);
        order
    }
}

fn scramble(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A seed for part `part` of what `seed` seeds.
pub(crate) fn derive(seed: u64, part: u64) -> u64 {
    Rng::new(seed ^ scramble(part.wrapping_add(0x9E37_79B9_7F4A_7C15))).bits()
}
