//! Where the lanes of a tile lie, run by run: printed code is called once for each.

use super::emitted::Operand;
use super::fills::{Fills, Line};
use super::load;
use super::walk::{Split, Walk};
use crate::tile::Ctx;
use kiln_base::DType;
use kiln_kernel::bugs::bug;

/// The most lanes of a run that lie in a block of what excluded loads give.
const BLOCK: i64 = 512;

impl Walk {
    /// The stride of the innermost axis, if that many lanes lie along it.
    pub(super) fn long_runs(&self, least: i64) -> Option<i64> {
        let inner = self.lanes.last()?;
        (inner.extent >= least).then_some(inner.stride)
    }

    /// True if limits may exclude a part of a run along the innermost axis.
    pub(super) fn cuts_runs(&self) -> bool {
        let along = |limit: &(Split, i64)| limit.0.lane.last() != Some(&0);
        self.limits.iter().any(along)
    }

    /// Whether it has one distance between lanes, and elements that are copied as they are.
    pub(super) fn turns(&self, dtype: DType) -> bool {
        let plain = self.lanes.len() == 1 && self.limits.is_empty() && !self.dynamic;
        plain && load::is_direct(dtype) && matches!(dtype.size(), 4 | 8)
    }

    /// Makes the memory that is read in place of what the limits exclude; the innermost stride is 0 or 1.
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

    /// How many elements that memory has.
    fn fill_elements(&self) -> i64 {
        let inner = self.lanes[self.lanes.len() - 1];
        match inner.stride {
            0 => 1,
            _ => inner.extent.min(BLOCK),
        }
    }

    /// How many numbers the context keeps of a tile's first lane, and of the lane at hand: its coordinates, address and
    /// the limits' values.
    pub(super) fn numbers(&self) -> usize {
        2 * self.lanes.len() + 1 + self.limits.len()
    }

    /// Goes to the first lane of the tile; what the outer axes add is left to [`Walk::run_at`].
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

    /// Where the element of the lane at hand is, or the number that is wanted of it, and for how many lanes from there
    /// it goes on like this along the innermost axis. Of a store there are no limits.
    ///
    /// # Safety
    /// [`Walk::begin_runs`] was called for this tile; the fills are made, and the program's bases are set.
    #[inline(always)]
    pub(super) unsafe fn run_at(
        &self,
        ctx: &Ctx,
        bases: *const i64,
        operand: &Operand,
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
        // It is not written through, since this is a load.
        let fills = self.fills.lines.as_ptr().cast_mut().cast();
        #[cfg(feature = "testing")]
        kiln_kernel::interpreted::given(fills, self.fill_elements() as usize * operand.size, false);
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

    /// How many runs there are from the lane at hand on, of `n` lanes each, that lie one after the other at an even
    /// distance, as parts of one run do, and that distance in elements.
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
            // Others have shorter runs.
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

    /// The number of groups of so many runs of `n` lanes, which are alike, that lie one after the other at an even
    /// distance from the lane at hand on, and that distance in elements.
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
            // Runs are whole rows, all of a matrix or some, or parts of one.
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

    /// Goes on by several runs of so many lanes that are alike, at most to the end of the axis that they lie along.
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

/// The numbers of the lane at hand.
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
