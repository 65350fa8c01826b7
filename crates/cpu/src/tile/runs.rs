//! The runs of a tile's lanes in memory: emitted code is called once for each.

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
    /// Returns the stride of the innermost axis, if at least `least` lanes are along it.
    pub(super) fn long_runs(&self, least: i64) -> Option<i64> {
        let inner = self.lanes.last()?;
        (inner.extent >= least).then_some(inner.stride)
    }

    /// True if limits may exclude a part of a run along the innermost axis.
    pub(super) fn cuts_runs(&self) -> bool {
        let along = |limit: &(Split, i64)| limit.0.lane.last() != Some(&0);
        self.limits.iter().any(along)
    }

    /// True if it has one stride between lanes, and elements that are copied unchanged.
    pub(super) fn turns(&self, dtype: DType) -> bool {
        let plain = self.lanes.len() == 1 && self.limits.is_empty() && !self.dynamic;
        plain && load::is_direct(dtype) && matches!(dtype.size(), 4 | 8)
    }

    /// Allocates the fill values that are read in place of excluded elements; the innermost stride is 0 or 1.
    pub(super) fn make_fills(&mut self, dtype: DType) {
        let inner = self.lanes[self.lanes.len() - 1];
        if self.limits.is_empty() || self.fills.lanes > 0 {
            return;
        }
        let lanes = if inner.stride == 0 { i64::MAX } else { BLOCK };
        let element = load::in_memory(self.fill, dtype);
        let bytes: Vec<u8> = element.repeat(self.fill_elements() as usize);
        let line = |bytes: &[u8]| {
            let mut line = Line([0; 64]);
            line.0[..bytes.len()].copy_from_slice(bytes);
            line
        };
        let lines = bytes.chunks(64).map(line).collect();
        let whole = !self.cuts_runs();
        self.fills = Fills {
            lines,
            lanes,
            whole,
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

    /// Returns the count of numbers that the context keeps: the coordinates of a tile's first lane; and the
    /// coordinates, address and limits' values of the current lane.
    pub(super) fn numbers(&self) -> usize {
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
        let mut at = 0;
        // SAFETY: the numbers are this walk's, which are set.
        unsafe {
            let bases =
                std::slice::from_raw_parts(ctx.bases.add(self.base_at), 1 + self.limits.len());
            self.begin_runs(ctx);
            while at < ctx.n {
                let here = Here::of(self, ctx);
                let len = (ctx.n - at).min((inner.extent - here.coords[last]) as usize);
                let values = here.limits.iter().zip(&bases[1..]).map(|(v, b)| v + b);
                let (low, high) = self.allowed(values, len);
                f(at, bases[0] + *here.address, inner.stride, len, low, high);
                at += len;
                if at == ctx.n {
                    return;
                }
                self.end_runs(ctx, len, 1);
            }
        }
    }

    /// Goes to the first lane of the tile; [`Walk::run_at`] adds the contribution of the outer axes.
    ///
    /// # Safety
    /// The context's coordinates are set.
    #[inline]
    pub(super) unsafe fn begin_runs(&self, ctx: &Ctx) {
        // SAFETY: the numbers are this walk's; those that are read are set.
        unsafe {
            let mut here = Here::of(self, ctx);
            *here.address = 0;
            here.limits.fill(0);
            here.coords.fill(0);
            for d in 0..self.lanes.len() {
                let by = *ctx.coords.add(self.coord_at + d);
                if by != 0 {
                    here.move_by(d, by);
                }
            }
        }
    }

    /// Returns the address of the current lane's element, or its number if that is the operand. Also returns the number
    /// of lanes from there for which this continues along the innermost axis. A store has no limits.
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
        let (here, memory, bases) = unsafe {
            let numbers = 1 + self.limits.len();
            let bases = std::slice::from_raw_parts(bases.add(self.base_at), numbers);
            (Here::of(self, ctx), *ctx.args.add(self.arg), bases)
        };
        let last = self.lanes.len() - 1;
        let left = self.lanes[last].extent - here.coords[last];
        let number = bases[0] + *here.address;
        let at = match operand.number {
            true => number as *mut u8,
            false => memory.wrapping_offset(number as isize * operand.size as isize),
        };
        if self.limits.is_empty() {
            return (at, left);
        }
        // This is a load, so the fill values are not written.
        let fills = self.fills.lines.as_ptr().cast_mut().cast();
        #[cfg(feature = "testing")]
        kiln_kernel::interpreted::declare_memory(
            fills,
            self.fill_elements() as usize * operand.size,
            false,
        );
        if self.fills.whole {
            let values = here.limits.iter().zip(&bases[1..]).map(|(v, b)| v + b);
            let mut limits = values.zip(&self.limits);
            if limits.all(|(v, (_, extent))| (0..*extent).contains(&v)) {
                return (at, left);
            }
            return (fills, left.min(self.fills.lanes));
        }
        let values = here.limits.iter().zip(&bases[1..]).map(|(v, b)| v + b);
        let (low, high) = self.allowed(values, left as usize);
        if low == 0 && high > 0 {
            return (at, high as i64);
        }
        let excluded = if low > 0 { low as i64 } else { left };
        (fills, excluded.min(self.fills.lanes))
    }

    /// Returns the number of runs from the current lane on, of `n` lanes each, with an even stride between them, as
    /// parts of one run have; and this stride in elements.
    ///
    /// # Safety
    /// [`Walk::begin_runs`] was called for this tile.
    #[inline]
    pub(super) unsafe fn alike(&self, ctx: &Ctx, n: i64) -> (i64, i64) {
        // SAFETY: the numbers are this walk's, and set.
        let here = unsafe { Here::of(self, ctx) };
        let inner = self.lanes[self.lanes.len() - 1];
        let left = inner.extent - here.coords[here.coords.len() - 1];
        let (runs, apart) = match (&self.lanes[..], &*here.coords) {
            ([.., outer, _], [.., row, 0]) if inner.extent == n => {
                (outer.extent - row, outer.stride)
            }
            // Otherwise the runs are parts of the current one.
            _ => (left / n, n * inner.stride),
        };
        match self.limits.is_empty() {
            true => (
                runs.max(1),
                bug("runs that are alike lie side by side", apart, |_| n),
            ),
            false => (1, 0),
        }
    }

    /// Returns the number of groups of `runs` runs of `n` lanes, with an even stride between them, from the current
    /// lane on; and this stride in elements.
    ///
    /// # Safety
    /// [`Walk::begin_runs`] was called for this tile.
    #[inline]
    pub(super) unsafe fn groups(&self, ctx: &Ctx, n: i64, runs: i64) -> (i64, i64) {
        // SAFETY: the numbers are this walk's, and set.
        let here = unsafe { Here::of(self, ctx) };
        let (lanes, last) = (n * runs, here.coords.len() - 1);
        let inner = self.lanes[last];
        let left = inner.extent - here.coords[last];
        let (groups, apart) = match (&self.lanes[..], &*here.coords) {
            // The runs are whole rows, all or some of a matrix, or parts of a row.
            ([.., next, outer, _], [.., at, 0, 0]) if inner.extent == n && outer.extent == runs => {
                (next.extent - at, next.stride)
            }
            ([.., outer, _], [.., row, 0]) if inner.extent == n => {
                ((outer.extent - row) / runs, runs * outer.stride)
            }
            ([.., outer, _], [.., row, 0]) if inner.extent == lanes => {
                (outer.extent - row, outer.stride)
            }
            _ => (left / lanes, lanes * inner.stride),
        };
        match self.limits.is_empty() {
            true => (groups.max(1), apart),
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
        let mut here = unsafe { Here::of(self, ctx) };
        let last = self.lanes.len() - 1;
        let (at, extent) = (here.coords[last], self.lanes[last].extent);
        let whole = extent == n as i64;
        let by = n as i64 * runs;
        if !whole && at + by < extent {
            return here.move_by(last, by);
        }
        if at != 0 {
            here.move_by(last, -at);
        }
        let mut by = if whole { runs } else { 1 };
        for (d, lane) in self.lanes[..last].iter().enumerate().rev() {
            here.move_by(d, by);
            let at = here.coords[d];
            if at < lane.extent {
                return;
            }
            here.move_by(d, -at);
            by = 1;
        }
    }
}

/// The numbers of the current lane.
struct Here<'a> {
    walk: &'a Walk,
    coords: &'a mut [i64],
    address: &'a mut i64,
    limits: &'a mut [i64],
}

impl<'a> Here<'a> {
    /// # Safety
    /// The context is that of a runner of the walk's program, and there is no other of this walk meanwhile.
    #[inline(always)]
    unsafe fn of(walk: &'a Walk, ctx: &'a Ctx) -> Here<'a> {
        let lanes = walk.lanes.len();
        // SAFETY: there is room for `numbers`, of which these are the last, and the runner alone has them.
        unsafe {
            let at = ctx.coords.add(walk.coord_at + lanes);
            Here {
                walk,
                coords: std::slice::from_raw_parts_mut(at, lanes),
                address: &mut *at.add(lanes),
                limits: std::slice::from_raw_parts_mut(at.add(lanes + 1), walk.limits.len()),
            }
        }
    }

    #[inline(always)]
    fn move_by(&mut self, axis: usize, by: i64) {
        self.coords[axis] += by;
        *self.address += by * self.walk.lanes[axis].stride;
        for (l, (limit, _)) in self.limits.iter_mut().zip(&self.walk.limits) {
            *l += by * limit.lane[axis];
        }
    }
}
