//! Convolutions of many taps by Fourier transforms, with the tiles of [`FftTile`].
//!
//! X is the transform of a tile of the input, and W that of the zero-padded taps. The inverse transform of X · W̄ gives
//! the results, except at places where the taps wrap around the tile (overlap-save). Taps are real, so two tiles are
//! the real and the imaginary part of one transform, before and after the product. At each frequency, the product
//! multiplies a matrix of weights, transformed once, by a matrix of inputs.

mod transform;

use super::narrow::Weights;
use super::{Conv, LEAST_BLOCKS};
use crate::kernels::matmul::{Args, EpilogueRunner, run_blocks, split};
use kiln_kernel::affine::ceil;
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failures;
use kiln_kernel::memory::{Storage, room};
use kiln_kernel::simd::compiled;
use kiln_plan::FftTile;
use transform::{Back, Complex, Forth, LANES, Multiply, Products, Tile, Twiddles};

/// Elements of a block: real and imaginary parts.
const BLOCK: i64 = 2 * LANES as i64;
/// The elements of transforms that are computed before they are multiplied.
const CHUNK: i64 = 1 << 21;

/// The parameters of a convolution by transforms.
pub(super) struct Fft {
    tile: FftTile,
    twiddles: Twiddles,
}

impl Fft {
    pub fn new(tile: FftTile) -> Fft {
        let twiddles = Twiddles::new(&tile);
        Fft { tile, twiddles }
    }

    /// Returns the number of elements of a transform: real and imaginary parts.
    pub fn numbers(&self) -> i64 {
        2 * self.tile.size()
    }

    /// Returns an uninitialised tile in `storage`, without a spectrum.
    fn scratch(&self, storage: &mut Scratch) -> Result<Tile<'_>> {
        let start = room::<f32>(storage, 2 * self.numbers())?;
        let len = self.twiddles.len();
        let parts = |i: usize| Complex {
            re: start.wrapping_add(i * len),
            im: start.wrapping_add((i + 1) * len),
        };
        Ok(Tile {
            twiddles: &self.twiddles,
            tile: parts(0),
            transposed: parts(2),
            spectrum: std::ptr::null_mut(),
            step: 0,
        })
    }
}

/// Pairs of tiles that go through all steps together.
struct Chunk {
    group: i64,
    /// The first pair, and the number of pairs.
    from: i64,
    pairs: i64,
}

/// The context of all steps.
struct Run<'a> {
    fft: &'a Fft,
    args: Args<'a>,
    parallel: bool,
    failures: &'a Failures,
}

/// Memory between the steps of a thread's chunks.
#[derive(Default)]
struct Rooms {
    /// The transformed weights, unless they were transformed in advance, and the group that they belong to.
    weights: Option<Storage>,
    group: Option<i64>,
    inputs: Option<Storage>,
    results: Option<Storage>,
}

/// Memory that tiles are transformed in.
type Scratch = Option<Storage>;

impl Conv {
    /// Returns the number of pairs of tiles of all images, and the number of pairs of a chunk.
    fn pairs(&self, fft: &Fft) -> (i64, i64) {
        let [down, across] = fft.tile.count;
        let all = ceil(self.batch * down * across, 2);
        let pair = (self.cin + self.cout) * fft.numbers();
        (all, (CHUNK / pair).clamp(1, all))
    }

    /// Returns the number of chunks of all groups, and true if threads share chunks instead of the work of each chunk.
    fn chunks(&self, fft: &Fft) -> (i64, bool) {
        let (all, most) = self.pairs(fft);
        let chunks = self.groups * ceil(all, most);
        (chunks, chunks >= LEAST_BLOCKS)
    }

    /// Returns the number of elements of the workspace on `threads` threads: inputs, results and a group's transformed
    /// weights.
    pub(super) fn fft_workspace(&self, fft: &Fft, threads: i64) -> i64 {
        let (_, most) = self.pairs(fft);
        let (chunks, shared) = self.chunks(fft);
        let at_once = if shared { threads.min(chunks) } else { 1 };
        let (x, y, w) = (self.cin * most, self.cout * most, self.cin * self.cout);
        at_once * (x + y + w) * fft.numbers() + threads * 2 * fft.numbers()
    }

    /// Returns the number of elements of the transformed weights.
    pub(super) fn fft_packed(&self, fft: &Fft) -> i64 {
        self.groups * self.cout * self.cin * fft.numbers()
    }

    /// Transforms the weights.
    ///
    /// # Safety
    /// As [`Conv::pack`].
    pub(super) unsafe fn fft_pack(
        &self,
        fft: &Fft,
        weights: *mut u8,
        to: *mut u8,
        parallel: bool,
        failures: &Failures,
    ) {
        let run = Run {
            fft,
            args: Args(&[]),
            parallel,
            failures,
        };
        for group in 0..self.groups {
            let to = self.transformed(fft, to, group);
            // SAFETY: the caller's.
            unsafe { self.fft_weights(&run, weights.cast(), group, to) };
        }
    }

    /// Returns the address of the transformed weights of a group.
    fn transformed(&self, fft: &Fft, packed: *mut u8, group: i64) -> *mut f32 {
        let at = group * self.cout * self.cin * fft.numbers();
        packed.cast::<f32>().wrapping_offset(at as isize)
    }

    /// Runs a convolution by [`Algorithm::Fft`](kiln_plan::Algorithm::Fft).
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn fft(
        &self,
        fft: &Fft,
        args: &[*mut u8],
        (images, weights): (*const u8, Weights),
        parallel: bool,
        failures: &Failures,
    ) {
        let (all, most) = self.pairs(fft);
        let (chunks, shared) = self.chunks(fft);
        let run = Run {
            fft,
            args: Args(args),
            parallel: parallel && !shared,
            failures,
        };
        let images = Shared(images.cast_mut().cast());
        let work = self.cin * self.cout * most * fft.numbers();
        split(chunks, work, parallel && shared, |from, until| {
            let (images, mut rooms) = (&images, Rooms::default());
            for i in from..until {
                let first = i % ceil(all, most) * most;
                let chunk = Chunk {
                    group: i / ceil(all, most),
                    from: first,
                    pairs: most.min(all - first),
                };
                let operands = (images, weights);
                // SAFETY: the caller's.
                if let Err(e) = unsafe { self.fft_chunk(&run, operands, &chunk, &mut rooms) } {
                    return failures.broken(e);
                }
            }
        });
    }

    unsafe fn fft_chunk(
        &self,
        run: &Run<'_>,
        (images, weights): (&Shared, Weights),
        chunk: &Chunk,
        rooms: &mut Rooms,
    ) -> Result<()> {
        let numbers = run.fft.numbers();
        let inputs = room::<f32>(&mut rooms.inputs, self.cin * chunk.pairs * numbers)?;
        let results = room::<f32>(&mut rooms.results, self.cout * chunk.pairs * numbers)?;
        // SAFETY: the caller's; all rooms have their sizes.
        unsafe {
            let weights = match weights {
                Weights::Packed(packed) => {
                    self.transformed(run.fft, packed.cast_mut(), chunk.group)
                }
                Weights::InMemory(weights) => {
                    let to = room::<f32>(&mut rooms.weights, self.cout * self.cin * numbers)?;
                    if rooms.group.replace(chunk.group) != Some(chunk.group) {
                        self.fft_weights(run, weights.cast(), chunk.group, to);
                    }
                    to
                }
            };
            self.fft_inputs(run, images, chunk, inputs);
            self.fft_products(run, chunk, [inputs, weights, results]);
            self.fft_results(run, chunk, results);
        }
        Ok(())
    }

    /// Transforms a group's weights, divided by the number of elements of a tile.
    unsafe fn fft_weights(&self, run: &Run<'_>, weights: *const f32, group: i64, to: *mut f32) {
        let fft = run.fft;
        let [_, down, across] = self.geometry.axes.map(|a| a.kernel);
        let (rows, pitch) = (self.cout * self.cin, fft.tile.inputs[1]);
        let (weights, to) = (Shared(weights.cast_mut()), Shared(to));
        split(rows, fft.numbers() * 32, run.parallel, |from, until| {
            let mut scratch = None;
            let tile = match fft.scratch(&mut scratch) {
                Ok(tile) => tile,
                Err(e) => return run.failures.broken(e),
            };
            for row in from..until {
                let taps = weights.at((group * rows + row) * down * across);
                // SAFETY: linking checked the weights' length; each row has numbers of its own in each block.
                unsafe {
                    tile.tile.re.write_bytes(0, fft.twiddles.len());
                    tile.tile.im.write_bytes(0, fft.twiddles.len());
                    for i in 0..down * across {
                        let at = i / across * pitch + i % across;
                        let tap = *taps.wrapping_offset(i as isize) / fft.tile.size() as f32;
                        *tile.tile.re.wrapping_offset(at as isize) = tap;
                    }
                    compiled::<Forth, _>(self.level)(Tile {
                        spectrum: to.at(row * BLOCK),
                        step: (rows * BLOCK) as usize,
                        ..tile
                    });
                }
            }
        });
    }

    /// Returns the image, and the position of the first input, down and across, of a tile.
    fn tile_at(&self, fft: &Fft, tile: i64) -> (i64, [i64; 2]) {
        let [down, across] = fft.tile.count;
        let results = fft.tile.results;
        let place = [
            tile / across % down * results[0],
            tile % across * results[1],
        ];
        (tile / across / down, place)
    }

    /// Transforms the inputs.
    unsafe fn fft_inputs(&self, run: &Run<'_>, images: &Shared, chunk: &Chunk, to: *mut f32) {
        let (fft, to) = (run.fft, Shared(to));
        let items = self.cin * chunk.pairs;
        split(items, fft.numbers() * 32, run.parallel, |from, until| {
            let mut scratch = None;
            let tile = match fft.scratch(&mut scratch) {
                Ok(tile) => tile,
                Err(e) => return run.failures.broken(e),
            };
            for item in from..until {
                let (c, pair) = (item / chunk.pairs, chunk.from + item % chunk.pairs);
                // SAFETY: linking checked the input's length; each item has numbers of its own in each block.
                unsafe {
                    for (i, part) in [tile.tile.re, tile.tile.im].into_iter().enumerate() {
                        let (image, place) = self.tile_at(fft, 2 * pair + i as i64);
                        let channel = (image * self.groups + chunk.group) * self.cin + c;
                        let x = (image < self.batch)
                            .then(|| images.at(channel * self.geometry.inputs()).cast_const());
                        self.gather_tile(fft, x, place, part);
                    }
                    compiled::<Forth, _>(self.level)(Tile {
                        spectrum: to.at(item * BLOCK),
                        step: (items * BLOCK) as usize,
                        ..tile
                    });
                }
            }
        });
    }

    /// Copies the inputs of a tile of a channel, with zeros outside the image.
    unsafe fn gather_tile(&self, fft: &Fft, x: Option<*const f32>, place: [i64; 2], to: *mut f32) {
        let [_, height, width] = &self.geometry.axes;
        let [rows, len] = fft.tile.inputs;
        let left = place[1] - width.padding;
        let from = left.clamp(0, width.input);
        let until = (left + len).clamp(from, width.input);
        for row in 0..rows {
            let y = place[0] + row - height.padding;
            let to = to.wrapping_offset((row * len) as isize);
            // SAFETY: the tile has the row, and the image has the part inside it.
            unsafe {
                std::slice::from_raw_parts_mut(to, len as usize).fill(0.0);
                if let Some(x) = x.filter(|_| (0..height.input).contains(&y)) {
                    let x = x.wrapping_offset((y * width.input + from) as isize);
                    let to = to.wrapping_offset((from - left) as isize);
                    std::ptr::copy_nonoverlapping(x, to, (until - from) as usize);
                }
            }
        }
    }

    /// Computes the products at all frequencies.
    unsafe fn fft_products(
        &self,
        run: &Run<'_>,
        chunk: &Chunk,
        [inputs, weights, results]: [*mut f32; 3],
    ) {
        let [inputs, weights, results] = [inputs, weights, results].map(Shared);
        let (x, y, w) = (
            self.cin * chunk.pairs,
            self.cout * chunk.pairs,
            self.cin * self.cout,
        );
        let blocks = run.fft.tile.size() / LANES as i64;
        split(
            blocks,
            4 * LANES as i64 * x * self.cout,
            run.parallel,
            |from, until| {
                let products = Products {
                    inputs: inputs.at(from * x * BLOCK),
                    weights: weights.at(from * w * BLOCK),
                    results: results.at(from * y * BLOCK),
                    blocks: (until - from) as usize,
                    channels: self.cin as usize,
                    outputs: self.cout as usize,
                    tiles: chunk.pairs as usize,
                };
                // SAFETY: the caller's; the blocks are this part's own.
                unsafe { compiled::<Multiply, _>(self.level)(products) }
            },
        );
    }

    /// Transforms the results of the chunk's tiles back, and finishes them.
    unsafe fn fft_results(&self, run: &Run<'_>, chunk: &Chunk, from: *mut f32) {
        let (fft, from) = (run.fft, Shared(from));
        let items = self.cout * chunk.pairs;
        let launch = (
            self.epilogue.as_ref(),
            run.args.0,
            run.parallel,
            run.failures,
        );
        let cost = (items, fft.numbers() * 32);
        run_blocks(cost, launch, |item, args, scratch: &mut Scratch, work| {
            let tile = fft.scratch(scratch)?;
            let (o, pair) = (item / chunk.pairs, chunk.from + item % chunk.pairs);
            // SAFETY: the caller's; each tile has results of its own.
            unsafe {
                compiled::<Back, _>(self.level)(Tile {
                    spectrum: from.at(item * BLOCK),
                    step: (items * BLOCK) as usize,
                    ..tile
                });
                for (i, part) in [tile.tile.re, tile.tile.im].into_iter().enumerate() {
                    let (image, place) = self.tile_at(fft, 2 * pair + i as i64);
                    if image < self.batch {
                        let channel = (image * self.groups + chunk.group) * self.cout + o;
                        self.finish_tile(fft, args, channel, place, part, work);
                    }
                }
            }
            Ok(())
        });
    }

    /// Applies the epilogue to the results of a tile of a channel, or stores them.
    unsafe fn finish_tile(
        &self,
        fft: &Fft,
        args: &[*mut u8],
        channel: i64,
        place: [i64; 2],
        tile: *mut f32,
        work: &mut EpilogueRunner,
    ) {
        let [_, height, width] = self.geometry.axes.map(|a| a.output);
        let rows = fft.tile.results[0].min(height - place[0]);
        let len = fft.tile.results[1].min(width - place[1]);
        let first = channel * self.geometry.outputs() + place[0] * width + place[1];
        let pitch = fft.tile.inputs[1];
        // SAFETY: the caller's; the tile has its results, and so has the channel.
        unsafe {
            if self.epilogue.is_some() {
                return work.finish((tile, pitch), first, (rows, width), len);
            }
            for row in 0..rows {
                let from = tile.wrapping_offset((row * pitch) as isize);
                let to = self.result_at::<f32>(args, first + row * width);
                std::ptr::copy_nonoverlapping(from, to, len as usize);
            }
        }
    }
}

/// Memory that threads read, or write disjoint parts of.
struct Shared(*mut f32);
// SAFETY: the pointer is only passed on; each use states which thread writes where.
unsafe impl Sync for Shared {}

impl Shared {
    fn at(&self, i: i64) -> *mut f32 {
        self.0.wrapping_offset(i as isize)
    }
}
