//! Random numbers: counter-based, repeatable, the same on every device.

use crate::Int;
use crate::create::{IntoShape, dims};
use crate::record::{Recorder, compose};
use crate::{DType, Tensor, scope, trace};
use kiln_base::Dim;
use kiln_base::prim::RandomKind;
use kiln_ir::{Builder, OpError, Pw, Role, Shape, ops};
use kiln_runtime::Buffer;
use std::cell::Cell;
use std::panic::Location;
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

    /// The seed and the first of `count` offsets that nobody else gets.
    pub(crate) fn reserve(&self, count: u64) -> [i64; 2] {
        let offset = self.offset.fetch_add(count, Ordering::SeqCst);
        [self.seed.load(Ordering::SeqCst) as i64, offset as i64]
    }
}

/// The seed and the first of `count` offsets of the generator that functions use which aren't given
/// one.
pub(crate) fn reserve_default(count: u64) -> [i64; 2] {
    let Some([seed, offset]) = LOCAL.get() else {
        return DEFAULT.reserve(count);
    };
    LOCAL.set(Some([seed, offset.wrapping_add(count)]));
    [seed as i64, offset as i64]
}

/// Calls `f` with a generator of this seed in place of the default one, on this thread alone: what `f`
/// draws depends on the seed and on nothing that other threads do.
pub fn with_seed<R>(seed: u64, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<[u64; 2]>);
    impl Drop for Restore {
        fn drop(&mut self) {
            LOCAL.set(self.0);
        }
    }
    let _restore = Restore(LOCAL.replace(Some([seed, 0])));
    f()
}

/// A seed for random numbers that are made elsewhere, drawn from the generator that functions use
/// which aren't given one: another one at each call, the same ones after the same [`manual_seed`].
pub fn draw_seed() -> u64 {
    let [seed, offset] = reserve_default(1);
    // SplitMix64's finaliser (Steele et al., 2014), so that neighbours have nothing in common.
    let x = (seed as u64).wrapping_mul(0xD134_2543_DE82_EF95) ^ offset as u64;
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Where the generator stands that functions use which aren't given one: its seed and offset.
pub fn get_rng_state() -> [u64; 2] {
    let default = || [&DEFAULT.seed, &DEFAULT.offset].map(|word| word.load(Ordering::SeqCst));
    LOCAL.get().unwrap_or_else(default)
}

/// Puts the generator that functions use which aren't given one where it stood at a
/// [`get_rng_state`].
pub fn set_rng_state([seed, offset]: [u64; 2]) {
    if LOCAL.get().is_some() {
        return LOCAL.set(Some([seed, offset]));
    }
    DEFAULT.seed.store(seed, Ordering::SeqCst);
    DEFAULT.offset.store(offset, Ordering::SeqCst);
}

/// Seeds the generator that functions use which aren't given one.
pub fn manual_seed(seed: u64) {
    DEFAULT.manual_seed(seed);
}

/// Random numbers of a kind, recorded for `shape`.
pub(crate) fn random(
    b: &mut Recorder,
    kind: RandomKind,
    dtype: DType,
    shape: &[Dim],
    loc: &'static Location<'static>,
) -> Result<Tensor, OpError> {
    let shape = Shape::from(shape);
    let count = kiln_base::numel(&shape);
    let key = trace::random_key(b, &count, |count| match scope::random_key(count) {
        Some(key) => Ok(key),
        None => {
            let count = count
                .as_const()
                .ok_or_else(|| OpError::new("needs a known shape outside compile"))?;
            let pair = reserve_default(count as u64);
            let buffer =
                Buffer::from_slice(&pair, &[2]).map_err(|e| OpError::new(e.to_string()))?;
            Ok(Tensor::leaf(
                buffer,
                Role::RandomKey,
                None,
                loc,
                "random key",
            ))
        }
    })?;
    if kind == RandomKind::Uniform && dtype.size() == 2 {
        // Rounding an f32 just below 1 would give 1; as many bits as the dtype has can't.
        let dtype_bits = if dtype == DType::F16 { 11.0 } else { 8.0 };
        let steps = f64::exp2(dtype_bits);
        let wide = DType::F32;
        let u = b.op(
            ops::Random {
                kind,
                dtype: wide,
                shape,
            },
            &[key],
        )?;
        let (up, down) = (b.scalar_like(steps, &u)?, b.scalar_like(1.0 / steps, &u)?);
        let scaled = b.pointwise(Pw::Mul, &[u, up])?;
        let whole = b.pointwise(Pw::Floor, &[scaled])?;
        let u = b.pointwise(Pw::Mul, &[whole, down])?;
        return b.cast(&u, dtype);
    }
    b.op(ops::Random { kind, dtype, shape }, &[key])
}

impl Tensor {
    /// Uniform numbers in [0, 1).
    #[track_caller]
    pub fn rand(shape: impl IntoShape, dtype: DType) -> Tensor {
        let loc = Location::caller();
        compose("rand", &[], |b| {
            random(b, RandomKind::Uniform, dtype, &dims(shape, dtype)?, loc)
        })
    }

    /// Standard normal numbers.
    #[track_caller]
    pub fn randn(shape: impl IntoShape, dtype: DType) -> Tensor {
        let loc = Location::caller();
        compose("randn", &[], |b| {
            random(b, RandomKind::Normal, dtype, &dims(shape, dtype)?, loc)
        })
    }

    /// Integers in `low..high`, as i64.
    #[track_caller]
    pub fn randint(low: impl Into<Int>, high: impl Into<Int>, shape: impl IntoShape) -> Tensor {
        let (low, high) = (low.into().0, high.into().0);
        let loc = Location::caller();
        compose("randint", &[], |b| {
            if low >= high {
                return Err(OpError(format!("there is no integer in {low}..{high}")));
            }
            let count = high
                .checked_sub(low)
                .ok_or_else(|| OpError(format!("{low}..{high} holds more than 2^63 integers")))?;
            let bits = random(
                b,
                RandomKind::Bits,
                DType::I64,
                &dims(shape, DType::I64)?,
                loc,
            )?;
            let range = b.scalar_like(count, &bits)?;
            let within = b.pointwise(Pw::Remainder, &[bits, range])?;
            let low = b.scalar_like(low, &within)?;
            b.pointwise(Pw::Add, &[within, low])
        })
    }

    /// Uniform numbers in [0, 1) of this tensor's shape and dtype (f32 for integers).
    #[track_caller]
    pub fn rand_like(&self) -> Tensor {
        let loc = Location::caller();
        compose("rand_like", &[self], |b| {
            let dtype = crate::promote::to_float(self.dtype());
            random(b, RandomKind::Uniform, dtype, self.dims(), loc)
        })
    }
}
