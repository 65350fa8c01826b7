//! Operands that have fewer bits than their accumulators. Micro-kernels that multiply several terms at once read these
//! operands, or the terms in a block's copy. Operands of f16 or bf16 that are multiplied as f32 are widened in a
//! block's copy, or as they are loaded. Where neither is possible, the whole operand is widened first.

use super::{Conv, How};
use crate::kernels::matmul::{Args, split};
use crate::kernels::terms::{convert, put};
use crate::tile::{Linked, Runner};
use kiln_base::DType;
use kiln_kernel::affine::ceil;
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failures;
use kiln_kernel::memory::{Storage, room};
use kiln_kernel::simd::convert::{pair, widen};
use kiln_kernel::simd::transpose::{Transpose, TransposeKernel};
use kiln_kernel::simd::{Features, compiled};
use kiln_plan::{Algorithm, ConvRole};
use smallvec::SmallVec;

/// The elements that a part widens.
const PART: i64 = 1 << 12;

/// The images that a run reads, or the first operand of a gradient.
#[derive(Copy, Clone)]
pub(super) enum Images<'a> {
    InMemory(*const u8),
    /// Images from a prologue, a part at a time.
    Prologue(&'a Linked),
}

/// The weights that a run reads, or the second operand of their gradient.
#[derive(Copy, Clone)]
pub(super) enum Weights {
    InMemory(*const u8),
    /// Packed by [`Conv::pack`].
    Packed(*const u8),
}

// SAFETY: addresses are only passed on; the callers promise what may be done with them.
unsafe impl Sync for Images<'_> {}
// SAFETY: as above.
unsafe impl Sync for Weights {}

impl Weights {
    /// Returns the packed weights, `len` elements. `pack` packs them now, unless they were packed before.
    pub(super) fn packed<T>(
        self,
        (storage, len): (&mut Option<Storage>, i64),
        pack: impl FnOnce(*const T, *mut T),
    ) -> Result<*const T> {
        match self {
            Weights::Packed(packed) => Ok(packed.cast()),
            Weights::InMemory(from) => {
                let to = room::<T>(storage, len)?;
                pack(from.cast(), to);
                Ok(to)
            }
        }
    }
}

impl Conv {
    /// True if an operand is read from a widened copy.
    pub(super) fn widens(&self, i: usize) -> bool {
        let weights = i == 1 && self.role != ConvRole::Weight;
        self.terms.operand(i) != self.dtype && (weights || !self.narrow)
    }

    /// True if images are read as they are, although they have fewer bits than their accumulators, as are both operands
    /// of a gradient of weights. Weights that are packed are all widened to words first.
    pub(super) fn reads_narrow(&self, by: Algorithm, reads_nchw: bool) -> bool {
        let one_each = (self.cin, self.cout) == (1, 1);
        // VEX has no masks for 16-bit elements.
        let some_lanes = self.level.width() == Features::AVX2 && self.groups % 8 != 0;
        let can = match self.role {
            ConvRole::Result => by != Algorithm::Fft && !(one_each && (reads_nchw || some_lanes)),
            ConvRole::Input => !one_each,
            ConvRole::Weight => false,
        };
        self.terms.are_grouped() || self.terms.are_narrow() && can
    }

    /// Returns the dtype of the images, as they are read.
    pub(super) fn image_dtype(&self) -> DType {
        match self.narrow {
            true => self.terms.operand(0),
            false => self.dtype,
        }
    }

    /// True if an operand is not read from its argument, because it is widened, or computed as a whole.
    pub(super) fn brings(&self, i: usize) -> bool {
        self.widens(i) || i == 0 && self.whole_prologue
    }

    /// Returns the prologue that produces the images a part at a time.
    pub(super) fn blockwise_prologue(&self) -> Option<&Linked> {
        self.prologue.as_deref().filter(|_| !self.brings(0))
    }

    /// True if packed weights are all that a run reads of them; weights that are not finite may need another layout.
    ///
    /// # Safety
    /// The weights were packed by [`Conv::pack`].
    unsafe fn can_use(&self, packed: *const u8) -> bool {
        match &self.how {
            How::Depthwise(blocking) => {
                // SAFETY: the caller's.
                !blocking.checks_finite() || unsafe { blocking.is_finite(self, packed) }
            }
            _ => true,
        }
    }

    /// Returns the number of elements of an operand.
    pub(super) fn operand_len(&self, i: usize) -> i64 {
        let g = &self.geometry;
        let images = self.batch * self.groups;
        let filters = self.groups * self.cout * self.cin * g.kernels();
        match (self.role, i) {
            (ConvRole::Result, 0) | (ConvRole::Weight, 0) => images * self.cin * g.inputs(),
            (ConvRole::Input, 0) | (ConvRole::Weight, _) => images * self.cout * g.outputs(),
            _ => filters,
        }
    }

    /// Returns the operands as they are read: in place, or as a copy that was widened or computed as a whole.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn read(
        &self,
        args: &[*mut u8],
        packed: Option<*mut u8>,
        [prologue, images, weights]: &mut [Option<Storage>; 3],
        parallel: bool,
        failures: &Failures,
    ) -> Result<(Images<'_>, Weights)> {
        // SAFETY: the caller's; linking checked the operands' lengths.
        unsafe {
            let lying = |i: usize, from: *mut u8, to: &mut Option<Storage>| match self.widens(i) {
                true => self.widen(i, from, to, parallel),
                false => Ok(from),
            };
            let images = match (self.blockwise_prologue(), &self.prologue) {
                (Some(program), _) => Images::Prologue(program),
                (None, Some(program)) => {
                    let of = (args, self.operand_len(0), self.terms.operand(0).size());
                    let from = make(program, of, prologue, parallel, failures)?;
                    Images::InMemory(lying(0, from, images)?)
                }
                (None, None) => Images::InMemory(lying(0, args[self.operands[0]], images)?),
            };
            let weights = match packed.filter(|packed| self.can_use(*packed)) {
                Some(packed) => Weights::Packed(packed),
                None => Weights::InMemory(lying(1, args[self.operands[1]], weights)?),
            };
            Ok((images, weights))
        }
    }

    /// Packs the channels of `n` contiguous positions into words, as [`Conv::join`] does.
    ///
    /// # Safety
    /// The channels exist, with a stride of `apart` elements, and there is room for their words.
    pub(super) unsafe fn pack_channels(
        &self,
        from: *const u8,
        how: (i64, i64),
        to: (i64, *mut u32),
    ) {
        let flip = u32::from(self.terms.padding());
        // SAFETY: the caller's.
        unsafe {
            match (self.terms.operand(0), self.terms.size()) {
                (half @ (DType::F16 | DType::BF16), 4) => {
                    self.transpose_terms(from, how, to, |from: *const u16, _, (to, n)| {
                        let from = std::slice::from_raw_parts(from, n as usize);
                        let to = std::slice::from_raw_parts_mut(to.cast(), n as usize);
                        widen(self.level, half, from, to);
                    });
                }
                (DType::I8, 2) => {
                    self.transpose_terms(from, how, to, each(|x: i8| (x as u16).into()))
                }
                (_, 1) => self.transpose_terms(from, how, to, each(|x: u8| u32::from(x) ^ flip)),
                (DType::U8, _) => self.transpose_terms(from, how, to, each(|x: u8| x.into())),
                _ => self.transpose_terms(from, how, to, each(|x: u16| x.into())),
            }
        }
    }

    /// Implements [`Conv::pack_channels`] for elements of a type; `put` puts some of them, as one more term, into words.
    ///
    /// # Safety
    /// As [`Conv::pack_channels`].
    unsafe fn transpose_terms<E: Copy>(
        &self,
        from: *const u8,
        (apart, channels): (i64, i64),
        (n, to): (i64, *mut u32),
        put: impl Fn(*const E, i64, (*mut u32, i64)),
    ) {
        const ROWS: i64 = 8;
        const SOME: i64 = 64;
        let (each, words) = (self.terms.count(), self.terms.words(channels));
        let size = 8 * self.terms.size();
        let from = from.cast::<E>();
        let mut rows = [[0u32; SOME as usize]; ROWS as usize];
        for first in (0..n).step_by(SOME as usize) {
            let count = SOME.min(n - first);
            for top in (0..words).step_by(ROWS as usize) {
                let some = ROWS.min(words - top);
                for (row, word) in rows.iter_mut().zip(top..top + some) {
                    for which in 0..each.min(channels - each * word) {
                        let at = (each * word + which) * apart + first;
                        let (bits, row) = (size * which, row.as_mut_ptr());
                        // SAFETY: the caller's.
                        put(unsafe { from.offset(at as isize) }, bits, (row, count));
                    }
                }
                // SAFETY: the caller's.
                unsafe {
                    compiled::<TransposeKernel<u32>, _>(self.level)(Transpose {
                        from: rows.as_ptr().cast(),
                        pitch: SOME as isize,
                        rows: some as usize,
                        columns: count as usize,
                        to: to.offset((first * words + top) as isize),
                        to_pitch: words as isize,
                    });
                }
            }
        }
    }

    /// Packs a position's channels, `apart` elements apart, contiguously; zeros fill the last word.
    ///
    /// # Safety
    /// The channels exist, and there is room for their words.
    pub(super) unsafe fn join(&self, from: *const u8, apart: i64, channels: i64, to: *mut u8) {
        let size = self.terms.size();
        let rest = 4 * self.terms.words(channels) - size * channels;
        // SAFETY: the caller's.
        unsafe {
            self.terms.make(0, (from, apart), channels, to);
            to.offset((size * channels) as isize)
                .write_bytes(0, rest as usize);
        }
    }

    /// Copies an operand with its elements widened to what is multiplied; weights that are packed are widened to words.
    ///
    /// # Safety
    /// The operand exists.
    pub(super) unsafe fn widen(
        &self,
        i: usize,
        from: *mut u8,
        storage: &mut Option<Storage>,
        parallel: bool,
    ) -> Result<*mut u8> {
        let len = self.operand_len(i);
        let dtypes = [self.terms.operand(i), self.dtype];
        let [size, wide] = dtypes.map(|d| d.size() as i64);
        let to = room::<u8>(storage, wide * len)?;
        let both = Args(&[from, to]);
        split(ceil(len, PART), PART, parallel, |first, end| {
            let both = &both;
            let (first, end) = (first * PART, (end * PART).min(len));
            // SAFETY: the caller's; parts are apart.
            unsafe {
                let from = both.0[0].offset((first * size) as isize);
                let to = both.0[1].offset((first * wide) as isize);
                convert(self.level, dtypes, (from, 1), end - first, to);
            }
        });
        Ok(to)
    }
}

/// Returns a function that puts terms made of elements into words; see [`put`].
///
/// # Safety
/// As [`put`].
unsafe fn each<E: Copy>(term: impl Fn(E) -> u32 + Copy) -> impl Fn(*const E, i64, (*mut u32, i64)) {
    // SAFETY: the caller's.
    move |from, bits, words| unsafe { put(from, bits, words, term) }
}

/// Computes all elements of a prologue.
///
/// # Safety
/// See [`Runner::new`] for the arguments; the prologue has `len` elements of `size` bytes.
unsafe fn make(
    program: &Linked,
    (args, len, size): (&[*mut u8], i64, usize),
    storage: &mut Option<Storage>,
    parallel: bool,
    failures: &Failures,
) -> Result<*mut u8> {
    let to = room::<u8>(storage, len * size as i64)?;
    let all: SmallVec<[*mut u8; 12]> = args.iter().copied().chain([to]).collect();
    let all = Args(&all);
    split(ceil(len, PART), PART, parallel, |first, end| {
        let all = &all;
        // SAFETY: the caller's; parts are apart.
        match unsafe { Runner::new(program, all.0.as_ptr(), failures) } {
            // SAFETY: as above.
            Ok(mut runner) => unsafe { runner.range(first * PART, (end * PART).min(len)) },
            Err(e) => failures.broken(e),
        }
    });
    Ok(to)
}

/// Interleaves pairs of rows of 16-bit elements: for each `i`, row `i * step` and the row `apart` rows after it.
///
/// # Safety
/// The rows exist, with a stride of `pitch` elements, and there is room, with a stride of `to_pitch`.
pub(super) unsafe fn join_rows(
    (from, pitch): (*const u16, i64),
    (count, step, apart): (i64, i64, i64),
    columns: i64,
    (to, to_pitch): (*mut u32, i64),
) {
    for i in 0..count {
        // SAFETY: the caller's.
        unsafe {
            let row = |row: i64| {
                let from = from.offset((row * pitch) as isize);
                std::slice::from_raw_parts(from, columns as usize)
            };
            let to = to.offset((i * to_pitch) as isize);
            let to = std::slice::from_raw_parts_mut(to, columns as usize);
            let pairs = row(i * step).iter().zip(row(i * step + apart));
            for (to, (first, second)) in to.iter_mut().zip(pairs) {
                *to = pair(*first, *second);
            }
        }
    }
}
