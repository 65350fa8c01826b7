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
    /// True if TMA rounds elements to TF32.
    pub rounds_to_tf32: bool,
}

/// A copy of a box.
pub(super) struct BoxCopy {
    /// The coordinates of the first element.
    pub coordinates: Vec<String>,
    /// The declarations that these need, given `line` and `k`.
    pub declarations: String,
    /// The im2col offsets, which are added to the coordinates of all elements.
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
    /// Returns an operand that `wgmma` reads from shared memory; `None` if TMA can't load it. 16-bit types may be
    /// contiguous along K or along lines, others only along K.
    pub fn new(c: &Contraction, side: usize, dtype: DType) -> Option<TmaOperand> {
        let operand = TmaOperand::for_threads(c, side, dtype)?;
        (operand.along_k || dtype.size() == 2).then_some(TmaOperand {
            rounds_to_tf32: dtype == DType::F32,
            ..operand
        })
    }

    /// Returns the argument of a prologue from which threads compute an operand in registers, and its index.
    pub fn of_prologue(
        c: &Contraction,
        side: usize,
        prologue: &Kernel,
    ) -> Option<(TmaOperand, usize)> {
        let source = prologue::elementwise_arg(c, side, prologue)?;
        let result = prologue.args.last()?.dtype;
        let operand = TmaOperand::for_threads(c, side, prologue.args[source].dtype)?;
        let sizes = result.size()..=4;
        let fits = sizes.contains(&prologue.args[source].dtype.size()) && !result.is_byte();
        fits.then_some((operand, source))
    }

    /// Returns an operand that threads read from shared memory; `None` if TMA can't load it.
    pub fn for_threads(c: &Contraction, side: usize, dtype: DType) -> Option<TmaOperand> {
        let lines = [ROWS, COLUMNS][side];
        let mut c = c.seen_by(&c.operands[side]);
        if c.range(lines).is_empty() {
            // A single line needs a valid stride nonetheless.
            let terms = c.size(TERMS).as_const().unwrap_or(1);
            let stride = ceil(terms.max(1), 16) * 16;
            let axis = c.range(lines).start;
            c.loops[lines].push(Dim::ONE);
            c.result.strides.insert(axis, Dim::Const(stride));
        }
        let (line, term) = (c.range(lines), c.range(TERMS));
        let is_aligned = |d: &Dim| {
            let bytes = d.as_const().map(|n| n * dtype.size() as i64);
            bytes.is_some_and(|n| n % 16 == 0)
        };
        if !is_plain(&c, lines) || term.is_empty() || !is_aligned(&c.result.offset) {
            return None;
        }
        let (line, term) = (line.start, term.start);
        let strides = &c.result.strides;
        let along_k = strides[term].is(1);
        let [inner, outer] = if along_k { [term, line] } else { [line, term] };
        let strided_batch: Vec<usize> = c.range(BATCH).filter(|i| !strides[*i].is(0)).collect();
        let outer_axes = [outer].into_iter().chain(strided_batch.clone());
        let outer_strides: Vec<Dim> = outer_axes.clone().map(|i| strides[i].clone()).collect();
        let is_valid_stride = |d: &Dim| is_aligned(d) && d.as_const().is_some_and(|n| n > 0);
        let fits = strides[inner].is(1)
            && outer_strides.iter().all(is_valid_stride)
            && outer_strides.len() < MAX_DIMENSIONS;
        let extents: Vec<Dim> = c.extents().cloned().collect();
        let axes = [inner].into_iter().chain(outer_axes);
        fits.then(|| TmaOperand {
            along_k,
            span: span(dtype),
            offset: c.result.offset.clone(),
            extents: axes.map(|axis| extents[axis].clone()).collect(),
            strides: outer_strides,
            batch: c.loops[BATCH].clone(),
            strided_batch,
            convolution: None,
            rounds_to_tf32: false,
        })
    }

    /// Returns the declaration of `copy_{name}`, which copies a box at a line and a term to shared memory and signals
    /// the mbarrier `full`. A box is `lines` × `span` elements (K-major), or `terms` × `span`. The text must follow the
    /// declaration of `batch`. In a cluster of several blocks, the box goes to the same address in each.
    pub fn declare_copy(
        &self,
        source: &mut Source,
        call: &Call,
        slot: Slot,
        name: &str,
        ([lines, terms], cluster): ([u16; 2], u8),
    ) -> String {
        let mut boxes = vec![self.span, if self.along_k { lines } else { terms }];
        boxes.resize(self.extents.len(), 1);
        let (mut text, box_copy) = match &self.convolution {
            Some(convolution) => {
                // Each block of a cluster copies a part of the right operand's lines.
                let first_line = match name {
                    "a" => "i0".to_string(),
                    _ => format!("j0 + rank * {lines}"),
                };
                convolution.box_copy(source, [name, &first_line], self.along_k, boxes)
            }
            None => self.box_copy(source, name, boxes),
        };
        let BoxCopy {
            coordinates,
            declarations,
            offsets,
            boxes,
        } = box_copy;
        let map = source.map(TensorMap {
            arg: call.position(slot) as u16,
            offset: self.offset.clone(),
            extents: self.extents.clone(),
            strides: self.strides.clone(),
            boxes,
            rounds_to_tf32: self.rounds_to_tf32,
        });
        let operands = |start: usize, count: usize| {
            let names: Vec<String> = (start..start + count).map(|i| format!("%{i}")).collect();
            names.join(", ")
        };
        let inputs = coordinates.iter().map(|x| format!("\"r\"((int)({x}))"));
        let mut inputs: Vec<String> = inputs.collect();
        inputs.push("\"r\"(full)".into());
        let [multicast, blocks] = match cluster {
            1 => Default::default(),
            n => [
                ".multicast::cluster".to_string(),
                format!(", {}", (1u32 << n) - 1),
            ],
        };
        let (mode, offsets) = match &offsets {
            None => ("tile", String::new()),
            Some(offsets) => {
                let text = format!(", {{{}}}", operands(3 + coordinates.len(), offsets.len()));
                inputs.extend(
                    offsets
                        .iter()
                        .map(|x| format!("\"h\"((unsigned short)({x}))")),
                );
                ("im2col", text)
            }
        };
        let _ = writeln!(
            text,
            "const auto copy_{name} = [&](const unsigned to, const unsigned full, const int line, const int k) {{\n\
             {declarations}\
             asm volatile(\"cp.async.bulk.tensor.{}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes\
             {multicast} [%0], [%1, {{{}}}], [%{}]{offsets}{blocks};\" :: \"r\"(to), \"l\"(&{map}), {} : \"memory\");\n}};",
            coordinates.len(),
            operands(2, coordinates.len()),
            2 + coordinates.len(),
            inputs.join(", ")
        );
        text
    }

    /// Returns a copy of a box of matrices, and the declarations before it.
    fn box_copy(&self, source: &mut Source, name: &str, boxes: Vec<u16>) -> (String, BoxCopy) {
        let (text, batch) = split(source, &self.batch, [&format!("{name}_batch"), "batch"]);
        let inner_and_outer = if self.along_k {
            ["k", "line"]
        } else {
            ["line", "k"]
        };
        let coordinates = inner_and_outer.map(String::from).into_iter();
        let batch = self.strided_batch.iter().map(|axis| batch[*axis].clone());
        let box_copy = BoxCopy {
            coordinates: coordinates.chain(batch).collect(),
            declarations: String::new(),
            offsets: None,
            boxes: Boxes::Tiled(boxes),
        };
        (text, box_copy)
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
    let (parameter, operand, inputs, input_count, order) = match a_location {
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
        accumulators + input_count,
        accumulators + input_count + 1,
        flag(right_along_k),
        list(&|i| format!("\"+{constraint}\"(c[{i}])"))
    )
}

/// Returns the function `narrow`, which rounds f32 to a register of an operand: two numbers of a half type, or one of
/// TF32.
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
         unsigned rounded;\n    \
         asm(\"cvt.{instruction};\" : \"=r\"(rounded) : {inputs});\n    \
         return rounded;\n}}\n"
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
/// closes. `tiles` is the number of tiles; the index of a tile is `tile_index`.
pub(super) fn each_tile(
    source: &mut Source,
    [barriers, rings, tiles]: [&str; 3],
    [copy, end, work]: [&str; 3],
) {
    let each = "#pragma unroll 1\nfor (Index tile_index = blockIdx.x / CLUSTER; tile_index < tiles; tile_index += gridDim.x / CLUSTER) {";
    let text = format!(
        "\
const Index tiles = {tiles};
init_barriers({barriers});
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
const int warp = warp_index() - 4;
{each}
{work}"
    );
    lines(source, &text);
}

/// Returns text that opens two loops over a warp's accumulators `sums`, in rows and columns `i`, `j` of the result. An
/// iteration has `width` neighbours, the first of them at row `e / COLUMNS` and column `e % COLUMNS` of `staging`, the
/// warp's staging buffer in shared memory. The warpgroup's accumulators have `rows` rows, its tile `columns` columns.
/// `before` is emitted before the inner loop.
pub(super) fn each_accumulator(rows: u16, columns: u16, width: u32, before: &str) -> String {
    let across = columns / 64;
    format!(
        "\
StagingBuffer& staging = shared.staging[warp];
#pragma unroll 1 // the text below may be long
for (int part = 0; part < SUMS / 32; part++) {{
stage_accumulators(staging, sums);
const Index i1 = i0 + warp / 4 * {rows} + part / {across} * 64 + warp % 4 * 16, j1 = j0 + part % {across} * COLUMNS;
{before}#pragma unroll 1
for (int e = threadIdx.x % 32 * {width}; e < 16 * COLUMNS; e += 32 * {width}) {{
const Index i = i1 + e / COLUMNS, j = j1 + e % COLUMNS;"
    )
}

/// Returns the declaration of `raw`, the elements of an iteration of these loops.
pub(super) fn declare_raw(width: u32) -> String {
    match width {
        1 => "Acc raw = *staging.address(e / COLUMNS, e % COLUMNS);".into(),
        _ => format!("const auto raw = staging.load<{width}>(e / COLUMNS, e % COLUMNS);"),
    }
}
