//! The common part of kernels of warpgroups: operands loaded by TMA, `wgmma`, and the loops over tiles and over a
//! tile's accumulators.

use super::call::{Call, line_of_blocks, lines};
use super::im2col::Convolution;
use super::operand::{is_plain, split};
use super::prologue;
use crate::cuda::source::Source;
use crate::kir::Kernel;
use crate::work::Slot;
use kiln_base::{DType, Dim, Gpu, ceil};
use kiln_plan::contraction::{BATCH, COLUMNS, Contraction, ROWS, TERMS};
use kiln_plan::cuda::{Blocks, Boxes, TensorMap};
use std::fmt::Write;

/// The text after the constants of a kernel of warpgroups, `WARPS` among them.
pub(super) const COMMON_TEXT: &str = include_str!("warpgroup.cu");

/// An operand loaded by TMA: matrices with contiguous lines or terms, or those of a convolution.
pub(super) struct TmaOperand {
    /// True if K-major: contiguous along K, not along M or N.
    pub along_k: bool,
    /// The elements of a row of a box: 128 bytes.
    pub span: u16,
    pub offset: Dim,
    /// The extents of the contiguous dimension, of the other one, and of the batch.
    pub extents: Vec<Dim>,
    /// The strides of all but the first.
    pub strides: Vec<Dim>,
    /// The extents of the batch loops, merged where the operand allows.
    pub batch: Vec<Dim>,
    /// The indices of batch loops with a non-zero stride.
    pub strided_batch: Vec<usize>,
    pub convolution: Option<Convolution>,
    /// True if `wgmma` reads it as TF32.
    pub rounds_to_tf32: bool,
}

/// The elements that a copy brings.
pub(super) struct BoxCopy {
    /// The coordinates of the first.
    pub at: Vec<String>,
    /// The declarations that these need, from numbers `line` and `k`.
    pub inside: String,
    /// With im2col, what is added to the coordinates of all.
    pub offsets: Option<Vec<String>>,
    pub boxes: Boxes,
}

/// The maximum number of dimensions of a tensor map.
pub(super) const MAX_DIMENSIONS: usize = 5;

/// Returns the elements of a dtype in a row of a box.
pub(super) fn span(dtype: DType) -> u16 {
    128 / dtype.size() as u16
}

impl TmaOperand {
    /// Returns an operand of a contraction as TMA sees it; `None` if TMA can't load it as `wgmma` reads it.
    /// Numbers of 16 bits may be contiguous along k or along lines, others, bytes among them, only along k.
    pub fn new(c: &Contraction, side: usize, dtype: DType) -> Option<TmaOperand> {
        let operand = TmaOperand::to_threads(c, side, dtype)?;
        (operand.along_k || dtype.size() == 2).then_some(TmaOperand {
            rounds_to_tf32: dtype == DType::F32,
            ..operand
        })
    }

    /// Returns the operand that TMA brings to threads so that they compute another by its prologue, and its argument.
    pub fn of_prologue(
        c: &Contraction,
        side: usize,
        prologue: &Kernel,
    ) -> Option<(TmaOperand, usize)> {
        let source = prologue::source(c, side, prologue)?;
        let made = prologue.args.last()?.dtype;
        let operand = TmaOperand::to_threads(c, side, prologue.args[source].dtype)?;
        // Rows of boxes are 128 bytes, of numbers as wide as those that are multiplied or wider.
        let sizes = made.size()..=4;
        let fits = sizes.contains(&prologue.args[source].dtype.size()) && !made.is_byte();
        fits.then_some((operand, source))
    }

    /// Returns an operand as TMA brings it to threads; `None` if it can't.
    pub fn to_threads(c: &Contraction, side: usize, dtype: DType) -> Option<TmaOperand> {
        let lines = [ROWS, COLUMNS][side];
        let mut c = c.seen_by(&c.operands[side]);
        if c.range(lines).is_empty() {
            // A single line, at any valid distance from another.
            let terms = c.size(TERMS).as_const().unwrap_or(1);
            let distance = ceil(terms.max(1), 16) * 16;
            let at = c.range(lines).start;
            c.loops[lines].push(Dim::ONE);
            c.result.strides.insert(at, Dim::Const(distance));
        }
        let (line, term) = (c.range(lines), c.range(TERMS));
        let aligned = |d: &Dim| {
            let bytes = d.as_const().map(|n| n * dtype.size() as i64);
            bytes.is_some_and(|n| n % 16 == 0)
        };
        if !is_plain(&c, lines) || term.is_empty() || !aligned(&c.result.offset) {
            return None;
        }
        let (line, term) = (line.start, term.start);
        let strides = &c.result.strides;
        let along_k = strides[term].is(1);
        let [near, far] = if along_k { [term, line] } else { [line, term] };
        let strided_batch: Vec<usize> = c.range(BATCH).filter(|at| !strides[*at].is(0)).collect();
        let others = [far].into_iter().chain(strided_batch.clone());
        let strides_of: Vec<Dim> = others.clone().map(|at| strides[at].clone()).collect();
        let is_valid_stride = |d: &Dim| aligned(d) && d.as_const().is_some_and(|n| n > 0);
        let fits = strides[near].is(1)
            && strides_of.iter().all(is_valid_stride)
            && strides_of.len() < MAX_DIMENSIONS;
        let extents: Vec<Dim> = c.extents().cloned().collect();
        let all = [near].into_iter().chain(others);
        fits.then(|| TmaOperand {
            along_k,
            span: span(dtype),
            offset: c.result.offset.clone(),
            extents: all.map(|at| extents[at].clone()).collect(),
            strides: strides_of,
            batch: c.loops[BATCH].clone(),
            strided_batch,
            convolution: None,
            rounds_to_tf32: false,
        })
    }

    /// Declares `copy_{name}`, which copies a box at a line and a term to shared memory and signals the mbarrier
    /// `full`. A box is `lines` × `span` elements (K-major), or `terms` × `span`. The text must follow the declaration
    /// of `batch`. In a cluster of several blocks, the box goes to the same place in each.
    pub fn copy(
        &self,
        source: &mut Source,
        call: &Call,
        slot: Slot,
        name: &str,
        ([lines, terms], cluster): ([u16; 2], u8),
    ) -> String {
        let mut boxes = vec![self.span, if self.along_k { lines } else { terms }];
        boxes.resize(self.extents.len(), 1);
        let (mut text, copied) = match &self.convolution {
            Some(convolution) => {
                // Blocks of a cluster bring a part of the right operand's lines each.
                let first_line = match name {
                    "a" => "i0".to_string(),
                    _ => format!("j0 + rank * {lines}"),
                };
                convolution.box_copy(source, [name, &first_line], self.along_k, boxes)
            }
            None => self.box_copy(source, name, boxes),
        };
        let BoxCopy {
            at,
            inside,
            offsets,
            boxes,
        } = copied;
        let map = source.map(TensorMap {
            arg: call.position(slot) as u16,
            offset: self.offset.clone(),
            extents: self.extents.clone(),
            strides: self.strides.clone(),
            boxes,
            rounds_to_tf32: self.rounds_to_tf32,
        });
        let names = |from: usize, count: usize| {
            let names: Vec<String> = (from..from + count).map(|i| format!("%{i}")).collect();
            names.join(", ")
        };
        let mut inputs: Vec<String> = at.iter().map(|x| format!("\"r\"((int)({x}))")).collect();
        inputs.push("\"r\"(full)".into());
        let [multicast, blocks] = match cluster {
            1 => Default::default(),
            n => [
                ".multicast::cluster".to_string(),
                format!(", {}", (1u32 << n) - 1),
            ],
        };
        let (mode, moved) = match &offsets {
            None => ("tile", String::new()),
            Some(offsets) => {
                let moved = format!(", {{{}}}", names(3 + at.len(), offsets.len()));
                inputs.extend(
                    offsets
                        .iter()
                        .map(|x| format!("\"h\"((unsigned short)({x}))")),
                );
                ("im2col", moved)
            }
        };
        let _ = writeln!(
            text,
            "const auto copy_{name} = [&](const unsigned to, const unsigned full, const int line, const int k) {{\n\
             {inside}\
             asm volatile(\"cp.async.bulk.tensor.{}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes\
             {multicast} [%0], [%1, {{{}}}], [%{}]{moved}{blocks};\" :: \"r\"(to), \"l\"(&{map}), {} : \"memory\");\n}};",
            at.len(),
            names(2, at.len()),
            2 + at.len(),
            inputs.join(", ")
        );
        text
    }

    /// Returns a copy of a box of matrices, and the declarations before it.
    fn box_copy(&self, source: &mut Source, name: &str, boxes: Vec<u16>) -> (String, BoxCopy) {
        let (text, batch) = split(source, &self.batch, [&format!("{name}_batch"), "batch"]);
        let near_and_far = if self.along_k {
            ["k", "line"]
        } else {
            ["line", "k"]
        };
        let at = near_and_far.map(String::from).into_iter();
        let batch = self.strided_batch.iter().map(|at| batch[*at].clone());
        let copied = BoxCopy {
            at: at.chain(batch).collect(),
            inside: String::new(),
            offsets: None,
            boxes: Boxes::Tiled(boxes),
        };
        (text, copied)
    }
}

/// The location of A, the left operand of a product.
#[derive(Copy, Clone, PartialEq)]
pub(super) enum ALocation {
    /// In shared memory, lines or terms contiguous.
    Shared { along_k: bool },
    /// In registers.
    Registers,
}

/// The parts of an instruction of tensor cores that follow from the dtypes of its operands.
pub(super) struct Instruction {
    /// The instruction's K: the number of elements in 32 bytes.
    pub terms: usize,
    /// The types of accumulators and of operands.
    pub accumulator: &'static str,
    pub operands: [&'static str; 2],
    /// The inline-asm constraint of an accumulator.
    pub constraint: &'static str,
}

impl Instruction {
    pub fn of(dtypes: [DType; 2]) -> Instruction {
        let operands = dtypes.map(|dtype| match dtype {
            DType::F32 => "tf32",
            DType::I8 => "s8",
            DType::U8 => "u8",
            half => half.name(),
        });
        let (accumulator, constraint) = match dtypes[0].is_byte() {
            true => ("s32", "r"),
            false => ("f32", "f"),
        };
        Instruction {
            terms: 32 / dtypes[0].size(),
            accumulator,
            operands,
            constraint,
        }
    }
}

/// Returns the source of function `name`, one `wgmma` m64n`n`k(32 bytes). It adds the products to accumulators, or
/// stores them there if its template argument is 0. B is K-major if `right_along_k`; only 16-bit types may be N-major.
pub(super) fn wgmma(
    name: &str,
    n: u16,
    dtypes: [DType; 2],
    a_location: ALocation,
    right_along_k: bool,
) -> String {
    let list = |text: &dyn Fn(u16) -> String| (0..n / 2).map(text).collect::<Vec<_>>().join(", ");
    let accumulators = n / 2;
    let Instruction {
        terms,
        accumulator,
        operands: [left_type, right_type],
        constraint,
    } = Instruction::of(dtypes);
    let signs = if dtypes[0].is_byte() { "" } else { ", 1, 1" };
    let flag = |along_k: bool| match terms {
        16 => format!(", {}", u8::from(!along_k)),
        _ => String::new(),
    };
    let (parameter, operand, inputs, used, order) = match a_location {
        ALocation::Shared { along_k } => {
            let operand = format!("%{accumulators}");
            (
                "unsigned long long a",
                operand,
                "\"l\"(a)",
                1,
                flag(along_k),
            )
        }
        ALocation::Registers => (
            "const unsigned (&a)[4]",
            format!(
                "{{%{accumulators}, %{}, %{}, %{}}}",
                accumulators + 1,
                accumulators + 2,
                accumulators + 3
            ),
            "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3])",
            4,
            String::new(),
        ),
    };
    format!(
        "template <int ADD> __device__ __forceinline__ void {name}(Acc (&c)[{accumulators}], {parameter}, unsigned long long b) {{\n    \
         asm volatile(\"wgmma.mma_async.sync.aligned.m64n{n}k{terms}.{accumulator}.{left_type}.{right_type} {{{}}}, {operand}, %{}, %{}{signs}{order}{};\"\n        \
         : {} : {inputs}, \"l\"(b), \"n\"(ADD));\n}}\n",
        list(&|i| format!("%{i}")),
        accumulators + used,
        accumulators + used + 1,
        flag(right_along_k),
        list(&|i| format!("\"+{constraint}\"(c[{i}])"))
    )
}

/// Returns the function `narrow`, which rounds the f32 that a register of an operand holds, of a half type two neighbours.
pub(super) fn narrow(dtype: DType) -> String {
    let (count, instruction, inputs) = match dtype {
        DType::F32 => (1, "rna.tf32.f32 %0, %1".into(), "\"f\"(x[0])"),
        half => (
            2,
            format!("rn.{half}x2.f32 %0, %1, %2"),
            "\"f\"(x[1]), \"f\"(x[0])",
        ),
    };
    format!(
        "__device__ __forceinline__ unsigned narrow(const float (&x)[{count}]) {{\n    \
         unsigned all;\n    \
         asm(\"cvt.{instruction};\" : \"=r\"(all) : {inputs});\n    \
         return all;\n}}\n"
    )
}

/// Returns the grid of persistent blocks: one cluster per tile, at most what the GPU runs at once; that maximum if
/// `tiles` is `None`.
pub(super) fn persistent_grid(gpu: &Gpu, tiles: Option<i64>, cluster: u8) -> [Blocks; 3] {
    let blocks = i64::from(cluster);
    let max_clusters = (i64::from(gpu.processors) / blocks).max(1);
    let clusters = tiles.map_or(max_clusters, |n| n.clamp(0, max_clusters));
    line_of_blocks(Dim::Const(clusters * blocks), 1)
}

/// Emits the producer warpgroup's loop over tiles (`copy`, then `end`), and opens the consumers' loop, which the caller
/// closes. `tiles` is the number of tiles; the index of a tile is `turn`.
pub(super) fn each_tile(
    source: &mut Source,
    [barriers, rings, tiles]: [&str; 3],
    [copy, end, work]: [&str; 3],
) {
    let each = "#pragma unroll 1\nfor (Index turn = blockIdx.x / CLUSTER; turn < tiles; turn += gridDim.x / CLUSTER) {";
    let text = format!(
        "\
const Index tiles = {tiles};
begin({barriers});
{rings}
if (threadIdx.x < 128) {{
asm volatile(\"setmaxnreg.dec.sync.aligned.u32 24;\");
if (threadIdx.x > 0) return;
{each}
{copy}
}}
{end}
return;
}}
asm volatile(\"setmaxnreg.inc.sync.aligned.u32 240;\");
const int warp = number_of_warp() - 4;
{each}
{work}"
    );
    lines(source, &text);
}

/// Returns text that opens two loops over a warp's accumulators `sums`, in rows and columns `i`, `j` of the result. An
/// iteration has `width` neighbours, the first of them at row `e / COLUMNS` and column `e % COLUMNS` of `passage`, the
/// warp's staging buffer in shared memory. The warpgroup's accumulators have `rows` rows, its tile `columns` columns.
/// `before`, whole lines, comes before the inner loop.
pub(super) fn each_accumulator(rows: u16, columns: u16, width: u32, before: &str) -> String {
    let across = columns / 64;
    format!(
        "\
Passage& passage = shared.passages[warp];
#pragma unroll 1 // the text below may be long
for (int part = 0; part < SUMS / 32; part++) {{
pass(passage, sums);
const Index i1 = i0 + warp / 4 * {rows} + part / {across} * 64 + warp % 4 * 16, j1 = j0 + part % {across} * COLUMNS;
{before}#pragma unroll 1
for (int e = threadIdx.x % 32 * {width}; e < 16 * COLUMNS; e += 32 * {width}) {{
const Index i = i1 + e / COLUMNS, j = j1 + e % COLUMNS;"
    )
}

/// Returns the declaration of `raw`, the elements of an iteration of these loops.
pub(super) fn raw(width: u32) -> String {
    match width {
        1 => "Acc raw = *passage.place(e / COLUMNS, e % COLUMNS);".into(),
        _ => format!("const auto raw = passage.load<{width}>(e / COLUMNS, e % COLUMNS);"),
    }
}
