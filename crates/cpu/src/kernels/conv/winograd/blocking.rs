//! The blocking of Winograd convolutions, and their code.

use super::super::{Conv, MIN_BLOCKS};
use kiln_base::DType;
use kiln_jit::contraction::{
    Kernel, Order, RegisterEpilogue, RightSide, Tile, TileGrid, Transform, even_rows,
};
use kiln_kernel::affine::{ceil, product};
use kiln_kernel::error::Result;
use kiln_plan::schedule::{lanes, max_rows};
use kiln_plan::{Rows, Winograd};
use std::sync::Arc;

/// The elements of the transformed inputs of a block.
const HOT: i64 = 1 << 16;
/// The minimum number of register tiles of a block, one below the other, that share a pass over the weights.
const MIN_TILES: i64 = 2;
/// The number of transformed weights from which on they are prefetched.
const FAR: i64 = 1 << 17;
/// The elements of a cache line.
const LINE: i64 = 16;
/// The bytes of an element.
const SIZE: i64 = size_of::<f32>() as i64;

/// The blocking of a convolution, and its code; both follow from the shapes and the level alone.
pub(in super::super) struct Blocking {
    pub sizes: Sizes,
    /// The transforms of inputs in place, and of a copy with padding.
    pub transforms: [Kernel; 2],
    /// The register tiles of most blocks, and those of the last one.
    pub sums: [TileGrid; 2],
    pub results: Results,
    /// The epilogue that is applied to results while they are in registers.
    pub register_epilogue: Option<Arc<RegisterEpilogue>>,
}

/// Kernels indexed by three properties of a tile: it is in the last row of tiles, it is the last of its row, it has the
/// last panels.
type Results = [[[Kernel; 2]; 2]; 2];

pub(in super::super) struct Sizes {
    pub winograd: &'static Winograd,
    /// The elements of a transformed tile.
    pub squares: i64,
    /// The number of tiles of a column of an image, of a row, and of all images.
    pub down: i64,
    pub across: i64,
    pub all: i64,
    /// The tiles of a block, and its panels.
    pub tiles: i64,
    pub share: i64,
    /// The rows of a register tile, the columns of a panel, and the panels of a group.
    pub rows: i64,
    pub panel: i64,
    pub panels: i64,
    pub inputs: Elements,
    pub products: Elements,
}

/// The layout of transformed tiles, with a matrix per element: the pitch of its rows, and the distance between
/// matrices.
pub(in super::super) struct Elements {
    pub row: i64,
    pub element: i64,
}

impl Elements {
    fn new(rows: i64, columns: i64) -> Elements {
        let row = ceil(columns, LINE) * LINE;
        // The elements of a tile must not fall into the same cache sets, so matrices are an odd number of lines apart.
        let element = ((rows * row / LINE) | 1) * LINE;
        Elements { row, element }
    }
}

/// Returns the size of the last part of `all`, cut into parts of `each`.
fn in_last(all: i64, each: i64) -> i64 {
    all - (ceil(all, each) - 1) * each
}

/// Returns the strides of rows and columns of a square whose elements are `element` apart, in bytes.
fn square(side: i64, element: i64) -> [i64; 2] {
    square_of(SIZE, side, element)
}

/// Returns the same for elements of `size` bytes.
fn square_of(size: i64, side: i64, element: i64) -> [i64; 2] {
    [side, 1].map(|n| n * element * size)
}

impl Sizes {
    fn new(c: &Conv, winograd: &'static Winograd) -> Result<Sizes> {
        let squares = winograd.side() * winograd.side();
        let (lanes, by) = (i64::from(lanes(c.level, DType::F32)), c.terms.instruction);
        let (cin, cout) = (c.cin.max(1), c.cout.max(1));
        let panel = c.schedule.panel_columns(c.level, by, cout);
        let vectors = panel / lanes;
        let panels = ceil(cout, panel);
        product(&[squares, c.groups, panels, panel, cin])?;
        let [_, down, across] = c.geometry.axes.map(|a| ceil(a.output, winograd.step()));
        let all = c.batch * down * across;
        let max_rows = c.schedule.rows(max_rows(c.level, by, vectors as u8));
        // Enough blocks for the threads: with fewer tiles, or with fewer panels where there are few tiles.
        let most = (HOT / (squares * cin)).max(MIN_TILES * i64::from(max_rows));
        let blocks = match ceil(all.max(1), most) {
            few if 2 * few <= MIN_BLOCKS => few,
            many => ceil(many, MIN_BLOCKS) * MIN_BLOCKS,
        };
        let [tiles, share] = match c.schedule.block {
            Some([tiles, columns]) => [tiles.into(), ceil(columns.into(), panel)],
            None => [ceil(all.max(1), blocks), panels * blocks / MIN_BLOCKS],
        };
        let (tiles, share) = (tiles.min(all.max(1)), share.clamp(1, panels));
        Ok(Sizes {
            winograd,
            squares,
            down,
            across,
            all,
            tiles,
            share,
            rows: even_rows(tiles, max_rows),
            panel,
            panels,
            inputs: Elements::new(tiles, cin),
            products: Elements::new(tiles, share * panel),
        })
    }

    /// Returns the transform of squares into transformed tiles, for `channels` channels at a time.
    fn transform(
        &self,
        c: &Conv,
        matrix: &'static Rows,
        (from, to): ([i64; 2], [i64; 2]),
        channels: i64,
    ) -> Transform {
        Transform {
            level: c.level,
            matrix,
            reads: DType::F32,
            from,
            to,
            channels: channels as u32,
            kept: [matrix.len() as u8; 2],
            epilogue: None,
        }
    }

    /// Links the transform of a panel's filters of an input channel.
    pub(super) fn filters(&self, c: &Conv) -> Result<Kernel> {
        let strides = (
            square(3, self.panel),
            square(self.winograd.side(), c.cin * self.panel),
        );
        Kernel::of(self.transform(c, self.winograd.weights, strides, self.panel))
    }

    fn inputs(&self, c: &Conv) -> Result<[Kernel; 2]> {
        let (side, reads) = (self.winograd.side(), c.read_dtype(0));
        let of = |from: [i64; 2]| {
            let strides = (from, square(side, self.inputs.element));
            Kernel::of(Transform {
                reads,
                ..self.transform(c, self.winograd.inputs, strides, c.cin)
            })
        };
        let square = |side: i64, element: i64| square_of(reads.size() as i64, side, element);
        let in_place = square(c.geometry.axes[2].input, c.groups * c.cin);
        Ok([of(in_place)?, of(square(side, c.cin))?])
    }

    /// Links the register tiles of most blocks, and those of the last one.
    fn sums(&self, c: &Conv) -> Result<[TileGrid; 2]> {
        let matrix = c.cin * self.panel;
        let rows = kiln_jit::contraction::Rows::of_matrix(self.rows, self.inputs.row * SIZE);
        // Matrices are read consecutively.
        let ahead = match self.squares * self.panels * matrix >= FAR {
            true => matrix * SIZE,
            false => 0,
        };
        let right = RightSide {
            ahead,
            ..RightSide::of_panel(self.panel * SIZE)
        };
        let tile = Tile {
            step: SIZE,
            steps: c.cin as u32,
            out: self.products.row * SIZE,
            ..Tile::new((c.level, c.terms.instruction), rows, self.panel, right)
        };
        let lanes = i64::from(lanes(c.level, DType::F32));
        let columns = ceil(c.cout.max(1), lanes) * lanes;
        let of = |tiles: i64| TileGrid::new(&tile, [1, tiles, columns], Order::default());
        Ok([of(self.tiles)?, of(in_last(self.all.max(1), self.tiles))?])
    }

    /// Links the inverse transforms, with the epilogue that they apply.
    fn results(
        &self,
        c: &Conv,
        register_epilogue: Option<Arc<RegisterEpilogue>>,
    ) -> Result<(Results, Option<Arc<RegisterEpilogue>>)> {
        let [_, height, width] = c.geometry.axes.map(|a| a.output);
        let (step, share) = (self.winograd.step(), self.share * self.panel);
        let channels = share.min(c.cout.max(1));
        let of = |to| {
            let strides = (square(self.winograd.side(), self.products.element), to);
            self.transform(c, self.winograd.results, strides, channels)
        };
        let finished = Transform {
            epilogue: register_epilogue,
            ..of([width, 1])
        };
        let whole = match c.epilogue {
            Some(_) if finished.epilogue.is_some() && finished.is_emitted() => finished,
            Some(_) => of(square(step, share)),
            None => of(square(width, c.groups * c.cout)),
        };
        let of = |down: bool, across: bool, last: bool| {
            let kept = |is_last: bool, all: i64| match is_last {
                true => in_last(all.max(1), step) as u8,
                false => step as u8,
            };
            let channels = match last {
                true => in_last(c.cout.max(1), share),
                false => channels,
            };
            Kernel::of(Transform {
                kept: [kept(down, height), kept(across, width)],
                channels: channels as u32,
                ..whole.clone()
            })
        };
        let pair =
            |down, across| -> Result<_> { Ok([of(down, across, false)?, of(down, across, true)?]) };
        let row = |down| -> Result<_> { Ok([pair(down, false)?, pair(down, true)?]) };
        let results = [row(false)?, row(true)?];
        Ok((results, whole.epilogue))
    }
}

impl Blocking {
    pub(in super::super) fn new(
        c: &Conv,
        winograd: &'static Winograd,
        register_epilogue: Option<Arc<RegisterEpilogue>>,
    ) -> Result<Blocking> {
        let sizes = Sizes::new(c, winograd)?;
        let (results, register_epilogue) = sizes.results(c, register_epilogue)?;
        Ok(Blocking {
            transforms: sizes.inputs(c)?,
            sums: sizes.sums(c)?,
            results,
            register_epilogue,
            sizes,
        })
    }

    /// Returns the number of elements of the packed weights: the matrices of each panel.
    pub(in super::super) fn packed(&self, c: &Conv) -> i64 {
        let s = &self.sizes;
        c.groups * s.panels * s.squares * c.cin * s.panel
    }

    /// Returns the number of elements of its workspace, on `threads` threads.
    pub(in super::super) fn workspace(&self, c: &Conv, threads: i64) -> i64 {
        let s = &self.sizes;
        let block = s.inputs.element + s.products.element + c.cin;
        threads * s.squares * block + self.packed(c)
    }
}
