//! Winograd's convolutions F(m×m, 3×3): tiles of a × a inputs, a = m + 2, give m × m results.
//!
//! With the matrices of Lavin and Gray (arXiv:1509.09308), a tile is `Y = Aᵀ [(G g Gᵀ) ∘ (Bᵀ d B)] A`: three
//! transformations, and a product of weights and inputs for each of the a² elements of a transformed tile.
//! Tiles lie side by side in vectors. A chunk of tile rows goes through all three steps, so that what
//! lies between them stays in the cache.

#![allow(clippy::needless_range_loop)] // register tiles are indexed

use super::{Conv, ceil};
use crate::error::Result;
use crate::matmul::{Args, Work, run_blocks, split};
use crate::memory::{Storage, room};
use crate::simd::vector::Vector;
use crate::simd::{Isa, Kernel, compiled};
use crate::sums::{ROWS, RegisterSums, SLACK, Sums};
use crate::tile::Failures;
use kiln_base::plan::Algorithm;
use std::marker::PhantomData;

/// The elements of a row of the largest tile.
const MOST: usize = 6;
/// Elements of a chunk between the steps.
const CHUNK: i64 = 1 << 21;
/// What transforming an element costs, in multiply-adds.
const TRANSFORM_WORK: i64 = 32;

/// The transformations of one axis; elements beyond a tile's are not used.
pub(super) trait Transform: Sync {
    /// Results of a tile.
    const M: usize;
    /// Inputs of a tile.
    const A: usize;

    /// `Bᵀ d`.
    unsafe fn input<V: Vector<Lane = f32>>(d: &[V; MOST]) -> [V; MOST];
    /// `G g`.
    unsafe fn weights<V: Vector<Lane = f32>>(g: &[V; MOST]) -> [V; MOST];
    /// `Aᵀ p`.
    unsafe fn output<V: Vector<Lane = f32>>(p: &[V; MOST]) -> [V; MOST];
}

/// F(2×2, 3×3).
pub(super) struct Two;
impl Transform for Two {
    const M: usize = 2;
    const A: usize = 4;

    #[inline(always)]
    unsafe fn input<V: Vector<Lane = f32>>(d: &[V; MOST]) -> [V; MOST] {
        // SAFETY: the caller's, as in all of these.
        unsafe {
            let (outer, sum) = (d[0].sub(d[2]), d[1].add(d[2]));
            [outer, sum, d[2].sub(d[1]), d[1].sub(d[3]), sum, sum]
        }
    }
    #[inline(always)]
    unsafe fn weights<V: Vector<Lane = f32>>(g: &[V; MOST]) -> [V; MOST] {
        // SAFETY: as above.
        unsafe {
            let (zero, half) = (V::splat(0.0), V::splat(0.5));
            let ends = g[0].add(g[2]);
            let (plus, minus) = (ends.add(g[1]), ends.sub(g[1]));
            let plus = plus.mul_add(half, zero);
            [g[0], plus, minus.mul_add(half, zero), g[2], zero, zero]
        }
    }
    #[inline(always)]
    unsafe fn output<V: Vector<Lane = f32>>(p: &[V; MOST]) -> [V; MOST] {
        // SAFETY: as above.
        unsafe {
            let (sum, difference) = (p[1].add(p[2]), p[1].sub(p[2]));
            let first = p[0].add(sum);
            [first, difference.sub(p[3]), first, first, first, first]
        }
    }
}

/// F(4×4, 3×3).
pub(super) struct Four;
impl Transform for Four {
    const M: usize = 4;
    const A: usize = 6;

    #[inline(always)]
    unsafe fn input<V: Vector<Lane = f32>>(d: &[V; MOST]) -> [V; MOST] {
        // SAFETY: the caller's, as in all of these.
        unsafe {
            let number = |n: f32| V::splat(n);
            let four = |a: V, c: V| a.mul_add(number(4.0), c);
            let minus = |a: V, n: f32, c: V| a.mul_add(number(-n), c);
            let (even, odd) = (minus(d[2], 4.0, d[4]), minus(d[1], 4.0, d[3]));
            let (outer, inner) = (d[4].sub(d[2]), d[3].sub(d[1]));
            [
                four(d[0], minus(d[2], 5.0, d[4])),
                even.add(odd),
                even.sub(odd),
                inner.mul_add(number(2.0), outer),
                minus(inner, 2.0, outer),
                four(d[1], minus(d[3], 5.0, d[5])),
            ]
        }
    }
    #[inline(always)]
    unsafe fn weights<V: Vector<Lane = f32>>(g: &[V; MOST]) -> [V; MOST] {
        // SAFETY: as above.
        unsafe {
            let zero = V::splat(0.0);
            let times = |a: V, n: f32| a.mul_add(V::splat(n), zero);
            let near = g[0].add(g[2]);
            let far = times(g[0], 1.0 / 24.0).add(times(g[2], 1.0 / 6.0));
            let middle = times(g[1], 1.0 / 12.0);
            [
                times(g[0], 0.25),
                times(near.add(g[1]), -1.0 / 6.0),
                times(near.sub(g[1]), -1.0 / 6.0),
                far.add(middle),
                far.sub(middle),
                g[2],
            ]
        }
    }
    #[inline(always)]
    unsafe fn output<V: Vector<Lane = f32>>(p: &[V; MOST]) -> [V; MOST] {
        // SAFETY: as above.
        unsafe {
            let (near, slope) = (p[1].add(p[2]), p[1].sub(p[2]));
            let (far, steep) = (p[3].add(p[4]), p[3].sub(p[4]));
            let first = p[0].add(near).add(far);
            [
                first,
                steep.mul_add(V::splat(2.0), slope),
                far.mul_add(V::splat(4.0), near),
                steep.mul_add(V::splat(8.0), slope).add(p[5]),
                first,
                first,
            ]
        }
    }
}

/// A transformation of both axes: columns, then rows, of which `rows` go in and `M` or `A` come out.
macro_rules! both_axes {
    ($tile:ident, $rows:expr, $out:expr, $one:path) => {{
        let mut half = $tile;
        for j in 0..$rows {
            let mut column = half[0];
            for i in 0..$rows {
                column[i] = $tile[i][j];
            }
            let column = $one(&column);
            for i in 0..$out {
                half[i][j] = column[i];
            }
        }
        for i in 0..$out {
            half[i] = $one(&half[i]);
        }
        half
    }};
}

/// Transforms the weights of one output channel: `[channels, 3, 3]` to a² rows of whole vectors, `pitch`
/// apart.
struct Weights {
    from: *const f32,
    channels: usize,
    to: *mut f32,
    pitch: usize,
}

struct TransformWeights<W>(PhantomData<W>);
impl<W: Transform> Kernel<Weights> for TransformWeights<W> {
    #[inline(always)]
    unsafe fn run<I: Isa>(w: Weights) {
        let lanes = I::F32::LANES;
        for first in (0..w.channels).step_by(lanes) {
            let n = lanes.min(w.channels - first);
            // SAFETY: the caller's; the buffer has room for all lanes.
            unsafe {
                let mut taps = [[0.0f32; 16]; 9];
                for c in 0..n {
                    for (t, tap) in taps.iter_mut().enumerate() {
                        tap[c] = *w.from.add((first + c) * 9 + t);
                    }
                }
                let mut tile = [[I::F32::splat(0.0); MOST]; MOST];
                for i in 0..3 {
                    for j in 0..3 {
                        tile[i][j] = I::F32::load(taps[i * 3 + j].as_ptr());
                    }
                }
                let tile = both_axes!(tile, 3, W::A, W::weights);
                for i in 0..W::A {
                    for j in 0..W::A {
                        tile[i][j].store(w.to.add((i * W::A + j) * w.pitch + first));
                    }
                }
            }
        }
    }
}

/// Some tile rows of one image.
#[derive(Copy, Clone)]
struct Part {
    image: i64,
    /// The first tile row, and how many.
    row: i64,
    rows: i64,
    /// The first of its tiles within the chunk.
    tile: i64,
}

/// One input channel of a part.
struct Inputs<'a> {
    conv: &'a Conv,
    /// The whole channel.
    x: *const f32,
    part: Part,
    /// a · m rows of a phase each, with room for whole vectors.
    phases: *mut f32,
    /// The first tile's place; elements of a tile are `pitch` apart.
    to: *mut f32,
    pitch: usize,
}

/// Elements of a row of a phase, for vectors from any tile on.
fn phase_row(tiles: i64) -> i64 {
    tiles + 1 + 2 * SLACK
}

struct TransformInputs<W>(PhantomData<W>);
impl<W: Transform> Kernel<Inputs<'_>> for TransformInputs<W> {
    #[inline(always)]
    unsafe fn run<I: Isa>(p: Inputs<'_>) {
        let [_, height, width] = &p.conv.geometry.axes;
        let (m, a, lanes) = (W::M, W::A, I::F32::LANES);
        let tiles = ceil(width.output, m as i64);
        let row = phase_row(tiles) as usize;
        for r in 0..p.part.rows {
            let top = (p.part.row + r) * m as i64 - height.padding;
            // SAFETY: the caller's; vectors of the last tiles write into the slack, or where the next row
            // of tiles is written later.
            unsafe {
                for i in 0..a {
                    let y = top + i as i64;
                    let inside = (0..height.input).contains(&y);
                    let x = p.x.wrapping_offset((y * width.input) as isize);
                    let x = inside.then_some((x, width.input, width.padding));
                    phases_of::<W>(x, p.phases.add(i * m * row), row, tiles as usize + 1);
                }
                for t in (0..tiles as usize).step_by(lanes) {
                    let mut tile = [[I::F32::splat(0.0); MOST]; MOST];
                    for i in 0..a {
                        for j in 0..a {
                            let at = (i * m + j % m) * row + t + j / m;
                            tile[i][j] = I::F32::load(p.phases.add(at));
                        }
                    }
                    let tile = both_axes!(tile, a, a, W::input);
                    let to = p.to.add(r as usize * tiles as usize + t);
                    for i in 0..a {
                        for j in 0..a {
                            tile[i][j].store(to.add((i * a + j) * p.pitch));
                        }
                    }
                }
            }
        }
    }
}

/// Takes a row apart into m phases of `n` elements, `pitch` apart: element t of phase f is element
/// `t · m + f − padding` of the row (pointer, length, padding), or zero.
#[inline(always)]
unsafe fn phases_of<W: Transform>(
    row: Option<(*const f32, i64, i64)>,
    to: *mut f32,
    pitch: usize,
    n: usize,
) {
    let m = W::M as i64;
    let (x, len, padding) = row.unwrap_or((std::ptr::null(), 0, 0));
    // The tiles that lie inside as a whole.
    let low = (-(-padding).div_euclid(m)).clamp(0, n as i64);
    let high = (len + padding).div_euclid(m).clamp(low, n as i64);
    // SAFETY: the caller's; reads are inside the row.
    unsafe {
        for t in (0..low).chain(high..n as i64) {
            for f in 0..m {
                let from = t * m + f - padding;
                let value = match (0..len).contains(&from) {
                    true => *x.offset(from as isize),
                    false => 0.0,
                };
                *to.add(f as usize * pitch + t as usize) = value;
            }
        }
        if low == high {
            return;
        }
        let count = (high - low) as usize;
        let x = x.offset((low * m - padding) as isize);
        let (x, to) = (
            std::slice::from_raw_parts(x, count * W::M),
            to.add(low as usize),
        );
        for f in 0..W::M {
            let to = std::slice::from_raw_parts_mut(to.add(f * pitch), count);
            for t in 0..count {
                to[t] = x[t * W::M + f];
            }
        }
    }
}

/// One output channel of a part.
struct Outputs<'a> {
    conv: &'a Conv,
    part: Part,
    /// The first tile's place; elements of a tile are `pitch` apart.
    from: *const f32,
    pitch: usize,
    /// The part's first row.
    to: *mut f32,
}

struct TransformOutputs<W>(PhantomData<W>);
impl<W: Transform> Kernel<Outputs<'_>> for TransformOutputs<W> {
    #[inline(always)]
    unsafe fn run<I: Isa>(p: Outputs<'_>) {
        let [_, height, width] = p.conv.geometry.axes.map(|a| a.output as usize);
        let (m, a, lanes) = (W::M, W::A, I::F32::LANES);
        let tiles = width.div_ceil(m);
        for r in 0..p.part.rows as usize {
            let rows = m.min(height - (p.part.row as usize + r) * m);
            for t in (0..tiles).step_by(lanes) {
                // SAFETY: the caller's; vectors of the last tiles read the slack.
                unsafe {
                    let mut tile = [[I::F32::splat(0.0); MOST]; MOST];
                    let from = p.from.add(r * tiles + t);
                    for i in 0..a {
                        for j in 0..a {
                            tile[i][j] = I::F32::load(from.add((i * a + j) * p.pitch));
                        }
                    }
                    let tile = both_axes!(tile, a, m, W::output);
                    let columns = (lanes * m).min(width - t * m);
                    let mut phases = [[0.0f32; 16]; 4];
                    for i in 0..rows {
                        for (f, phase) in phases[..m].iter_mut().enumerate() {
                            tile[i][f].store(phase.as_mut_ptr());
                        }
                        let mut whole = [0.0f32; 64];
                        for l in 0..lanes {
                            for f in 0..m {
                                whole[l * m + f] = phases[f][l];
                            }
                        }
                        let to = p.to.add((r * m + i) * width + t * m);
                        std::ptr::copy_nonoverlapping(whole.as_ptr(), to, columns);
                    }
                }
            }
        }
    }
}

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

    /// Bytes of the weights once they are packed; none for algorithms that read them as they are.
    pub(crate) fn packed_bytes(&self) -> Option<usize> {
        let group = self.packed(std::ptr::null_mut(), 0).element * self.tile_elements()?;
        Some((self.groups * group) as usize * size_of::<f32>())
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

    /// Packs the weights, which depend on no other operand.
    ///
    /// # Safety
    /// `weights` is the operand that it was linked for; `to` has room for [`Conv::packed_bytes`].
    pub(crate) unsafe fn pack(&self, weights: *mut u8, to: *mut u8, parallel: bool) {
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
                    self.products::<W>(&chunk, parallel);
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
    unsafe fn products<W: Transform>(&self, chunk: &Chunk, parallel: bool) {
        let down = ceil(self.cout, ROWS);
        let items = (W::A * W::A) as i64 * down;
        let work = ROWS * self.cin * chunk.tiles;
        split(items, work, parallel, |from, until| {
            for item in from..until {
                let (element, row) = (item / down, item % down * ROWS);
                let sums = Sums {
                    x: chunk.inputs.at(element, 0, 0),
                    x_pitch: chunk.inputs.row as isize,
                    channels: self.cin as isize,
                    taps: &[0],
                    weights: chunk.weights.at(element, row, 0),
                    weight_row: chunk.weights.row as isize,
                    weight_step: 1,
                    rows: ROWS.min(self.cout - row) as usize,
                    positions: chunk.tiles as usize,
                    dst: chunk.products.at(element, row, 0),
                    pitch: chunk.products.row as usize,
                };
                // SAFETY: the rooms have their sizes; each item writes rows of its own.
                unsafe { compiled::<RegisterSums<f32>, _>(self.level)(sums) }
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
