//! The movement of an access through memory within a tile.

use super::fills::Fills;
use crate::tile::Ctx;
use kiln_kernel::bound::BoundAccess;
use kiln_kernel::error::{Result, damaged};
use kiln_plan::tile::TILE;

/// The maximum number of lane axes (after merging), and of limits of one access.
const MAX: usize = 16;

/// The minimum number of elements of a row that is visited as a run; shorter rows use a table of lane offsets.
const MIN_RUN: i64 = 16;

/// The shape of an access over the lanes of a tile.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The same element for every lane.
    Splat,
    /// Consecutive elements.
    Contiguous,
    /// Anything else, or one with limits.
    General,
}

/// A merged lane axis.
#[derive(Copy, Clone, Debug)]
pub(crate) struct LaneAxis {
    pub extent: i64,
    pub stride: i64,
}

/// An affine value with its strides split.
#[derive(Clone, Debug)]
pub(crate) struct Split {
    pub offset: i64,
    pub outer: Vec<i64>,
    /// The strides of merged lane axes.
    pub lane: Vec<i64>,
}

impl Split {
    /// True if axis `i`, of extent `len`, is contiguous with the one before it.
    fn joins(&self, i: usize, len: i64) -> bool {
        self.lane[i].checked_mul(len) == Some(self.lane[i - 1])
    }

    /// Returns the limit for axes i - 1 and `i`, of extent `e`, merged. A limit that counts the indices of the first
    /// then counts those of the second. Returns `None` if the limit can't be expressed for the merged axis.
    fn finer(&self, extent: i64, i: usize, e: i64) -> Option<(Split, i64)> {
        if self.joins(i, e) {
            return Some((self.clone(), extent));
        }
        if (self.lane[i - 1], self.lane[i]) != (1, 0) {
            return None;
        }
        let scale =
            |list: &[i64]| -> Option<Vec<i64>> { list.iter().map(|s| s.checked_mul(e)).collect() };
        let mut finer = Split {
            offset: self.offset.checked_mul(e)?,
            outer: scale(&self.outer)?,
            lane: scale(&self.lane)?,
        };
        finer.lane[i] = 1;
        Some((finer, extent.checked_mul(e)?))
    }
}

/// An access as the interpreter uses it.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    /// Index into the arguments; unused by `Index`.
    pub arg: usize,
    pub shape: Shape,
    /// Merged lane axes, innermost last.
    pub lanes: Vec<LaneAxis>,
    pub address: Split,
    /// Each limit's value and extent.
    pub limits: Vec<(Split, i64)>,
    /// The index in the context's bases of the address at lane zero; the limits' values follow.
    pub base_index: usize,
    /// The index in the context's coordinates of those of the tile's first lane; the numbers of the current lane
    /// follow.
    pub coord_index: usize,
    /// The number of elements of the argument.
    pub len: i64,
    /// True if this is an access, not the number of an `Index`.
    pub reads_memory: bool,
    /// The lowest and the highest address, without the limits.
    pub range: (i128, i128),
    /// True if a data-dependent part is added.
    pub dynamic: bool,
    /// The bits of an excluded load's value, in the register's type.
    pub fill: u64,
    /// The same in memory, where emitted code reads it.
    pub fills: Fills,
    /// The offsets of a tile's lanes from the start of the first lane's row, if rows are short; see
    /// [`Walk::tabulate_lane_offsets`].
    pub lane_offsets: Vec<i32>,
}

impl Walk {
    /// Returns the walk of an access whose strides are for the `outer` axes, then the `lane` axes. With `scalar`, there
    /// is only lane zero.
    pub(crate) fn new(
        a: &BoundAccess,
        outer: usize,
        lane: &[i64],
        scalar: bool,
        fill: u64,
    ) -> Result<Walk> {
        let lane = if scalar { &[][..] } else { lane };
        let split = |x: &kiln_kernel::affine::Affine| Split {
            offset: x.offset,
            outer: x.strides[..outer].to_vec(),
            lane: x.strides[outer..outer + lane.len()].to_vec(),
        };
        let mut w = Walk {
            arg: a.arg.unwrap_or(0),
            shape: Shape::General,
            lanes: vec![],
            address: split(&a.address),
            limits: a
                .limits
                .iter()
                .map(|l| (split(&l.value), l.extent))
                .collect(),
            base_index: 0,
            coord_index: 0,
            len: 0,
            reads_memory: true,
            range: (0, 0),
            dynamic: false,
            fill,
            fills: Fills::default(),
            lane_offsets: vec![],
        };
        let extents = w.merge(lane);
        let strides = w.address.lane.iter();
        w.lanes = extents
            .iter()
            .zip(strides)
            .map(|(&extent, &stride)| LaneAxis { extent, stride })
            .collect();
        if w.lanes.len() > MAX || w.limits.len() > MAX {
            return Err(damaged!("an access has more than {MAX} axes or limits"));
        }
        if w.limits.is_empty() {
            w.shape = match w.lanes[..] {
                [] => Shape::Splat,
                [LaneAxis { stride: 0, .. }] => Shape::Splat,
                [LaneAxis { stride: 1, .. }] => Shape::Contiguous,
                _ => Shape::General,
            };
        }
        if w.lanes.is_empty() {
            w.lanes.push(LaneAxis {
                extent: i64::MAX,
                stride: 0,
            });
            w.address.lane.push(0);
            w.limits.iter_mut().for_each(|l| l.0.lane.push(0));
        }
        Ok(w)
    }

    /// True if two walks never access the same element at different points: their strides and offsets are equal, or
    /// their ranges of memory are disjoint.
    pub(crate) fn is_disjoint_from(&self, other: &Walk) -> bool {
        let lanes = |w: &Walk| -> Vec<(i64, i64)> {
            w.lanes.iter().map(|l| (l.extent, l.stride)).collect()
        };
        let disjoint =
            self.arg == other.arg && (self.range.1 < other.range.0 || other.range.1 < self.range.0);
        let equal = self.address.offset == other.address.offset
            && self.address.outer == other.address.outer
            && lanes(self) == lanes(other);
        !self.dynamic && !other.dynamic && (disjoint || equal)
    }

    /// Merges neighbouring lane axes that act as one; returns the merged extents.
    fn merge(&mut self, lane: &[i64]) -> Vec<i64> {
        let mut extents = lane.to_vec();
        let mut i = 1;
        while i < extents.len() {
            let len = extents[i];
            self.free_stride(i - 1, len);
            let limits: Option<Vec<_>> = (self.limits.iter())
                .map(|(limit, extent)| limit.finer(*extent, i, len))
                .collect();
            if let (true, Some(limits)) = (len > 0 && self.address.joins(i, len), limits) {
                self.limits = limits;
                self.address.lane.remove(i - 1);
                for l in &mut self.limits {
                    l.0.lane.remove(i - 1);
                }
                let outer = extents.remove(i - 1);
                extents[i - 1] *= outer;
            } else {
                i += 1;
            }
        }
        extents
    }

    /// Makes an axis contiguous with the next axis, of extent `next`, if limits allow only one index of it. Its stride
    /// is then irrelevant, and the offset absorbs the difference.
    fn free_stride(&mut self, axis: usize, next: i64) {
        let only = self.limits.iter().find_map(|(limit, extent)| {
            let is_own = |(d, s): (usize, &i64)| *s == i64::from(d == axis);
            let plain = limit.lane.iter().enumerate().all(is_own)
                && limit.outer.iter().all(|s| *s == 0)
                && *extent == 1;
            plain.then_some(-limit.offset)
        });
        let [old, new] = [
            Some(self.address.lane[axis]),
            self.address.lane[axis + 1].checked_mul(next),
        ];
        let moved = |only: i64| {
            let by = old?.checked_sub(new?)?.checked_mul(only)?;
            self.address.offset.checked_add(by)
        };
        if let (Some(offset), Some(new)) = (only.and_then(moved), new) {
            self.address.offset = offset;
            self.address.lane[axis] = new;
        }
    }

    /// True if the address or a limit depends on the outer axes.
    pub(crate) fn moves(&self) -> bool {
        let moves = |s: &Split| s.outer.iter().any(|s| *s != 0);
        moves(&self.address) || self.limits.iter().any(|l| moves(&l.0))
    }

    /// Sets the bases of this walk for a point of the outer axes.
    ///
    /// # Safety
    /// `bases` has room for this walk's numbers.
    pub(crate) unsafe fn set_outer(&self, bases: *mut i64, point: &[i64]) {
        let evaluate = |s: &Split| {
            let terms = s.outer.iter().zip(point).map(|(s, i)| s * i);
            s.offset + terms.sum::<i64>()
        };
        // SAFETY: the numbers are one for the address and one a limit, for which there is room.
        unsafe {
            *bases.add(self.base_index) = evaluate(&self.address);
            for (i, (limit, _)) in self.limits.iter().enumerate() {
                *bases.add(self.base_index + 1 + i) = evaluate(limit);
            }
        }
    }

    /// Sets the lane coordinates of the linear lane index `start`.
    ///
    /// # Safety
    /// `coords` has room for this walk's numbers.
    pub(crate) unsafe fn set_start(&self, coords: *mut i64, mut start: i64) {
        for (d, lane) in self.lanes.iter().enumerate().rev() {
            // SAFETY: there is one number per lane axis, and room for them.
            let coord = unsafe { &mut *coords.add(self.coord_index + d) };
            if d == 0 {
                *coord = start;
            } else {
                *coord = start % lane.extent;
                start /= lane.extent;
            }
        }
    }

    /// Tabulates the lane offsets if rows are short. Visiting such rows costs more than a look-up per lane.
    pub(super) fn tabulate_lane_offsets(&mut self) {
        let [outer, inner] = self.lanes[..] else {
            return;
        };
        if !(2..MIN_RUN).contains(&inner.extent) || !self.limits.is_empty() {
            return;
        }
        let lane_offset = |i: i64| {
            let row = (i / inner.extent).checked_mul(outer.stride)?;
            let offset = row.checked_add((i % inner.extent).checked_mul(inner.stride)?)?;
            i32::try_from(offset).ok()
        };
        let offsets = (0..TILE as i64 + inner.extent).map(lane_offset);
        self.lane_offsets = offsets.collect::<Option<_>>().unwrap_or_default();
    }

    /// Returns the start address of the row with the tile's first lane, and the offsets of the tile's lanes from it.
    ///
    /// # Safety
    /// The context's bases and coordinates are set, and the walk has a table of lane offsets.
    #[inline(always)]
    pub(super) unsafe fn tile_lane_offsets(&self, ctx: &Ctx) -> (i64, *const i32) {
        // SAFETY: the numbers are this walk's, which are set; the table covers a tile that begins at any lane of a row.
        unsafe {
            let [row, lane] = [0, 1].map(|d| *ctx.coords.add(self.coord_index + d));
            let first = *ctx.bases.add(self.base_index) + row * self.lanes[0].stride;
            (first, self.lane_offsets.as_ptr().add(lane as usize))
        }
    }

    /// Returns the bounds of the lanes of a run for which every limit holds, given the limits' values at its first
    /// lane.
    #[inline(always)]
    pub(super) fn allowed(&self, values: impl Iterator<Item = i64>, len: usize) -> (usize, usize) {
        let (mut low, mut high) = (0i64, len as i64);
        for (v, (limit, extent)) in values.zip(&self.limits) {
            let stride = limit.lane[limit.lane.len() - 1];
            let ceil = |a: i64, b: i64| -(-a).div_euclid(b);
            match stride {
                0 if v < 0 || v >= *extent => high = 0,
                0 => {}
                1 => {
                    low = low.max(-v);
                    high = high.min(extent - v);
                }
                stride if stride > 0 => {
                    low = low.max(ceil(-v, stride));
                    high = high.min(ceil(extent - v, stride));
                }
                stride => {
                    // v + i·s < extent, and v + i·s > -1
                    low = low.max(ceil(v - extent + 1, -stride));
                    high = high.min(ceil(v + 1, -stride));
                }
            }
        }
        let low = low.clamp(0, len as i64);
        (low as usize, high.clamp(low, len as i64) as usize)
    }
}
