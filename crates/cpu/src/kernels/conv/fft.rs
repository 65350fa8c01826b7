//! Convolutions of many taps by Fourier transforms, with the tiles of [`FftTile`].
//!
//! X is the transform of a tile of the input, and W that of the zero-padded taps. The inverse transform of X · W̄ gives
//! the results, except where the taps wrap around the tile (overlap-save). Taps are real, so two tiles are
//! the real and the imaginary part of one transform, before and after the product. At each frequency, the product
//! multiplies a matrix of weights, transformed once, by a matrix of inputs.

mod transform;

use super::narrow::Weights;
use super::{Conv, MIN_BLOCKS};
use crate::kernels::matmul::{Launch, split};
use kiln_kernel::affine::ceil;
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failures;
use kiln_kernel::memory::Storage;
use kiln_kernel::view::{View, ViewMut};
use kiln_kernel::work::Call;
use kiln_plan::FftTile;
use transform::{BLOCK, LANES, Products, Twiddles, back, forth};

/// The number of elements of transforms that are computed before they are multiplied.
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

    /// Returns memory in `storage` for a tile and its transpose, real and imaginary parts each.
    fn scratch<'a>(&self, storage: &'a mut Option<Storage>) -> Result<ViewMut<'a, f32>> {
        ViewMut::room(storage, 2 * self.numbers())
    }
}

/// Pairs of tiles that are processed together.
struct Chunk {
    group: i64,
    /// The first pair, and the number of pairs.
    from: i64,
    pairs: i64,
}

/// The arguments of all steps.
#[derive(Copy, Clone)]
struct Run<'a> {
    fft: &'a Fft,
    parallel: bool,
    failures: &'a Failures,
}

/// The buffers that a thread reuses between chunks.
#[derive(Default)]
struct Buffers {
    /// The transformed weights, unless they were transformed in advance, and the group that they belong to.
    weights: Option<Storage>,
    group: Option<i64>,
    inputs: Option<Storage>,
    results: Option<Storage>,
}

impl Conv {
    /// Returns the number of pairs of tiles of all images, and the number of pairs of a chunk.
    fn pairs(&self, fft: &Fft) -> (i64, i64) {
        let [down, across] = fft.tile.count;
        let total = ceil(self.batch * down * across, 2);
        let pair_elements = (self.cin + self.cout) * fft.numbers();
        (total, (CHUNK / pair_elements).clamp(1, total))
    }

    /// Returns the number of chunks of all groups, and true if threads share chunks instead of the work of each chunk.
    fn chunks(&self, fft: &Fft) -> (i64, bool) {
        let (total, max_pairs) = self.pairs(fft);
        let chunks = self.groups * ceil(total, max_pairs);
        (chunks, chunks >= MIN_BLOCKS)
    }

    /// Returns the number of elements of the workspace on `threads` threads: inputs, results and a group's transformed
    /// weights.
    pub(super) fn fft_workspace(&self, fft: &Fft, threads: i64) -> i64 {
        let (_, max_pairs) = self.pairs(fft);
        let (chunks, shared) = self.chunks(fft);
        let at_once = if shared { threads.min(chunks) } else { 1 };
        let (x, y, w) = (
            self.cin * max_pairs,
            self.cout * max_pairs,
            self.cin * self.cout,
        );
        at_once * (x + y + w) * fft.numbers() + threads * 2 * fft.numbers()
    }

    /// Returns the number of elements of the transformed weights.
    pub(super) fn fft_packed(&self, fft: &Fft) -> i64 {
        self.groups * self.group_weights(fft)
    }

    /// Transforms the weights.
    pub(super) fn fft_pack(
        &self,
        fft: &Fft,
        weights: View<f32>,
        to: ViewMut<f32>,
        parallel: bool,
        failures: &Failures,
    ) {
        let run = Run {
            fft,
            parallel,
            failures,
        };
        for group in 0..self.groups {
            let to = to.shift(group * self.group_weights(fft));
            self.fft_weights(&run, weights, group, to);
        }
    }

    /// Returns the number of elements of the transformed weights of a group.
    fn group_weights(&self, fft: &Fft) -> i64 {
        self.cout * self.cin * fft.numbers()
    }

    /// Runs a convolution by [`Algorithm::Fft`](kiln_plan::Algorithm::Fft).
    pub(super) fn fft(
        &self,
        fft: &Fft,
        call: &Call,
        (images, weights): (View<f32>, Weights),
    ) -> Result<()> {
        let (total, max_pairs) = self.pairs(fft);
        let (chunks, shared) = self.chunks(fft);
        let run = Run {
            fft,
            parallel: call.parallel && !shared,
            failures: call.failures,
        };
        let epilogue = self.epilogue.as_ref();
        let outer = Launch {
            parallel: call.parallel && shared,
            ..Launch::new(epilogue, call)
        };
        let inner = Launch {
            parallel: run.parallel,
            ..outer
        };
        let work = self.cin * self.cout * max_pairs * fft.numbers();
        outer.run((chunks, work), |i, buffers| {
            let first = i % ceil(total, max_pairs) * max_pairs;
            let chunk = Chunk {
                group: i / ceil(total, max_pairs),
                from: first,
                pairs: max_pairs.min(total - first),
            };
            self.fft_chunk(&run, &inner, (images, weights), &chunk, buffers)
        });
        Ok(())
    }

    fn fft_chunk(
        &self,
        run: &Run<'_>,
        launch: &Launch,
        (images, weights): (View<f32>, Weights),
        chunk: &Chunk,
        buffers: &mut Buffers,
    ) -> Result<()> {
        let (numbers, group_len) = (run.fft.numbers(), self.group_weights(run.fft));
        let inputs = ViewMut::room(&mut buffers.inputs, self.cin * chunk.pairs * numbers)?;
        let results = ViewMut::room(&mut buffers.results, self.cout * chunk.pairs * numbers)?;
        let weights = match weights {
            Weights::Packed(packed) => packed.cast().shift(chunk.group * group_len),
            Weights::InMemory(weights) => {
                let to = ViewMut::room(&mut buffers.weights, group_len)?;
                if buffers.group.replace(chunk.group) != Some(chunk.group) {
                    self.fft_weights(run, weights.cast(), chunk.group, to);
                }
                *to
            }
        };
        self.fft_inputs(run, images, chunk, inputs);
        self.fft_products(run, chunk, [*inputs, weights], results);
        self.fft_results(run, launch, chunk, *results);
        Ok(())
    }

    /// Transforms items of real elements, two of which `fill` puts into a tile, to spectra.
    fn transform_items(
        &self,
        run: &Run<'_>,
        items: i64,
        to: ViewMut<f32>,
        fill: impl Fn(i64, [&mut [f32]; 2]) + Sync,
    ) {
        let (fft, len) = (run.fft, run.fft.tile.size());
        split(items, fft.numbers() * 32, run.parallel, |from, until| {
            let mut scratch = None;
            let mut tile = match fft.scratch(&mut scratch) {
                Ok(tile) => tile,
                Err(e) => return run.failures.report_error(e),
            };
            for item in from..until {
                let (re, tail) = tile.slice_mut(0, 4 * len).split_at_mut(len as usize);
                fill(item, [re, &mut tail[..len as usize]]);
                let spectrum = to.shift(item * BLOCK);
                forth(self.level, &fft.twiddles, tile, (spectrum, items * BLOCK));
            }
        });
    }

    /// Transforms a group's weights, divided by the number of elements of a tile.
    fn fft_weights(&self, run: &Run<'_>, weights: View<f32>, group: i64, to: ViewMut<f32>) {
        let tile = &run.fft.tile;
        let [_, down, across] = self.geometry.axes.map(|a| a.kernel);
        let (rows, pitch) = (self.cout * self.cin, tile.inputs[1]);
        self.transform_items(run, rows, to, |row, [re, im]| {
            let taps = weights.slice((group * rows + row) * down * across, down * across);
            re.fill(0.0);
            im.fill(0.0);
            for (i, tap) in (0..).zip(taps) {
                re[(i / across * pitch + i % across) as usize] = tap / tile.size() as f32;
            }
        });
    }

    /// Returns the image, and the position of the first input, down and across, of a tile.
    fn tile_at(&self, fft: &Fft, tile: i64) -> (i64, [i64; 2]) {
        let [down, across] = fft.tile.count;
        let results = fft.tile.results;
        let start = [
            tile / across % down * results[0],
            tile % across * results[1],
        ];
        (tile / across / down, start)
    }

    /// Transforms the inputs.
    fn fft_inputs(&self, run: &Run<'_>, images: View<f32>, chunk: &Chunk, to: ViewMut<f32>) {
        let fft = run.fft;
        self.transform_items(run, self.cin * chunk.pairs, to, |item, parts| {
            let (c, pair) = (item / chunk.pairs, chunk.from + item % chunk.pairs);
            for (i, part) in (0..).zip(parts) {
                let (image, start) = self.tile_at(fft, 2 * pair + i);
                let channel = (image * self.groups + chunk.group) * self.cin + c;
                let x = images.shift(channel * self.geometry.inputs());
                self.gather_tile(fft, (image < self.batch).then_some(x), start, part);
            }
        });
    }

    /// Copies the inputs of a tile of a channel, with zeros outside the image.
    fn gather_tile(&self, fft: &Fft, x: Option<View<f32>>, start: [i64; 2], to: &mut [f32]) {
        let [_, height, width] = &self.geometry.axes;
        let [rows, len] = fft.tile.inputs;
        let left = start[1] - width.padding;
        let from = left.clamp(0, width.input);
        let until = (left + len).clamp(from, width.input);
        for (row, to) in (0..rows).zip(to.chunks_exact_mut(len as usize)) {
            let y = start[0] + row - height.padding;
            to.fill(0.0);
            if let Some(x) = x.filter(|_| (0..height.input).contains(&y) && from < until) {
                let x = x.slice(y * width.input + from, until - from);
                to[(from - left) as usize..][..x.len()].copy_from_slice(x);
            }
        }
    }

    /// Computes the products at all frequencies.
    fn fft_products(
        &self,
        run: &Run<'_>,
        chunk: &Chunk,
        [inputs, weights]: [View<f32>; 2],
        results: ViewMut<f32>,
    ) {
        let (x, y, w) = (
            self.cin * chunk.pairs,
            self.cout * chunk.pairs,
            self.cin * self.cout,
        );
        let blocks = run.fft.tile.size() / LANES as i64;
        let work = 4 * LANES as i64 * x * self.cout;
        split(blocks, work, run.parallel, |from, until| {
            let products = Products {
                inputs: inputs.shift(from * x * BLOCK),
                weights: weights.shift(from * w * BLOCK),
                results: results.shift(from * y * BLOCK),
                blocks: (until - from) as usize,
                channels: self.cin as usize,
                outputs: self.cout as usize,
                tiles: chunk.pairs as usize,
            };
            products.compute(self.level);
        });
    }

    /// Transforms the results of the chunk's tiles back, and finishes them.
    fn fft_results(&self, run: &Run<'_>, launch: &Launch, chunk: &Chunk, from: View<f32>) {
        let (fft, len) = (run.fft, run.fft.tile.size());
        let items = self.cout * chunk.pairs;
        launch.run((items, fft.numbers() * 32), |item, scratch| {
            let tile = fft.scratch(scratch)?;
            let (o, pair) = (item / chunk.pairs, chunk.from + item % chunk.pairs);
            let spectrum = (from.shift(item * BLOCK), items * BLOCK);
            back(self.level, &fft.twiddles, tile, spectrum);
            for i in 0..2 {
                let (image, start) = self.tile_at(fft, 2 * pair + i);
                if image < self.batch {
                    let channel = (image * self.groups + chunk.group) * self.cout + o;
                    self.finish_tile(fft, launch, channel, start, tile.shift(i * len))?;
                }
            }
            Ok(())
        });
    }

    /// Applies the epilogue to the results of a tile of a channel, or stores them.
    fn finish_tile(
        &self,
        fft: &Fft,
        launch: &Launch,
        channel: i64,
        start: [i64; 2],
        tile: ViewMut<f32>,
    ) -> Result<()> {
        let [_, height, width] = self.geometry.axes.map(|a| a.output);
        let rows = fft.tile.results[0].min(height - start[0]);
        let len = fft.tile.results[1].min(width - start[1]);
        let first = channel * self.geometry.outputs() + start[0] * width + start[1];
        let pitch = fft.tile.inputs[1];
        if self.epilogue.is_some() {
            return launch.apply_epilogue((tile, pitch), first, (rows, width), len);
        }
        let to = launch.args.view_mut(self.out);
        (0..rows).for_each(|row| to.copy(first + row * width, tile.slice(row * pitch, len)));
        Ok(())
    }
}
