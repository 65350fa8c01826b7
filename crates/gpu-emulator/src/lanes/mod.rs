//! The effects of instructions on the 32 lanes of a warp. Each is a closure on one lane, from which a loop over the
//! lanes is compiled per instruction set. Decoding picks the loop once; execution calls it.

pub(crate) mod approx;
pub(crate) mod bits;
pub(crate) mod carry;
pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod float;
pub(crate) mod fp8;
pub(crate) mod half;
pub(crate) mod integer;
pub(crate) mod moves;
pub(crate) mod packed;
pub(crate) mod rounding;
mod value;

pub(crate) use value::{Bf, Bits, Half, Value};

use std::marker::PhantomData;

/// The lanes of a warp.
pub(crate) const LANES: usize = 32;

/// A register: the index of its first word in [`Registers::words`].
pub(crate) type Slot = u32;

/// The index of a predicate.
pub(crate) type Predicate = u32;

/// The predicate that is always true.
pub(crate) const ALWAYS: Predicate = 0;
/// The predicate that is always false.
pub(crate) const NEVER: Predicate = 1;
/// The carry flag.
pub(crate) const CARRY: Predicate = 2;
/// The predicate that takes unwanted results. The program's own predicates follow it.
pub(crate) const UNUSED: Predicate = 3;

/// 64 bytes, so that registers are aligned for every instruction set.
#[derive(Copy, Clone, Debug)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u32; 16]);

/// The registers of one warp: 32 words (or double words) each, and predicates as masks of lanes.
#[derive(Debug)]
pub(crate) struct Registers {
    lines: Vec<Line>,
    pub predicates: Vec<u32>,
}

impl Registers {
    /// `words` words of registers and `predicates` predicates.
    pub fn new(words: u32, predicates: u32) -> Registers {
        let mut masks = vec![0; predicates as usize];
        masks[ALWAYS as usize] = !0;
        Registers {
            lines: vec![Line([0; 16]); words.div_ceil(16) as usize],
            predicates: masks,
        }
    }

    /// The lanes of a register of words or double words.
    #[inline(always)]
    fn lanes<B: Bits>(&self, slot: Slot) -> &[B; LANES] {
        debug_assert!(slot as usize + LANES * B::WORDS <= self.lines.len() * 16);
        // SAFETY: decoding hands out slots inside the register file only, aligned to 32 words; a slot of a 64-bit
        // register has 64.
        unsafe { &*self.lines.as_ptr().cast::<u32>().add(slot as usize).cast() }
    }

    /// The same, to be written.
    #[inline(always)]
    fn lanes_mut<B: Bits>(&mut self, slot: Slot) -> &mut [B; LANES] {
        debug_assert!(slot as usize + LANES * B::WORDS <= self.lines.len() * 16);
        // SAFETY: as for `lanes`.
        unsafe {
            let words = self.lines.as_mut_ptr().cast::<u32>();
            &mut *words.add(slot as usize).cast()
        }
    }

    /// The lanes of a 32-bit register.
    #[inline(always)]
    pub fn word(&self, slot: Slot) -> &[u32; LANES] {
        self.lanes(slot)
    }

    /// The lanes of a 32-bit register.
    #[inline(always)]
    pub fn word_mut(&mut self, slot: Slot) -> &mut [u32; LANES] {
        self.lanes_mut(slot)
    }

    /// The lanes of a 64-bit register.
    #[inline(always)]
    pub fn wide(&self, slot: Slot) -> &[u64; LANES] {
        self.lanes(slot)
    }

    /// The lanes of a 64-bit register.
    #[inline(always)]
    pub fn wide_mut(&mut self, slot: Slot) -> &mut [u64; LANES] {
        self.lanes_mut(slot)
    }

    /// Writes `value` to the lanes of `mask`.
    #[inline(always)]
    pub fn set_predicate(&mut self, predicate: Predicate, value: u32, mask: u32) {
        let old = &mut self.predicates[predicate as usize];
        *old = (*old & !mask) | (value & mask);
    }
}

/// Operands of a lane loop: destination, sources and a number.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Operands {
    pub d: Slot,
    pub a: Slot,
    pub b: Slot,
    pub c: Slot,
    pub x: u32,
}

impl Operands {
    pub fn new(d: Slot, [a, b, c]: [Slot; 3], x: u32) -> Operands {
        Operands { d, a, b, c, x }
    }
}

/// A compiled loop over the lanes of a mask.
pub(crate) type Run = unsafe fn(&mut Registers, &Operands, u32);

/// A loop that is compiled for each instruction set.
pub(crate) trait Loop {
    /// Runs the loop. It is `#[inline(always)]`, and so is every hot function that it calls.
    fn run(registers: &mut Registers, operands: &Operands, mask: u32);
}

/// `L` compiled for this machine.
pub(crate) fn compiled<L: Loop>() -> Run {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(
            enable = "avx,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512dq,avx512vl"
        )]
        unsafe fn avx512<L: Loop>(registers: &mut Registers, operands: &Operands, mask: u32) {
            L::run(registers, operands, mask)
        }
        #[target_feature(enable = "avx,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn avx2<L: Loop>(registers: &mut Registers, operands: &Operands, mask: u32) {
            L::run(registers, operands, mask)
        }
        match level() {
            Level::Avx512 => return avx512::<L>,
            Level::Avx2 => return avx2::<L>,
            Level::Baseline => {}
        }
    }
    unsafe fn baseline<L: Loop>(registers: &mut Registers, operands: &Operands, mask: u32) {
        L::run(registers, operands, mask)
    }
    baseline::<L>
}

/// The instruction sets that loops are compiled for.
#[derive(Copy, Clone)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) enum Level {
    Baseline,
    Avx2,
    Avx512,
}

/// The best instruction set of this machine.
#[cfg(target_arch = "x86_64")]
pub(crate) fn level() -> Level {
    use std::sync::OnceLock;
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        match (avx2, avx512) {
            (true, true) => Level::Avx512,
            (true, false) => Level::Avx2,
            _ => Level::Baseline,
        }
    })
}

/// A closure that captures nothing, from its type.
#[inline(always)]
fn closure<F: Copy>() -> F {
    const { assert!(size_of::<F>() == 0, "lane closures capture nothing") }
    // SAFETY: `F` has no bytes, is inhabited (a loop is only made from a value of it) and is `Copy`.
    unsafe { std::ptr::NonNull::<F>::dangling().as_ptr().read() }
}

/// One lane of register `slot`.
#[inline(always)]
fn lanes<V: Value>(registers: &Registers, slot: Slot) -> &[V::Bits; LANES] {
    registers.lanes(slot)
}

/// Writes `values` to the lanes of `mask`.
#[inline(always)]
fn store<V: Value>(registers: &mut Registers, slot: Slot, mask: u32, values: [V::Bits; LANES]) {
    let out = registers.lanes_mut(slot);
    if mask == !0 {
        *out = values;
        return;
    }
    for l in 0..LANES {
        if mask >> l & 1 != 0 {
            out[l] = values[l];
        }
    }
}

/// The closure types of a loop.
type Closure<T> = PhantomData<fn() -> T>;

struct WithNumber<A, B, C, R, F>(Closure<(A, B, C, R, F)>);

impl<A: Value, B: Value, C: Value, R: Value, F: Fn(A, B, C, u32) -> R + Copy> Loop
    for WithNumber<A, B, C, R, F>
{
    #[inline(always)]
    fn run(registers: &mut Registers, o: &Operands, mask: u32) {
        let f = closure::<F>();
        let a = lanes::<A>(registers, o.a);
        let b = lanes::<B>(registers, o.b);
        let c = lanes::<C>(registers, o.c);
        let mut out = [R::Bits::default(); LANES];
        for l in 0..LANES {
            let (a, b, c) = (A::from_bits(a[l]), B::from_bits(b[l]), C::from_bits(c[l]));
            out[l] = f(a, b, c, o.x).to_bits();
        }
        store::<R>(registers, o.d, mask, out);
    }
}

/// `d = f(a, b, c, x)` on every lane, `x` the same number for all.
pub(crate) fn with_number<A, B, C, R, F>(_: F) -> Run
where
    A: Value,
    B: Value,
    C: Value,
    R: Value,
    F: Fn(A, B, C, u32) -> R + Copy,
{
    compiled::<WithNumber<A, B, C, R, F>>()
}

/// `d = f(a)` on every lane.
pub(crate) fn unary<A: Value, R: Value, F: Fn(A) -> R + Copy>(f: F) -> Run {
    with_number(move |a: A, _: u32, _: u32, _| f(a))
}

/// `d = f(a, b)` on every lane.
pub(crate) fn binary<A: Value, B: Value, R: Value, F: Fn(A, B) -> R + Copy>(f: F) -> Run {
    with_number(move |a: A, b: B, _: u32, _| f(a, b))
}

/// `d = f(a, b, c)` on every lane.
pub(crate) fn ternary<A, B, C, R, F>(f: F) -> Run
where
    A: Value,
    B: Value,
    C: Value,
    R: Value,
    F: Fn(A, B, C) -> R + Copy,
{
    with_number(move |a: A, b: B, c: C, _| f(a, b, c))
}

struct Quaternary<A, F>(Closure<(A, F)>);

impl<A: Value, F: Fn(A, A, u32, u32) -> A + Copy> Loop for Quaternary<A, F> {
    #[inline(always)]
    fn run(registers: &mut Registers, o: &Operands, mask: u32) {
        let f = closure::<F>();
        let (a, b) = (lanes::<A>(registers, o.a), lanes::<A>(registers, o.b));
        let (c, x) = (registers.word(o.c), registers.word(o.x));
        let mut out = [A::Bits::default(); LANES];
        for l in 0..LANES {
            out[l] = f(A::from_bits(a[l]), A::from_bits(b[l]), c[l], x[l]).to_bits();
        }
        store::<A>(registers, o.d, mask, out);
    }
}

/// `d = f(a, b, c, x)` on every lane, `x` a register too.
pub(crate) fn quaternary<A: Value, F: Fn(A, A, u32, u32) -> A + Copy>(_: F) -> Run {
    compiled::<Quaternary<A, F>>()
}
