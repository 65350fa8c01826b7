//! The blocking of a convolution in register tiles.

use super::Conv;
use super::phase::{Phase, window};
use kiln_jit::contraction::{Order, RegisterEpilogue, RightSide, Rows, Tile, TileGrid, even_rows};
use kiln_kernel::affine::{ceil, product};
use kiln_kernel::error::{Result, damaged};
use kiln_plan::ConvRole;
use kiln_plan::cost::geometry::Axis;
use kiln_plan::schedule::{lanes, max_rows};
use std::sync::Arc;

/// The least number of blocks, if each has at least
const BLOCKS: i64 = 8;
/// this number of register tiles.
const TILES: i64 = 8;
/// The maximum number of elements of the copy that a block reads, unless a line needs more.
const COPY: i64 = 1 << 16;
/// The positions of a block whose taps are accumulated one by one.
const LINE: i64 = 64;
/// The maximum number of stride offsets of a filter for each of which a gradient of images is a convolution of its own.
const PHASES: i64 = 1 << 10;
/// The maximum number of weights that stay in the second-level cache; beyond, the next panel is prefetched while one is
/// used.
const HOT_WEIGHTS: i64 = 1 << 16;
/// The number of weights, in words, from which each block reads them from beyond that cache. AMX multiplies faster than
/// they arrive, so blocks then grow to `NEAR_IMAGES` words of images. Tests lower both to cover this in small layers.
const FAR_WEIGHTS: i64 = if cfg!(test) { 1 << 10 } else { 1 << 19 };
const NEAR_IMAGES: i64 = if cfg!(test) { 1 << 12 } else { 1 << 18 };

/// The blocking of a convolution. Sizes that the schedule leaves open follow from the shapes and the level.
pub(in crate::kernels::conv) struct Blocking {
    pub(super) groups: i64,
    /// The channels that are summed over, and the words that hold them.
    pub(super) terms: i64,
    pub(super) words: i64,
    /// Channels of the result.
    pub(super) columns: i64,
    /// The bytes of an element of the images, as it is multiplied in place, and of a word.
    sizes: [i64; 2],
    pub(super) batch: i64,
    /// Extents of the images that are read and of the result.
    pub(super) image: [i64; 3],
    pub(super) result: [i64; 3],
    pub(super) phases: [Vec<Phase>; 3],
    pub(super) parts: Vec<PhasePart>,
    /// The place of each tap of a filter in a panel, or -1 for a tap that meets only padding.
    pub(super) taps: Vec<i64>,
    /// The axes of the convolution. `tap_by_tap` is true if each tap of a position is accumulated by itself: where
    /// copies of lines would be far larger than the images.
    pub(super) axes: [Axis; 3],
    pub(super) tap_by_tap: bool,
    /// True for channels first (NCHW): `reads_nchw` for the images, `writes_nchw` for the result.
    pub(super) reads_nchw: bool,
    pub(super) writes_nchw: bool,
    pub(super) is_copied: bool,
    /// Extents of a copy.
    copy: [i64; 3],
    /// True if accumulators start with the first row of a panel of weights.
    pub(super) has_initial_row: bool,
    /// Columns of a panel of weights, and panels of a group.
    pub(super) panel: i64,
    pub(super) panels: i64,
    /// Images, extents and channels of a block.
    pub(super) images: i64,
    pub(super) block: [i64; 3],
    pub(super) channels: i64,
    /// The columns whose weights stay in the second-level cache while positions pass.
    pub(super) hot: i64,
    /// Lines and positions of a register tile.
    pub(super) rows: [i64; 2],
    /// True if the next register tile of a call is the one below, not the next one to the right.
    pub(super) is_down: bool,
    /// The epilogue that is applied to accumulators while they are in registers.
    pub(super) register_epilogue: Option<Arc<RegisterEpilogue>>,
}

/// True if lines are copied with their padding, and a gradient of images is one convolution for each stride offset.
fn copies_lines(c: &Conv) -> bool {
    let axes = &c.geometry.axes;
    let phases = axes.iter().map(|a| a.stride.min(a.input.max(1)));
    let few = phases.fold(1i64, i64::saturating_mul) <= PHASES;
    c.geometry.is_near() && (few || c.role != ConvRole::Input)
}

/// A phase of each axis.
pub(super) struct PhasePart {
    phases: [usize; 3],
    /// The number of taps in the preceding parts.
    pub before: i64,
    /// The offset of each run of K from the first, in bytes.
    pub taps: Vec<i64>,
    /// The register tiles.
    pub grid: TileGrid,
}

impl Blocking {
    pub(in crate::kernels::conv) fn new(
        c: &Conv,
        [reads_nchw, writes_nchw]: [bool; 2],
        register_epilogue: Option<Arc<RegisterEpilogue>>,
        tap_by_tap: bool,
    ) -> Result<Blocking> {
        let is_input = c.role == ConvRole::Input;
        let (terms, columns) = match is_input {
            true => (c.cout, c.cin),
            false => (c.cin, c.cout),
        };
        let (mut batch, mut axes) = (c.batch, c.geometry.axes);
        if c.geometry.is_pointwise() && !reads_nchw && !writes_nchw {
            // All positions form one line.
            let all = batch * c.geometry.outputs();
            let [_, _, line] = &mut axes;
            (batch, line.input, line.output) = (1, all, all);
            (axes[0], axes[1]) = (Axis::ONE, Axis::ONE);
        }
        if c.groups * c.cin * c.cout == 0 {
            axes.iter_mut().for_each(|a| a.kernel = 0);
        }
        let (inputs, outputs) = (axes.map(|a| a.input), axes.map(|a| a.output));
        let (image, result) = match is_input {
            true => (outputs, inputs),
            false => (inputs, outputs),
        };
        let panel = c
            .schedule
            .panel_columns(c.level, c.terms.instruction, columns);
        let mut blocking = Blocking {
            groups: c.groups,
            terms,
            words: c.terms.words(terms),
            columns,
            sizes: [c.terms.size(), c.dtype.size() as i64],
            batch,
            image,
            result,
            phases: Default::default(),
            parts: vec![],
            taps: vec![],
            axes,
            tap_by_tap: tap_by_tap || !copies_lines(c),
            reads_nchw,
            writes_nchw,
            is_copied: false,
            copy: [0; 3],
            has_initial_row: c.terms.is_flipped(),
            panel,
            panels: ceil(columns, panel),
            images: 1,
            block: [1; 3],
            channels: columns.max(1),
            hot: panel,
            rows: [1; 2],
            is_down: false,
            register_epilogue,
        };
        let is_some = batch * c.groups * columns * result.iter().product::<i64>() > 0;
        if blocking.tap_by_tap {
            blocking.register_epilogue = None;
            blocking.taps = (0..axes.iter().map(|a| a.kernel).product()).collect();
            blocking.block = [1, 1, result[2].clamp(1, LINE)];
            return Ok(blocking);
        }
        // Panels do not depend on the images.
        blocking.phases = axes.each_ref().map(|a| Phase::all(a, c.role));
        blocking.place_taps(axes);
        if is_some {
            blocking.choose_sizes(c)?;
            blocking.link(c)?;
        }
        Ok(blocking)
    }

    /// Places the taps of a filter in a panel, those of each part consecutively.
    fn place_taps(&mut self, axes: [Axis; 3]) {
        let [_, high, wide] = axes.map(|a| a.kernel);
        self.taps = vec![-1; axes.iter().map(|a| a.kernel).product::<i64>() as usize];
        let mut next = 0;
        for [d, h, w] in self.all_parts() {
            for kd in &self.phases[0][d].taps {
                for kh in &self.phases[1][h].taps {
                    for kw in &self.phases[2][w].taps {
                        self.taps[((kd * high + kh) * wide + kw) as usize] = next;
                        next += 1;
                    }
                }
            }
        }
    }

    fn all_parts(&self) -> Vec<[usize; 3]> {
        let [d, h, w] = self.phases.each_ref().map(Vec::len);
        let at = |i: usize| [i / w / h, i / w % h, i % w];
        (0..d * h * w).map(at).collect()
    }

    /// Chooses the sizes that the schedule leaves open: rows of register tiles, blocks, and copies of images.
    fn choose_sizes(&mut self, c: &Conv) -> Result<()> {
        let [_, h, w] = self.phases.each_ref();
        let vectors = self.panel / i64::from(lanes(c.level, c.dtype));
        let most = max_rows(c.level, c.terms.instruction, vectors as u8);
        let most = c.schedule.rows(most);
        let across = even_rows(w[0].axis.output, most);
        let spans = [0, 1, 2].map(|i| window(&self.phases[i], 0, self.result[i]));
        let padded = (0..3).any(|i| spans[i].0 < 0 || spans[i].1 > self.image[i]);
        let converts = c.narrow && c.terms.converts(0);
        self.is_copied = padded || self.reads_nchw || converts || self.terms % c.terms.count() != 0;
        self.is_down = w.iter().all(|p| p.axis.output <= across);
        let by_tiles = c.terms.instruction.has_tiles();
        let lines = match by_tiles {
            // Rows of an AMX tile have one stride, also from one line to the next.
            true => {
                let width = match self.is_copied {
                    true => spans[2].1 - spans[2].0,
                    false => self.image[2],
                };
                let (line, step) = (h[0].axis.stride.saturating_mul(width), w[0].axis.stride);
                // Results of padding alone may have more positions than the images.
                match self.is_down && line % step == 0 && line / step >= across {
                    true => 1 + (i64::from(most) - across) / (line / step),
                    false => 1,
                }
            }
            false => i64::from(most) / across,
        };
        let down = even_rows(h[0].axis.output, lines as u8);
        self.rows = [down, across];
        // Blocks are lines of a plane, or parts of its only line.
        let [deep, height, width] = self.result;
        let (axis, beside, unit) = match height {
            1 => (2, 1, across * w[0].step),
            _ => (1, width, down * h[0].step),
        };
        let all = self.result[axis];
        let mut part = ceil(all, ceil(BLOCKS, self.batch * deep));
        if c.prologue.is_none() || c.whole_prologue {
            // Images from a prologue are not recomputed for other channels.
            part = part.max(ceil(TILES * down * across, beside));
        }
        let weights = self.panels * self.panel * self.panel_rows();
        let near = NEAR_IMAGES / self.words.max(1);
        let is_far = by_tiles && weights >= FAR_WEIGHTS && c.prologue.is_none();
        if is_far && !self.is_copied {
            part = part.max(near / beside.max(1));
        }
        if self.is_copied {
            let plane = window(&self.phases[0], 0, 1);
            let other = spans[3 - axis];
            let each = product(&[plane.1 - plane.0, other.1 - other.0, self.words])?;
            let span = (spans[axis].1 - spans[axis].0).max(1);
            part = part.min(product(&[COPY / each.max(1), all])? / span);
        }
        let part = match c.schedule.block_rows() {
            Some(rows) => ceil(rows, beside.max(1)).min(all),
            None => ceil(all, ceil(all, part.max(1))),
        };
        self.block[2] = width;
        self.block[axis] = (ceil(part, unit) * unit).min(all);
        let blocks: i64 = [0, 1, 2].map(|i| self.blocks(i)).iter().product();
        let is_whole = blocks == 1 && self.register_epilogue.is_some() && !self.checks_finite(c);
        if is_far && is_whole {
            let span = spans.map(|(from, until)| until - from);
            self.images = (near / product(&span)?.max(1)).clamp(1, self.batch);
        }
        let blocks = blocks * ceil(self.batch, self.images) * self.groups;
        let ranges = ceil(BLOCKS, blocks).min(self.panels);
        let panels = match c.schedule.block_columns() {
            Some(columns) => ceil(columns, self.panel),
            None => ceil(self.panels, ranges),
        };
        self.channels = panels.saturating_mul(self.panel).min(self.columns);
        let terms = self.words * self.taps.len() as i64;
        self.hot = (HOT_WEIGHTS / terms.max(1) / self.panel).max(1) * self.panel;
        if self.is_copied {
            self.copy = [0, 1, 2].map(|i| self.widest(i));
            let [deep, high, wide] = self.copy;
            product(&[deep, high, wide, self.words.max(1), 8, self.images])?;
        }
        Ok(())
    }

    /// Returns the extent of the widest window of a block.
    fn widest(&self, i: usize) -> i64 {
        let windows = (0..self.result[i])
            .step_by(self.block[i] as usize)
            .map(|from| {
                let end = (from + self.block[i]).min(self.result[i]);
                let (from, end) = window(&self.phases[i], from, end);
                end - from
            });
        windows.max().unwrap_or(0)
    }

    fn link(&mut self, c: &Conv) -> Result<()> {
        let at = self.all_parts();
        let runs = at.iter().map(|at| self.runs(*at));
        let runs: Vec<(Vec<i64>, i64)> = runs.collect();
        for run in &runs {
            if !self.tile(c, run)?.is_emitted() {
                self.register_epilogue = None;
                self.images = 1;
            }
        }
        let mut before = 0;
        for (at, run) in at.into_iter().zip(runs) {
            let [d, h, w] = [0, 1, 2].map(|i| &self.phases[i][at[i]].axis);
            let count = d.kernel * h.kernel * w.kernel;
            let extents = [h.output, w.output, self.columns];
            let order = Order {
                is_down: self.is_down,
                is_by_tile: true,
            };
            self.parts.push(PhasePart {
                phases: at,
                before,
                grid: TileGrid::new(&self.tile(c, &run)?, extents, order)?,
                taps: run.0,
            });
            before += count;
        }
        Ok(())
    }

    /// Returns the offsets of a part's runs of K, in bytes from the first, and the length of each run in steps of K.
    fn runs(&self, at: [usize; 3]) -> (Vec<i64>, i64) {
        let axes = [0, 1, 2].map(|i| self.phases[i][at[i]].axis);
        let strides = self.strides();
        let [d, h, mut w] = axes.map(|a| a.kernel);
        let mut steps = self.words;
        if axes[2].dilation == 1 && strides[2] == self.words * self.sizes[1] && w > 0 {
            // The taps of a line are contiguous.
            (w, steps) = (1, w * steps);
        }
        let step = |i: usize| axes[i].dilation * strides[i];
        let step = [step(0), step(1), step(2)];
        let run = |i: i64| i / w / h * step[0] + i / w % h * step[1] + i % w * step[2];
        ((0..d * h * w).map(run).collect(), steps)
    }

    /// Returns a whole register tile.
    fn tile(&self, c: &Conv, (taps, steps): &(Vec<i64>, i64)) -> Result<Tile> {
        let [down, across] = self.rows;
        let size = self.sizes[1];
        let [_, h, w] = [0, 1, 2].map(|i| self.phases[i].first());
        let stride = |p: Option<&Phase>| p.map_or([1, 1], |p| [p.axis.stride, p.step]);
        let ([h, high], [w, wide]) = (stride(h), stride(w));
        let strides = self.strides();
        let pitch = match c.epilogue {
            _ if self.writes_nchw => self.channels,
            Some(_) => self.channels,
            None => self.groups * self.columns,
        };
        let panel = self.panel * self.panel_rows();
        let rows = Rows {
            count: (down * across) as u8,
            across: across as u8,
            left: [w * strides[2], h * strides[1]],
            result: [wide, high * self.result[2]],
        };
        let ahead = match panel * self.panels > HOT_WEIGHTS {
            true => panel * size,
            false => 0,
        };
        let right = RightSide {
            ahead,
            ..RightSide::of_panel(self.panel * size)
        };
        let (by, columns) = (c.terms.instruction, self.panel.min(self.columns));
        Ok(Tile {
            step: size,
            steps: to_u32(*steps)?,
            taps: to_u32(taps.len() as i64)?,
            out: pitch * size,
            has_initial_row: c.terms.is_flipped(),
            strip: match self.is_down {
                true => [h * strides[1], high * self.result[2]].map(|n| n * down),
                false => [w * strides[2], wide].map(|n| n * across),
            },
            epilogue: self.register_epilogue.clone(),
            ..Tile::new((c.level, by), rows, columns, right)
        })
    }

    /// True if weights that are not finite must not meet padding: in a gradient of images padding contributes nothing.
    pub(super) fn checks_finite(&self, c: &Conv) -> bool {
        c.role == ConvRole::Input
    }

    /// Returns the bounds of the images that the results of a block read; these may include padding.
    pub(super) fn windows(&self, from: [i64; 3], to: [i64; 3]) -> [(i64, i64); 3] {
        [0, 1, 2].map(|i| match self.tap_by_tap {
            true => (0, self.image[i]),
            false => window(&self.phases[i], from[i], to[i]),
        })
    }

    /// Returns the number of blocks of an axis.
    pub(super) fn blocks(&self, i: usize) -> i64 {
        ceil(self.result[i], self.block[i])
    }

    /// Returns the number of ranges of channels.
    pub(super) fn ranges(&self) -> i64 {
        ceil(self.columns, self.channels)
    }

    pub(super) fn items(&self) -> i64 {
        let blocks = [0, 1, 2].map(|i| self.blocks(i));
        let images = ceil(self.batch, self.images);
        blocks.iter().product::<i64>() * images * self.groups * self.ranges()
    }

    /// Returns the number of multiply-adds of a block.
    pub(super) fn cost(&self) -> i64 {
        let results = self.images * self.block.iter().product::<i64>() * self.channels;
        let terms = self.taps.len() as i64 * self.words / self.parts.len().max(1) as i64;
        results.saturating_mul(terms.max(1))
    }

    /// Returns the rows and columns of a register tile, and true if the epilogue is applied there.
    pub(in crate::kernels::conv) fn register_tile(&self) -> ([i64; 2], bool) {
        let [lines, positions] = self.rows;
        (
            [lines * positions, self.panel],
            self.register_epilogue.is_some(),
        )
    }

    /// Returns the positions and channels of a block.
    pub(in crate::kernels::conv) fn block_sizes(&self) -> [i64; 2] {
        [
            self.images * self.block.iter().product::<i64>(),
            self.channels,
        ]
    }

    /// Returns the number of elements of the packed weights, including a flag at the end.
    pub(in crate::kernels::conv) fn packed(&self) -> i64 {
        self.panel_at(self.groups, 0) + 1
    }

    /// Returns the offset of the panel of a group's column.
    pub(super) fn panel_at(&self, group: i64, column: i64) -> i64 {
        let panel = group * self.panels + column / self.panel;
        panel * self.panel_rows() * self.panel
    }

    /// Returns the number of rows of a panel: those of taps, and a first one that accumulators start with, if any.
    pub(super) fn panel_rows(&self) -> i64 {
        self.taps.len() as i64 * self.words + i64::from(self.has_initial_row)
    }

    /// Returns the number of elements of the copy that a block reads of one image.
    pub(super) fn copied_image(&self) -> i64 {
        self.copy.iter().product::<i64>() * self.words
    }

    /// Returns the number of elements of a copy.
    pub(super) fn copied(&self) -> i64 {
        self.images * self.copied_image()
    }

    /// Returns the number of elements of a block's results that are still to be transposed.
    pub(super) fn results(&self) -> i64 {
        match self.writes_nchw {
            true => self.block.iter().product::<i64>() * self.channels,
            false => 0,
        }
    }

    /// Returns the strides of planes, lines and positions that tiles read, in bytes.
    pub(super) fn strides(&self) -> [i64; 3] {
        match self.is_copied {
            true => distances(self.copy, self.words * self.sizes[1]),
            false => self.image_strides().map(|n| n * self.sizes[0]),
        }
    }

    pub(super) fn image_strides(&self) -> [i64; 3] {
        match self.reads_nchw {
            true => distances(self.image, 1),
            false => distances(self.image, self.groups * self.terms),
        }
    }

    /// Returns the stride between channels of an image.
    pub(super) fn channel_stride(&self) -> i64 {
        match self.reads_nchw {
            true => self.image.iter().product(),
            false => 1,
        }
    }

    /// Returns the number of elements of an image.
    pub(super) fn image_len(&self) -> i64 {
        self.image.iter().product::<i64>() * self.groups * self.terms
    }

    /// Returns the index of a position among all positions of the result.
    pub(super) fn position(&self, image: i64, [d, h, w]: [i64; 3]) -> i64 {
        let [deep, height, width] = self.result;
        ((image * deep + d) * height + h) * width + w
    }

    pub(super) fn phases_of(&self, part: &PhasePart) -> [&Phase; 3] {
        [0, 1, 2].map(|i| &self.phases[i][part.phases[i]])
    }

    /// True if a part has results in a plane.
    pub(super) fn is_at(&self, part: &PhasePart, plane: i64) -> bool {
        let (from, to) = self.phases[0][part.phases[0]].within(plane, plane + 1);
        from < to
    }
}

/// Converts a number of steps of K or taps.
pub(super) fn to_u32(n: i64) -> Result<u32> {
    u32::try_from(n).map_err(|_| damaged!("a sum of {n} terms"))
}

/// Returns the strides of planes, lines and positions.
fn distances([_, high, wide]: [i64; 3], position: i64) -> [i64; 3] {
    [high * wide * position, wide * position, position]
}
