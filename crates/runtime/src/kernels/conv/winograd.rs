//! Winograd's convolutions F(m×m, 3×3): tiles of a × a inputs, a = m + 2, give m × m results.
//!
//! With the matrices of Lavin and Gray (arXiv:1509.09308), a tile is `Y = Aᵀ [(G g Gᵀ) ∘ (Bᵀ d B)] A`: three
//! transformations, and a product of weights and inputs for each of the a² elements of a transformed tile.
//! Tiles lie side by side in vectors. A chunk of tile rows goes through all three steps, so that what
//! lies between them stays in the cache.

mod transform;

use super::Conv;
use crate::contraction::multiply;
use crate::error::Result;
use crate::kernels::matmul::{Args, Work, run_blocks, split};
use crate::memory::{Storage, room};
use crate::simd::compiled;
use crate::sums::{ROWS, SLACK};
use crate::tile::Failures;
use crate::tile::affine::ceil;
use kiln_plan::Algorithm;
pub(super) use transform::{Four, Transform, Two};
use transform::{
    Inputs, Outputs, Part, TransformInputs, TransformOutputs, TransformWeights, Weights, phase_row,
};

/// Elements of a chunk between the steps.
const CHUNK: i64 = 1 << 21;
/// What transforming an element costs, in multiply-adds.
const TRANSFORM_WORK: i64 = 32;

/// The a² elements of transformed tiles, of which each is a matrix, in memory that all threads read, or
/// write parts of.
#[derive(Copy, Clone)]
struct Elements {
    start: *mut f32,
    /// Distance of two rows of a matrix.
    row: i64,
    /// Distance of two matrices.
    element: i64,
}
// SAFETY: the pointer is only passed on; who writes where is said where it is used.
unsafe impl Sync for Elements {}

impl Elements {
    /// The distances for so many rows of `len` elements and slack.
    fn sized(start: *mut f32, rows: i64, len: i64) -> Elements {
        let row = len + SLACK;
        // The elements of a tile must not fall on the same lines of the cache.
        let element = rows * row + 3 * SLACK;
        Elements {
            start,
            row,
            element,
        }
    }

    /// The same, with room for `count` matrices.
    fn new(storage: &mut Option<Storage>, count: i64, rows: i64, len: i64) -> Result<Elements> {
        let sized = Elements::sized(std::ptr::null_mut(), rows, len);
        let start = room(storage, count * sized.element)?;
        Ok(Elements { start, ..sized })
    }

    fn at(&self, element: i64, row: i64, i: i64) -> *mut f32 {
        let at = element * self.element + row * self.row + i;
        self.start.wrapping_offset(at as isize)
    }
}

/// Tile rows that go through the steps together.
struct Chunk {
    group: i64,
    parts: Vec<Part>,
    /// How many tiles.
    tiles: i64,
    /// Rows of output channels, of input channels.
    weights: Elements,
    /// Rows of input channels, of tiles.
    inputs: Elements,
    /// Rows of output channels, of tiles.
    products: Elements,
}

impl Conv {
    /// Elements of a transformed tile; none for algorithms that read the weights as they are.
    fn tile_elements(&self) -> Option<i64> {
        match self.algorithm {
            Algorithm::Winograd2 => Some(16),
            Algorithm::Winograd4 => Some(36),
            _ => None,
        }
    }

    /// Rows of tiles of an image, tiles of a row, and rows of a chunk.
    fn tile_rows(&self, m: i64, elements: i64) -> (i64, i64, i64) {
        let [_, height, width] = self.geometry.axes.map(|a| a.output);
        let (down, across) = (ceil(height, m), ceil(width, m));
        let row = (self.cin + self.cout) * elements * across;
        (down, across, (CHUNK / row).clamp(1, self.batch * down))
    }

    /// Elements between the steps, and of the packed weights of a group.
    pub(super) fn winograd_workspace(&self) -> i64 {
        let elements = self.tile_elements().unwrap_or(0);
        let m = if elements == 36 { 4 } else { 2 };
        let (_, across, most) = self.tile_rows(m, elements);
        let sizes = [
            (self.cout, self.cin),
            (self.cin, most * across),
            (self.cout, most * across),
        ];
        let room = |(rows, len)| Elements::sized(std::ptr::null_mut(), rows, len).element;
        elements * sizes.map(room).iter().sum::<i64>()
    }

    /// Elements of the transformed weights; none for other algorithms.
    pub(super) fn winograd_packed(&self) -> Option<i64> {
        let group = self.packed(std::ptr::null_mut(), 0).element * self.tile_elements()?;
        Some(self.groups * group)
    }

    /// Where the packed weights of a group are.
    fn packed(&self, start: *mut f32, group: i64) -> Elements {
        let packed = Elements::sized(start, self.cout, self.cin);
        let group = group * self.tile_elements().unwrap_or(0) * packed.element;
        Elements {
            start: start.wrapping_offset(group as isize),
            ..packed
        }
    }

    /// Transforms the weights.
    ///
    /// # Safety
    /// As [`Conv::pack`].
    pub(super) unsafe fn winograd_pack(&self, weights: *mut u8, to: *mut u8, parallel: bool) {
        for group in 0..self.groups {
            let (weights, to) = (weights.cast::<f32>(), self.packed(to.cast(), group));
            // SAFETY: the caller's.
            unsafe {
                match self.algorithm {
                    Algorithm::Winograd2 => {
                        self.transform_weights::<Two>(weights, group, to, parallel);
                    }
                    _ => self.transform_weights::<Four>(weights, group, to, parallel),
                }
            }
        }
    }

    /// Runs a convolution by [`Algorithm::Winograd2`] or its sibling.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn winograd<W: Transform>(
        &self,
        args: &[*mut u8],
        packed: Option<*mut u8>,
        parallel: bool,
        failures: &Failures,
    ) {
        let elements = (W::A * W::A) as i64;
        let (down, across, most) = self.tile_rows(W::M as i64, elements);
        let tiles = most * across;
        let mut storage = [None, None, None];
        let [weights, inputs, products] = match self.elements(packed, elements, tiles, &mut storage)
        {
            Ok(rooms) => rooms,
            Err(e) => return failures.broken(e),
        };
        for group in 0..self.groups {
            // SAFETY: the caller's; all rooms have their sizes.
            unsafe {
                let weights = match packed {
                    Some(packed) => self.packed(packed.cast(), group),
                    None => {
                        let raw = args[self.operands[1]].cast::<f32>();
                        self.transform_weights::<W>(raw, group, weights, parallel);
                        weights
                    }
                };
                let mut row = 0;
                while row < self.batch * down {
                    let rows = most.min(self.batch * down - row);
                    let chunk = Chunk {
                        group,
                        parts: parts(row, rows, down, across),
                        tiles: rows * across,
                        weights,
                        inputs,
                        products,
                    };
                    self.transform_inputs::<W>(args, &chunk, parallel, failures);
                    self.products::<W>(&chunk, parallel, failures);
                    self.transform_outputs::<W>(args, &chunk, parallel, failures);
                    row += rows;
                }
            }
        }
    }

    /// Places for transformed weights, if they are not packed, for inputs and for products.
    fn elements(
        &self,
        packed: Option<*mut u8>,
        count: i64,
        tiles: i64,
        [weights, inputs, products]: &mut [Option<Storage>; 3],
    ) -> Result<[Elements; 3]> {
        let weights = match packed {
            Some(packed) => self.packed(packed.cast(), 0),
            None => Elements::new(weights, count, self.cout, self.cin)?,
        };
        let inputs = Elements::new(inputs, count, self.cin, tiles)?;
        let products = Elements::new(products, count, self.cout, tiles)?;
        Ok([weights, inputs, products])
    }

    unsafe fn transform_weights<W: Transform>(
        &self,
        weights: *const f32,
        group: i64,
        to: Elements,
        parallel: bool,
    ) {
        let args = Args(&[weights.cast_mut().cast()]);
        let work = self.cin * TRANSFORM_WORK * 9;
        split(self.cout, work, parallel, |from, until| {
            let (args, to) = (&args, &to);
            for o in from..until {
                let row = (group * self.cout + o) * self.cin * 9;
                // SAFETY: linking checked the weights' length; each output channel has rows of its own.
                unsafe {
                    compiled::<TransformWeights<W>, _>(self.level)(Weights {
                        from: args.0[0].cast::<f32>().wrapping_offset(row as isize),
                        channels: self.cin as usize,
                        to: to.at(0, o, 0),
                        pitch: to.element as usize,
                    });
                }
            }
        });
    }

    unsafe fn transform_inputs<W: Transform>(
        &self,
        args: &[*mut u8],
        chunk: &Chunk,
        parallel: bool,
        failures: &Failures,
    ) {
        let g = &self.geometry;
        let row = phase_row(ceil(g.axes[2].output, W::M as i64));
        let args = Args(args);
        let work = chunk.tiles * (W::A * W::A) as i64 * TRANSFORM_WORK / 8;
        split(self.cin, work, parallel, |from, until| {
            let (args, mut storage) = (&args, None);
            let phases = match room::<f32>(&mut storage, (W::A * W::M) as i64 * row) {
                Ok(phases) => phases,
                Err(e) => return failures.broken(e),
            };
            for c in from..until {
                for part in &chunk.parts {
                    let channel = (part.image * self.groups + chunk.group) * self.cin + c;
                    // SAFETY: linking checked the input's length; each channel has rows of its own.
                    unsafe {
                        compiled::<TransformInputs<W>, _>(self.level)(Inputs {
                            conv: self,
                            x: self.operand(args.0, 0, channel * g.inputs()),
                            part: *part,
                            phases,
                            to: chunk.inputs.at(0, c, part.tile),
                            pitch: chunk.inputs.element as usize,
                        });
                    }
                }
            }
        });
    }

    /// For each element of a tile the product of weights and inputs.
    unsafe fn products<W: Transform>(&self, chunk: &Chunk, parallel: bool, failures: &Failures) {
        let down = ceil(self.cout, ROWS);
        let items = (W::A * W::A) as i64 * down;
        let work = ROWS * self.cin * chunk.tiles;
        split(items, work, parallel, |from, until| {
            for item in from..until {
                let (element, row) = (item / down, item % down * ROWS);
                let sizes = (ROWS.min(self.cout - row), chunk.tiles, self.cin);
                let to = chunk.products.at(element, row, 0);
                let weights = chunk.weights.at(element, row, 0).cast_const();
                let inputs = chunk.inputs.at(element, 0, 0).cast_const();
                // SAFETY: the rooms have their sizes; each item writes rows of its own.
                let done = unsafe {
                    multiply(
                        self.level,
                        sizes,
                        (to, chunk.products.row),
                        (weights, chunk.weights.row, 1),
                        (inputs, chunk.inputs.row, 1),
                        false,
                    )
                };
                if let Err(e) = done {
                    failures.broken(e);
                }
            }
        });
    }

    unsafe fn transform_outputs<W: Transform>(
        &self,
        args: &[*mut u8],
        chunk: &Chunk,
        parallel: bool,
        failures: &Failures,
    ) {
        let down = ceil(self.cout, ROWS);
        let items = chunk.parts.len() as i64 * down;
        let tiles = chunk.tiles / chunk.parts.len() as i64;
        let work = ROWS * tiles * (W::A * W::A) as i64 * TRANSFORM_WORK / 8;
        let launch = (self.epilogue.as_ref(), args, parallel, failures);
        // SAFETY: the caller's; blocks write different places.
        run_blocks((items, work), launch, |i, args, _: &mut (), work| unsafe {
            let (part, channel) = (&chunk.parts[(i / down) as usize], i % down * ROWS);
            self.output_block::<W>(args, chunk, part, channel, work)
        });
    }

    /// Some output channels of a part.
    unsafe fn output_block<W: Transform>(
        &self,
        args: &[*mut u8],
        chunk: &Chunk,
        part: &Part,
        channel: i64,
        work: &mut Work,
    ) -> Result<()> {
        let (all, [_, height, width]) = (self.geometry.outputs(), self.geometry.axes);
        let channels = ROWS.min(self.cout - channel);
        let row = part.row * W::M as i64;
        let rows = (part.rows * W::M as i64).min(height.output - row);
        let size = rows * width.output;
        let first = (part.image * self.groups + chunk.group) * self.cout + channel;
        let first = first * all + row * width.output;
        let (dst, pitch) = match self.epilogue {
            Some(_) => (work.scratch::<f32>(channels * size)?, size),
            None => (self.result_at::<f32>(args, first), all),
        };
        for c in 0..channels {
            let from = chunk.products.at(0, channel + c, part.tile);
            // SAFETY: the products are there; the result or the scratch memory has the rows.
            unsafe {
                compiled::<TransformOutputs<W>, _>(self.level)(Outputs {
                    conv: self,
                    part: *part,
                    from,
                    pitch: chunk.products.element as usize,
                    to: dst.wrapping_offset((c * pitch) as isize),
                });
            }
        }
        // SAFETY: as above.
        unsafe { work.finish((dst, pitch), first, (channels, all), size) };
        Ok(())
    }
}

/// The parts of some tile rows, of which each image has `down` of `across` tiles.
fn parts(mut row: i64, rows: i64, down: i64, across: i64) -> Vec<Part> {
    let (first, end) = (row, row + rows);
    let mut parts = Vec::new();
    while row < end {
        let rows = (down - row % down).min(end - row);
        parts.push(Part {
            image: row / down,
            row: row % down,
            rows,
            tile: (row - first) * across,
        });
        row += rows;
    }
    parts
}
