//! The result of a convolution whose images hold the channels of a position side by side.
//!
//! A list of pointers says where the channels lie that each tap of each result position reads; padding is a
//! row of zeros. So no image is copied, whatever the filter, its steps and its padding. Vectors run over
//! channels: of the result, by weights that are packed into panels, or, with a channel a group, of both.

// Register tiles are indexed: a loop of a known length is unrolled, and only then do sums stay in registers.
#![allow(clippy::needless_range_loop)]

use super::{Conv, LEAST_BLOCKS};
use crate::error::Result;
use crate::kernels::matmul::{Args, Made, Work, run_blocks, split};
use crate::memory::{Storage, room};
use crate::simd::vector::Vector;
use crate::simd::{Isa, Kernel, Level, compiled};
use crate::sums::Lane;
use crate::tile::Failures;
use crate::tile::affine::ceil;
use std::marker::PhantomData;

/// Positions that share a walk over the weights, with a channel a group and else.
const DEPTHWISE: usize = 4;
const DENSE: usize = 8;
/// Columns of a panel of weights, at most: three vectors of sixteen lanes.
const PANEL: i64 = 48;
/// The most lanes of a vector.
const LANES: i64 = 16;
/// Weights that stay in the second-level cache while positions pass.
const HOT_WEIGHTS: i64 = 1 << 18;
/// Results of a block, which an epilogue wants hot.
const BLOCK_ELEMENTS: i64 = 1 << 14;
/// Positions of a block at most, so that the list of pointers stays short.
const BLOCK_POSITIONS: i64 = 128;
/// What a multiply-add costs that shares no weight between channels.
const DEPTHWISE_WORK: i64 = 3;

/// How a convolution is cut; it follows from the shapes alone.
#[derive(Debug)]
pub(super) struct Cut {
    /// Whether the images are still to be turned.
    turned: bool,
    /// Whether each channel has a filter of its own; all of them are then columns of one group.
    depthwise: bool,
    groups: i64,
    columns: i64,
    /// Positions and output channels of a block.
    positions: i64,
    channels: i64,
    /// Columns of a panel of weights, and panels of a group.
    panel: i64,
    panels: i64,
}

impl Cut {
    pub(super) fn new(c: &Conv, turned: bool) -> Cut {
        let (all, sums) = (c.batch * c.geometry.outputs(), c.cin * c.geometry.kernels());
        let depthwise = (c.cin, c.cout) == (1, 1);
        let (groups, columns) = match depthwise {
            true => (1, c.groups),
            false => (c.groups, c.cout),
        };
        let cout = c.cout.max(1);
        let panel = ceil(ceil(cout, ceil(cout, PANEL)), LANES) * LANES;
        let large = !depthwise && sums * cout > HOT_WEIGHTS;
        let channels = match large {
            true => {
                (HOT_WEIGHTS / (2 * sums))
                    .min(cout / LEAST_BLOCKS)
                    .max(panel)
                    / panel
                    * panel
            }
            false => columns,
        };
        let rows = if depthwise { DEPTHWISE } else { DENSE } as i64;
        let most = (BLOCK_ELEMENTS / channels.max(1)).clamp(rows, BLOCK_POSITIONS);
        let share = if large { all } else { ceil(all, LEAST_BLOCKS) };
        let (panel, panels) = match depthwise {
            true => (columns, 1),
            false => (panel, ceil(cout, panel)),
        };
        Cut {
            turned,
            depthwise,
            groups,
            columns,
            positions: ceil(share.clamp(1, most), rows) * rows,
            channels: channels.min(columns).max(1),
            panel,
            panels,
        }
    }

    /// Elements of the packed weights.
    pub(super) fn packed(&self, c: &Conv) -> i64 {
        self.groups * self.panels * self.panel * c.cin * c.geometry.kernels()
    }
}

/// What a thread keeps from block to block.
#[derive(Default)]
struct Scratch {
    zeros: Option<Storage>,
    /// For each tile and tap the addresses of the positions' channels.
    sources: Vec<usize>,
    made: Made,
}

/// Sums of some positions over some columns.
struct Tile<T> {
    /// For each tap the addresses of the positions' channels.
    sources: *const *const T,
    taps: usize,
    /// Where in the channels, and how many of them are summed.
    first: usize,
    channels: usize,
    /// Weights `[taps, channels, columns]`; rows this far apart.
    weights: *const T,
    pitch: usize,
    columns: usize,
    /// Positions, and the results, rows this far apart.
    rows: usize,
    dst: *mut T,
    step: usize,
}

/// Stores a vector of which `left` lanes exist.
#[inline(always)]
unsafe fn store<T: Lane, V: Vector<Lane = T>>(v: V, to: *mut T, left: usize) {
    // SAFETY: the caller's; no vector has more lanes.
    unsafe {
        if left >= V::LANES {
            return v.store(to);
        }
        let mut lanes = [T::ZERO; LANES as usize];
        v.store(lanes.as_mut_ptr());
        std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, left);
    }
}

struct Dense<T>(PhantomData<T>);
impl<T: Lane> Kernel<Tile<T>> for Dense<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(t: Tile<T>) {
        let lanes = T::Vector::<I>::LANES;
        let mut at = 0;
        // SAFETY: the caller's; panels are padded to whole vectors.
        unsafe {
            while at < t.columns {
                let left = (t.columns - at).div_ceil(lanes);
                at += lanes
                    * match (I::LEVEL, t.rows) {
                        (_, 1) if left >= 3 => dense::<T, T::Vector<I>, 1, 3>(&t, at, 0),
                        (_, 1) => dense::<T, T::Vector<I>, 1, 1>(&t, at, 0),
                        (Level::Avx512, 5..) if left >= 3 => {
                            dense::<T, T::Vector<I>, 8, 3>(&t, at, 0)
                        }
                        (Level::Avx512, 5..) if left == 2 => {
                            dense::<T, T::Vector<I>, 8, 2>(&t, at, 0)
                        }
                        (Level::Avx512, 5..) => dense::<T, T::Vector<I>, 8, 1>(&t, at, 0),
                        (_, rows) => {
                            let wide = left >= 3;
                            for row in (0..rows).step_by(4) {
                                match wide {
                                    true => dense::<T, T::Vector<I>, 4, 3>(&t, at, row),
                                    false => dense::<T, T::Vector<I>, 4, 1>(&t, at, row),
                                };
                            }
                            if wide { 3 } else { 1 }
                        }
                    };
            }
        }
    }
}

/// `R` positions from `row` on by `N` vectors of columns from `at` on. Gives `N`.
///
/// # Safety
/// All that is read exists; the results have room for the columns.
#[inline(always)]
unsafe fn dense<T: Lane, V: Vector<Lane = T>, const R: usize, const N: usize>(
    t: &Tile<T>,
    at: usize,
    row: usize,
) -> usize {
    // SAFETY: the caller's.
    unsafe {
        let mut sums = [[V::splat(T::ZERO); N]; R];
        let mut weights = t.weights.add(at);
        let taps = if t.channels == 0 { 0 } else { t.taps };
        for tap in 0..taps {
            let mut x = [std::ptr::null(); R];
            for (r, x) in x.iter_mut().enumerate() {
                *x = (*t.sources.add(tap * DENSE + row + r)).add(t.first);
            }
            // A walk of at least one step: its sums have one way in, so none is moved or spilled.
            let mut c = 0;
            loop {
                let mut values = [V::splat(T::ZERO); N];
                for n in 0..N {
                    values[n] = V::load(weights.add(n * V::LANES));
                }
                for r in 0..R {
                    let x = V::splat(*x[r].add(c));
                    for n in 0..N {
                        sums[r][n] = values[n].mul_add(x, sums[r][n]);
                    }
                }
                weights = weights.add(t.pitch);
                c += 1;
                if c >= t.channels {
                    break;
                }
            }
        }
        for r in 0..R {
            if row + r < t.rows {
                for n in 0..N {
                    let column = at + n * V::LANES;
                    let dst = t.dst.add((row + r) * t.step + column);
                    store(sums[r][n], dst, t.columns - column);
                }
            }
        }
    }
    N
}

struct Depthwise<T>(PhantomData<T>);
impl<T: Lane> Kernel<Tile<T>> for Depthwise<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(t: Tile<T>) {
        let lanes = T::Vector::<I>::LANES;
        let mut at = 0;
        // SAFETY: the caller's. The last vector begins early enough to end with the channels.
        unsafe {
            while at + 2 * lanes <= t.columns {
                depthwise::<T, T::Vector<I>, 2>(&t, at);
                at += 2 * lanes;
            }
            while at < t.columns && lanes <= t.columns {
                depthwise::<T, T::Vector<I>, 1>(&t, at.min(t.columns - lanes));
                at += lanes;
            }
            for at in at..t.columns {
                for r in 0..t.rows {
                    let mut sum = T::ZERO;
                    for tap in 0..t.taps {
                        let x = *t.sources.add(tap * DEPTHWISE + r);
                        let weight = *t.weights.add(tap * t.pitch + at);
                        sum = (*x.add(t.first + at)).mul_add::<I>(weight, sum);
                    }
                    *t.dst.add(r * t.step + at) = sum;
                }
            }
        }
    }
}

/// All positions by `N` vectors of channels from `at` on.
///
/// # Safety
/// All that is read exists; the results have room for the channels.
#[inline(always)]
unsafe fn depthwise<T: Lane, V: Vector<Lane = T>, const N: usize>(t: &Tile<T>, at: usize) {
    // SAFETY: the caller's.
    unsafe {
        let mut sums = [[V::splat(T::ZERO); N]; DEPTHWISE];
        for tap in 0..t.taps {
            let weights = t.weights.add(tap * t.pitch + at);
            let mut values = [V::splat(T::ZERO); N];
            for (n, v) in values.iter_mut().enumerate() {
                *v = V::load(weights.add(n * V::LANES));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = (*t.sources.add(tap * DEPTHWISE + r)).add(t.first + at);
                for (n, (v, sum)) in values.iter().zip(sums).enumerate() {
                    *sum = V::load(x.add(n * V::LANES)).mul_add(*v, *sum);
                }
            }
        }
        for r in 0..DEPTHWISE {
            if r < t.rows {
                for n in 0..N {
                    sums[r][n].store(t.dst.add(r * t.step + at + n * V::LANES));
                }
            }
        }
    }
}

impl Conv {
    /// Elements that it takes beside its arguments.
    pub(super) fn last_workspace(&self, cut: &Cut) -> i64 {
        let images = self.batch * self.groups * self.cin * self.geometry.inputs();
        cut.packed(self) + if cut.turned { images } else { 0 }
    }

    /// Packs the weights, which depend on no other operand.
    ///
    /// # Safety
    /// As [`Conv::pack`].
    pub(super) unsafe fn pack_last<T: Lane>(
        &self,
        cut: &Cut,
        weights: *const T,
        to: *mut T,
        parallel: bool,
    ) {
        let (taps, cin) = (self.geometry.kernels(), self.cin);
        let (panel, columns, panels) = (cut.panel, cut.columns, cut.groups * cut.panels);
        let args = [weights.cast_mut().cast::<u8>(), to.cast()];
        let args = Args(&args);
        split(panels, taps * cin * panel, parallel, |from, until| {
            let args = &args;
            let (weights, to) = (args.0[0].cast::<T>(), args.0[1].cast::<T>());
            for p in from..until {
                let (group, first) = (p / cut.panels, p % cut.panels * panel);
                for row in 0..taps * cin {
                    let (tap, c) = (row / cin, row % cin);
                    for column in 0..panel {
                        let filter = group * columns + first + column;
                        // SAFETY: linking checked the weights' length; each panel has a place of its own.
                        unsafe {
                            let value = match first + column < columns {
                                true => *weights.offset(((filter * cin + c) * taps + tap) as isize),
                                false => T::ZERO,
                            };
                            *to.offset(((p * taps * cin + row) * panel + column) as isize) = value;
                        }
                    }
                }
            }
        });
    }

    /// Runs a convolution whose images hold the channels of a position side by side.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn last<T: Lane>(
        &self,
        args: &[*mut u8],
        cut: &Cut,
        packed: Option<*mut u8>,
        parallel: bool,
        failures: &Failures,
    ) {
        let mut storage = [None, None];
        // SAFETY: the caller's.
        let [x, weights] =
            match unsafe { self.prepared::<T>(args, cut, packed, parallel, &mut storage) } {
                Ok(found) => found,
                Err(e) => return failures.broken(e),
            };
        let all = self.batch * self.geometry.outputs();
        if all * self.groups * self.cout == 0 {
            return;
        }
        let (across, down) = (ceil(all, cut.positions), ceil(cut.columns, cut.channels));
        let sums = self.cin * self.geometry.kernels();
        let dear = if cut.depthwise { DEPTHWISE_WORK } else { 1 };
        let cost = cut.positions * cut.channels * sums * dear;
        // What blocks read stands in front of the arguments.
        let shared = [x.cast_mut().cast::<u8>(), weights.cast_mut().cast()];
        let shared = Args(&shared);
        let launch = (self.epilogue.as_ref(), args, parallel, failures);
        // SAFETY: the caller's; blocks write different places.
        run_blocks(
            (cut.groups * down * across, cost.max(1)),
            launch,
            |i, args, scratch: &mut Scratch, work| unsafe {
                let shared = &shared;
                let (group, position) = (i / (across * down), i % across * cut.positions);
                let channel = i / across % down * cut.channels;
                let block = Block {
                    x: shared.0[0].cast::<T>(),
                    weights: shared.0[1].cast::<T>(),
                    group,
                    position,
                    positions: cut.positions.min(all - position),
                    channel,
                    channels: cut.channels.min(cut.columns - channel),
                };
                self.last_block(args, cut, &block, scratch, work)
            },
        );
    }

    /// The images with the channels of a position side by side, and the packed weights.
    unsafe fn prepared<T: Lane>(
        &self,
        args: &[*mut u8],
        cut: &Cut,
        packed: Option<*mut u8>,
        parallel: bool,
        [images, weights]: &mut [Option<Storage>; 2],
    ) -> Result<[*const T; 2]> {
        let weights = match packed {
            Some(packed) => packed.cast::<T>().cast_const(),
            None => {
                let to = room::<T>(weights, cut.packed(self))?;
                // SAFETY: the caller's; there is room for all panels.
                unsafe { self.pack_last(cut, self.operand(args, 1, 0), to, parallel) };
                to
            }
        };
        let x = self.operand::<T>(args, 0, 0);
        if !cut.turned {
            return Ok([x, weights]);
        }
        let (inputs, channels) = (self.geometry.inputs(), self.groups * self.cin);
        let to = room::<T>(images, self.batch * inputs * channels)?;
        let pair = [x.cast_mut().cast::<u8>(), to.cast()];
        let pair = Args(&pair);
        split(
            self.batch * inputs,
            channels * 4,
            parallel,
            |from, until| {
                let pair = &pair;
                let (x, to) = (pair.0[0].cast::<T>(), pair.0[1].cast::<T>());
                for c in 0..channels {
                    for i in from..until {
                        let source = (i / inputs * channels + c) * inputs + i % inputs;
                        // SAFETY: linking checked the images' length; positions are written by one part each.
                        unsafe {
                            *to.offset((i * channels + c) as isize) = *x.offset(source as isize)
                        };
                    }
                }
            },
        );
        Ok([to.cast_const(), weights])
    }

    unsafe fn last_block<T: Lane>(
        &self,
        args: &[*mut u8],
        cut: &Cut,
        b: &Block<T>,
        scratch: &mut Scratch,
        work: &mut Work,
    ) -> Result<()> {
        let (taps, channels) = (self.geometry.kernels(), self.groups * self.cin);
        let rows = if cut.depthwise { DEPTHWISE } else { DENSE };
        let zeros = zeros::<T>(&mut scratch.zeros, channels)?;
        // SAFETY: the caller's.
        let x = unsafe { self.images_of(args, b, &mut scratch.made, work.failures)? };
        self.sources(b, x, rows, zeros, &mut scratch.sources);
        let width = self.groups * self.cout;
        let first = b.position * width + b.group * self.cout + b.channel;
        let (dst, pitch) = match self.epilogue {
            Some(_) => (work.scratch::<T>(b.positions * b.channels)?, b.channels),
            None => (self.result_at::<T>(args, first), width),
        };
        // A depthwise block is one panel, of which it reads some columns.
        let panel = if cut.depthwise { b.channels } else { cut.panel };
        for column in (0..b.channels).step_by(panel as usize) {
            let weights = match cut.depthwise {
                true => b.channel,
                false => {
                    let panels = b.group * cut.panels + (b.channel + column) / panel;
                    panels * taps * self.cin * panel
                }
            };
            for (i, position) in (0..b.positions).step_by(rows).enumerate() {
                let tile = Tile {
                    sources: scratch.sources[i * rows * taps as usize..].as_ptr().cast(),
                    taps: taps as usize,
                    first: match cut.depthwise {
                        true => b.channel,
                        false => b.group * self.cin,
                    } as usize,
                    channels: self.cin as usize,
                    weights: b.weights.wrapping_offset(weights as isize),
                    pitch: cut.panel as usize,
                    columns: panel.min(b.channels - column) as usize,
                    rows: rows.min((b.positions - position) as usize),
                    dst: dst.wrapping_offset((position * pitch + column) as isize),
                    step: pitch as usize,
                };
                // SAFETY: linking checked the buffers' lengths against the geometry; sources are within
                // the images, or zeros as long as the channels.
                unsafe {
                    match cut.depthwise {
                        true => compiled::<Depthwise<T>, _>(self.level)(tile),
                        false => compiled::<Dense<T>, _>(self.level)(tile),
                    }
                }
            }
        }
        // SAFETY: the raw results are there.
        unsafe { work.finish((dst, pitch), first, (b.positions, width), b.channels) };
        Ok(())
    }

    /// Where the images begin, of which what a block reads is there.
    ///
    /// # Safety
    /// As [`Conv::run`].
    unsafe fn images_of<T>(
        &self,
        args: &[*mut u8],
        b: &Block<T>,
        made: &mut Made,
        failures: &Failures,
    ) -> Result<*const T> {
        let Some(program) = &self.made else {
            return Ok(b.x);
        };
        let (g, last) = (&self.geometry, b.position + b.positions - 1);
        let (all, inputs) = (g.outputs(), g.inputs());
        let (first, image) = (b.position / all, last / all);
        let (begin, end) = (b.position % all, last % all + 1);
        let (from, to) = match first == image {
            true => g.reach(begin, end),
            // The images between are read whole.
            false => (g.reach(begin, all).0, g.reach(0, end).1),
        };
        let channels = self.groups * self.cin;
        let at = (first * inputs + from) * channels;
        let len = ((image - first) * inputs + to - from) * channels;
        // SAFETY: the caller's.
        let to = unsafe { made.bring::<T>(program, args, (at, len), at, (1, len, len), failures)? };
        Ok(to.wrapping_offset(-at as isize))
    }

    /// For each tile of positions and tap the addresses of the positions' channels; where a tile has fewer
    /// positions, the last one stands again.
    fn sources<T>(
        &self,
        b: &Block<T>,
        x: *const T,
        rows: usize,
        zeros: *const T,
        to: &mut Vec<usize>,
    ) {
        let g = &self.geometry;
        let [depth, height, width] = &g.axes;
        let channels = self.groups * self.cin;
        let tile = rows * g.kernels() as usize;
        to.clear();
        to.resize((b.positions as usize).div_ceil(rows) * tile, 0);
        let (mut image, at) = (b.position / g.outputs(), b.position % g.outputs());
        let (row, mut w) = (at / width.output, at % width.output);
        let (mut d, mut h) = (row / height.output, row % height.output);
        for p in 0..to.len() / g.kernels() as usize {
            let mut slot = p / rows * tile + p % rows;
            for kd in 0..depth.kernel {
                for kh in 0..height.kernel {
                    let row = g.row((d, h), (kd, kh));
                    let row = row.map(|row| (image * g.inputs() + row) * channels);
                    for kw in 0..width.kernel {
                        let column = width.source(w, kw);
                        to[slot] = match row {
                            Some(row) if (0..width.input).contains(&column) => {
                                x.wrapping_offset((row + column * channels) as isize) as usize
                            }
                            _ => zeros as usize,
                        };
                        slot += rows;
                    }
                }
            }
            if p + 1 < b.positions as usize {
                w += 1;
                if w == width.output {
                    (w, h) = (0, h + 1);
                }
                if h == height.output {
                    (h, d) = (0, d + 1);
                }
                if d == depth.output {
                    (d, image) = (0, image + 1);
                }
            }
        }
    }
}

/// Some output channels of some positions.
struct Block<T> {
    x: *mut T,
    weights: *mut T,
    group: i64,
    /// Among those of all images.
    position: i64,
    positions: i64,
    channel: i64,
    channels: i64,
}

/// So many zeros.
fn zeros<T: Lane>(storage: &mut Option<Storage>, len: i64) -> Result<*const T> {
    if storage.is_none() {
        let to = room::<T>(storage, len)?;
        // SAFETY: there is room.
        (0..len).for_each(|i| unsafe { *to.offset(i as isize) = T::ZERO });
    }
    Ok(room::<T>(storage, len)?)
}
