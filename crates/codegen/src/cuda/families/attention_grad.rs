//! The gradients of attention: scores are rematerialised and never reach memory. A first kernel walks each row of
//! scores and stores three numbers per row. Then one kernel per gradient computes it, some rows in each block, in an
//! order that does not depend on the order of blocks.

use super::attention::{Tile, declare, footprint_ends, push_operands, sizes};
use super::attention::{footprint_end, strided};
use super::call::{Call, fits_i32, lines};
use super::operand::Operand;
use crate::cuda::job::Job;
use crate::cuda::source::{Index, Source};
use crate::work::{KernelCall, KernelCalls, Slot};
use kiln_base::{DType, Dim, numel};
use kiln_plan::cuda::SharedLaunch;
use kiln_plan::{AttentionGrad, Matrix};

/// The three numbers of each row of scores.
const ROWS: Slot = Slot::Scratch(0);

pub(super) fn emit(work: Job, a: &AttentionGrad) -> KernelCalls {
    let grad = Grad { work, a };
    let gradients = [Gradient::Query, Gradient::Key, Gradient::Value].map(|of| grad.gradient(of));
    let rows = &(&numel(&a.scores.batch) * &a.scores.length) * &Dim::Const(3);
    KernelCalls {
        steps: std::iter::once(grad.rows()).chain(gradients).collect(),
        scratch: vec![(compute_dtype(a.scores.dtype), vec![rows])],
        in_place: work.in_place.clone(),
    }
}

/// Returns the dtype of computation and of the numbers of rows.
fn compute_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// A choice of the gradient to compute.
#[derive(Copy, Clone, PartialEq)]
enum Gradient {
    Query,
    Key,
    Value,
}

struct Grad<'a> {
    work: Job<'a>,
    a: &'a AttentionGrad,
}

/// An operand as lines of a product: its name, the matrix, its number of lines, and true if its rows are the lines.
type Lines<'a> = (&'a str, &'a Matrix, &'a str, bool);

impl Grad<'_> {
    /// Returns the operands: query and key, whose products are scores; the gradient of the result and the value, whose
    /// products are the gradients of the weights.
    fn operands(&self) -> [Lines<'_>; 4] {
        let AttentionGrad {
            scores,
            value,
            gradient,
            ..
        } = self.a;
        [
            ("q", &scores.query, "length", true),
            ("k", &scores.key, "keys", true),
            ("g", gradient, "length", true),
            ("v", value, "keys", true),
        ]
    }

    /// Emits the kernel that computes the numbers of rows.
    fn rows(&self) -> KernelCall {
        let a = self.a;
        let (dtype, index) = (a.scores.dtype, self.index());
        let mut call = Call::new(self.work);
        call.push(ROWS, compute_dtype(dtype), true);
        push_operands(&mut call, &a.scores, &[&a.value, &a.gradient]);
        let mut source = call.source(&format!("attention_rows_{dtype}"), index);
        let operands = self
            .operands()
            .map(|lines| operand(&mut source, &call, a, lines));
        let tile = Tile::of(dtype, &a.scores.length, &Dim::ONE);
        let [x, y] = common_layout(&operands);
        source.scope(&tile.scores(&a.scores, index, [&x, &y]));
        source.scope(include_str!("attention_rows.cu"));
        self.begin(&mut source, &call, "length", "1", &operands);
        let text = format!(
            "\
sum_rows(shared, q, k, g, v, scores, {} + batch * length * 3, i0, length, keys, width, columns);",
            call.pointer(ROWS)
        );
        lines(&mut source, &text);
        let grid = tile.grid_of_rows(&a.scores, &a.scores.length);
        call.step(source.finish(grid, [tile.threads, 1, 1]))
    }

    /// Emits the kernel of a gradient.
    fn gradient(&self, of: Gradient) -> KernelCall {
        let a = self.a;
        let (dtype, index) = (a.scores.dtype, self.index());
        let mut call = Call::new(self.work);
        let out = Slot::Arg(a.out as usize);
        call.push(out, dtype, true);
        call.push(ROWS, compute_dtype(dtype), false);
        push_operands(&mut call, &a.scores, &[&a.value, &a.gradient]);
        let name = match of {
            Gradient::Query => "query",
            Gradient::Key => "key",
            Gradient::Value => "value",
        };
        let name = format!("attention_grad_of_{name}_{dtype}");
        let mut source = call.source(&name, index);
        let [q, k, g, v] = self.operands();
        let (rows, columns, times) = match of {
            Gradient::Query => ("length", "width", k),
            Gradient::Key => ("keys", "width", q),
            Gradient::Value => ("keys", "columns", g),
        };
        let times = operand(&mut source, &call, a, ("x", times.1, columns, false));
        let operands = [q, k, g, v].map(|lines| operand(&mut source, &call, a, lines));
        let (lengths, sides) = match of {
            Gradient::Query => (&a.scores.length, &a.scores.width),
            Gradient::Key => (&a.scores.keys, &a.scores.width),
            Gradient::Value => (&a.scores.keys, &a.columns),
        };
        let tile = Tile::of(dtype, lengths, sides);
        let [x, y] = common_layout(&operands);
        let transposed = of != Gradient::Query;
        let pair = if transposed { [&y, &x] } else { [&x, &y] };
        source.scope(&tile.scores(&a.scores, index, pair));
        source.scope(&tile.sums(dtype, &times));
        source.scope(&format!(
            "constexpr bool TRANSPOSED = {transposed}, OF_VALUES = {};",
            of == Gradient::Value
        ));
        source.scope(include_str!("attention_grad.cu"));
        self.begin(&mut source, &call, rows, columns, &operands);
        let pairs = if transposed {
            "k, q, v, g"
        } else {
            "q, k, g, v"
        };
        let [query, key, _] = a.lengths();
        let begin = match of {
            Gradient::Query => Dim::ZERO,
            Gradient::Key => query,
            Gradient::Value => &query + &key,
        };
        let (begin, pointer) = (source.dim(&begin), call.pointer(ROWS));
        let text = format!(
            "\
{}derive(shared, {pairs}, x, scores, {pointer} + batch * length * 3, i0, c0, length, keys, width, columns);
#pragma unroll 1
for (int e = threadIdx.x; e < BM * BV; e += THREADS) {{
const Index i = i0 + e / BV, c = c0 + e % BV;
if (i < {rows} && c < {columns}) {}[{begin} + (batch * {rows} + i) * {columns} + c] = store(shared.out[e / BV][e % BV]);
}}",
            times.text,
            call.pointer(out),
        );
        lines(&mut source, &text);
        let grid = tile.grid(&a.scores, lengths, sides);
        call.step(source.finish(grid, [tile.threads, 1, 1]))
    }

    /// Begins a block's work: its matrix, rows and columns, and the operands.
    fn begin(
        &self,
        source: &mut Source,
        call: &Call,
        rows: &str,
        columns: &str,
        operands: &[Operand; 4],
    ) {
        source.shared("Block");
        source.shared_launch = SharedLaunch::Nothing;
        let scores = &self.a.scores;
        sizes(source, scores, &self.a.columns);
        let declared = declare(source, call, scores);
        let strip = match columns {
            "1" => String::new(),
            columns => format!(
                "const Index strips = ({columns} + BV - 1) / BV, c0 = tile % strips * BV;\ntile /= strips;\n"
            ),
        };
        let text = format!(
            "\
if ({rows} <= 0 || {columns} <= 0 || batches <= 0) return;
Index tile = blockIdx.x;
{strip}const Index blocks = ({rows} + BM - 1) / BM, i0 = tile % blocks * BM, batch = tile / blocks;
if (batch >= batches) return;
{}{declared}",
            operands.each_ref().map(|x| &x.text[..]).concat(),
        );
        lines(source, &text);
    }

    /// Returns the type of indices: 32 bits where everything is known to be small.
    fn index(&self) -> Index {
        let a = self.a;
        let batch = &a.scores.batch;
        let mut all = footprint_ends(&a.scores);
        all.push(footprint_end(batch, &a.value, &a.scores.keys, &a.columns));
        all.push(footprint_end(
            batch,
            &a.gradient,
            &a.scores.length,
            &a.columns,
        ));
        all.push(a.lengths().iter().fold(Dim::ZERO, |n, d| &n + d));
        all.push(&(&numel(batch) * &a.scores.length) * &Dim::Const(3));
        match all.iter().all(fits_i32) {
            true => Index::Int,
            false => Index::Long,
        }
    }
}

fn operand(
    source: &mut Source,
    call: &Call,
    a: &AttentionGrad,
    (name, x, lines, by_row): Lines<'_>,
) -> Operand {
    let strides = match by_row {
        true => [&x.row, &x.col],
        false => [&x.col, &x.row],
    };
    strided(source, call, &a.scores.batch, x, [name, lines], strides)
}

/// Returns the common layout with which both products read their operands, lines of queries and of keys. It serves the
/// scores, and reads vectors of eight where all operands can.
fn common_layout([q, k, g, v]: &[Operand; 4]) -> [Operand; 2] {
    [[q, g], [k, v]].map(|[x, y]| Operand {
        text: String::new(),
        along_k: x.along_k,
        vector: x.vector && y.vector && x.along_k == y.along_k,
        whole: x.whole && y.whole,
    })
}
