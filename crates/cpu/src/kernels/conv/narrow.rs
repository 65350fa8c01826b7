//! Operands that have fewer bits than their accumulators. Micro-kernels that multiply several terms at once read these
//! operands, or the terms in a block's copy. Operands of f16 or bf16 that are multiplied as f32 are widened in a
//! block's copy, or as they are loaded. Where neither is possible, the whole operand is widened first.

use super::{Conv, ConvBlocking};
use crate::kernels::matmul::split;
use crate::kernels::terms::{convert, put};
use crate::tile::{Linked, run_lines};
use kiln_base::DType;
use kiln_kernel::affine::ceil;
use kiln_kernel::error::Result;
use kiln_kernel::memory::Storage;
use kiln_kernel::simd::Features;
use kiln_kernel::simd::convert::{pair, widen};
use kiln_kernel::simd::transpose::transpose;
use kiln_kernel::view::{Plain, View, ViewMut};
use kiln_kernel::work::Call;
use kiln_plan::{Algorithm, ConvRole};

/// The elements that a part widens.
const PART: i64 = 1 << 12;

/// The images that a run reads, or the first operand of a gradient.
#[derive(Copy, Clone)]
pub(super) enum Images<'a> {
    InMemory(View<'a, u8>),
    /// Images from a prologue, a part at a time.
    Prologue(&'a Linked),
}

/// The weights that a run reads, or the second operand of their gradient.
#[derive(Copy, Clone)]
pub(super) enum Weights<'a> {
    InMemory(View<'a, u8>),
    /// Packed by [`Conv::pack`](kiln_kernel::work::LinkedKernel::pack).
    Packed(View<'a, u8>),
}

impl<'a> Weights<'a> {
    /// Returns the packed weights, `len` elements. `pack` packs them now, unless they were packed before.
    pub(super) fn packed<T: Plain>(
        self,
        (storage, len): (&'a mut Option<Storage>, i64),
        pack: impl FnOnce(View<T>, ViewMut<T>),
    ) -> Result<View<'a, T>> {
        match self {
            Weights::Packed(packed) => Ok(packed.cast()),
            Weights::InMemory(from) => {
                let to = ViewMut::room(storage, len)?;
                pack(from.cast(), to);
                Ok(*to)
            }
        }
    }
}

impl Conv {
    /// True if an operand is read from a widened copy.
    pub(super) fn widens(&self, i: usize) -> bool {
        let weights = i == 1 && self.role != ConvRole::Weight;
        self.terms.operands[i] != self.dtype && (weights || !self.narrow)
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
            true => self.terms.operands[0],
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
    fn can_use(&self, packed: View<u8>) -> bool {
        match &self.blocking {
            ConvBlocking::Depthwise(blocking) => {
                !blocking.checks_finite() || blocking.is_finite(self, packed)
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
    pub(super) fn read<'a>(
        &'a self,
        call: &Call<'a>,
        [prologue, images, weights]: &'a mut [Option<Storage>; 3],
    ) -> Result<(Images<'a>, Weights<'a>)> {
        let (args, parallel) = (&call.args, call.parallel);
        let images = match (self.blockwise_prologue(), &self.prologue) {
            (Some(program), _) => Images::Prologue(program),
            (None, program) => {
                let from = match program {
                    Some(program) => self.make(program, call, prologue)?,
                    None => args.view(self.operands[0]),
                };
                Images::InMemory(match self.widens(0) {
                    true => self.widen(0, from, images, parallel)?,
                    false => from,
                })
            }
        };
        let packed = call.packed.map(|packed| *packed);
        let weights = match packed.filter(|packed| self.can_use(*packed)) {
            Some(packed) => Weights::Packed(packed),
            None if self.widens(1) => {
                let from = args.view(self.operands[1]);
                Weights::InMemory(self.widen(1, from, weights, parallel)?)
            }
            None => Weights::InMemory(args.view(self.operands[1])),
        };
        Ok((images, weights))
    }

    /// Packs the channels of `n` contiguous positions into words, as [`Terms::make_row`](crate::kernels::terms::Terms)
    /// does those of one. `channels` are their stride and number.
    pub(super) fn pack_channels(
        &self,
        from: View<u8>,
        channels: (i64, i64),
        to: (i64, ViewMut<u32>),
    ) {
        let flip = u32::from(self.terms.padding());
        match (self.terms.operands[0], self.terms.size()) {
            (half @ (DType::F16 | DType::BF16), 4) => {
                self.transpose_terms(from, channels, to, |from: &[u16], _, to| {
                    let to = ViewMut::of(to).cast();
                    widen(
                        self.level,
                        half,
                        from,
                        { to }.slice_mut(0, from.len() as i64),
                    );
                });
            }
            (DType::I8, 2) => {
                self.transpose_terms(from, channels, to, each(|x: i8| (x as u16).into()));
            }
            (_, 1) => self.transpose_terms(from, channels, to, each(|x: u8| u32::from(x) ^ flip)),
            (DType::U8, _) => self.transpose_terms(from, channels, to, each(|x: u8| x.into())),
            _ => self.transpose_terms(from, channels, to, each(|x: u16| x.into())),
        }
    }

    /// Implements [`Conv::pack_channels`] for elements of a type; `put` puts some of them, as one more term, into words.
    fn transpose_terms<E: Plain>(
        &self,
        from: View<u8>,
        (stride, channels): (i64, i64),
        (n, to): (i64, ViewMut<u32>),
        put: impl Fn(&[E], i64, &mut [u32]),
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
                        let at = (each * word + which) * stride + first;
                        put(
                            from.slice(at, count),
                            size * which,
                            &mut row[..count as usize],
                        );
                    }
                }
                let rows = (View::of(rows.as_flattened()), SOME);
                let to = (to.shift(first * words + top), words);
                transpose(self.level, rows, (some, count), to);
            }
        }
    }

    /// Copies an operand with its elements widened to what is multiplied; weights that are packed are widened to words.
    pub(super) fn widen<'a>(
        &self,
        i: usize,
        from: View<u8>,
        storage: &'a mut Option<Storage>,
        parallel: bool,
    ) -> Result<View<'a, u8>> {
        let len = self.operand_len(i);
        let dtypes = [self.terms.operands[i], self.dtype];
        let [size, wide] = dtypes.map(|d| d.size() as i64);
        let to = ViewMut::room(storage, wide * len)?;
        split(ceil(len, PART), PART, parallel, |first, end| {
            let (first, end) = (first * PART, (end * PART).min(len));
            let from = (from.shift(first * size), 1);
            convert(
                self.level,
                dtypes,
                from,
                end - first,
                to.shift(first * wide),
            );
        });
        Ok(*to)
    }

    /// Computes all elements of a prologue of the images.
    fn make<'a>(
        &self,
        program: &Linked,
        call: &Call,
        storage: &'a mut Option<Storage>,
    ) -> Result<View<'a, u8>> {
        let (len, size) = (self.operand_len(0), self.terms.operands[0].size() as i64);
        let to = ViewMut::room(storage, len * size)?;
        split(ceil(len, PART), PART, call.parallel, |first, end| {
            let first = first * PART;
            let count = (end * PART).min(len) - first;
            let part = (to.shift(first * size), count);
            let lines = (1, count);
            let made = run_lines(
                program,
                &call.args,
                part,
                first,
                lines,
                count,
                call.failures,
            );
            if let Err(e) = made {
                call.failures.broken(e);
            }
        });
        Ok(*to)
    }
}

/// Returns a function that puts terms made of elements into words; see [`put`].
fn each<E: Copy>(term: impl Fn(E) -> u32 + Copy) -> impl Fn(&[E], i64, &mut [u32]) {
    move |from, bits, words| put(from, bits, words, term)
}

/// Interleaves pairs of rows of 16-bit elements: for each `i`, row `i * step` and the row `distance` rows after it.
/// Rows are `pitch` and `to_pitch` elements apart.
pub(super) fn join_rows(
    (from, pitch): (View<u16>, i64),
    (count, step, distance): (i64, i64, i64),
    columns: i64,
    (mut to, to_pitch): (ViewMut<u32>, i64),
) {
    for i in 0..count {
        let row = |row: i64| from.slice(row * pitch, columns).iter();
        let pairs = row(i * step).zip(row(i * step + distance));
        let to = to.slice_mut(i * to_pitch, columns).iter_mut();
        to.zip(pairs)
            .for_each(|(to, (first, second))| *to = pair(*first, *second));
    }
}
