//! Products whose right matrix is packed: panels of columns, each of which lies in memory in the order in which
//! register tiles read it. A right matrix that depends on parameters alone is packed in *prepare*.

use super::{Args, Block, Made, MatMul, Work, run_blocks, split};
use crate::error::Result;
use crate::memory::{Storage, room};
use crate::simd::compiled;
use crate::sums::{Lane, RegisterSums, Sums, rows_of};
use crate::tile::Failures;
use crate::tile::affine::ceil;
use kiln_base::DType;
use kiln_plan::cost::Behind;

/// Columns of a panel: whole vectors at every level, and as many as a register tile has.
const PANEL: i64 = 48;
/// Multiply-adds of a block.
const BLOCK_WORK: i64 = 1 << 19;
/// The most register tiles of a block, one below the other: these and a panel stay in the second-level cache.
const BLOCK_TILES: i64 = 8;
/// Rows that reading an element of the right matrix costs as much as, where there are fewer.
const READ_ROWS: i64 = 8;

impl MatMul {
    fn panels_across(&self) -> i64 {
        ceil(self.n, PANEL)
    }

    /// Elements of the packed matrix.
    pub(super) fn packed_elements(&self) -> i64 {
        self.panels_across() * PANEL * self.k
    }

    /// Bytes of the right matrix once it is packed; none where it never is. Where another algorithm computes it for
    /// these sizes, what is packed in *prepare* is for other runs.
    pub(crate) fn packed_bytes(&self) -> Option<usize> {
        let bytes = self.packed_elements() as usize * self.dtype.size();
        (self.packable && bytes > 0).then_some(bytes)
    }

    /// The argument that is packed.
    pub(crate) fn right(&self) -> usize {
        self.rhs.arg
    }

    /// Packs the right matrix.
    ///
    /// # Safety
    /// `from` is the operand that it was linked for; `to` has room for [`MatMul::packed_bytes`].
    pub(crate) unsafe fn pack(&self, from: *mut u8, to: *mut u8, parallel: bool) {
        // SAFETY: the caller's; the dtype was checked.
        unsafe {
            match self.dtype {
                DType::F64 => self.pack_typed::<f64>(from, to, parallel),
                _ => self.pack_typed::<f32>(from, to, parallel),
            }
        }
    }

    unsafe fn pack_typed<T: Lane>(&self, from: *mut u8, to: *mut u8, parallel: bool) {
        let args = Args(&[from, to]);
        let work = PANEL * self.k * READ_ROWS;
        split(self.panels_across(), work, parallel, |first, until| {
            let args = &args;
            let [from, to] = [args.0[0], args.0[1]].map(|p| p.cast::<T>());
            let from = from.wrapping_offset(self.rhs.offset as isize);
            for panel in first..until {
                let to = to.wrapping_offset((panel * PANEL * self.k) as isize);
                for at in 0..self.k * PANEL {
                    let (k, j) = (at / PANEL, panel * PANEL + at % PANEL);
                    // SAFETY: linking proved the operand within its buffer; panels are apart.
                    unsafe {
                        *to.offset(at as isize) = match j < self.n {
                            true => *from.offset((k * self.rhs.row + j * self.rhs.col) as isize),
                            false => T::ZERO,
                        };
                    }
                }
            }
        });
    }

    /// Runs a product by [`Algorithm::Packed`](kiln_plan::Algorithm::Packed).
    ///
    /// # Safety
    /// As [`MatMul::run`].
    pub(super) unsafe fn by_packed<T: Lane>(
        &self,
        args: &[*mut u8],
        packed: Option<*mut u8>,
        parallel: bool,
        failures: &Failures,
    ) {
        let mut storage = None;
        let packed = match packed {
            Some(packed) => packed,
            None => match room::<T>(&mut storage, self.packed_elements()) {
                Ok(room) => {
                    // SAFETY: the caller's; there is room.
                    unsafe { self.pack(args[self.rhs.arg], room.cast(), parallel) };
                    room.cast()
                }
                Err(e) => return failures.broken(e),
            },
        };
        let whole = self.behind == Behind::Rows || self.lhs.made.is_some();
        let most = BLOCK_TILES * rows_of(self.level);
        let rows = match whole {
            true => self.whole_rows(most),
            false => self.m.clamp(1, most),
        };
        let panel_work = rows.max(READ_ROWS) * PANEL * self.k.max(1);
        let across = self.panels_across().max(1);
        let panels = match whole {
            true => across,
            false => (BLOCK_WORK / panel_work).clamp(1, across),
        };
        let cut = (rows, panels * PANEL);
        let launch = (self.epilogue.as_ref(), args, parallel, failures);
        let packed = Args(&[packed]);
        // SAFETY: the caller's; blocks write different places.
        run_blocks(
            (self.blocks_of(cut), panels * panel_work),
            launch,
            |i, args, scratch, work| unsafe {
                let (packed, block) = (&packed, self.block_of(cut, i));
                self.packed_block::<T>(args, packed.0[0].cast(), &block, scratch, work)
            },
        );
    }

    unsafe fn packed_block<T: Lane>(
        &self,
        args: &[*mut u8],
        packed: *const T,
        b: &Block,
        (flat, made): &mut (Option<Storage>, Made),
        work: &mut Work,
    ) -> Result<()> {
        // Blocks begin with a panel.
        let panels = ceil(b.cols, PANEL);
        let first = (b.batch * self.m + b.row) * self.n + b.col;
        // Where the results belong, unless more follows.
        let out = match self.epilogue {
            Some(_) => None,
            None => Some(args[self.out].cast::<T>().wrapping_offset(first as isize)),
        };
        let (dst, pitch) = match out {
            Some(out) if b.cols % PANEL == 0 => (out, self.n),
            _ => {
                let pitch = panels * PANEL;
                (room::<T>(flat, b.rows * pitch)?, pitch)
            }
        };
        // SAFETY: linking proved the operands within their buffers; the results have room for whole panels.
        unsafe {
            let rows = (b.batch, b.row, b.rows);
            let (lhs, down, across) = self.rows::<T>(args, rows, made, work.failures)?;
            let (run, tile) = (
                compiled::<RegisterSums<T>, _>(self.level),
                rows_of(self.level),
            );
            for panel in 0..panels {
                let at = (b.col + panel * PANEL) * self.k;
                for row in (0..b.rows).step_by(tile as usize) {
                    run(Sums {
                        x: packed.wrapping_offset(at as isize),
                        x_pitch: PANEL as isize,
                        channels: self.k as isize,
                        taps: &[0],
                        weights: lhs.wrapping_offset((row * down) as isize),
                        weight_row: down as isize,
                        weight_step: across as isize,
                        rows: tile.min(b.rows - row) as usize,
                        positions: PANEL as usize,
                        dst: dst.wrapping_offset((row * pitch + panel * PANEL) as isize),
                        pitch: pitch as usize,
                    });
                }
            }
            if let Some(out) = out.filter(|out| *out != dst) {
                for row in 0..b.rows {
                    let from = dst.offset((row * pitch) as isize);
                    let to = out.offset((row * self.n) as isize);
                    std::ptr::copy_nonoverlapping(from, to, b.cols as usize);
                }
            }
            work.finish((dst, pitch), first, (b.rows, self.n), b.cols);
        }
        Ok(())
    }
}
