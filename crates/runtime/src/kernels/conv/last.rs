//! The result of a convolution whose images hold the channels of a position side by side.
//!
//! Rows of register tiles are positions, columns are channels of the result, whose weights are packed into panels. A
//! list of pointers says where the channels lie that each tap of each position reads; padding is a row of zeros. So no
//! image is copied, whatever the filter, its steps and its padding, but those that are still to be turned: these are
//! copied with their padding, and the taps of a row are one. A channel a group is a matter of its own (`depthwise`).

use super::{Conv, LEAST_BLOCKS};
use crate::contraction::{
    Accesses, Call, Finish, Kernel as Sums, Left, Tile as SumsTile, VECTORS, even_rows, lanes,
    most_rows,
};
use crate::error::Result;
use crate::kernels::matmul::{Args, Made, Work, run_blocks, split};
use crate::memory::{Storage, room};
use crate::simd::compiled;
use crate::simd::transpose::{Transpose, Turn};
use crate::sums::Lane;
use crate::tile::Failures;
use crate::tile::affine::{ceil, product};
use kiln_plan::cost::geometry::{Axis, Geometry};
use std::sync::Arc;

/// Weights that stay in the second-level cache while positions pass.
const HOT_WEIGHTS: i64 = 1 << 16;
/// Results of a block, which an epilogue wants hot.
const BLOCK_ELEMENTS: i64 = 1 << 14;
/// Positions of a block at most, so that the list of pointers stays short.
const BLOCK_POSITIONS: i64 = 128;

/// How a convolution is cut; it follows from the shapes and the level alone.
pub(super) struct Cut {
    /// The images with their padding, where they are still to be turned.
    turned: Option<Geometry>,
    /// Positions and output channels of a block.
    positions: i64,
    channels: i64,
    /// Positions of a register tile.
    rows: i64,
    /// Columns of a panel of weights, and panels of a group.
    panel: i64,
    panels: i64,
    /// The register tiles: of all rows or of those that are left at the end, of a whole panel or of the last.
    tiles: Option<[[Sums; 2]; 2]>,
    /// What is done with sums while they are in registers.
    finish: Option<Arc<Finish>>,
}

impl Cut {
    pub(super) fn new(c: &Conv, turned: bool, finish: Option<Arc<Finish>>) -> Result<Cut> {
        let (all, sums) = (c.batch * c.geometry.outputs(), c.cin * c.geometry.kernels());
        let turned = match turned {
            true => Some(padded(c)?),
            false => None,
        };
        let lanes = i64::from(lanes(c.level, c.dtype));
        let cout = c.cout.max(1);
        let vectors = VECTORS.min(ceil(cout, lanes));
        let (panel, panels) = (vectors * lanes, ceil(cout, vectors * lanes));
        // Some panels whose weights stay hot while positions pass, or all.
        let channels = match sums * cout <= HOT_WEIGHTS {
            true => c.cout,
            false => (HOT_WEIGHTS / sums).max(panel) / panel * panel,
        };
        let mut cut = Cut {
            turned,
            positions: 0,
            channels: channels.min(c.cout).max(1),
            rows: 0,
            panel,
            panels,
            tiles: None,
            finish,
        };
        cut.rows = even_rows(all, most_rows(c.level, vectors as u8, !cut.is_matrix(c)));
        // A block is a row of tiles, but where more is done for it than to sum.
        let rows = cut.rows;
        let most = match c.made.is_some() {
            true => (BLOCK_ELEMENTS / channels.max(1)).clamp(rows, BLOCK_POSITIONS.max(rows)),
            false => rows,
        };
        let share = ceil(all, LEAST_BLOCKS);
        cut.positions = ceil(share.clamp(1, most), rows) * rows;
        if all * cout > 0 {
            cut.tiles = Some(cut.link(c, all)?);
        }
        Ok(cut)
    }

    /// Whether the positions of the result are those of the images.
    fn is_matrix(&self, c: &Conv) -> bool {
        self.turned.is_none() && c.geometry.is_pointwise()
    }

    /// How many lists of pointers a position has, and how many numbers are read at each.
    fn taps(&self, c: &Conv) -> (i64, i64) {
        let g = &c.geometry;
        match self.turned {
            // The taps of a row lie side by side.
            Some(t) if (t.axes[2].dilation, t.axes[2].padding, c.groups) == (1, 0, 1) => {
                let width = g.axes[2].kernel;
                (g.kernels() / width.max(1), width * c.cin)
            }
            _ => (g.kernels(), c.cin),
        }
    }

    fn link(&self, c: &Conv, all: i64) -> Result<[[Sums; 2]; 2]> {
        let size = c.dtype.size() as i64;
        let (taps, steps) = self.taps(c);
        let left = match self.is_matrix(c) {
            true => Left::Matrix {
                row: c.groups * c.cin * size,
                step: size,
            },
            false => Left::Listed,
        };
        let pitch = match c.epilogue {
            Some(_) => self.channels,
            None => c.groups * c.cout,
        };
        let last = c.cout - (self.panels - 1) * self.panel;
        // Weights of the next block come while those of this one are used.
        let ahead = match self.channels < c.cout {
            true => self.channels * taps * steps * size,
            false => 0,
        };
        let of = |rows: i64, columns: i64| {
            Sums::of(SumsTile {
                level: c.level,
                dtype: c.dtype,
                rows: rows as u8,
                columns: columns as u16,
                left: left.clone(),
                right: self.panel * size,
                padded: true,
                steps: steps as u32,
                ahead,
                taps: taps as u32,
                out: pitch * size,
                adds: false,
                finish: self.finish.clone(),
            })
        };
        let rest = match all % self.rows {
            0 => self.rows,
            rest => rest,
        };
        let whole = self.panel.min(c.cout);
        Ok([
            [of(self.rows, whole)?, of(self.rows, last)?],
            [of(rest, whole)?, of(rest, last)?],
        ])
    }

    /// Elements of the packed weights.
    pub(super) fn packed(&self, c: &Conv) -> i64 {
        c.groups * self.panels * self.panel * c.cin * c.geometry.kernels()
    }
}

/// The geometry over copies of the images that have the padding, unless these were much larger.
fn padded(c: &Conv) -> Result<Geometry> {
    let padded = |a: &Axis| Axis {
        input: ((a.output - 1) * a.stride + a.span()).max(0),
        padding: 0,
        ..*a
    };
    let own = c.geometry;
    let g = Geometry {
        axes: own.axes.each_ref().map(padded),
    };
    let [depth, height, width] = g.axes.map(|a| i128::from(a.input));
    let near = depth * height * width <= 4 * i128::from(own.inputs() + own.outputs());
    let g = if near { g } else { own };
    product(&[c.batch, c.groups, c.cin, g.inputs()])?;
    Ok(g)
}

/// What a thread keeps from block to block.
#[derive(Default)]
struct Scratch {
    zeros: Option<Storage>,
    /// For each tile and tap the addresses of the positions' channels.
    sources: Vec<usize>,
    /// Of which group and positions, and of which images.
    holds: Option<(i64, i64, usize)>,
    made: Made,
}

impl Conv {
    /// Elements that it takes beside its arguments.
    pub(super) fn last_workspace(&self, cut: &Cut) -> i64 {
        let inputs = cut.turned.as_ref().map_or(0, Geometry::inputs);
        cut.packed(self) + self.batch * self.groups * self.cin * inputs
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
        let (panel, columns, panels) = (cut.panel, self.cout, self.groups * cut.panels);
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
        let (across, down) = (ceil(all, cut.positions), ceil(self.cout, cut.channels));
        let sums = self.cin * self.geometry.kernels();
        let cost = cut.positions * cut.channels * sums;
        // What blocks read stands in front of the arguments.
        let shared = [x.cast_mut().cast::<u8>(), weights.cast_mut().cast()];
        let shared = Args(&shared);
        let launch = (self.epilogue.as_ref(), args, parallel, failures);
        // SAFETY: the caller's; blocks write different places.
        run_blocks(
            (self.groups * down * across, cost.max(1)),
            launch,
            |i, args, scratch: &mut Scratch, work| unsafe {
                let shared = &shared;
                let (group, position) = (i / (across * down), i % across * cut.positions);
                let channel = i / across % down * cut.channels;
                let block = Block {
                    x: shared.0[0].cast::<T>().cast_const(),
                    weights: shared.0[1].cast::<T>(),
                    group,
                    position,
                    positions: cut.positions.min(all - position),
                    channel,
                    channels: cut.channels.min(self.cout - channel),
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
        // SAFETY: the caller's.
        let x = unsafe { self.turned_images(args, cut.turned.as_ref(), images, parallel)? };
        Ok([x, weights])
    }

    /// The images, or copies of them with the channels of a position side by side and with this padding.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn turned_images<T: Lane>(
        &self,
        args: &[*mut u8],
        turned: Option<&Geometry>,
        storage: &mut Option<Storage>,
        parallel: bool,
    ) -> Result<*const T> {
        let x = self.operand::<T>(args, 0, 0);
        let Some(turned) = turned else {
            return Ok(x);
        };
        let channels = self.groups * self.cin;
        let to = room::<T>(storage, self.batch * turned.inputs() * channels)?;
        // SAFETY: there is room for the copies; the images have their elements.
        unsafe { self.turn_images(turned, x, to, parallel) };
        Ok(to)
    }

    /// Copies images with channels first into such with channels last, and with their padding.
    ///
    /// # Safety
    /// The images have the elements that linking checked, and there is room for the copies.
    unsafe fn turn_images<T: Lane>(&self, g: &Geometry, x: *const T, to: *mut T, parallel: bool) {
        let channels = self.groups * self.cin;
        let [depth, height, width] = &self.geometry.axes;
        let [planes, lines, across] = g.axes.map(|a| a.input);
        // Padding that the copies have.
        let shift = |i: usize| self.geometry.axes[i].padding - g.axes[i].padding;
        let shift = [0, 1, 2].map(shift);
        let pair = [x.cast_mut().cast::<u8>(), to.cast()];
        let pair = Args(&pair);
        let rows = self.batch * planes * lines;
        // The part of a row that is no padding.
        let (from, until) = (
            shift[2].clamp(0, across),
            (shift[2] + width.input).clamp(0, across),
        );
        split(rows, across * channels * 4, parallel, |first, end| {
            let pair = &pair;
            let (x, to) = (pair.0[0].cast::<T>(), pair.0[1].cast::<T>());
            for row in first..end {
                let (image, plane, line) =
                    (row / (planes * lines), row / lines % planes, row % lines);
                let (d, h) = (plane - shift[0], line - shift[1]);
                let is_there = (0..depth.input).contains(&d) && (0..height.input).contains(&h);
                let to = to.wrapping_offset((row * across * channels) as isize);
                let (from, until) = if is_there {
                    (from, until.max(from))
                } else {
                    (across, across)
                };
                let source = (image * channels * depth.input + d) * height.input + h;
                // SAFETY: the caller's; rows are written by one part each, and what is read lies in the images.
                unsafe {
                    for at in (0..from * channels).chain(until * channels..across * channels) {
                        *to.offset(at as isize) = T::ZERO;
                    }
                    let plane = depth.input * height.input * width.input;
                    compiled::<Turn<T>, _>(self.level)(Transpose {
                        from: x.wrapping_offset((source * width.input + from - shift[2]) as isize),
                        pitch: plane as isize,
                        rows: channels as usize,
                        columns: (until - from) as usize,
                        to: to.wrapping_offset((from * channels) as isize),
                        to_pitch: channels as isize,
                    });
                }
            }
        });
    }

    unsafe fn last_block<T: Lane>(
        &self,
        args: &[*mut u8],
        cut: &Cut,
        b: &Block<T>,
        scratch: &mut Scratch,
        work: &mut Work,
    ) -> Result<()> {
        let channels = self.groups * self.cin;
        let zeros = zeros::<T>(&mut scratch.zeros, channels)?;
        // SAFETY: the caller's.
        let x = unsafe {
            self.images_of(
                args,
                b.x,
                (b.position, b.positions),
                &mut scratch.made,
                work.failures,
            )?
        };
        let width = self.groups * self.cout;
        let first = b.position * width + b.group * self.cout + b.channel;
        let (dst, pitch) = match self.epilogue {
            Some(_) => (work.scratch::<T>(b.positions * cut.channels)?, cut.channels),
            None => (self.result_at::<T>(args, first), width),
        };
        // Positions often come again, for other channels.
        let which = (b.group, b.position, x as usize);
        if !cut.is_matrix(self) && scratch.holds != Some(which) {
            self.sources(cut, b, x, zeros, &mut scratch.sources);
            scratch.holds = Some(which);
        }
        let sources = &scratch.sources;
        // SAFETY: linking checked the buffers' lengths against the geometry; sources are within the images, or zeros as
        // long as the channels.
        unsafe {
            if let Some(tiles) = &cut.tiles {
                self.dense_block(cut, tiles, b, (x, sources), (dst, pitch), args);
            }
        }
        if cut.finish.is_none() {
            // SAFETY: the raw results are there.
            unsafe { work.finish((dst, pitch), first, (b.positions, width), b.channels) };
        }
        Ok(())
    }

    /// The sums of a block.
    ///
    /// # Safety
    /// The images, or what the list names, and the weights have what the tiles read, and there is room for the results.
    unsafe fn dense_block<T: Lane>(
        &self,
        cut: &Cut,
        tiles: &[[Sums; 2]; 2],
        b: &Block<T>,
        (x, sources): (*const T, &[usize]),
        (dst, pitch): (*mut T, i64),
        args: &[*mut u8],
    ) {
        let channels = self.groups * self.cin;
        let sums = self.cin * self.geometry.kernels();
        let (taps, _) = cut.taps(self);
        for column in (0..b.channels).step_by(cut.panel as usize) {
            let panel = (b.channel + column) / cut.panel;
            let at = (b.group * cut.panels + panel) * sums * cut.panel;
            let weights = b.weights.wrapping_offset(at as isize);
            for position in (0..b.positions).step_by(cut.rows as usize) {
                let tile = usize::from(b.positions - position < cut.rows);
                let tile = &tiles[tile][usize::from(panel + 1 == cut.panels)];
                let left: *const u8 = match cut.is_matrix(self) {
                    true => {
                        let at = (b.position + position) * channels + b.group * self.cin;
                        x.wrapping_offset(at as isize).cast()
                    }
                    false => sources
                        .as_ptr()
                        .wrapping_add((position * taps) as usize)
                        .cast(),
                };
                let at = (
                    b.position + position,
                    b.group * self.cout + b.channel + column,
                );
                let accesses: Accesses = match &cut.finish {
                    Some(finish) => finish.addresses(args, at).collect(),
                    None => Accesses::new(),
                };
                let call = Call {
                    left,
                    right: weights.cast_const().cast(),
                    out: dst
                        .wrapping_offset((position * pitch + column) as isize)
                        .cast(),
                    finish: accesses.as_ptr(),
                };
                // SAFETY: the caller's.
                unsafe { tile.run(&call) };
            }
        }
    }

    /// Where the images begin, of which what so many positions read is there.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn images_of<T>(
        &self,
        args: &[*mut u8],
        x: *const T,
        (position, positions): (i64, i64),
        made: &mut Made,
        failures: &Failures,
    ) -> Result<*const T> {
        let Some(program) = &self.made else {
            return Ok(x);
        };
        let (g, last) = (&self.geometry, position + positions - 1);
        let (all, inputs) = (g.outputs(), g.inputs());
        let (first, image) = (position / all, last / all);
        let (begin, end) = (position % all, last % all + 1);
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

    /// For each tile of positions and tap the addresses of the positions' channels. A tile at the end has as many as
    /// there are.
    fn sources<T>(
        &self,
        cut: &Cut,
        b: &Block<T>,
        x: *const T,
        zeros: *const T,
        to: &mut Vec<usize>,
    ) {
        let g = cut.turned.as_ref().unwrap_or(&self.geometry);
        let [depth, height, width] = &g.axes;
        let channels = self.groups * self.cin;
        // Taps of a row that are one.
        let (taps, _) = cut.taps(self);
        let across = if taps < g.kernels() { 1 } else { width.kernel };
        let x = x.wrapping_offset((b.group * self.cin) as isize);
        let (rows, taps) = (cut.rows as usize, taps as usize);
        let count = b.positions as usize;
        to.clear();
        to.resize(count * taps, 0);
        let (mut image, at) = (b.position / g.outputs(), b.position % g.outputs());
        let (row, mut w) = (at / width.output, at % width.output);
        let (mut d, mut h) = (row / height.output, row % height.output);
        let step = (width.stride * channels) as usize * size_of::<T>();
        for first in (0..count).step_by(rows) {
            let there = rows.min(count - first);
            let list = &mut to[first * taps..(first + there) * taps];
            let mut r = 0;
            while r < there {
                // Positions of one row of the result.
                let n = (there - r).min((width.output - w) as usize);
                let mut slot = r;
                for kd in 0..depth.kernel {
                    for kh in 0..height.kernel {
                        let row = g.row((d, h), (kd, kh));
                        let row = row.map(|row| (image * g.inputs() + row) * channels);
                        for kw in 0..across {
                            let column = width.source(w, kw);
                            let last = column + (n as i64 - 1) * width.stride;
                            let at = |row: i64, column: i64| {
                                x.wrapping_offset((row + column * channels) as isize) as usize
                            };
                            let line = &mut list[slot..slot + n];
                            match row {
                                Some(row) if column >= 0 && last < width.input => {
                                    let mut next = at(row, column);
                                    for to in line {
                                        *to = next;
                                        next = next.wrapping_add(step);
                                    }
                                }
                                Some(row) => {
                                    for (i, to) in line.iter_mut().enumerate() {
                                        let column = column + i as i64 * width.stride;
                                        let there = (0..width.input).contains(&column);
                                        *to = if there {
                                            at(row, column)
                                        } else {
                                            zeros as usize
                                        };
                                    }
                                }
                                None => line.fill(zeros as usize),
                            }
                            slot += there;
                        }
                    }
                }
                r += n;
                w += n as i64;
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
    x: *const T,
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
