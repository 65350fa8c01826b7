//! Scattering. A thread owns part of a lane of the result. It copies that part of x and then walks the lane's source
//! elements in order, so the result does not depend on the order of threads. Where lanes are few, several threads share
//! a lane, and each walks its whole source for the elements of its part.
//!
//! Where all lanes share one long index, as in the gradient of an embedding, the index is sorted first. A thread then
//! owns one element of the result; its source elements are contiguous and in order.

use super::call::{Call, elements, fits_i32, line_of_blocks, lines};
use super::sort::Sort;
use crate::cuda::job::Job;
use crate::cuda::source::Index;
use crate::work::{KernelCalls, Slot};
use kiln_base::prim::ScatterKind;
use kiln_base::{DType, Dim, contiguous_strides, numel};
use kiln_plan::Scatter;

/// The number of threads of a block.
const THREADS: i64 = 128;
/// The maximum number of threads that share a lane.
const MAX_THREADS_PER_LANE: i64 = 1024;

/// The minimum number of indices that are worth sorting.
const MIN_SORTED_INDICES: i64 = 2048;

pub(super) fn emit(work: Job, s: &Scatter) -> KernelCalls {
    let axis = s.axis as usize;
    let is_long = s.index_shape[axis]
        .as_const()
        .is_some_and(|n| n >= MIN_SORTED_INDICES);
    let is_shared = |a: usize| a == axis || s.index.strides[a].is(0) || s.index_shape[a].is(1);
    match is_long && (0..s.shape.len()).all(is_shared) {
        true => emit_sorted(work, s),
        false => emit_walk(work, s),
    }
}

/// Returns the type of offsets into the arguments.
fn index_type(s: &Scatter) -> Index {
    let footprint_end = [&s.index, &s.src].map(|o| {
        let steps = o.strides.iter().zip(&s.index_shape);
        steps.fold(o.offset.clone(), |sum, (a, b)| &sum + &(a * b))
    });
    match fits_i32(&numel(&s.shape)) && footprint_end.iter().chain(&s.index_shape).all(fits_i32) {
        true => Index::Int,
        false => Index::Long,
    }
}

/// Returns the device functions that load, store and combine elements.
fn combine_text(s: &Scatter) -> String {
    let combine = match s.kind {
        ScatterKind::Set => "b",
        ScatterKind::Sum => "store(kiln_sum::of(load(a), load(b)))",
        ScatterKind::Prod => "store(kiln_prod::of(load(a), load(b)))",
        ScatterKind::Max => "store(kiln_maximum::of(load(a), load(b)))",
        ScatterKind::Min => "store(kiln_minimum::of(load(a), load(b)))",
    };
    format!(
        "{}__device__ __forceinline__ Elem combine(Elem a, Elem b) {{ return {combine}; }}\n",
        elements(s.dtype, index_type(s))
    )
}

/// Emits kernels in which each element of the result finds its source elements in the sorted index.
fn emit_sorted(work: Job, s: &Scatter) -> KernelCalls {
    let axis = s.axis as usize;
    let sort = Sort {
        work,
        dtype: DType::I64,
        descending: false,
        lanes: Dim::ONE,
        len: s.index_shape[axis].clone(),
        kept: Dim::ZERO,
        x: s.index.arg,
        strided_lane: Some((s.index.offset.clone(), s.index.strides[axis].clone())),
        bound: Some(s.shape[axis].clone()),
        out: None,
    };
    let (mut steps, scratch) = sort.emit();
    let records = Slot::Scratch(scratch.len() - 1);
    let [x, src, out] = [s.x, s.src.arg, s.out].map(|a| Slot::Arg(a as usize));
    let mut call = Call::new(work);
    call.push(x, s.dtype, false);
    call.push(src, s.dtype, false);
    call.push(out, s.dtype, true);
    call.push(records, DType::I64, false);
    let name = format!("scatter_{}_{}", s.kind.name(), s.dtype);
    let mut source = call.source(&name, index_type(s));
    source.scope(&(combine_text(s) + include_str!("sort_wide.cu")));
    let total = numel(&s.shape);
    let (total_text, offset) = (source.dim(&total), source.dim(&s.src.offset));
    lines(
        &mut source,
        &format!(
            "\
const Index point = (Index)blockIdx.x * {THREADS} + threadIdx.x;
if (point >= {total_text}) return;
Index src_at = {offset}, d = 0, remaining = point;
bool has_source = true;"
        ),
    );
    for a in (0..s.shape.len()).rev() {
        let [extent, bound] = [&s.shape[a], &s.index_shape[a]].map(|d| source.dim(d));
        let step = source.dim(&s.src.strides[a]);
        let advance = match a == axis {
            true => "d = i;".into(),
            false => format!("src_at += i * {step};\nhas_source = has_source && i < {bound};"),
        };
        let index = format!("const Index i = remaining % {extent};\nremaining /= {extent};");
        lines(&mut source, &format!("{{\n{index}\n{advance}\n}}"));
    }
    let [x, src, out, records] = [x, src, out, records].map(|slot| call.pointer(slot));
    let (count, step) = (
        source.dim(&s.index_shape[axis]),
        source.dim(&s.src.strides[axis]),
    );
    lines(
        &mut source,
        &format!(
            "\
Elem value = {x}[point];
if (has_source) {{
const Record* records = (const Record*){records};
const unsigned long long key = (unsigned long long)d ^ 1ull << 63;
Index low = 0, high = {count};
while (low < high) {{
const Index middle = (low + high) / 2;
if (records[middle].key < key) low = middle + 1;
else high = middle;
}}
for (; low < {count} && records[low].key == key; low++) value = combine(value, {src}[src_at + (Index)records[low].index * {step}]);
}}
{out}[point] = value;"
        ),
    );
    let grid = line_of_blocks(total, THREADS as u32);
    steps.push(call.step(source.finish(grid, [THREADS as u32, 1, 1])));
    KernelCalls {
        steps,
        scratch,
        in_place: work.in_place.clone(),
    }
}

/// Emits a kernel in which each part of a lane walks the lane's source.
fn emit_walk(work: Job, s: &Scatter) -> KernelCalls {
    let axis = s.axis as usize;
    let [x, index, src, out] = [s.x, s.index.arg, s.src.arg, s.out].map(|a| Slot::Arg(a as usize));
    let mut call = Call::new(work);
    call.sites = vec![0];
    call.push(x, s.dtype, false);
    call.push(index, DType::I64, false);
    call.push(src, s.dtype, false);
    call.push(out, s.dtype, true);
    let name = format!("scatter_{}_{}", s.kind.name(), s.dtype);
    let mut source = call.source(&name, index_type(s));
    source.scope(&combine_text(s));
    let lanes = numel(&[&s.shape[..axis], &s.shape[axis + 1..]].concat());
    let parts = match (lanes.as_const(), s.shape[axis].as_const()) {
        (Some(lanes), Some(bound)) => {
            let threads = work.gpu.busy() * THREADS;
            (threads / lanes.max(1))
                .min(MAX_THREADS_PER_LANE)
                .min(bound)
                .max(1)
        }
        _ => 1,
    };
    let (x, index, src, out) = (
        call.pointer(x),
        call.pointer(index),
        call.pointer(src),
        call.pointer(out),
    );
    let (count, bound) = (source.dim(&s.index_shape[axis]), source.dim(&s.shape[axis]));
    let lanes_text = source.dim(&lanes);
    let strides = contiguous_strides(&s.shape);
    let [step, index_step, src_step] =
        [&strides[axis], &s.index.strides[axis], &s.src.strides[axis]].map(|d| source.dim(d));
    let (index_at, src_at) = (source.dim(&s.index.offset), source.dim(&s.src.offset));
    lines(
        &mut source,
        &format!(
            "\
const Index point = (Index)blockIdx.x * {THREADS} + threadIdx.x, lanes = {lanes_text};
if (point >= lanes * {parts}) return;
const Index part = point / lanes;
const Index bound = {bound}, low = bound * part / {parts}, high = bound * (part + 1) / {parts};
Index out_at = 0, index_at = {index_at}, src_at = {src_at}, remaining = point % lanes;
bool has_source = true;"
        ),
    );
    for a in (0..s.shape.len()).rev().filter(|a| *a != axis) {
        let [extent, index_extent] = [&s.shape[a], &s.index_shape[a]].map(|d| source.dim(d));
        let steps = [&strides[a], &s.index.strides[a], &s.src.strides[a]].map(|d| source.dim(d));
        lines(
            &mut source,
            &format!(
                "\
{{
const Index i = remaining % {extent};
remaining /= {extent};
out_at += i * {};
index_at += i * {};
src_at += i * {};
has_source = has_source && i < {index_extent};
}}",
                steps[0], steps[1], steps[2]
            ),
        );
    }
    lines(
        &mut source,
        &format!(
            "\
for (Index d = low; d < high; d++) {out}[out_at + d * {step}] = {x}[out_at + d * {step}];
if (!has_source) return;
for (Index i = 0; i < {count}; i++) {{
const long long d = {index}[index_at + i * {index_step}];
if (low <= d && d < high) {{
const Index address = out_at + (Index)d * {step};
{out}[address] = combine({out}[address], {src}[src_at + i * {src_step}]);
}} else if (part == 0 && (d < 0 || d >= bound)) kiln_report(errors, site0, d, bound);
}}"
        ),
    );
    let grid = line_of_blocks(&lanes * &Dim::Const(parts), THREADS as u32);
    KernelCalls {
        steps: vec![call.step(source.finish(grid, [THREADS as u32, 1, 1]))],
        scratch: Vec::new(),
        in_place: work.in_place.clone(),
    }
}
