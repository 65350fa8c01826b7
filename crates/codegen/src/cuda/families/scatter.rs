//! Scattering. A thread owns part of a lane of the result: it copies that part of x and then walks the
//! lane's source elements in order, so the result is that of one thread. Where lanes are few, several
//! threads share a lane, and each walks its whole source for what falls into its part.

use super::{Call, elements, few, line_of_blocks, lines, scope};
use crate::cuda::source::Index;
use crate::cuda::{Printed, Slot};
use crate::program::Launch;
use kiln_base::plan::Scatter;
use kiln_base::prim::ScatterKind;
use kiln_base::{DType, Dim, contiguous_strides, numel};

/// Threads of a block.
const THREADS: i64 = 128;
/// Threads that keep a GPU busy.
const BUSY: i64 = 128 * THREADS;
/// The most threads that share a lane.
const PARTS: i64 = 1024;

pub(super) fn print(launch: &Launch, s: &Scatter) -> Printed {
    let [x, index, src, out] = [s.x, s.index.arg, s.src.arg, s.out].map(|a| Slot::Arg(a as usize));
    let mut call = Call::new(launch);
    call.sites = vec![0];
    call.push(x, s.dtype, false);
    call.push(index, DType::I64, false);
    call.push(src, s.dtype, false);
    call.push(out, s.dtype, true);
    let axis = s.axis as usize;
    let reach = [&s.index, &s.src].map(|o| {
        let steps = o.strides.iter().zip(&s.index_shape);
        steps.fold(o.offset.clone(), |sum, (a, b)| &sum + &(a * b))
    });
    let total = numel(&s.shape);
    let index_type = match few(&total) && reach.iter().all(few) && s.index_shape.iter().all(few) {
        true => Index::Int,
        false => Index::Long,
    };
    let mut source = call.source(
        &format!("scatter_{}_{}", s.kind.name(), s.dtype),
        index_type,
    );
    let combine = match s.kind {
        ScatterKind::Set => "b".into(),
        ScatterKind::Sum => "store(kiln_sum::of(load(a), load(b)))".to_string(),
        ScatterKind::Prod => "store(kiln_prod::of(load(a), load(b)))".into(),
        ScatterKind::Max => "store(kiln_maximum::of(load(a), load(b)))".into(),
        ScatterKind::Min => "store(kiln_minimum::of(load(a), load(b)))".into(),
    };
    scope(
        &mut source,
        &format!(
            "{}__device__ __forceinline__ Elem combine(Elem a, Elem b) {{ return {combine}; }}\n",
            elements(s.dtype, index_type)
        ),
    );
    let lanes = numel(&[&s.shape[..axis], &s.shape[axis + 1..]].concat());
    let parts = match (lanes.as_const(), s.shape[axis].as_const()) {
        (Some(lanes), Some(bound)) => (BUSY / lanes.max(1)).min(PARTS).min(bound).max(1),
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
Index at = 0, index_at = {index_at}, src_at = {src_at}, rest = point % lanes;
bool has_source = true;"
        ),
    );
    for a in (0..s.shape.len()).rev().filter(|a| *a != axis) {
        let [extent, from] = [&s.shape[a], &s.index_shape[a]].map(|d| source.dim(d));
        let steps = [&strides[a], &s.index.strides[a], &s.src.strides[a]].map(|d| source.dim(d));
        lines(
            &mut source,
            &format!(
                "\
{{
const Index i = rest % {extent};
rest /= {extent};
at += i * {};
index_at += i * {};
src_at += i * {};
has_source = has_source && i < {from};
}}",
                steps[0], steps[1], steps[2]
            ),
        );
    }
    lines(
        &mut source,
        &format!(
            "\
for (Index d = low; d < high; d++) {out}[at + d * {step}] = {x}[at + d * {step}];
if (!has_source) return;
for (Index i = 0; i < {count}; i++) {{
const long long d = {index}[index_at + i * {index_step}];
if (low <= d && d < high) {{
const Index to = at + (Index)d * {step};
{out}[to] = combine({out}[to], {src}[src_at + i * {src_step}]);
}} else if (part == 0 && (d < 0 || d >= bound)) kiln_report(errors, site0, d, bound);
}}"
        ),
    );
    let grid = line_of_blocks(&lanes * &Dim::Const(parts), THREADS as u32);
    Printed {
        steps: vec![call.step(source.finish(grid, [THREADS as u32, 1, 1], 0))],
        scratch: Vec::new(),
        in_place: launch.in_place.clone(),
    }
}
