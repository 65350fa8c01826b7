//! Grids of register tiles: the tiles of a contraction next to each other, with smaller ones at the ends.

use super::kernel::Kernel;
use super::tile::{Rows, Tile, strips};
use kiln_kernel::error::Result;
use std::ops::Range;

/// The kernels of a grid of lines, of rows in these, and of columns.
pub struct TileGrid {
    /// The lines, rows and columns of a whole tile, and of the grid.
    each: [i64; 3],
    extents: [i64; 3],
    /// The maximum number of tiles of a call, and true if these are below each other; otherwise they are side by side.
    max_tiles: i64,
    is_down: bool,
    kernels: Vec<Kernel>,
    /// The index of the kernel that has fewer lines, fewer rows and fewer columns, or not, as the bits of a number say.
    index: [u8; 8],
}

/// Tiles of the same rows, computed by one call for each panel of columns.
pub struct RowTiles<'a> {
    /// The first line and row, and the number of tiles.
    pub line: i64,
    pub row: i64,
    pub tiles: i64,
    grid: &'a TileGrid,
    index: usize,
}

impl TileGrid {
    /// Makes the kernels for a whole tile. Along an axis, all tiles are whole but for the last of the extent. Tiles of a
    /// call are below each other if `is_down`.
    ///
    /// # Errors
    /// As [`Kernel::of`].
    pub fn new(tile: &Tile, extents: [i64; 3], is_down: bool) -> Result<TileGrid> {
        let across = i64::from(tile.rows.across).max(1);
        let lines = i64::from(tile.rows.count) / across;
        let each = [lines.max(1), across, i64::from(tile.columns).max(1)];
        let (mut kernels, mut index) = (Vec::new(), [0; 8]);
        for bits in 0..8usize {
            let size = |axis: usize| match (bits >> axis & 1, extents[axis] % each[axis]) {
                (1, rest @ 1..) => rest,
                _ => each[axis],
            };
            let sizes = [0, 1, 2].map(size);
            let rest = (0..3).filter(|axis| sizes[*axis] != each[*axis]);
            let same = rest.map(|axis| 1 << axis).sum::<usize>();
            if same != bits {
                index[bits] = index[same];
                continue;
            }
            index[bits] = kernels.len() as u8;
            kernels.push(Kernel::of(Tile {
                rows: Rows {
                    count: (sizes[0] * sizes[1]) as u8,
                    across: sizes[1] as u8,
                    ..tile.rows
                },
                columns: sizes[2] as u16,
                ..tile.clone()
            })?);
        }
        Ok(TileGrid {
            each,
            extents,
            max_tiles: tile.max_tiles(),
            is_down,
            kernels,
            index,
        })
    }

    /// Returns the lines, rows and columns of a whole tile.
    pub fn each(&self) -> [i64; 3] {
        self.each
    }

    /// Returns the calls for some lines and rows, in order of memory along the calls' tiles. The last tile of a range is
    /// whole, or has as many as the last of its axis.
    #[inline]
    pub fn rows(&self, all: [Range<i64>; 2]) -> impl Iterator<Item = RowTiles<'_>> {
        let ends = [all[0].end, all[1].end];
        debug_assert!(
            (0..2).all(|axis| {
                let rest = (ends[axis] - all[axis].start) % self.each[axis];
                [0, self.extents[axis] % self.each[axis]].contains(&rest)
            }),
            "{all:?} of {:?} in tiles of {:?}",
            self.extents,
            self.each
        );
        let [along, other] = if self.is_down { [0, 1] } else { [1, 0] };
        let next = all[along].clone();
        let beside = all[other].clone().step_by(self.each[other] as usize);
        beside.flat_map(move |first| {
            let strips = strips(next.clone(), self.each[along], self.max_tiles);
            strips.map(move |(start, tiles)| {
                let mut at = [first; 2];
                at[along] = start;
                let ends_here = |axis: usize| ends[axis] - at[axis] < self.each[axis];
                RowTiles {
                    line: at[0],
                    row: at[1],
                    tiles,
                    grid: self,
                    index: usize::from(ends_here(0)) + 2 * usize::from(ends_here(1)),
                }
            })
        })
    }
}

impl<'a> RowTiles<'a> {
    /// Returns the kernel for the first of these columns, as many as a whole tile has.
    #[inline]
    pub fn kernel(&self, columns: i64) -> &'a Kernel {
        let last = 4 * usize::from(columns < self.grid.each[2]);
        &self.grid.kernels[usize::from(self.grid.index[self.index + last])]
    }
}
