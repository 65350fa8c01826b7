//! Random numbers: counter-based, repeatable, the same on every device.

use crate::node::Handle;
use crate::recorder::Recorder;
use crate::{body, scope};
use kiln_base::{Dim, Scoped};
use kiln_ir::{OpError, Role};
use kiln_runtime::Buffer;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// A source of random numbers: a seed and an offset that recording advances. Each number depends
/// only on the seed, the offset at recording and its own index.
pub struct Generator {
    seed: AtomicU64,
    offset: AtomicU64,
}

static DEFAULT: Generator = Generator::new(0);

thread_local! {
    /// The seed and offset that stand in for the default generator on this thread.
    static LOCAL: Cell<Option<[u64; 2]>> = const { Cell::new(None) };
}

impl Generator {
    /// A generator with this seed.
    pub const fn new(seed: u64) -> Generator {
        Generator {
            seed: AtomicU64::new(seed),
            offset: AtomicU64::new(0),
        }
    }

    /// Starts over with another seed.
    pub fn manual_seed(&self, seed: u64) {
        self.seed.store(seed, Ordering::SeqCst);
        self.offset.store(0, Ordering::SeqCst);
    }

    /// The seed and the first of `count` offsets, which are reserved.
    pub fn reserve(&self, count: u64) -> [i64; 2] {
        let offset = self.offset.fetch_add(count, Ordering::SeqCst);
        [self.seed.load(Ordering::SeqCst) as i64, offset as i64]
    }
}

/// The seed and the first of `count` offsets of the default generator, which functions use unless they are given
/// another.
pub fn reserve_default(count: u64) -> [i64; 2] {
    let Some([seed, offset]) = LOCAL.get() else {
        return DEFAULT.reserve(count);
    };
    LOCAL.set(Some([seed, offset.wrapping_add(count)]));
    [seed as i64, offset as i64]
}

/// Calls `f` with a generator of this seed instead of the default one, on this thread alone. The numbers that `f` draws
/// depend on the seed, and not on other threads.
pub fn with_seed<R>(seed: u64, f: impl FnOnce() -> R) -> R {
    let _inside = Scoped::new(&LOCAL, Some([seed, 0]));
    f()
}

/// Draws a seed from the default generator, for another generator of random numbers. It differs at each call, and
/// repeats after the same [`manual_seed`].
pub fn draw_seed() -> u64 {
    let [seed, offset] = reserve_default(1);
    // Scrambled, so adjacent seeds are uncorrelated.
    kiln_base::prim::split_mix((seed as u64).wrapping_mul(0xD134_2543_DE82_EF95) ^ offset as u64)
}

/// The state of the default generator: its seed and offset.
pub fn get_rng_state() -> [u64; 2] {
    let default = || [&DEFAULT.seed, &DEFAULT.offset].map(|word| word.load(Ordering::SeqCst));
    LOCAL.get().unwrap_or_else(default)
}

/// Returns the default generator to the state of an earlier [`get_rng_state`].
pub fn set_rng_state([seed, offset]: [u64; 2]) {
    if LOCAL.get().is_some() {
        return LOCAL.set(Some([seed, offset]));
    }
    DEFAULT.seed.store(seed, Ordering::SeqCst);
    DEFAULT.offset.store(offset, Ordering::SeqCst);
}

/// Seeds the default generator.
pub fn manual_seed(seed: u64) {
    DEFAULT.manual_seed(seed);
}

/// The key of `count` random numbers, which are reserved.
///
/// # Errors
/// If the count is symbolic although nothing is being compiled.
pub fn key(b: &mut Recorder, count: &Dim) -> Result<Handle, OpError> {
    let (_, loc) = b.call_site();
    body::random_key(b, count, |count| match scope::random_key(count) {
        Some(key) => Ok(key),
        None => {
            let count = count
                .as_const()
                .ok_or_else(|| OpError::new("needs a known shape outside compile"))?;
            let pair = reserve_default(count as u64);
            let buffer =
                Buffer::from_slice(&pair, &[2]).map_err(|e| OpError::new(e.to_string()))?;
            Ok(Handle::leaf(
                buffer,
                Role::RandomKey,
                None,
                loc,
                "random key",
            ))
        }
    })
}
