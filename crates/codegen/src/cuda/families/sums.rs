//! Contractions with little reuse of operands: one thread per element of the result. Neighbouring threads compute
//! neighbouring elements.

use super::call::{Call, Store, elements, fits_i32, line_of_blocks, lines};
use super::operand::{affine, split};
use super::prologue;
use crate::cuda::job::Job;
use crate::cuda::source::{Index, Source};
use crate::cuda::values::Values;
use crate::kir;
use crate::schedule::Schedule;
use crate::work::{Candidate, KernelCalls, Slot};
use kiln_base::{DType, Dim, numel};
use kiln_plan::contraction::{Contraction, TERMS};

const THREADS: u32 = 256;
/// The maximum number of terms of unrolled loops.
const MAX_UNROLLED_TERMS: i64 = 25;

pub(super) fn emit(
    work: Job,
    name: &str,
    dtype: DType,
    c: &Contraction,
    operands: [(Slot, Option<&kir::Kernel>); 2],
    store: Store,
) -> Candidate {
    let mut call = Call::new(work);
    store.push(&mut call);
    prologue::push(&mut call, &operands, [dtype; 2]);
    let arrays = c.operands.iter().chain([&c.result]);
    let is_small = arrays.map(|a| &a.len).all(fits_i32);
    let mut kernels = work.kernels();
    let index = match is_small && kernels.all(|k| Values::index_type(k) == Index::Int) {
        true => Index::Int,
        false => Index::Long,
    };
    let mut source = call.source(name, index);
    source.scope(include_str!("multiply_add.cu"));
    source.scope(&elements(dtype, index));
    let order = order_by_stride(c);
    let extents: Vec<Dim> = order.iter().map(|i| extent(c, *i)).collect();
    let points = numel(&extents);
    let total = source.dim(&points);
    let (declared, names) = split(&mut source, &extents, ["at_", "thread"]);
    lines(
        &mut source,
        &format!(
            "\
const Index thread = (Index)blockIdx.x * {THREADS} + threadIdx.x;
if (thread >= {total}) return;
{declared}"
        ),
    );
    // A name for each loop, in the order of strides.
    let mut indices = vec![String::new(); c.extents().count()];
    for (axis, name) in order.iter().zip(names) {
        indices[*axis] = name;
    }
    for (i, axis) in c.range(TERMS).enumerate() {
        indices[axis] = format!("k{i}");
    }
    let indices = [(0..indices.len(), &indices[..])];
    let (elements_of, text) = element_functions(&mut source, &call, operands);
    lines(&mut source, &text);
    source.line("Acc raw = 0;");
    let terms = c.size(TERMS);
    let unroll = match terms.as_const() {
        Some(..=MAX_UNROLLED_TERMS) => "#pragma unroll",
        _ => "#pragma unroll 1",
    };
    for (i, extent) in c.loops[TERMS].iter().enumerate() {
        let extent = source.dim(extent);
        source.line(unroll);
        source.line(format!("for (Index k{i} = 0; k{i} < {extent}; k{i}++) {{"));
    }
    let mut load = |(x, element): (&kiln_plan::contraction::Access, &String)| {
        let offset = affine(&mut source, &x.offset, &x.strides, &indices);
        let bounds = x.bounds.iter().map(|b| {
            let index = affine(&mut source, &b.offset, &b.strides, &indices);
            format!("(UIndex)({index}) < (UIndex){}", source.dim(&b.extent))
        });
        let bounds: Vec<String> = bounds.collect();
        let element = format!("load({element}({offset}))");
        match bounds.is_empty() {
            true => element,
            false => format!("({} ? {element} : Acc(0))", bounds.join(" && ")),
        }
    };
    let [a, b] = [0, 1].map(|i| load((&c.operands[i], &elements_of[i])));
    source.line(format!("raw = multiply_add({a}, {b}, raw);"));
    c.loops[TERMS].iter().for_each(|_| source.line("}"));
    let offset = affine(&mut source, &c.result.offset, &c.result.strides, &indices);
    source.line(format!("const Index at = {offset};"));
    store.emit(&mut source, &call, 1);
    let grid = line_of_blocks(points, THREADS);
    let step = call.step(source.finish(grid, [THREADS, 1, 1]));
    Candidate {
        schedule: Schedule::Sums,
        approximation: None,
        predicted: None,
        calls: KernelCalls {
            steps: vec![step],
            scratch: Vec::new(),
            in_place: work.in_place.clone(),
        },
    }
}

/// Returns the names of device functions that return elements of the operands, and their text.
fn element_functions(
    source: &mut Source,
    call: &Call,
    operands: [(Slot, Option<&kir::Kernel>); 2],
) -> ([String; 2], String) {
    let mut text = String::new();
    let names = ["a", "b"].map(|name| format!("make_{name}"));
    for ((slot, prologue), name) in operands.into_iter().zip(["a", "b"]) {
        text += &match prologue {
            Some(prologue) => prologue::declare(source, call, prologue, name),
            None => format!(
                "const auto make_{name} = [&](const Index p) -> Elem {{ return {}[p]; }};\n",
                call.pointer(slot)
            ),
        };
    }
    (names, text)
}

/// Returns the loops over the result's elements, largest strides first.
fn order_by_stride(c: &Contraction) -> Vec<usize> {
    let terms = c.range(TERMS);
    let mut order: Vec<usize> = Vec::new();
    for axis in (0..c.extents().count()).filter(|axis| !terms.contains(axis)) {
        let stride = &c.result.strides[axis];
        let is_larger = |other: &usize| {
            let other_stride = &c.result.strides[*other];
            other_stride != stride && stride.div_exact(other_stride).is_ok()
        };
        let insertion = order.iter().position(is_larger).unwrap_or(order.len());
        order.insert(insertion, axis);
    }
    order
}

fn extent(c: &Contraction, axis: usize) -> Dim {
    c.extents().nth(axis).cloned().unwrap_or(Dim::ONE)
}
