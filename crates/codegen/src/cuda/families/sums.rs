//! Contractions whose operands share little: a thread for each element of the result, which computes its whole sum.
//! Neighbouring threads have neighbouring elements.

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
/// The maximum number of terms whose loops are unrolled.
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
    let short = arrays.map(|a| &a.len).all(fits_i32);
    let mut kernels = work.kernels();
    let index = match short && kernels.all(|k| Values::index_type(k) == Index::Int) {
        true => Index::Int,
        false => Index::Long,
    };
    let mut source = call.source(name, index);
    source.scope(include_str!("multiply_add.cu"));
    source.scope(&elements(dtype, index));
    let order = order(c);
    let extents: Vec<Dim> = order.iter().map(|at| extent(c, *at)).collect();
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
    let mut all = vec![String::new(); c.extents().count()];
    order
        .iter()
        .zip(names)
        .for_each(|(at, name)| all[*at] = name);
    for (i, at) in c.range(TERMS).enumerate() {
        all[at] = format!("k{i}");
    }
    let whole = [(0..all.len(), &all[..])];
    let (pointers, text) = pointers(&mut source, &call, operands);
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
    let mut loaded = |(x, pointer): (&kiln_plan::contraction::Access, &String)| {
        let at = affine(&mut source, &x.offset, &x.strides, &whole);
        let bounds = x.bounds.iter().map(|b| {
            let moved = affine(&mut source, &b.offset, &b.strides, &whole);
            format!("(UIndex)({moved}) < (UIndex){}", source.dim(&b.extent))
        });
        let bounds: Vec<String> = bounds.collect();
        match bounds.is_empty() {
            true => format!("load({pointer}({at}))"),
            false => format!("({} ? load({pointer}({at})) : Acc(0))", bounds.join(" && ")),
        }
    };
    let [a, b] = [0, 1].map(|i| loaded((&c.operands[i], &pointers[i])));
    source.line(format!("raw = multiply_add({a}, {b}, raw);"));
    c.loops[TERMS].iter().for_each(|_| source.line("}"));
    let at = affine(&mut source, &c.result.offset, &c.result.strides, &whole);
    source.line(format!("const Index at = {at};"));
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

/// Returns functions that return the elements of operands, and their text.
fn pointers(
    source: &mut Source,
    call: &Call,
    operands: [(Slot, Option<&kir::Kernel>); 2],
) -> ([String; 2], String) {
    let mut text = String::new();
    let names = ["a", "b"].map(|name| format!("make_{name}"));
    for ((slot, prologue), name) in operands.into_iter().zip(["a", "b"]) {
        text += &match prologue {
            Some(prologue) => prologue::function(source, call, prologue, name),
            None => format!(
                "const auto make_{name} = [&](const Index p) -> Elem {{ return {}[p]; }};\n",
                call.pointer(slot)
            ),
        };
    }
    (names, text)
}

/// Returns the loops of the result's elements, those of the largest steps first.
fn order(c: &Contraction) -> Vec<usize> {
    let terms = c.range(TERMS);
    let mut order: Vec<usize> = Vec::new();
    for at in (0..c.extents().count()).filter(|at| !terms.contains(at)) {
        let own = &c.result.strides[at];
        let is_larger = |other: &usize| {
            let stride = &c.result.strides[*other];
            stride != own && own.div_exact(stride).is_ok()
        };
        let place = order.iter().position(is_larger).unwrap_or(order.len());
        order.insert(place, at);
    }
    order
}

fn extent(c: &Contraction, at: usize) -> Dim {
    c.extents().nth(at).cloned().unwrap_or(Dim::ONE)
}
