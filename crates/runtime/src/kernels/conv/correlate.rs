//! The gradient of a convolution's weights in register tiles: some filters by some vectors of input channels, summed
//! over the positions of the result.
//!
//! The channels of a position lie side by side in a padded copy of some image rows, so that each tap reads them at an
//! offset of its own; the gradient of the result is broadcast from where it lies. Sums go over images, planes and
//! positions in order, whatever the tile.

#![allow(clippy::needless_range_loop)] // register tiles are indexed

use super::Conv;
use crate::error::Result;
use crate::kernels::matmul::{Work, run_blocks};
use crate::memory::{Storage, room};
use crate::simd::vector::Vector;
use crate::simd::{Isa, Kernel, Level, compiled};
use crate::sums::{Lane, ROWS};
use crate::tile::Failures;
use crate::tile::affine::ceil;
use std::marker::PhantomData;

/// Channels of a block at most: three vectors of sixteen lanes.
const PANEL: i64 = 48;
/// The most lanes of a vector.
const LANES: i64 = 16;
/// Positions that are summed over in one go, so that what is read of the gradient stays in the nearest cache.
const POSITIONS: i64 = 512;
/// Elements of a copy at most, where a row has fewer.
const COPY: i64 = 1 << 15;
/// Blocks that threads should have to share; each copies its rows itself.
const ENOUGH: i64 = 4;

/// How the gradient of weights is cut; it follows from the shapes alone.
struct Cut {
    /// Input channels of a block, as they are and in whole vectors, and filters.
    channels: i64,
    width: i64,
    filters: i64,
    /// Result rows of a chunk, or planes of all their rows.
    rows: i64,
    planes: i64,
    /// Columns of a copied row.
    row: i64,
}

/// Some input channels of a group, and some filters.
struct Block {
    group: i64,
    channel: i64,
    channels: i64,
    filter: i64,
    filters: i64,
}

#[derive(Default)]
struct Scratch {
    copy: Option<Storage>,
    sums: Option<Storage>,
    taps: Vec<isize>,
    runs: Vec<(isize, isize)>,
}

/// Sums over runs of positions, each a part of a result row.
struct Runs<'a, T> {
    /// Channels side by side, so many of them, in whole vectors; those of two neighbours of a run so far apart.
    x: *const T,
    width: usize,
    step: usize,
    taps: &'a [isize],
    /// The gradient of the result, its filters so far apart, and how many they are.
    y: *const T,
    pitch: usize,
    filters: usize,
    /// Where each run begins in the gradient and in the copy, and how long it is.
    runs: &'a [(isize, isize)],
    len: usize,
    /// `[filters, taps, width]`.
    sums: *mut T,
}

struct AddProducts<T>(PhantomData<T>);
impl<T: Lane> Kernel<Runs<'_, T>> for AddProducts<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(s: Runs<'_, T>) {
        let lanes = T::Vector::<I>::LANES;
        let step = match I::LEVEL {
            Level::Avx512 => ROWS as usize,
            _ => 4,
        };
        for filter in (0..s.filters).step_by(step) {
            for tap in 0..s.taps.len() {
                let mut at = 0;
                while at < s.width {
                    let left = (s.width - at) / lanes;
                    // SAFETY: the caller's; the width is in whole vectors.
                    let n = unsafe {
                        match (I::LEVEL, left) {
                            (Level::Avx512, 3..) => {
                                tile::<T, T::Vector<I>, 8, 3>(&s, filter, tap, at)
                            }
                            (Level::Avx512, 2) => {
                                tile::<T, T::Vector<I>, 8, 2>(&s, filter, tap, at)
                            }
                            (Level::Avx512, _) => {
                                tile::<T, T::Vector<I>, 8, 1>(&s, filter, tap, at)
                            }
                            (_, 3..) => tile::<T, T::Vector<I>, 4, 3>(&s, filter, tap, at),
                            (_, _) => tile::<T, T::Vector<I>, 4, 1>(&s, filter, tap, at),
                        }
                    };
                    at += n * lanes;
                }
            }
        }
    }
}

/// `R` filters from `filter` on by `N` vectors of channels from `at` on, of one tap. Where there are fewer filters,
/// the last one is computed again. Gives `N`.
///
/// # Safety
/// All that is read and written exists.
#[inline(always)]
unsafe fn tile<T: Lane, V: Vector<Lane = T>, const R: usize, const N: usize>(
    s: &Runs<'_, T>,
    filter: usize,
    tap: usize,
    at: usize,
) -> usize {
    // SAFETY: the caller's.
    unsafe {
        let mut sums = [[V::splat(T::ZERO); N]; R];
        let mut from = [s.y; R];
        let to = |r: usize| {
            let row = (filter + r).min(s.filters - 1);
            s.sums.add((row * s.taps.len() + tap) * s.width + at)
        };
        for r in 0..R {
            from[r] = s.y.add((filter + r).min(s.filters - 1) * s.pitch);
            for n in 0..N {
                sums[r][n] = V::load(to(r).add(n * V::LANES));
            }
        }
        for (y, x) in s.runs {
            let mut x = s.x.offset(x + s.taps[tap]).add(at);
            for i in 0..s.len as isize {
                let mut values = [V::splat(T::ZERO); N];
                for n in 0..N {
                    values[n] = V::load(x.add(n * V::LANES));
                }
                for r in 0..R {
                    let gradient = V::splat(*from[r].offset(y + i));
                    for n in 0..N {
                        sums[r][n] = values[n].mul_add(gradient, sums[r][n]);
                    }
                }
                x = x.wrapping_add(s.step);
            }
        }
        for r in 0..R {
            for n in 0..N {
                sums[r][n].store(to(r).add(n * V::LANES));
            }
        }
    }
    N
}

impl Conv {
    fn correlate_cut(&self) -> Cut {
        let g = &self.geometry;
        let cin = self.cin.max(1);
        let channels = ceil(cin, ceil(cin, PANEL));
        let width = ceil(channels, LANES) * LANES;
        let channels = width.min(cin);
        let parts = ceil(ENOUGH, self.groups * ceil(cin, channels));
        let [_, height, across] = &g.axes;
        let row = (across.output - 1).max(0) * across.stride + across.span();
        // Rows that are summed over at a time.
        let most = (POSITIONS / across.output.max(1))
            .min(COPY / (width * row).max(1) / height.stride)
            .clamp(1, height.output.max(1));
        let planes = match most == height.output {
            true => POSITIONS / (across.output * height.output).max(1),
            false => 1,
        };
        Cut {
            channels,
            width,
            filters: ceil(ceil(self.cout.max(1), parts), ROWS) * ROWS,
            rows: most,
            planes: planes.max(1),
            row,
        }
    }

    /// Input rows that so many result rows read of a plane.
    fn copied_rows(&self, rows: i64) -> i64 {
        let height = &self.geometry.axes[1];
        (rows - 1) * height.stride + height.span()
    }

    /// Elements of the copy of what a chunk reads for one plane of the result.
    fn copied(&self, cut: &Cut) -> i64 {
        self.geometry.axes[0].kernel * self.copied_rows(cut.rows) * cut.row * cut.width
    }

    /// Elements that a thread takes beside the arguments.
    pub(super) fn correlate_workspace(&self) -> i64 {
        let cut = self.correlate_cut();
        let sums = cut.filters.min(self.cout) * self.geometry.kernels() * cut.width;
        cut.planes * self.copied(&cut) + sums
    }

    /// Runs a gradient of the weights.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn correlate<T: Lane>(
        &self,
        args: &[*mut u8],
        parallel: bool,
        failures: &Failures,
    ) {
        let cut = self.correlate_cut();
        let (down, across) = (ceil(self.cin, cut.channels), ceil(self.cout, cut.filters));
        let sums = self.geometry.kernels() * self.batch * self.geometry.outputs();
        let cost = cut.channels * cut.filters * sums.max(1);
        let launch = (self.epilogue.as_ref(), args, parallel, failures);
        // SAFETY: the caller's; blocks write different places.
        run_blocks(
            (self.groups * down * across, cost),
            launch,
            |i, args, scratch, work| unsafe {
                let channel = i / across % down * cut.channels;
                let filter = i % across * cut.filters;
                let block = Block {
                    group: i / (across * down),
                    channel,
                    channels: cut.channels.min(self.cin - channel),
                    filter,
                    filters: cut.filters.min(self.cout - filter),
                };
                self.correlate_block::<T>(args, &cut, &block, scratch, work)
            },
        );
    }

    unsafe fn correlate_block<T: Lane>(
        &self,
        args: &[*mut u8],
        cut: &Cut,
        b: &Block,
        scratch: &mut Scratch,
        work: &mut Work,
    ) -> Result<()> {
        let g = &self.geometry;
        let [deep, height, across] = &g.axes;
        let (taps, outputs, width) = (g.kernels(), g.outputs(), cut.width);
        let sums = room::<T>(&mut scratch.sums, b.filters * taps * width)?;
        let plane = self.copied(cut);
        let copy = room::<T>(&mut scratch.copy, cut.planes * plane)?;
        let tall = self.copied_rows(cut.rows);
        scratch.taps.clear();
        for kd in 0..deep.kernel {
            for kh in 0..height.kernel {
                for kw in 0..across.kernel {
                    let row = kd * tall + kh * height.dilation;
                    let at = (row * cut.row + kw * across.dilation) * width;
                    scratch.taps.push(at as isize);
                }
            }
        }
        // SAFETY: linking checked the buffers' lengths against the geometry; the copy and the sums have the room
        // reserved for them.
        unsafe {
            (0..b.filters * taps * width).for_each(|i| *sums.offset(i as isize) = T::ZERO);
            let row = (b.group * self.cout + b.filter) * outputs;
            let y = self.operand::<T>(args, 1, row);
            let all = self.batch * deep.output;
            for (first, from) in (0..all).step_by(cut.planes as usize).flat_map(|p| {
                (0..height.output)
                    .step_by(cut.rows as usize)
                    .map(move |r| (p, r))
            }) {
                let rows = cut.rows.min(height.output - from);
                scratch.runs.clear();
                for p in first..all.min(first + cut.planes) {
                    let (image, d) = (p / deep.output, p % deep.output);
                    let to = copy.offset(((p - first) * plane) as isize);
                    let x = (image * self.groups + b.group) * self.cin + b.channel;
                    compiled::<Turn<T>, _>(self.level)(Copy {
                        conv: self,
                        cut,
                        x: self.operand(args, 0, x * g.inputs()),
                        channels: b.channels,
                        part: (d, from, rows),
                        to,
                    });
                    for r in 0..rows {
                        let gradient = image * self.groups * self.cout * outputs
                            + (d * height.output + from + r) * across.output;
                        let at = (p - first) * plane + r * height.stride * cut.row * width;
                        scratch.runs.push((gradient as isize, at as isize));
                    }
                }
                compiled::<AddProducts<T>, _>(self.level)(Runs {
                    x: copy,
                    width: width as usize,
                    step: (across.stride * width) as usize,
                    taps: &scratch.taps,
                    y,
                    pitch: outputs as usize,
                    filters: b.filters as usize,
                    runs: &scratch.runs,
                    len: across.output as usize,
                    sums,
                });
            }
            let step = self.cin * taps;
            let first = (b.group * self.cout + b.filter) * step + b.channel * taps;
            let len = b.channels * taps;
            let (dst, pitch) = match self.epilogue {
                Some(_) => (work.scratch::<T>(b.filters * len)?, len),
                None => (self.result_at::<T>(args, first), step),
            };
            for o in 0..b.filters {
                for c in 0..b.channels {
                    for t in 0..taps {
                        let from = sums.offset(((o * taps + t) * width + c) as isize);
                        *dst.offset((o * pitch + c * taps + t) as isize) = *from;
                    }
                }
            }
            work.finish((dst, pitch), first, (b.filters, step), len);
        }
        Ok(())
    }
}

/// Rows of an image with its channels side by side, padding included.
struct Copy<'a, T> {
    conv: &'a Conv,
    cut: &'a Cut,
    x: *const T,
    channels: i64,
    /// Depth, first row and rows of the result.
    part: (i64, i64, i64),
    to: *mut T,
}

struct Turn<T>(PhantomData<T>);
impl<T: Lane> Kernel<Copy<'_, T>> for Turn<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(s: Copy<'_, T>) {
        let g = &s.conv.geometry;
        let [deep, height, across] = &g.axes;
        let (width, (d, from, rows)) = (s.cut.width, s.part);
        let (tall, used) = (s.conv.copied_rows(s.cut.rows), s.conv.copied_rows(rows));
        // The columns of the copy that are in the image.
        let low = across.padding.clamp(0, s.cut.row);
        let high = (across.input + across.padding).clamp(low, s.cut.row);
        for kd in 0..deep.kernel {
            let z = deep.source(d, kd);
            for j in 0..used {
                let h = from * height.stride + j - height.padding;
                let inside = (0..deep.input).contains(&z) && (0..height.input).contains(&h);
                // SAFETY: the caller's; what is read lies in the image.
                unsafe {
                    let to = s.to.offset(((kd * tall + j) * s.cut.row * width) as isize);
                    let (low, high) = if inside { (low, high) } else { (0, 0) };
                    let zero = |from: i64, until: i64| {
                        for i in from * width..until * width {
                            *to.offset(i as isize) = T::ZERO;
                        }
                    };
                    zero(0, low);
                    zero(high, s.cut.row);
                    if low == high {
                        continue;
                    }
                    let row = (z * height.input + h) * across.input - across.padding;
                    for c in 0..width {
                        let to = to.offset(c as isize);
                        if c >= s.channels {
                            for i in low..high {
                                *to.offset((i * width) as isize) = T::ZERO;
                            }
                            continue;
                        }
                        let x = s.x.offset((c * g.inputs() + row) as isize);
                        for i in low..high {
                            *to.offset((i * width) as isize) = *x.offset(i as isize);
                        }
                    }
                }
            }
        }
    }
}
