//! The decomposition of a tile's lanes into runs along the innermost axis. Emitted code is called once per run.

use super::emitted::EmittedOperand;
use super::fills::{Fills, Line};
use super::load;
use super::walk::{Split, Walk};
use crate::tile::Ctx;
use kiln_base::DType;
use kiln_kernel::bugs::bug;

/// The maximum number of lanes of a run of fill values.
const BLOCK: i64 = 512;

impl Walk {
    /// Returns the stride of the innermost axis, if at least `min_lanes` lanes are along it.
    pub(super) fn long_runs(&self, min_lanes: i64) -> Option<i64> {
        let inner = self.lanes.last()?;
        (inner.extent >= min_lanes).then_some(inner.stride)
    }

    /// True if limits may exclude a part of a run along the innermost axis.
    pub(super) fn cuts_runs(&self) -> bool {
        let varies = |limit: &(Split, i64)| limit.0.lane.last() != Some(&0);
        self.limits.iter().any(varies)
    }

    /// True if the lanes have one stride, and elements are copied without conversion.
    pub(super) fn is_transposable(&self, dtype: DType) -> bool {
        let plain = self.lanes.len() == 1 && self.limits.is_empty() && !self.dynamic;
        plain && load::is_direct(dtype) && matches!(dtype.size(), 4 | 8)
    }

    /// Allocates the fill values that emitted code reads instead of excluded elements. The innermost stride is 0 or 1.
    pub(super) fn make_fills(&mut self, dtype: DType) {
        let inner = self.lanes[self.lanes.len() - 1];
        if self.limits.is_empty() || self.fills.lanes > 0 {
            return;
        }
        let lanes = if inner.stride == 0 { i64::MAX } else { BLOCK };
        let element = load::memory_bytes(self.fill, dtype);
        let bytes: Vec<u8> = element.repeat(self.fill_elements() as usize);
        let line = |bytes: &[u8]| {
            let mut line = Line([0; 64]);
            line.0[..bytes.len()].copy_from_slice(bytes);
            line
        };
        let lines = bytes.chunks(64).map(line).collect();
        let uniform = !self.cuts_runs();
        self.fills = Fills {
            lines,
            lanes,
            uniform,
        };
    }

    /// Returns the number of fill values.
    fn fill_elements(&self) -> i64 {
        let inner = self.lanes[self.lanes.len() - 1];
        match inner.stride {
            0 => 1,
            _ => inner.extent.min(BLOCK),
        }
    }

    /// Returns the length of this walk's slice of the context's coordinates: the coordinates of the tile's first lane,
    /// then the coordinates, address and limits' values of the current lane.
    pub(super) fn count_coords(&self) -> usize {
        2 * self.lanes.len() + 1 + self.limits.len()
    }

    /// Visits the tile as runs along the innermost lane axis. `f` gets the first lane, address, stride, number of
    /// lanes, and the bounds `low..high` of the lanes that the limits allow.
    ///
    /// # Safety
    /// The context's bases and coordinates are set.
    #[inline(always)]
    pub(super) unsafe fn runs(
        &self,
        ctx: &Ctx,
        mut f: impl FnMut(usize, i64, i64, usize, usize, usize),
    ) {
        let last = self.lanes.len() - 1;
        let inner = self.lanes[last];
        let mut lane = 0;
        // SAFETY: the numbers are this walk's, which are set.
        unsafe {
            let bases =
                std::slice::from_raw_parts(ctx.bases.add(self.base_index), 1 + self.limits.len());
            self.begin_runs(ctx);
            while lane < ctx.n {
                let cursor = LaneCursor::of(self, ctx);
                let len = (ctx.n - lane).min((inner.extent - cursor.coords[last]) as usize);
                let values = cursor.limits.iter().zip(&bases[1..]).map(|(v, b)| v + b);
                let (low, high) = self.allowed(values, len);
                let start = bases[0] + *cursor.address;
                f(lane, start, inner.stride, len, low, high);
                lane += len;
                if lane == ctx.n {
                    return;
                }
                self.end_runs(ctx, len, 1);
            }
        }
    }

    /// Moves to the first lane of the tile; [`Walk::run_at`] adds the contribution of the outer axes.
    ///
    /// # Safety
    /// The context's coordinates are set.
    #[inline]
    pub(super) unsafe fn begin_runs(&self, ctx: &Ctx) {
        // SAFETY: the numbers are this walk's; those that are read are set.
        unsafe {
            let mut cursor = LaneCursor::of(self, ctx);
            *cursor.address = 0;
            cursor.limits.fill(0);
            cursor.coords.fill(0);
            for d in 0..self.lanes.len() {
                let by = *ctx.coords.add(self.coord_index + d);
                if by != 0 {
                    cursor.move_by(d, by);
                }
            }
        }
    }

    /// Returns the address of the current lane's element, or the walk's number there if the operand is a number. Also
    /// returns how many lanes the run continues along the innermost axis. A store has no limits.
    ///
    /// # Safety
    /// [`Walk::begin_runs`] was called for this tile; the fills are made, and the program's bases are set.
    #[inline(always)]
    pub(super) unsafe fn run_at(
        &self,
        ctx: &Ctx,
        bases: *const i64,
        operand: &EmittedOperand,
    ) -> (*mut u8, i64) {
        // SAFETY: the numbers are this walk's, and set; the argument is the program's.
        let (cursor, memory, bases) = unsafe {
            let count = 1 + self.limits.len();
            let bases = std::slice::from_raw_parts(bases.add(self.base_index), count);
            (LaneCursor::of(self, ctx), *ctx.args.add(self.arg), bases)
        };
        let last = self.lanes.len() - 1;
        let remaining = self.lanes[last].extent - cursor.coords[last];
        let number = bases[0] + *cursor.address;
        let element = match operand.number {
            true => number as *mut u8,
            false => memory.wrapping_offset(number as isize * operand.size as isize),
        };
        if self.limits.is_empty() {
            return (element, remaining);
        }
        // This is a load, so the fill values are not written.
        let fills = self.fills.lines.as_ptr().cast_mut().cast();
        #[cfg(feature = "testing")]
        kiln_kernel::interpreted::declare_memory(
            fills,
            self.fill_elements() as usize * operand.size,
            false,
        );
        if self.fills.uniform {
            let values = cursor.limits.iter().zip(&bases[1..]).map(|(v, b)| v + b);
            let mut limits = values.zip(&self.limits);
            if limits.all(|(v, (_, extent))| (0..*extent).contains(&v)) {
                return (element, remaining);
            }
            return (fills, remaining.min(self.fills.lanes));
        }
        let values = cursor.limits.iter().zip(&bases[1..]).map(|(v, b)| v + b);
        let (low, high) = self.allowed(values, remaining as usize);
        if low == 0 && high > 0 {
            return (element, high as i64);
        }
        let excluded = if low > 0 { low as i64 } else { remaining };
        (fills, excluded.min(self.fills.lanes))
    }

    /// Returns the number of runs of `n` lanes, from the current lane on, whose starts have an even stride, and this
    /// stride in elements.
    ///
    /// # Safety
    /// [`Walk::begin_runs`] was called for this tile.
    #[inline]
    pub(super) unsafe fn even_runs(&self, ctx: &Ctx, n: i64) -> (i64, i64) {
        // SAFETY: the numbers are this walk's, and set.
        let cursor = unsafe { LaneCursor::of(self, ctx) };
        let inner = self.lanes[self.lanes.len() - 1];
        let remaining = inner.extent - cursor.coords[cursor.coords.len() - 1];
        let (runs, stride) = match (&self.lanes[..], &*cursor.coords) {
            ([.., outer, _], [.., row, 0]) if inner.extent == n => {
                (outer.extent - row, outer.stride)
            }
            // Otherwise the runs are parts of the current one.
            _ => (remaining / n, n * inner.stride),
        };
        match self.limits.is_empty() {
            true => (runs.max(1), bug("even runs are contiguous", stride, |_| n)),
            false => (1, 0),
        }
    }

    /// Returns the number of groups of `runs` runs of `n` lanes, from the current lane on, whose starts have an even
    /// stride, and this stride in elements.
    ///
    /// # Safety
    /// [`Walk::begin_runs`] was called for this tile.
    #[inline]
    pub(super) unsafe fn groups(&self, ctx: &Ctx, n: i64, runs: i64) -> (i64, i64) {
        // SAFETY: the numbers are this walk's, and set.
        let cursor = unsafe { LaneCursor::of(self, ctx) };
        let (group_lanes, last) = (n * runs, cursor.coords.len() - 1);
        let inner = self.lanes[last];
        let remaining = inner.extent - cursor.coords[last];
        let (groups, stride) = match (&self.lanes[..], &*cursor.coords) {
            // A group is a matrix of full rows, a part of one, or a single row; the last case splits a row.
            ([.., next, outer, _], [.., i, 0, 0]) if inner.extent == n && outer.extent == runs => {
                (next.extent - i, next.stride)
            }
            ([.., outer, _], [.., row, 0]) if inner.extent == n => {
                ((outer.extent - row) / runs, runs * outer.stride)
            }
            ([.., outer, _], [.., row, 0]) if inner.extent == group_lanes => {
                (outer.extent - row, outer.stride)
            }
            _ => (remaining / group_lanes, group_lanes * inner.stride),
        };
        match self.limits.is_empty() {
            true => (groups.max(1), stride),
            false => (1, 0),
        }
    }

    /// Advances by several runs of `n` lanes with an even stride, at most to the end of their axis.
    ///
    /// # Safety
    /// [`Walk::begin_runs`] was called for this tile.
    #[inline]
    pub(super) unsafe fn end_runs(&self, ctx: &Ctx, n: usize, runs: i64) {
        // SAFETY: the numbers are this walk's, and set.
        let mut cursor = unsafe { LaneCursor::of(self, ctx) };
        let last = self.lanes.len() - 1;
        let (at, extent) = (cursor.coords[last], self.lanes[last].extent);
        let is_full_axis = extent == n as i64;
        let step = n as i64 * runs;
        if !is_full_axis && at + step < extent {
            return cursor.move_by(last, step);
        }
        if at != 0 {
            cursor.move_by(last, -at);
        }
        let mut step = if is_full_axis { runs } else { 1 };
        for (d, lane) in self.lanes[..last].iter().enumerate().rev() {
            cursor.move_by(d, step);
            let at = cursor.coords[d];
            if at < lane.extent {
                return;
            }
            cursor.move_by(d, -at);
            step = 1;
        }
    }
}

/// The coordinates, address and limits' values of the current lane.
struct LaneCursor<'a> {
    walk: &'a Walk,
    coords: &'a mut [i64],
    address: &'a mut i64,
    limits: &'a mut [i64],
}

impl<'a> LaneCursor<'a> {
    /// # Safety
    /// The context is that of a runner of the walk's program, and no other cursor of this walk is alive.
    #[inline(always)]
    unsafe fn of(walk: &'a Walk, ctx: &'a Ctx) -> LaneCursor<'a> {
        let lanes = walk.lanes.len();
        // SAFETY: the coordinates have [`Walk::count_coords`] entries, of which these are the last, and only the runner
        // has them.
        unsafe {
            let numbers = ctx.coords.add(walk.coord_index + lanes);
            LaneCursor {
                walk,
                coords: std::slice::from_raw_parts_mut(numbers, lanes),
                address: &mut *numbers.add(lanes),
                limits: std::slice::from_raw_parts_mut(numbers.add(lanes + 1), walk.limits.len()),
            }
        }
    }

    #[inline(always)]
    fn move_by(&mut self, axis: usize, by: i64) {
        self.coords[axis] += by;
        *self.address += by * self.walk.lanes[axis].stride;
        for (value, (limit, _)) in self.limits.iter_mut().zip(&self.walk.limits) {
            *value += by * limit.lane[axis];
        }
    }
}
