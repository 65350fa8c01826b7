//! Results of warpgroups that TMA stores. Epilogues run on accumulators in registers, and boxes of the result are
//! staged in shared memory.

use super::call::{Call, Store, lines};
use super::operand::split;
use super::prologue::is_costly;
use crate::cuda::source::Source;
use crate::cuda::values::{Values, declare_indices};
use crate::cuda::vector::Vector;
use crate::cuda::walk;
use crate::kir::{self, Expr};
use crate::work::Slot;
use kiln_base::{DType, Dim, contiguous_strides, numel};
use kiln_plan::contraction::Contraction;
use kiln_plan::cstyle::Dialect;
use kiln_plan::cuda::{Boxes, CudaCpp, TensorMap};

/// The device functions of boxes. They follow those of warpgroups.
pub(super) const BOXES_TEXT: &str = include_str!("tma_store.cu");
/// The declaration of a warp's two boxes: `box`, the next one to fill, and `other`.
pub(super) const FIRST_BOX: &str =
    "unsigned box = first_box(shared.staging), other = box + BOX_BYTES;";

/// The rows of a box.
const BOX_ROWS: u16 = 16;
/// The columns of a warp's accumulators that are stored at a time: half a box, or a box.
const STORED_COLUMNS: u16 = 32;

/// The maximum number of batch loops: a tensor map has five dimensions.
const MAX_BATCH_LOOPS: usize = 3;

/// A result that TMA stores: matrices whose rows are contiguous.
pub(super) struct TmaResult<'a> {
    store: &'a Store<'a>,
    slot: Slot,
    dtype: DType,
    offset: Dim,
    /// The numbers of rows and columns.
    sizes: [Dim; 2],
    /// The extents of the batch loops, outermost first.
    batch: Vec<Dim>,
    /// The strides of batch loops and of rows.
    strides: Vec<Dim>,
    /// The pair of neighbours that an epilogue computes at a time.
    vector: Option<Vector>,
}

/// True if the elements of a contraction's result are in the order of batches, rows and columns.
pub(super) fn is_row_major(c: &Contraction) -> bool {
    let c = c.seen_by(&c.result);
    let extents = c.loops[..3].concat();
    let strides = &c.result.strides[..extents.len()];
    c.result.bounds.is_empty() && c.result.offset.is(0) && strides == contiguous_strides(&extents)
}

impl<'a> TmaResult<'a> {
    /// Returns the row-major result of `batches` m × n matrices. `None` if TMA can't store it, or if the epilogue reads
    /// anything but scalars and vectors along rows or columns.
    pub fn new(store: &'a Store<'a>, [batches, m, n]: [&Dim; 3]) -> Option<TmaResult<'a>> {
        let plain = (Dim::ZERO, vec![batches.clone()], vec![m * n, n.clone()]);
        let (slot, dtype, (offset, batch, strides), vector) = match store {
            Store::Plain(slot, dtype) => (*slot, *dtype, plain, None),
            Store::Epilogue(kir) => {
                let (out, vector) = paired_result(kir, n)?;
                let (arg, offset) = (usize::from(out.arg), out.offset.clone());
                let (batch, strides) = match &kir.axes[..] {
                    axes if out.strides == contiguous_strides(axes) => (plain.1, plain.2),
                    [batch @ .., rows, columns] if rows == m && columns == n => {
                        (batch.to_vec(), out.strides[..=batch.len()].to_vec())
                    }
                    _ => return None,
                };
                let layout = (offset, batch, strides);
                (Slot::Arg(arg), kir.args[arg].dtype, layout, Some(vector))
            }
        };
        let chunk = Dim::from(16 / dtype.size() as i64);
        let is_aligned = |d: &Dim| d.div_exact(&chunk).is_ok();
        let is_positive = |d: &Dim| d.sum_of().iter().all(|(factor, _)| *factor > 0);
        let fits = matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::I32)
            && batch.len() <= MAX_BATCH_LOOPS
            && is_aligned(n)
            && is_aligned(&offset)
            && strides.iter().all(|d| is_aligned(d) && is_positive(d));
        fits.then(|| TmaResult {
            store,
            slot,
            dtype,
            offset,
            sizes: [m.clone(), n.clone()],
            batch,
            strides,
            vector,
        })
    }

    /// Emits the stores of a warp's accumulators `sums`. A warpgroup has `rows` rows and `columns` columns. `m` and `n`
    /// are the names of the result's sizes. With split-K, the result has `parts` parts, and `split` is the tile's.
    pub fn emit(
        &self,
        source: &mut Source,
        call: &Call,
        [rows, columns]: [u16; 2],
        ([m, n], parts): ([&str; 2], u16),
    ) {
        let copy = self.declare_copy(source, call, parts);
        let units_across = columns / STORED_COLUMNS;
        let parts_of_box = self.box_columns() / STORED_COLUMNS;
        let unroll = match self.store {
            Store::Epilogue(kir) if is_costly(kir) => " 1",
            _ => "",
        };
        let pairs = match self.dtype.is_half() {
            true => "unsigned",
            false => &format!("kiln_vec<{}, 2>", CudaCpp::ctype(self.dtype.compute())),
        };
        let text = format!(
            "\
#pragma unroll{unroll}
for (int unit = 0; unit < SUMS / 16; unit++) {{
const int part = unit % {parts_of_box};
const Index i1 = i0 + warp / 4 * {rows} + unit / {units_across} * 64 + warp % 4 * {BOX_ROWS}, j1 = j0 + unit % {units_across} * {STORED_COLUMNS};
if (i1 < {m} && j1 - part * {STORED_COLUMNS} < {n}) {{
{pairs} pairs[8];
#pragma unroll
for (int x = 0; x < 16; x += 2) {{
const kiln_vec<Acc, 2> raw = {{sums[x], sums[x + 1]}};"
        );
        lines(source, &text);
        let result = self.emit_epilogue(source, [m, n]);
        source.line(match self.dtype.is_half() {
            true => format!(
                "asm(\"cvt.rn.{}x2.f32 %0, %1, %2;\" : \"=r\"(pairs[x / 2]) : \"f\"({result}.v[1]), \"f\"({result}.v[0]));",
                self.dtype
            ),
            false => format!("pairs[x / 2] = {result};"),
        });
        let text = format!(
            "\
}}
if (part == 0) claim_box();
fill_box(box, part, pairs);
if (part == {}) {copy}
}}
#pragma unroll
for (int x = 16; x < SUMS; x++) sums[x - 16] = sums[x];
}}",
            parts_of_box - 1
        );
        lines(source, &text);
    }

    /// Emits the epilogue of the pair `raw`, and returns the name of its result.
    fn emit_epilogue(&self, source: &mut Source, [m, n]: [&str; 2]) -> String {
        let (Store::Epilogue(kir), Some(vector)) = (self.store, &self.vector) else {
            return "raw".into();
        };
        let mut values = Values::new(kir);
        values.replace(kir.args.len() - 1, "raw.v[k]");
        let out = usize::from(kir.accesses[usize::from(kir.stores[0].access)].arg);
        values.in_registers = Some(out);
        if needs_indices(kir) {
            // Clamp indices: outside of the result operands are read but nothing is stored.
            let text = format!(
                "\
Index i = i1 + threadIdx.x % 32 / 4 + x / 2 % 2 * 8, j = j1 + x / 4 * 8 + threadIdx.x % 4 * 2;
if (i >= {m}) i = {m} - 1;
if (j >= {n}) j = {n} - 2;
const Index line = batch * {m} + i;"
            );
            lines(source, &text);
            let last = kir.axes.len() - 1;
            let is_used = |axis: usize| index_strides(kir).any(|strides| !strides[axis].is(0));
            let outer = declare_indices(source, "a", &kir.axes[..last], "line", &is_used);
            values.indices[..last].clone_from_slice(&outer);
            values.indices[last] = "j".into();
        }
        walk::emit(source, &mut values, kir, vector);
        format!("out{out}")
    }

    /// Declares the indices of a matrix, and returns the statement that begins the copy of the box whose last columns
    /// begin at `j1`.
    fn declare_copy(&self, source: &mut Source, call: &Call, parts: u16) -> String {
        let (text, names) = split(source, &self.batch, ["stored_batch", "batch"]);
        lines(source, &text);
        let earlier_columns = self.box_columns() - STORED_COLUMNS;
        let [m, n] = &self.sizes;
        let mut boxes = vec![self.box_columns(), BOX_ROWS];
        let mut extents = vec![n.clone(), m.clone()];
        let mut strides = vec![self.strides[self.batch.len()].clone()];
        let mut coordinates = vec![format!("j1 - {earlier_columns}"), "i1".into()];
        let (parts, total) = (Dim::from(i64::from(parts)), &(&numel(&self.batch) * m) * n);
        let batch = self.batch.iter().zip(&self.strides).zip(&names).rev();
        let batch = batch.map(|((extent, stride), name)| (extent, stride, &name[..]));
        for (extent, stride, index) in batch.chain([(&parts, &total, "split")]) {
            if !extent.is(1) {
                extents.push(extent.clone());
                strides.push(stride.clone());
                boxes.push(1);
                coordinates.push(index.into());
            }
        }
        let map = source.map(TensorMap {
            arg: call.position(self.slot) as u16,
            offset: self.offset.clone(),
            extents,
            strides,
            boxes: Boxes::Tiled(boxes),
            rounds_to_tf32: false,
        });
        let dimensions = coordinates.len();
        let numbers: Vec<String> = (1..=dimensions).map(|i| format!("%{i}")).collect();
        let inputs = coordinates.iter().map(|x| format!("\"r\"((int)({x}))"));
        let inputs: Vec<String> = inputs.collect();
        format!(
            "copy_box(box, other, [&](unsigned from) {{ asm volatile(\"cp.async.bulk.tensor.{dimensions}d.global.shared::cta.tile.bulk_group \
             [%0, {{{}}}], [%{}];\" :: \"l\"(&{map}), {}, \"r\"(from)); }});",
            numbers.join(", "),
            dimensions + 1,
            inputs.join(", ")
        )
    }

    fn box_columns(&self) -> u16 {
        128 / self.dtype.size() as u16
    }
}

/// Returns the strides of an epilogue's operands other than the raw result.
fn operand_strides(kir: &kir::Kernel) -> impl Iterator<Item = &Vec<Dim>> {
    let raw = kir.args.len() - 1;
    let is_operand = move |a: &&kir::Access| {
        let arg = usize::from(a.arg);
        arg != raw && !kir.args[arg].written
    };
    kir.accesses.iter().filter(is_operand).map(|a| &a.strides)
}

/// Returns the strides of an epilogue's operands and index values.
fn index_strides(kir: &kir::Kernel) -> impl Iterator<Item = &Vec<Dim>> {
    let indices = kir.body.iter().filter_map(|d| match &d.expr {
        Expr::Index { strides, .. } => Some(strides),
        _ => None,
    });
    operand_strides(kir).chain(indices)
}

/// True if the values of an epilogue depend on the indices of their element.
fn needs_indices(kir: &kir::Kernel) -> bool {
    index_strides(kir).any(|strides| strides.iter().any(|s| !s.is(0)))
}

/// Returns the result of an epilogue, and its vector of two neighbours in rows of `n` elements. `None` unless it can
/// run on accumulators in registers: it must have one result, and read only the raw one, scalars and vectors.
fn paired_result<'a>(kir: &'a kir::Kernel, n: &Dim) -> Option<(&'a kir::Access, Vector)> {
    let last = kir.axes.len().checked_sub(1)?;
    let [store] = &kir.stores[..] else {
        return None;
    };
    let out = &kir.accesses[usize::from(store.access)];
    let is_vector = |strides: &Vec<Dim>| {
        let mut outer = strides[..last].iter();
        strides[last].is(0) || outer.all(|s| s.is(0))
    };
    let is_bounded = kir.accesses.iter().any(|a| !a.bounds.is_empty());
    let fits = !needs_indices(kir) || kir.axes[last] == *n && operand_strides(kir).all(is_vector);
    let fits =
        kir.inner.is_empty() && kir.sites == 0 && store.combine.is_none() && !is_bounded && fits;
    let mut vector = Vector::of_width(kir, last, 2).filter(|_| fits)?;
    let raw = kir.args.len() - 1;
    for (whole, access) in vector.whole.iter_mut().zip(&kir.accesses) {
        *whole &= usize::from(access.arg) != raw;
    }
    vector.whole[usize::from(store.access)].then_some((out, vector))
}
