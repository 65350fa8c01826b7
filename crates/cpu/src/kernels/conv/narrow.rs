//! Operands that have fewer bits than their accumulators. Micro-kernels that multiply several terms at once read these
//! operands, or the terms in a block's copy. Operands of f16 or bf16 that are multiplied as f32 are widened in a
//! block's copy, or as they are loaded. Where neither is possible, the whole operand is widened first.

use super::{Conv, ConvBlocking};
use crate::kernels::matmul::split;
use crate::kernels::pack::{Packer, convert};
use crate::tile::{Linked, run_lines};
use kiln_base::DType;
use kiln_kernel::affine::ceil;
use kiln_kernel::error::Result;
use kiln_kernel::memory::Storage;
use kiln_kernel::simd::Features;
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
        pack: impl FnOnce(View<u8>, ViewMut<T>),
    ) -> Result<View<'a, T>> {
        match self {
            Weights::Packed(packed) => Ok(packed.cast()),
            Weights::InMemory(from) => {
                let to = ViewMut::room(storage, len)?;
                pack(from, to);
                Ok(*to)
            }
        }
    }
}

impl Conv {
    /// True if an operand is read from a widened copy.
    pub(super) fn widens(&self, i: usize) -> bool {
        let reads_narrow = match i {
            1 if self.role != ConvRole::Weight => !matches!(self.blocking, ConvBlocking::Fft(_)),
            _ => self.narrow,
        };
        self.terms.operands[i] != self.dtype && !reads_narrow
    }

    /// True if images are read as they are, although they have fewer bits than their accumulators, as are both operands
    /// of a gradient of weights.
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

    /// Returns the dtype of an operand, as it is read.
    pub(super) fn read_dtype(&self, i: usize) -> DType {
        match self.widens(i) {
            true => self.dtype,
            false => self.terms.operands[i],
        }
    }

    /// Returns the packer of an operand, as it is read.
    pub(super) fn packer(&self, i: usize) -> Packer {
        self.terms.packer(i, self.read_dtype(i))
    }

    /// Returns the packer of an operand's elements as they are.
    pub(super) fn elements(&self, i: usize) -> Packer {
        Packer {
            dtypes: [self.read_dtype(i); 2],
            count: 1,
            ..self.packer(i)
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

    /// Copies an operand with its elements widened to the dtype of accumulators.
    pub(super) fn widen<'a>(
        &self,
        i: usize,
        from: View<u8>,
        storage: &'a mut Option<Storage>,
        parallel: bool,
    ) -> Result<View<'a, u8>> {
        let dtypes = [self.terms.operands[i], self.dtype];
        let [size, wide] = dtypes.map(|d| d.size() as i64);
        let to = ViewMut::room(storage, wide * self.operand_len(i))?;
        self.in_parts(i, parallel, |first, count| {
            let from = (from.shift(first * size), 1);
            convert(self.level, dtypes, from, count, to.shift(first * wide));
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
        let size = self.terms.operands[0].size() as i64;
        let to = ViewMut::room(storage, self.operand_len(0) * size)?;
        self.in_parts(0, call.parallel, |first, count| {
            let (part, lines) = ((to.shift(first * size), count), (1, count));
            let (args, failures) = (&call.args, call.failures);
            if let Err(e) = run_lines(program, args, part, first, lines, count, failures) {
                failures.report_error(e);
            }
        });
        Ok(*to)
    }

    /// Calls a function for the first element and the number of elements of each part of an operand.
    fn in_parts(&self, i: usize, parallel: bool, run: impl Fn(i64, i64) + Sync) {
        let len = self.operand_len(i);
        split(ceil(len, PART), PART, parallel, |first, end| {
            run(first * PART, (end * PART).min(len) - first * PART);
        });
    }
}
