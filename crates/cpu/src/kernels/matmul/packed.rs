//! Products with a packed B: panels of columns, each in the order in which micro-kernels read it. A B that depends on
//! parameters alone is packed in *prepare*.

use super::narrow::Wide;
use super::{Args, EpilogueRunner, MatMul, Materialised, ProductBlock, run_blocks, split};
use kiln_base::DType;
use kiln_jit::contraction::{
    Accesses, Call, Kernels, RightSide, Rows, Tile, even_rows, pack, strips,
};
use kiln_kernel::affine::ceil;
use kiln_kernel::bugs::bug;
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failures;
use kiln_kernel::memory::{Storage, room};
use kiln_kernel::sums::Lane;
use kiln_kernel::work::packed_weights;
use kiln_plan::cost::ProductEpilogue;
use kiln_plan::schedule::{MOST_VECTORS, TILE, VECTORS, lanes, most_rows};

/// The multiply-adds of a block.
const BLOCK_WORK: i64 = 1 << 20;
/// The most register tiles of a block, one below the other: these and a panel stay in the second-level cache.
const BLOCK_TILES: i64 = 8;
/// The same for AMX: the number of tiles of a call.
const BLOCK_STRIP: i64 = 16;
/// The most results whose accumulators are all kept in memory until an epilogue on whole rows, with AMX. Threads then
/// divide B among them, which is read from far memory, instead of the rows.
const WAITING_SUMS: i64 = 1 << 19;
/// The number of blocks across in this case.
const WAITING_BLOCKS: i64 = 4;
/// The words of A in a block of K in this case, which stay in the second-level cache. Tests lower it to cover this in
/// small products.
const NEAR_WORDS: i64 = if cfg!(test) { 1 << 7 } else { 1 << 17 };
/// The cost of reading an element of B, as a number of rows, where there are fewer rows.
pub(super) const READ_ROWS: i64 = 8;

impl MatMul {
    /// Returns the number of columns of a panel: whole vectors, as many as a register tile has.
    pub(super) fn panel(&self) -> i64 {
        self.schedule
            .panel_columns(self.level, self.terms.instruction(), self.n)
    }

    /// Returns the largest number of rows of a register tile that reads this many panels.
    fn most_rows(&self, panels: i64) -> u8 {
        let vectors = panels * self.panel() / i64::from(lanes(self.level, self.dtype));
        self.schedule.rows(most_rows(
            self.level,
            self.terms.instruction(),
            vectors as u8,
        ))
    }

    /// Returns the number of rows of a register tile.
    pub(super) fn tile_rows(&self) -> i64 {
        even_rows(self.m, self.most_rows(1))
    }

    /// Returns the number of panels that a register tile reads at once. It is more than one if so few rows would make
    /// accumulators wait for each other, unless the schedule gives the tile.
    pub(super) fn panels_at_once(&self) -> i64 {
        let vectors = self.panel() / i64::from(lanes(self.level, self.dtype));
        let by_tiles = self.terms.instruction().has_tiles();
        let fits = |panels: &i64| i64::from(self.most_rows(*panels)) >= self.m;
        match self.schedule.tile.is_some() || by_tiles || vectors < VECTORS || self.dtype.size() > 4
        {
            true => 1,
            false => (2..=MOST_VECTORS / vectors).rev().find(fits).unwrap_or(1),
        }
    }

    pub(super) fn panels_across(&self) -> i64 {
        ceil(self.n, self.panel())
    }

    /// Returns the number of elements of a packed matrix of B.
    pub(super) fn matrix_elements(&self) -> i64 {
        self.panels_across() * self.panel() * self.panel_rows()
    }

    /// Returns the number of packed matrices of B: one, or one for each product of the batch.
    pub(super) fn right_matrices(&self) -> i64 {
        match self.rhs.is_one(&self.batch) {
            true => 1,
            false => self.batch.iter().product(),
        }
    }

    /// Returns the number of elements of all packed matrices.
    pub(super) fn packed_elements(&self) -> i64 {
        self.right_matrices() * self.matrix_elements()
    }

    /// Returns the 16-bit float dtype of packed matrices, if they are widened later.
    pub(super) fn half_dtype(&self) -> Option<DType> {
        let dtype = self.terms.operand(1);
        (dtype.is_half() && self.terms.converts(1)).then_some(dtype)
    }

    /// Returns the size of an element of a packed matrix in bytes.
    fn packed_size(&self) -> i64 {
        self.half_dtype().unwrap_or(self.dtype).size() as i64
    }

    /// Returns the number of accumulators that take as much room as the packed matrices.
    pub(super) fn packed_room(&self) -> i64 {
        ceil(
            self.packed_elements() * self.packed_size(),
            self.dtype.size() as i64,
        )
    }

    /// Returns the number of rows of a panel: the steps of K, and a first one that accumulators start with, if any.
    pub(super) fn panel_rows(&self) -> i64 {
        self.steps() + i64::from(self.terms.is_flipped())
    }

    /// Returns the number of results whose accumulators are kept in memory until all are complete.
    pub(super) fn waiting_sums(&self) -> i64 {
        let results = self.m * self.n * self.batch.iter().product::<i64>();
        let waits = self.terms.instruction().has_tiles()
            && self.epilogue_kind == ProductEpilogue::Rows
            && self.finish.is_none()
            && self.lhs.prologue.is_none();
        if waits && results <= WAITING_SUMS {
            results
        } else {
            0
        }
    }

    /// Returns the size of the packed B in bytes, or `None` if it is never packed. If another algorithm is used for
    /// these sizes, what is packed in *prepare* is for other runs.
    pub(crate) fn packed_bytes(&self) -> Option<usize> {
        let bytes = (self.packed_elements() * self.packed_size()) as usize;
        (self.packable && self.rhs.prologue.is_none() && bytes > 0).then_some(bytes)
    }

    /// Returns the argument that is packed.
    pub(crate) fn right(&self) -> usize {
        self.rhs.arg
    }

    /// Packs B.
    ///
    /// # Safety
    /// `from` is the operand that it was linked for; `to` has room for [`MatMul::packed_bytes`].
    pub(crate) unsafe fn pack(&self, from: *mut u8, to: *mut u8, parallel: bool) {
        // SAFETY: the caller's; the dtype was checked.
        unsafe {
            match self.dtype {
                _ if self.terms.are_narrow() => self.pack_terms(from, to, parallel),
                DType::F64 | DType::I64 => self.pack_typed::<f64>(from, to, parallel),
                _ => self.pack_typed::<f32>(from, to, parallel),
            }
        }
    }

    unsafe fn pack_typed<T: Lane>(&self, from: *mut u8, to: *mut u8, parallel: bool) {
        let args = Args(&[from, to]);
        let panel = self.panel();
        let work = panel * self.k * READ_ROWS;
        split(self.panels_across(), work, parallel, |first, until| {
            let args = &args;
            let [from, to] = [args.0[0], args.0[1]].map(|p| p.cast::<T>());
            let from = from.wrapping_offset(self.rhs.offset as isize);
            for i in first..until {
                let (column, k) = (i * panel, self.k);
                let columns = panel.min(self.n - column);
                let from = from.wrapping_offset((column * self.rhs.col) as isize);
                // SAFETY: linking proved the operand within its buffer; panels are apart.
                unsafe {
                    let to = to.offset((column * k) as isize);
                    for row in 0..k {
                        for at in columns..panel {
                            *to.offset((row * panel + at) as isize) = T::ZERO;
                        }
                    }
                    let columns = bug("a panel misses its last column", columns, |n| n - 1);
                    let from = (from.cast_const(), self.rhs.row, self.rhs.col);
                    pack(self.level, from, (k, columns), (to, panel));
                }
            }
        });
    }

    /// Returns the largest number of rows of a block: whole register tiles, which stay in the second-level cache with a
    /// panel.
    fn block_rows(&self) -> i64 {
        let (tile, by_tiles) = (self.tile_rows(), self.terms.instruction().has_tiles());
        match self.schedule.block_rows() {
            Some(rows) => ceil(rows, tile) * tile,
            None if by_tiles => tile * BLOCK_STRIP,
            None => tile * BLOCK_TILES,
        }
    }

    /// Returns the number of multiply-adds of this many rows and a panel, or the equivalent of reading the panel if
    /// that is more.
    fn panel_work(&self, rows: i64) -> i64 {
        rows.max(READ_ROWS) * self.panel() * self.k.max(1)
    }

    /// Returns the rows and panels of a block.
    pub(super) fn packed_block_size(&self) -> (i64, i64) {
        let (tile, waits) = (self.tile_rows(), self.waiting_sums() > 0);
        let whole =
            self.epilogue_kind == ProductEpilogue::Rows && !waits || self.lhs.prologue.is_some();
        let rows = match whole {
            true => ceil(self.whole_rows(self.block_rows()), tile) * tile,
            false => self.m.clamp(1, self.block_rows()),
        };
        let (across, at_once) = (self.panels_across().max(1), self.panels_at_once());
        let panels = match self.schedule.block_columns() {
            _ if whole => return (rows, across),
            Some(columns) => ceil(columns, self.panel()).min(across),
            None if waits => ceil(across, WAITING_BLOCKS),
            None => (BLOCK_WORK / self.panel_work(rows)).clamp(1, across),
        };
        (rows, ceil(panels, at_once) * at_once)
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
        let found = packed_weights(packed, (&mut storage, self.packed_room()), |to: *mut T| {
            // SAFETY: the caller's; there is room.
            unsafe {
                match self.rhs.prologue {
                    Some(_) => self.pack_prologue(args, to.cast(), parallel, failures),
                    None => self.pack(args[self.rhs.arg], to.cast(), parallel),
                }
            }
        });
        let packed = match found {
            Ok(found) => found.cast(),
            Err(e) => return failures.broken(e),
        };
        let waits = self.waiting_sums() > 0;
        let panel = self.panel();
        let (rows, panels) = self.packed_block_size();
        let panel_work = self.panel_work(rows);
        let cut = (rows, panels * panel);
        let launch = (self.epilogue.as_ref(), args, parallel, failures);
        let (mut storage, mut sums) = (None, None);
        let waiting = match waits {
            true => room::<T>(&mut sums, self.waiting_sums()),
            false => Ok(std::ptr::null_mut()),
        };
        // SAFETY: the caller's.
        let left = unsafe { self.copy_left(args, &mut storage, parallel) };
        let (left, waiting) = match (left, waiting) {
            (Ok(left), Ok(waiting)) => (left, waiting),
            (Err(e), _) | (_, Err(e)) => return failures.broken(e),
        };
        let given = Args(&[packed, left.cast_mut().cast(), waiting.cast()]);
        // SAFETY: the caller's; blocks write different places.
        run_blocks(
            (self.blocks_of(cut), panels * panel_work),
            launch,
            |i, args, scratch, work| unsafe {
                let (given, block) = (&given, self.block_of(cut, i));
                let [packed, left, waiting] = [0, 1, 2].map(|i| given.0[i]);
                let given = (packed.cast_const(), left.cast_const().cast());
                let waiting = waits.then_some(waiting.cast::<T>());
                self.packed_block::<T>(args, given, (&block, waiting), scratch, work)
            },
        );
        if waits {
            let rows = self.whole_rows(self.block_rows());
            let cut = (rows, self.n);
            run_blocks(
                (self.blocks_of(cut), rows * self.n * READ_ROWS),
                launch,
                |i, _, _: &mut (), work| {
                    let (given, b) = (&given, self.block_of(cut, i));
                    let first = (b.batch * self.m + b.row) * self.n;
                    let from = given.0[2].cast::<T>().wrapping_offset(first as isize);
                    // SAFETY: the sums are there; the caller's.
                    unsafe { work.finish((from, self.n), first, (b.rows, self.n), self.n) };
                    Ok(())
                },
            );
        }
    }

    unsafe fn packed_block<T: Lane>(
        &self,
        args: &[*mut u8],
        (packed, left): (*const u8, *const f32),
        (b, waiting): (&ProductBlock, Option<*mut T>),
        scratch: &mut (
            Option<Storage>,
            Materialised,
            Option<Storage>,
            Wide,
            Kernels,
        ),
        work: &mut EpilogueRunner,
    ) -> Result<()> {
        // Blocks start at a panel.
        let (panel, tile_rows, size) = (self.panel(), self.tile_rows(), size_of::<T>() as i64);
        let (flat, materialised, copies, wide, kernels) = scratch;
        let at_once = panel * self.panels_at_once();
        let first = (b.batch * self.m + b.row) * self.n + b.col;
        // The destination of the results, unless an epilogue in registers writes them.
        let (dst, pitch) = match (waiting, &self.epilogue) {
            (Some(all), _) => (all.wrapping_offset(first as isize), self.n),
            (None, Some(_)) if self.finish.is_some() => (std::ptr::null_mut(), 0),
            (None, Some(_)) => (room::<T>(flat, b.rows * b.cols)?, b.cols),
            (None, None) => {
                let out = args[self.out].cast::<T>();
                (out.wrapping_offset(first as isize), self.n)
            }
        };
        // SAFETY: linking proved the operands within their buffers; the results have room.
        unsafe {
            let rows = (b.batch, b.row, b.rows);
            let (lhs, [down, across]) = match self.terms.are_narrow() || self.copies_left() {
                true => self.term_rows(args, rows, left, (materialised, copies), work.failures)?,
                false => {
                    let (lhs, down, across) =
                        self.rows::<T>(args, rows, materialised, work.failures)?;
                    (lhs.cast(), [down, across].map(|n| n * size))
                }
            };
            let steps = self.steps();
            // The steps of K in a block, a multiple of AMX's tile size.
            let part = match waiting {
                Some(_) => {
                    let parts = ceil(b.rows * steps, NEAR_WORDS).max(1);
                    let part = self.schedule.terms.map_or(ceil(steps, parts), i64::from);
                    ceil(part, TILE.into()) * i64::from(TILE)
                }
                None => steps,
            };
            let part = part.max(1);
            let matrix = b.batch.min(self.right_matrices() - 1) * self.matrix_elements();
            // Panels read by several tiles are widened once, for these and for the blocks below.
            let often = b.rows > tile_rows;
            let firsts = (0..steps.max(1)).step_by(part as usize);
            let all = firsts.flat_map(|from| {
                let columns = (0..b.cols).step_by(at_once as usize);
                columns.map(move |column| (from, column))
            });
            let mut accesses = Accesses::of(self.finish.as_deref(), args);
            for (from, column) in all {
                let is_first = from == 0;
                // The row that accumulators start with precedes the first step.
                let starts = self.terms.is_flipped();
                let front = from + i64::from(starts && !is_first);
                let right = matrix + (b.col + column) * self.panel_rows() + front * panel;
                let right = packed.wrapping_offset((right * self.packed_size()) as isize);
                let (right, half_dtype) = match self.half_dtype() {
                    Some(half) if often => (self.wide_panel(half, right, wide)?, None),
                    half_dtype => (right, half_dtype),
                };
                let tile = |rows: i64| Tile {
                    level: self.level,
                    instruction: self.terms.instruction(),
                    rows: Rows::of_matrix(rows, down),
                    columns: at_once.min(b.cols - column) as u16,
                    step: across,
                    right: RightSide {
                        half_dtype,
                        panel: match at_once > panel {
                            true => panel * self.panel_rows() * self.packed_size(),
                            false => 0,
                        },
                        ..RightSide::of_panel(
                            panel * half_dtype.map_or(size, |half| half.size() as i64),
                        )
                    },
                    steps: part.min(steps - from) as u32,
                    taps: 1,
                    out: pitch * size,
                    adds: !is_first,
                    starts: starts && is_first,
                    strip: [tile_rows * down, tile_rows],
                    finish: self.finish.clone(),
                };
                let whole = tile(tile_rows.min(b.rows));
                let mut kernel = kernels.get(&whole)?;
                for (row, tiles) in strips(0..b.rows, tile_rows, whole.most()) {
                    let rows = tile_rows.min(b.rows - row);
                    if rows < tile_rows && row > 0 {
                        kernel = kernels.get(&tile(rows))?;
                    }
                    let at = (b.batch * self.m + b.row + row, b.col + column);
                    let call = Call {
                        left: lhs.wrapping_offset((row * down + from * across) as isize),
                        right,
                        out: dst.wrapping_offset((row * pitch + column) as isize).cast(),
                        finish: accesses.at(at).as_ptr(),
                        taps: std::ptr::null(),
                        tiles: tiles as u64,
                    };
                    kernel.run(&call);
                }
            }
            if self.finish.is_none() && waiting.is_none() {
                work.finish((dst, pitch), first, (b.rows, self.n), b.cols);
            }
        }
        Ok(())
    }
}
