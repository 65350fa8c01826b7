//! Register tiles of a contraction: some rows by some vectors of columns, accumulated over K.
//!
//! `out[r, j] = Σ_t Σ_s a[t, r, s] · b[t, s, j]`. Elements of A are broadcast to vectors one by one, vectors of B are
//! contiguous, and all accumulators of a tile stay in registers. An element is summed in the order of K, for any
//! tile.

use super::epilogue::RegisterEpilogue;
use super::footprint::Footprint;
use kiln_base::{DType, Features, Instruction};
use kiln_kernel::affine::ceil;
use kiln_kernel::view::span;
use kiln_plan::schedule::{MAX_VECTORS, TILE, TILE_VECTORS, VECTORS, lanes};
use std::ops::Range;
use std::sync::Arc;

/// A register tile, for known sizes. All strides are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    pub level: Features,
    /// The instruction that multiplies: a step of K is an element of f32, f64, i32 or i64, or the terms of a word. If
    /// AMX tiles can't read the rows, it is [that of vectors](Instruction::in_vectors).
    pub instruction: Instruction,
    pub rows: Rows,
    /// The columns; lanes of the last vector beyond them are neither read nor written.
    pub columns: u16,
    /// The stride of steps of A.
    pub step: i64,
    pub right: RightSide,
    /// The steps of K per tap, and the taps. If there are several taps, a list gives their offsets.
    pub steps: u32,
    pub taps: u32,
    /// The stride of rows of the result.
    pub out: i64,
    /// True if sums are added to the previous contents of the result.
    pub adds: bool,
    /// True if accumulators start with the row that precedes the first step of B; never together with `adds`.
    pub has_initial_row: bool,
    /// The stride of tiles of a call, if a call has [several](Tile::max_tiles): in bytes of A, and in rows of the
    /// result. Zeros if a call never has several.
    pub strip: [i64; 2],
    /// The epilogue on the accumulators, which then writes its own results.
    pub epilogue: Option<Arc<RegisterEpilogue>>,
}

/// The B of a tile: a row of vectors for each step of K, with the taps contiguous.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RightSide {
    /// The stride of steps.
    pub step: i64,
    /// True if there are whole vectors, for any number of columns.
    pub padded: bool,
    /// The 16-bit float dtype of B, if it is not what is multiplied: elements are widened as they are loaded, in whole
    /// vectors.
    pub half_dtype: Option<DType>,
    /// The stride of its panels of [`VECTORS`] vectors each, if it has several; otherwise 0.
    pub panel: i64,
    /// The distance at which more of B is prefetched, for later tiles; 0 for no prefetch.
    pub ahead: i64,
}

impl RightSide {
    /// Returns B in place in a matrix.
    pub fn of_matrix(step: i64) -> RightSide {
        RightSide {
            step,
            padded: false,
            half_dtype: None,
            panel: 0,
            ahead: 0,
        }
    }

    /// Returns a panel of whole vectors.
    pub fn of_panel(step: i64) -> RightSide {
        RightSide {
            padded: true,
            ..RightSide::of_matrix(step)
        }
    }
}

/// The rows of a tile: `across` side by side in each line, of which the last may have fewer.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    pub count: u8,
    pub across: u8,
    /// The strides of rows and of lines of A.
    pub left: [i64; 2],
    /// The strides of rows and of lines, in rows of the result.
    pub result: [i64; 2],
}

impl Rows {
    /// Returns the rows of a matrix.
    pub fn of_matrix(count: i64, stride: i64) -> Rows {
        Rows {
            count: count as u8,
            across: count as u8,
            left: [stride, 0],
            result: [1, 0],
        }
    }

    fn offset(&self, row: u8, [row_stride, line_stride]: [i64; 2]) -> i64 {
        let across = self.across.max(1);
        i64::from(row % across) * row_stride + i64::from(row / across) * line_stride
    }

    /// Returns the minimum and the maximum offset of all rows with these strides.
    pub(super) fn ends(&self, strides: [i64; 2]) -> [i64; 2] {
        // Rows are even along a line, and from line to line. So the extremes are at the ends of the first line, of the
        // last whole one, and of the last.
        let across = self.across.max(1);
        let last = self.count.saturating_sub(1);
        let line = last / across * across;
        let corners = [(across - 1).min(last), line.saturating_sub(1), line, last];
        let first = self.offset(0, strides);
        let all = corners.map(|row| self.offset(row, strides));
        all.into_iter().fold([first; 2], |[min, max], offset| {
            [min.min(offset), max.max(offset)]
        })
    }

    /// Returns the offset of a row of A.
    pub(super) fn left(&self, row: u8) -> i64 {
        self.offset(row, self.left)
    }

    /// Returns the row of an AMX tile that holds a row; rows between two lines are in the tile too.
    pub(super) fn of_register(&self, row: u8) -> i64 {
        let line = match self.left[0] {
            0 => self.across.into(),
            stride => self.left[1] / stride,
        };
        self.offset(row, [1, line])
    }

    /// True if the distances of its rows allow AMX tiles to hold them.
    fn fit_register(&self) -> bool {
        let [stride, line] = self.left;
        let across = i64::from(self.across.max(1));
        let is_regular = match stride {
            0 => line == 0,
            _ => stride > 0 && line % stride == 0 && line >= stride * across,
        };
        let is_regular = is_regular || self.count <= self.across;
        is_regular && self.count > 0 && self.of_register(self.count - 1) < i64::from(TILE)
    }

    /// Returns the row of the result.
    pub(super) fn result(&self, row: u8) -> i64 {
        self.offset(row, self.result)
    }

    /// Returns the largest offset of a row from the first, in bytes of A and in rows of the result.
    fn farthest(&self) -> [i64; 2] {
        let lines = self.count.div_ceil(self.across.max(1));
        [self.left, self.result].map(|[row_stride, line_stride]| {
            let span =
                |n: u8, row_stride: i64| i64::from(n).saturating_mul(row_stride.saturating_abs());
            span(self.across, row_stride).saturating_add(span(lines, line_stride))
        })
    }
}

/// The arguments of a tile's function.
#[repr(C)]
pub struct Call {
    /// The first row of A.
    pub left: *const u8,
    pub right: *const u8,
    pub out: *mut u8,
    /// The addresses of the epilogue's accesses for the first accumulator.
    pub accesses: *const *mut u8,
    /// The offset of each tap from the first row, if there are several.
    pub taps: *const i64,
    /// The number of tiles to compute.
    pub tiles: u64,
}

/// The maximum number of tiles of a call with AMX.
pub(super) const MAX_TILES: i64 = 16;

/// Returns the number of rows of a tile if there are `total` rows and a tile has at most `max`: tiles are balanced.
#[inline]
pub fn even_rows(total: i64, max: u8) -> i64 {
    let total = total.max(1);
    ceil(total, ceil(total, i64::from(max)))
}

/// Returns a readable description of a register tile of this size, limited to what the level's registers hold.
pub fn shown(
    level: Features,
    by: Instruction,
    [rows, columns]: [i64; 2],
    has_epilogue: bool,
) -> String {
    let lanes = i64::from(lanes(level, by.sums));
    let vectors = ceil(columns.max(1), lanes);
    let register_count = match level.width() {
        Features::BASELINE => return "one portable loop".into(),
        _ if by.has_tiles() => 8,
        Features::AVX512 => 32,
        _ => 16,
    };
    let mut sums = rows.max(1) * vectors;
    if by.has_tiles() {
        sums = vectors;
    }
    let epilogue = if has_epilogue {
        " with the epilogue"
    } else {
        ""
    };
    format!(
        "register tiles of {rows}x{columns} accumulators in {sums} of {register_count} registers{epilogue}"
    )
}

impl Tile {
    /// Returns a tile of one step of K, whose sums start at zero and go to memory.
    pub fn new(
        (level, instruction): (Features, Instruction),
        rows: Rows,
        columns: i64,
        right: RightSide,
    ) -> Tile {
        Tile {
            level,
            instruction,
            rows,
            columns: columns as u16,
            step: 0,
            right,
            steps: 1,
            taps: 1,
            out: 0,
            adds: false,
            has_initial_row: false,
            strip: [0; 2],
            epilogue: None,
        }
    }

    /// Returns a readable name, which distinguishes it from others of its kind.
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    pub(super) fn name(&self, kind: &str) -> String {
        let (level, by, rows) = (self.level, self.instruction, self.rows.count);
        let (columns, taps, steps) = (self.columns, self.taps, self.steps);
        let epilogue = self.epilogue.as_ref().map_or("", |_| ", with an epilogue");
        format!("{kind}, {level:?} {by:?} {rows}x{columns}, {taps} x {steps} steps{epilogue}")
    }

    /// Returns the size of a lane of B in bytes.
    pub(super) fn right_size(&self) -> usize {
        self.right
            .half_dtype
            .unwrap_or(self.instruction.sums)
            .size()
    }

    /// Returns the offset of a vector of a step of B from the first.
    pub(super) fn right_vector(&self, vector: u8) -> i64 {
        let bytes = i64::from(lanes(self.level, self.instruction.sums)) * self.right_size() as i64;
        let vector = i64::from(vector);
        match self.right.panel {
            0 => vector * bytes,
            stride => vector / VECTORS * stride + vector % VECTORS * bytes,
        }
    }

    /// Returns the maximum number of tiles that a call may compute.
    #[inline]
    pub fn max_tiles(&self) -> i64 {
        let has_several = self.strip != [0; 2] && self.is_by_tiles() && self.is_emitted();
        if has_several { MAX_TILES } else { 1 }
    }

    /// True if its accumulators are AMX tiles: rows with even strides and contiguous words.
    pub(super) fn is_by_tiles(&self) -> bool {
        let vectors = i64::from(
            self.columns
                .div_ceil(lanes(self.level, self.instruction.sums)),
        );
        self.instruction.has_tiles()
            && self.rows.fit_register()
            && vectors <= TILE_VECTORS
            && self.step == 4
            && self.right.padded
            && self.right.panel == 0
            && !(self.adds && self.epilogue.is_some())
    }

    /// Returns the bytes that a call accesses.
    pub(super) fn footprint(&self) -> Footprint {
        let (columns, steps) = (i64::from(self.columns), i64::from(self.steps));
        let word = self.instruction.sums.size() as i64;
        let rows = self.rows.ends(self.rows.result);
        let out = [rows[0], rows[1]].map(|row| row.saturating_mul(self.out));
        let total_steps = steps * i64::from(self.taps);
        let left = match total_steps {
            0 => [0; 2],
            _ => {
                let rows = self.rows.ends(self.rows.left);
                let [min, max] = span([(steps, self.step)]);
                [rows[0] + min, rows[1] + max - 1 + word]
            }
        };
        let right = match total_steps + i64::from(self.has_initial_row) {
            0 => [0; 2],
            rows => {
                let [min, max] = span([(rows, self.right.step)]);
                [min, max - 1 + self.right_bytes()]
            }
        };
        let [left_strip, row_strip] = self.strip;
        Footprint {
            left,
            right,
            out: [out[0].min(out[1]), out[0].max(out[1]) + columns * word],
            rows: [rows[0], rows[1] + 1],
            columns,
            strip: [left_strip, row_strip.saturating_mul(self.out), row_strip],
            taps: if self.taps > 1 { self.taps as usize } else { 0 },
            weights: None,
        }
    }

    /// Returns the bytes of a step of B that are read.
    pub(super) fn right_bytes(&self) -> i64 {
        let lanes = lanes(self.level, self.instruction.sums);
        let last = self.columns.max(1).div_ceil(lanes) - 1;
        let is_padded = self.right.padded || self.right.half_dtype.is_some();
        let count = if is_padded {
            lanes
        } else {
            self.columns - last * lanes
        };
        self.right_vector(last as u8) + i64::from(count) * self.right_size() as i64
    }

    /// True if code is emitted for the level, and all strides fit into instructions.
    pub fn is_emitted(&self) -> bool {
        let is_here = cfg!(all(target_arch = "x86_64", not(portable), unix));
        if !self.level.contains(self.instruction.emitted_from) || !is_here {
            return false;
        }
        let steps = i64::from(self.steps);
        let fits = |n: i64| i32::try_from(n).is_ok();
        let [left, result] = self.rows.farthest();
        let farthest = result.max(self.strip[1].saturating_abs());
        let locations =
            (self.epilogue.iter()).all(|f| fits(farthest.saturating_mul(f.farthest_row())));
        locations
            && fits(left.saturating_add(8i64.saturating_mul(self.step.saturating_abs())))
            && fits(steps.saturating_mul(self.step))
            && fits(self.right.ahead)
            && fits(
                8i64.saturating_mul(self.right.step)
                    .saturating_add(self.right.panel.saturating_mul(MAX_VECTORS)),
            )
            && fits(farthest.saturating_mul(self.out))
            && fits(self.strip[0])
    }
}

/// Returns the starts of calls, and the number of register tiles of each: whole tiles of `extent`, at most `max` of
/// them, and one for the remainder at the end.
pub fn strips(range: Range<i64>, extent: i64, max: i64) -> impl Iterator<Item = (i64, i64)> {
    let mut next = range.start;
    std::iter::from_fn(move || {
        let start = next;
        let tiles = match max {
            1 => 1,
            max => ((range.end - start) / extent).clamp(1, max),
        };
        next += tiles * extent;
        (start < range.end).then_some((start, tiles))
    })
}
