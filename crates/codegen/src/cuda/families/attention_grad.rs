//! The gradients of attention: scores are rematerialised and never reach memory. A first kernel walks each row of
//! scores and stores three numbers per row. Then one kernel per gradient computes it, some rows in each block, in an
//! order that does not depend on the order of blocks.

use super::attention::{Tile, declare_scores, declare_sizes, footprint_end, footprint_ends};
use super::attention::{push_operands, strided_operand};
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
    let gradients =
        [Gradient::Query, Gradient::Key, Gradient::Value].map(|g| grad.emit_gradient(g));
    let rows = &(&numel(&a.scores.batch) * &a.scores.length) * &Dim::Const(3);
    KernelCalls {
        steps: std::iter::once(grad.emit_rows()).chain(gradients).collect(),
        scratch: vec![(compute_dtype(a.scores.dtype), vec![rows])],
        in_place: work.in_place.clone(),
    }
}

/// Returns the dtype in which gradients are computed and the numbers of rows stored.
fn compute_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// The operand whose gradient a kernel computes.
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

    /// Emits the kernel that computes the three numbers of each row.
    fn emit_rows(&self) -> KernelCall {
        let a = self.a;
        let (dtype, index) = (a.scores.dtype, self.index_type());
        let mut call = Call::new(self.work);
        call.push(ROWS, compute_dtype(dtype), true);
        push_operands(&mut call, &a.scores, &[&a.value, &a.gradient]);
        let mut source = call.source(&format!("attention_rows_{dtype}"), index);
        let operands = self
            .operands()
            .map(|lines| operand(&mut source, &call, a, lines));
        let tile = Tile::of(dtype, &a.scores.length, &Dim::ONE);
        let [x, y] = common_layout(&operands);
        source.scope(&tile.scores_text(&a.scores, index, [&x, &y]));
        source.scope(include_str!("attention_rows.cu"));
        self.begin_block(&mut source, &call, "length", "1", &operands);
        let text = format!(
            "\
reduce_rows(shared, q, k, g, v, scores, {} + batch * length * 3, i0, length, keys, width, columns);",
            call.pointer(ROWS)
        );
        lines(&mut source, &text);
        let grid = tile.grid_of_rows(&a.scores, &a.scores.length);
        call.step(source.finish(grid, [tile.threads, 1, 1]))
    }

    /// Emits the kernel of a gradient.
    fn emit_gradient(&self, target: Gradient) -> KernelCall {
        let a = self.a;
        let (dtype, index) = (a.scores.dtype, self.index_type());
        let mut call = Call::new(self.work);
        let out = Slot::Arg(a.out as usize);
        call.push(out, dtype, true);
        call.push(ROWS, compute_dtype(dtype), false);
        push_operands(&mut call, &a.scores, &[&a.value, &a.gradient]);
        let name = match target {
            Gradient::Query => "query",
            Gradient::Key => "key",
            Gradient::Value => "value",
        };
        let name = format!("attention_grad_of_{name}_{dtype}");
        let mut source = call.source(&name, index);
        let [q, k, g, v] = self.operands();
        let (rows, columns, multiplier) = match target {
            Gradient::Query => ("length", "width", k),
            Gradient::Key => ("keys", "width", q),
            Gradient::Value => ("keys", "columns", g),
        };
        let multiplier = operand(&mut source, &call, a, ("x", multiplier.1, columns, false));
        let operands = [q, k, g, v].map(|lines| operand(&mut source, &call, a, lines));
        let (row_count, column_count) = match target {
            Gradient::Query => (&a.scores.length, &a.scores.width),
            Gradient::Key => (&a.scores.keys, &a.scores.width),
            Gradient::Value => (&a.scores.keys, &a.columns),
        };
        let tile = Tile::of(dtype, row_count, column_count);
        let [x, y] = common_layout(&operands);
        let transposed = target != Gradient::Query;
        let pair = if transposed { [&y, &x] } else { [&x, &y] };
        source.scope(&tile.scores_text(&a.scores, index, pair));
        source.scope(&tile.weighting_text(dtype, &multiplier));
        source.scope(&format!(
            "constexpr bool TRANSPOSED = {transposed}, VALUE_GRADIENT = {};",
            target == Gradient::Value
        ));
        source.scope(include_str!("attention_grad.cu"));
        self.begin_block(&mut source, &call, rows, columns, &operands);
        let pairs = if transposed {
            "k, q, v, g"
        } else {
            "q, k, g, v"
        };
        let [query, key, _] = a.lengths();
        let offset = match target {
            Gradient::Query => Dim::ZERO,
            Gradient::Key => query,
            Gradient::Value => &query + &key,
        };
        let (offset, pointer) = (source.dim(&offset), call.pointer(ROWS));
        let text = format!(
            "\
{}compute_gradient(shared, {pairs}, x, scores, {pointer} + batch * length * 3, i0, c0, length, keys, width, columns);
#pragma unroll 1
for (int e = threadIdx.x; e < BM * BV; e += THREADS) {{
const Index i = i0 + e / BV, c = c0 + e % BV;
if (i < {rows} && c < {columns}) {}[{offset} + (batch * {rows} + i) * {columns} + c] = store(shared.out[e / BV][e % BV]);
}}",
            multiplier.text,
            call.pointer(out),
        );
        lines(&mut source, &text);
        let grid = tile.grid(&a.scores, row_count, column_count);
        call.step(source.finish(grid, [tile.threads, 1, 1]))
    }

    /// Declares a block's matrix, rows and columns, and the operands.
    fn begin_block(
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
        declare_sizes(source, scores, &self.a.columns);
        let declared = declare_scores(source, call, scores);
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
    fn index_type(&self) -> Index {
        let a = self.a;
        let batch = &a.scores.batch;
        let mut bounds = footprint_ends(&a.scores);
        bounds.push(footprint_end(batch, &a.value, &a.scores.keys, &a.columns));
        bounds.push(footprint_end(
            batch,
            &a.gradient,
            &a.scores.length,
            &a.columns,
        ));
        bounds.push(a.lengths().iter().fold(Dim::ZERO, |n, d| &n + d));
        bounds.push(&(&numel(batch) * &a.scores.length) * &Dim::Const(3));
        match bounds.iter().all(fits_i32) {
            true => Index::Int,
            false => Index::Long,
        }
    }
}

fn operand(
    source: &mut Source,
    call: &Call,
    a: &AttentionGrad,
    (name, x, lines, rows_are_lines): Lines<'_>,
) -> Operand {
    let strides = match rows_are_lines {
        true => [&x.row, &x.col],
        false => [&x.col, &x.row],
    };
    strided_operand(source, call, &a.scores.batch, x, [name, lines], strides)
}

/// Returns the access modes by which both products read lines of queries and of keys: those of the scores, with vectors
/// of eight if all operands allow them.
fn common_layout([q, k, g, v]: &[Operand; 4]) -> [Operand; 2] {
    [[q, g], [k, v]].map(|[x, y]| Operand {
        text: String::new(),
        along_k: x.along_k,
        vector: x.vector && y.vector && x.along_k == y.along_k,
        whole: x.whole && y.whole,
    })
}
