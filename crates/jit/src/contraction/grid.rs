//! The driver of all contractions: a grid of register tiles next to each other, with smaller ones at the ends.
//!
//! A schedule gives the whole tile, the order of calls, and the source of either operand. The rest follows from the
//! tile, because lines and rows have constant strides, in A and in the result.

use super::depthwise::Depthwise;
use super::kernel::{Kernel, Left, Output};
use super::tile::{Rows, Tile, strips};
use kiln_base::DType;
use kiln_kernel::bugs::bug;
use kiln_kernel::error::Result;
use kiln_kernel::view::View;
use kiln_plan::cost::geometry::Axis;
use std::ops::Range;

/// The source of a grid's B.
pub trait PanelSource {
    /// Returns the panel that starts with a column.
    ///
    /// # Errors
    /// If there is no memory for a copy.
    fn panel(&mut self, column: i64) -> Result<View<'_, u8>>;
}

/// A B in memory: contiguous panels, or a matrix in place.
#[derive(Copy, Clone)]
pub struct Columns<'a> {
    /// The memory from the first column on.
    pub first: View<'a, u8>,
    /// The bytes of a panel per column, or the stride of columns.
    pub column: i64,
}

impl Columns<'_> {
    /// Returns the B of tiles whose columns have an A each; their [lines](Left::Lines) have the weights.
    pub fn none() -> Columns<'static> {
        Columns {
            first: View::of(&[]),
            column: 0,
        }
    }
}

impl PanelSource for Columns<'_> {
    #[inline]
    fn panel(&mut self, column: i64) -> Result<View<'_, u8>> {
        Ok(self.first.shift(column * self.column))
    }
}

/// The order of a grid's calls.
#[derive(Copy, Clone, Default)]
pub struct Order {
    /// True if the tiles of a call, and then the next calls, advance by lines; otherwise they advance by rows.
    pub is_down: bool,
    /// True if a tile passes over all panels before the next tile; otherwise a panel is used by all tiles first.
    pub is_by_tile: bool,
}

/// The kernels of a grid of lines, of rows in these, and of columns.
pub struct TileGrid {
    /// The lines, rows and columns of a whole tile, and of the grid.
    tile_extents: [i64; 3],
    extents: [i64; 3],
    /// The maximum number of tiles of a call.
    max_tiles: i64,
    order: Order,
    /// The strides of lines and of rows, in bytes of A and in rows of the result.
    left: [i64; 2],
    result: [i64; 2],
    /// The strides of rows and of columns of the result, in bytes.
    out: [i64; 2],
    kernels: Vec<Kernel>,
    /// The index of the kernel of each form of a tile, for a whole panel and for the last one.
    index: Vec<usize>,
    /// The form of each tile of a line, if it depends on the taps that are within the line. Otherwise the bits of a
    /// form are set if the tile has fewer lines, and fewer rows.
    line: Vec<usize>,
}

/// Tiles of the same rows, computed by one call for each panel of columns.
struct RowTiles {
    /// The first line and row, the line that is read, and the number of tiles.
    line: i64,
    row: i64,
    read: i64,
    tiles: i64,
    form: usize,
}

impl TileGrid {
    /// Makes the kernels for a whole tile. Along an axis, all tiles are whole but for the last of the extent.
    ///
    /// # Errors
    /// As [`Kernel::of`].
    pub fn new(tile: &Tile, extents: [i64; 3], order: Order) -> Result<TileGrid> {
        let mut grid = TileGrid::empty(tile, extents, order);
        for bits in 0..8usize {
            let bit = |axis: usize| (axis + 1) % 3;
            let size = |axis: usize| match extents[axis] % grid.tile_extents[axis] {
                remainder @ 1.. if bits >> bit(axis) & 1 == 1 => remainder,
                _ => grid.tile_extents[axis],
            };
            let sizes = [0, 1, 2].map(size);
            let less = (0..3).filter(|axis| sizes[*axis] != grid.tile_extents[*axis]);
            let index_bits = less.map(|axis| 1 << bit(axis)).sum::<usize>();
            if index_bits != bits {
                grid.index.push(grid.index[index_bits]);
                continue;
            }
            grid.index.push(grid.kernels.len());
            grid.kernels.push(Kernel::of(Tile {
                rows: Rows {
                    count: (sizes[0] * sizes[1]) as u8,
                    across: sizes[1] as u8,
                    ..tile.rows
                },
                columns: sizes[2] as u16,
                ..tile.clone()
            })?);
        }
        Ok(grid)
    }

    /// Makes the kernels for lines of tiles whose columns have an A each, with elements of dtype `reads` and a stride of
    /// `position` bytes from position to position. The taps of a tile are the first ones of the axis after `tap`. All
    /// panels are whole except the last one.
    ///
    /// # Errors
    /// As [`Kernel::of`].
    pub fn of_lines(
        tile: &Tile,
        (reads, position): (DType, i64),
        (axis, tap): (&Axis, i64),
        columns: i64,
    ) -> Result<TileGrid> {
        let mut grid = TileGrid::empty(tile, [1, axis.output, columns], Order::default());
        grid.left = [0, axis.stride * position];
        let ([_, max_rows, width], taps) = (grid.tile_extents, tile.taps);
        // The axis along the taps of a row.
        let input = bug(
            "a depthwise filter reads beyond its line",
            axis.input,
            |n| n - 1,
        );
        let tap_axis = Axis {
            input,
            stride: axis.dilation,
            ..*axis
        };
        let mut known: Vec<(i64, Vec<[u32; 2]>)> = Vec::new();
        for first in (0..axis.output).step_by(max_rows as usize) {
            let rows = max_rows.min(axis.output - first);
            let inside = |row: i64| {
                let (from, to) = tap_axis.inside(row * axis.stride, tap, tap + i64::from(taps));
                [from - tap, to - tap].map(|n| n as u32)
            };
            // The first and the last row bound the taps of all rows.
            let inside = match [first, first + rows - 1].map(inside) == [[0, taps]; 2] {
                true => vec![],
                false => (first..first + rows).map(inside).collect(),
            };
            let form = (rows, inside);
            let same = known.iter().rposition(|other| *other == form);
            grid.line.push(same.unwrap_or(known.len()));
            if same.is_some() {
                continue;
            }
            let last_width = columns - (columns - 1) / width * width;
            for columns in [width, last_width] {
                grid.index.push(grid.kernels.len());
                grid.kernels.push(Kernel::of(Depthwise {
                    tile: Tile {
                        rows: Rows::of_matrix(rows, 0),
                        columns: columns as u16,
                        ..tile.clone()
                    },
                    stride: axis.stride as u32,
                    dilation: axis.dilation as u32,
                    reads,
                    position,
                    inside: form.1.clone(),
                })?);
            }
            known.push(form);
        }
        Ok(grid)
    }

    /// Returns a grid of a whole tile without kernels.
    fn empty(tile: &Tile, extents: [i64; 3], order: Order) -> TileGrid {
        let across = i64::from(tile.rows.across).max(1);
        let lines = i64::from(tile.rows.count) / across;
        let tile_extents = [lines.max(1), across, i64::from(tile.columns).max(1)];
        let [[row, line], [result_row, result_line]] = [tile.rows.left, tile.rows.result];
        let (mut left, mut result) = ([line, row], [result_line, result_row]);
        if tile.strip != [0; 2] {
            let along = if order.is_down { 0 } else { 1 };
            (left[along], result[along]) = (
                tile.strip[0] / tile_extents[along],
                tile.strip[1] / tile_extents[along],
            );
        }
        TileGrid {
            tile_extents,
            extents,
            max_tiles: tile.max_tiles(),
            order,
            left,
            result,
            out: [tile.out, tile.instruction.sums.size() as i64],
            kernels: Vec::new(),
            index: Vec::new(),
            line: Vec::new(),
        }
    }

    /// Computes the tiles of some lines, rows and columns, from operands and to a result that begin with the first line
    /// and row of the grid. The columns are those of `right`. The last tile of a range is whole, or has as many lines
    /// or rows as the last of its axis; if a panel is not whole, it is the last one of the grid.
    ///
    /// # Errors
    /// If `right` has no panel.
    ///
    /// # Panics
    /// As [`Kernel::compute`].
    pub fn compute(
        &self,
        [lines, rows, columns]: [Range<i64>; 3],
        mut left: Left,
        right: &mut impl PanelSource,
        mut out: Output,
    ) -> Result<()> {
        let panels = columns.clone().step_by(self.tile_extents[2] as usize);
        let mut call = |tiles: &RowTiles, column: i64, right: View<u8>| {
            let is_last = usize::from(columns.end - column < self.tile_extents[2]);
            let kernel = &self.kernels[self.index[2 * tiles.form + is_last]];
            let left = left.shift(tiles.read * self.left[0] + tiles.row * self.left[1]);
            let row = tiles.line * self.result[0] + tiles.row * self.result[1];
            let out = out.shift((row, column), self.out);
            kernel.compute(left, right, out, tiles.tiles);
        };
        if self.order.is_by_tile {
            for tiles in self.tiles([lines, rows]) {
                for column in panels.clone() {
                    call(&tiles, column, right.panel(column)?);
                }
            }
            return Ok(());
        }
        for column in panels {
            let panel = right.panel(column)?;
            for tiles in self.tiles([lines.clone(), rows.clone()]) {
                call(&tiles, column, panel);
            }
        }
        Ok(())
    }

    /// Returns the calls for some lines and rows, in order of memory along the calls' tiles.
    #[inline]
    fn tiles(&self, ranges: [Range<i64>; 2]) -> impl Iterator<Item = RowTiles> {
        let ends = [ranges[0].end, ranges[1].end];
        debug_assert!(
            (0..2).all(|axis| {
                let rest = (ends[axis] - ranges[axis].start) % self.tile_extents[axis];
                [0, self.extents[axis] % self.tile_extents[axis]].contains(&rest)
            }),
            "{ranges:?} of {:?} in tiles of {:?}",
            self.extents,
            self.tile_extents
        );
        let [along, outer] = if self.order.is_down { [0, 1] } else { [1, 0] };
        let (inner_range, first_line) = (ranges[along].clone(), ranges[0].start);
        let outer_starts = ranges[outer]
            .clone()
            .step_by(self.tile_extents[outer] as usize);
        outer_starts.flat_map(move |first| {
            let strips = strips(
                inner_range.clone(),
                self.tile_extents[along],
                self.max_tiles,
            );
            strips.map(move |(start, tiles)| {
                let mut position = [first; 2];
                position[along] = start;
                let has_fewer = |axis: usize| {
                    usize::from(ends[axis] - position[axis] < self.tile_extents[axis])
                };
                let of_line = self
                    .line
                    .get((position[1] / self.tile_extents[1]) as usize)
                    .copied();
                RowTiles {
                    line: position[0],
                    row: position[1],
                    read: bug("a tile reads the line of the first", position[0], |_| {
                        first_line
                    }),
                    tiles,
                    form: of_line.unwrap_or_else(|| has_fewer(0) + 2 * has_fewer(1)),
                }
            })
        })
    }
}
