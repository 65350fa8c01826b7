//! Winograd's convolutions in four kernels. Inputs and weights are transformed. They are multiplied as one matrix
//! product for each of the a × a elements of a transformed tile. The results of the tiles are computed from these
//! products.

use super::call::{Call, Store, fits_i32, line_of_blocks, lines};
use super::gemm::Gemm;
use crate::Approximation;
use crate::cuda::job::Job;
use crate::cuda::source::{Index, Source};
use crate::cuda::values::Values;
use crate::schedule::Schedule;
use crate::work::{Candidate, KernelCall, KernelCalls, Slot};
use kiln_base::{DType, Dim};
use kiln_plan::{self as plan, Algorithm, Conv, ConvRole, Images, Matrix, schedule};

/// Transformed inputs `[groups, a · a, in, tiles]`.
const INPUTS: Slot = Slot::Scratch(0);
/// Transformed weights `[groups, a · a, out, in]`.
const WEIGHTS: Slot = Slot::Scratch(1);
/// The products of inputs and weights, `[groups, a · a, out, tiles]`.
const PRODUCTS: Slot = Slot::Scratch(2);

/// The number of threads of a block that transforms.
const THREADS: u32 = 128;

/// Returns the candidates by Winograd's algorithms, if these can compute the convolution and its sizes are known.
pub(super) fn candidates(work: Job, c: &Conv, name: &str) -> Vec<Candidate> {
    let is_known = !c.algorithms(&[]).is_empty();
    let is_plain = c.prologue.is_none() && c.images == Images::ChannelsFirst;
    let is_result = (c.role, c.dtype()) == (ConvRole::Result, DType::F32);
    if !(is_known && is_plain && is_result && c.is_3_by_3()) {
        return Vec::new();
    }
    let algorithms = [(Algorithm::Winograd2, 2), (Algorithm::Winograd4, 4)];
    let candidates = algorithms.into_iter().filter_map(|(algorithm, m)| {
        let winograd = Winograd::new(work, c, name, m)?;
        let (calls, predicted) = winograd.emit();
        Some(Candidate {
            schedule: Schedule::Algorithm(algorithm.into()),
            approximation: Some(Approximation::Algorithm(algorithm)),
            predicted,
            calls,
        })
    });
    candidates.collect()
}

struct Winograd<'a> {
    work: Job<'a>,
    c: &'a Conv,
    name: &'a str,
    /// The number of results of a tile along an axis.
    m: i64,
    /// The number of elements of a transformed tile.
    elements: i64,
    groups: i64,
    ins: i64,
    outs: i64,
    /// The number of tiles along both axes of an image, and in all images.
    tiles_along: [i64; 2],
    tiles: i64,
    index: Index,
}

impl<'a> Winograd<'a> {
    fn new(work: Job<'a>, c: &'a Conv, name: &'a str, m: i64) -> Option<Winograd<'a>> {
        let [groups, ins, outs, batch] =
            [&c.groups, &c.in_channels, &c.out_channels, &c.batch].map(Dim::as_const);
        let count_tiles = |d: &Dim| d.as_const().map(|n| (n + m - 1) / m);
        let tiles_along = [count_tiles(&c.output[0])?, count_tiles(&c.output[1])?];
        let tiles = batch? * tiles_along[0] * tiles_along[1];
        let mut winograd = Winograd {
            work,
            c,
            name,
            m,
            elements: (m + 2) * (m + 2),
            groups: groups?,
            ins: ins?,
            outs: outs?,
            tiles_along,
            tiles,
            index: Index::Int,
        };
        let image = [&c.groups, &c.in_channels, &c.input[0], &c.input[1]]
            .iter()
            .fold(c.batch.clone(), |n, d| &n * *d);
        let sizes = winograd.sizes().map(Dim::Const);
        if !sizes.iter().chain([&image]).all(fits_i32) {
            winograd.index = Index::Long;
        }
        if let Store::Epilogue(kir) = winograd.store()
            && Values::index_type(kir) == Index::Long
        {
            winograd.index = Index::Long;
        }
        Some(winograd)
    }

    /// Returns the numbers of elements of [`INPUTS`], [`WEIGHTS`] and [`PRODUCTS`].
    fn sizes(&self) -> [i64; 3] {
        let tile_elements = self.groups * self.elements;
        [
            tile_elements * self.ins * self.tiles,
            tile_elements * self.outs * self.ins,
            tile_elements * self.outs * self.tiles,
        ]
    }

    fn store(&self) -> Store<'a> {
        Store::of(self.work, self.c.out, DType::F32)
    }

    /// Returns the kernels and their predicted cycles.
    fn emit(&self) -> (KernelCalls, Option<f64>) {
        let (product, cycles) = self.emit_product();
        let sizes = self.sizes();
        let transfers = schedule::transfer_cycles(self.work.gpu, 4 * sizes.iter().sum::<i64>());
        let scratch = sizes.map(|n| (DType::F32, vec![Dim::Const(n)]));
        let calls = KernelCalls {
            steps: vec![
                self.emit_inputs(),
                self.emit_weights(),
                product,
                self.emit_results(),
            ],
            scratch: scratch.into(),
            in_place: self.work.in_place.clone(),
        };
        (calls, cycles.map(|cycles| cycles + transfers))
    }

    /// Returns the text of a kernel with one thread per point, up to the declaration of `thread`.
    fn begin_kernel(&self, call: &Call, name: &str, points: i64) -> Source {
        let mut source = call.source(name, self.index);
        let (index, m) = (self.index.name(), self.m);
        source.scope(&format!(
            "typedef {index} Index;\nconstexpr int M = {m};\n#define WINOGRAD {m}\n{}",
            include_str!("winograd.cu")
        ));
        let thread = format!(
            "const Index thread = (Index)blockIdx.x * {THREADS} + threadIdx.x;\n\
             if (thread >= {}) return;",
            source.dim(&Dim::Const(points))
        );
        lines(&mut source, &thread);
        source
    }

    fn finish_kernel(&self, call: Call, source: Source, points: i64) -> KernelCall {
        let grid = line_of_blocks(Dim::Const(points), THREADS);
        call.step(source.finish(grid, [THREADS, 1, 1]))
    }

    /// Declares a thread's channel, tile, group, image, row and column.
    fn declare_coordinates(&self, source: &mut Source, channels: i64) {
        let (tiles, [down, across]) = (self.tiles, self.tiles_along);
        let text = format!(
            "\
const Index tile = thread % {tiles}, channel = thread / {tiles};
const Index group = channel / {channels}, inside = channel % {channels};
const Index image = tile / {}, row = tile / {across} % {down} * M, column = tile % {across} * M;",
            down * across
        );
        lines(source, &text);
    }

    fn emit_inputs(&self) -> KernelCall {
        let mut call = Call::new(self.work);
        let x = Slot::Arg(self.c.operands[0] as usize);
        call.push(x, DType::F32, false);
        call.push(INPUTS, DType::F32, true);
        let points = self.groups * self.ins * self.tiles;
        let mut source = self.begin_kernel(&call, &format!("{}_inputs", self.name), points);
        self.declare_coordinates(&mut source, self.ins);
        let size = |d: &Dim| d.as_const().unwrap_or(0);
        let [rows, columns] = [0, 1].map(|a| size(&self.c.input[a]));
        let [above, left] = [0, 1].map(|a| size(&self.c.padding[a]));
        let (groups, ins, elements, tiles) = (self.groups, self.ins, self.elements, self.tiles);
        let text = format!(
            "\
const float* from = {} + (image * {} + channel) * {};
float* to = {} + (group * {elements} * {ins} + inside) * {tiles} + tile;
transform_inputs(from, {rows}, {columns}, row - {above}, column - {left}, to, {});",
            call.pointer(x),
            groups * ins,
            rows * columns,
            call.pointer(INPUTS),
            ins * tiles
        );
        lines(&mut source, &text);
        self.finish_kernel(call, source, points)
    }

    fn emit_weights(&self) -> KernelCall {
        let mut call = Call::new(self.work);
        let w = Slot::Arg(self.c.operands[1] as usize);
        call.push(w, DType::F32, false);
        call.push(WEIGHTS, DType::F32, true);
        let filters = self.outs * self.ins;
        let points = self.groups * filters;
        let mut source = self.begin_kernel(&call, &format!("{}_weights", self.name), points);
        let text = format!(
            "\
float* to = {} + thread / {filters} * {} + thread % {filters};
transform_weights({} + thread * 9, to, {filters});",
            call.pointer(WEIGHTS),
            filters * self.elements,
            call.pointer(w)
        );
        lines(&mut source, &text);
        self.finish_kernel(call, source, points)
    }

    fn emit_product(&self) -> (KernelCall, Option<f64>) {
        let name = format!("{}_products", self.name);
        let product = plan::MatMul {
            dtypes: [DType::F32; 2],
            reduce_range: false,
            batch: vec![Dim::Const(self.groups * self.elements)],
            m: Dim::Const(self.outs),
            n: Dim::Const(self.tiles),
            k: Dim::Const(self.ins),
            lhs: contiguous_matrices([self.outs, self.ins]),
            rhs: contiguous_matrices([self.ins, self.tiles]),
            out: 0,
            prologues: [None, None],
            epilogue: None,
            algorithm: Default::default(),
        };
        let operands = [WEIGHTS, INPUTS].map(|slot| (slot, None));
        let store = Store::Plain(PRODUCTS, DType::F32);
        let contraction = (&product).into();
        Gemm::new(
            self.work,
            &name,
            [DType::F32; 2],
            contraction,
            operands,
            store,
        )
        .unsplit_kernel()
    }

    fn emit_results(&self) -> KernelCall {
        let mut call = Call::new(self.work);
        let store = self.store();
        store.push(&mut call);
        call.push(PRODUCTS, DType::F32, false);
        let points = self.groups * self.outs * self.tiles;
        let mut source = self.begin_kernel(&call, self.name, points);
        self.declare_coordinates(&mut source, self.outs);
        let size = |d: &Dim| d.as_const().unwrap_or(0);
        let [rows, columns] = [0, 1].map(|a| size(&self.c.output[a]));
        let (groups, outs, elements, tiles) = (self.groups, self.outs, self.elements, self.tiles);
        let text = format!(
            "\
const float* from = {} + (group * {elements} * {outs} + inside) * {tiles} + tile;
float results[M][M];
transform_results(from, {}, results);
#pragma unroll
for (int i = 0; i < M; i++)
#pragma unroll
for (int j = 0; j < M; j++) {{
if (row + i >= {rows} || column + j >= {columns}) continue;
const float raw = results[i][j];
const Index at = (image * {} + channel) * {} + (row + i) * {columns} + column + j;",
            call.pointer(PRODUCTS),
            outs * tiles,
            groups * outs,
            rows * columns
        );
        lines(&mut source, &text);
        store.emit(&mut source, &call, 1);
        source.line("}");
        self.finish_kernel(call, source, points)
    }
}

/// Returns a batch of contiguous matrices.
fn contiguous_matrices([rows, columns]: [i64; 2]) -> Matrix {
    Matrix {
        arg: 0,
        offset: Dim::ZERO,
        batch_strides: vec![Dim::Const(rows * columns)],
        row: Dim::Const(columns),
        col: Dim::ONE,
    }
}
