//! Matrix products, convolutions and their gradients: contractions, as tiles or as plain sums.
//!
//! In the tiles of a convolution, rows are channels and columns positions; with channels last, rows are positions. In a
//! gradient of weights, rows are output channels, and columns input channels and taps. The gradient of images is a
//! batch of products, one for each phase of the stride ([`kiln_plan::contraction`]).

use super::call::Store;
use super::gemm::Gemm;
use super::{im2col, sums, winograd};
use crate::cuda::job::Job;
use crate::kir::Kernel;
use crate::work::{Body, Candidate, Slot};
use kiln_base::{DType, Dim};
use kiln_plan::contraction::Contraction;
use kiln_plan::schedule::Gpu;
use kiln_plan::{Conv, ConvRole, MatMul};

/// The minimum rows or columns of a batch's products that fill a good part of a tile.
const MIN_BATCHED_SIZE: i64 = 32;

/// Returns the candidates of a matrix product.
pub(super) fn product(work: Job, m: &MatMul, all: bool) -> Vec<Candidate> {
    let default_name = || format!("matmul_{}", m.dtype());
    let name = work.fused_name().map_or_else(default_name, str::to_string);
    gemm_of_product(work, m, &name).emit(all)
}

/// Returns the default schedule of a product or convolution by tiles, and its cycles, if sizes are known.
pub(in crate::cuda) fn preferred(work: Job) -> Option<(Gpu, f64)> {
    match &work.body {
        Body::MatMul(m) => gemm_of_product(work, m, "").preferred(),
        Body::Conv(c) if !is_each(c) => {
            gemm_of_convolution(work, c, c.contraction(c.filters(true)), "").preferred()
        }
        _ => None,
    }
}

fn gemm_of_product<'a>(work: Job<'a>, m: &MatMul, name: &'a str) -> Gemm<'a> {
    let operands = [&m.lhs, &m.rhs].map(|x| Slot::Arg(x.arg.into()));
    let [left, right] = work.prologues();
    let operands = [(operands[0], left), (operands[1], right)];
    let store = Store::of(work, m.out, result_dtype(m.dtype()));
    Gemm::new(work, name, m.dtypes, m.into(), operands, store)
}

/// Returns the dtype of the result of a product of operands of a dtype.
fn result_dtype(dtype: DType) -> DType {
    if dtype.is_byte() { DType::I32 } else { dtype }
}

/// True if warpgroups multiply images that im2col copies load: positions are then rows of one product.
fn uses_im2col(work: Job, c: &Conv, contraction: &Contraction) -> bool {
    let is_exact = c.is_half() || c.dtype().is_byte();
    let may_copy = is_exact && c.prologue.is_none() && work.gpu.arch == (9, 0);
    may_copy && im2col::operands(contraction, c.dtype()).is_some()
}

/// Returns the candidates of a convolution, or of a gradient of one.
pub(super) fn convolution(work: Job, c: &Conv, all: bool) -> Vec<Candidate> {
    let default_name = || format!("{}_{}", c.role.name(), c.dtype());
    let name = work.fused_name().map_or_else(default_name, str::to_string);
    let contraction = c.contraction(c.filters(true));
    let mut candidates = match is_each(c) {
        true => {
            let operands = operands(work, c, &contraction);
            let store = Store::of(work, c.out, result_dtype(c.dtype()));
            vec![sums::emit(
                work,
                &name,
                c.dtype(),
                &contraction,
                operands,
                store,
            )]
        }
        false => gemm_of_convolution(work, c, contraction, &name).emit(all),
    };
    if all {
        candidates.extend(winograd::candidates(work, c, &name));
    }
    candidates
}

/// True if each element of the result is a sum over taps alone.
fn is_each(c: &Conv) -> bool {
    c.role == ConvRole::Result && c.in_channels.is(1) && c.out_channels.is(1)
}

/// Returns the operands of a convolution, the left of which may be the filters.
fn operands<'a>(
    work: Job<'a>,
    c: &Conv,
    contraction: &Contraction,
) -> [(Slot, Option<&'a Kernel>); 2] {
    let [prologue, _] = work.prologues();
    contraction.operands.each_ref().map(|x| {
        let prologue = prologue.filter(|_| x.arg == c.operands[0]);
        (Slot::Arg(x.arg.into()), prologue)
    })
}

fn gemm_of_convolution<'a>(
    work: Job<'a>,
    c: &Conv,
    contraction: Contraction,
    name: &'a str,
) -> Gemm<'a> {
    let operands = operands(work, c, &contraction);
    let enough = |d: &Dim| d.as_const().is_some_and(|n| n >= MIN_BATCHED_SIZE);
    let contraction = match uses_im2col(work, c, &contraction) {
        true => contraction,
        false => contraction.batched(enough),
    };
    let is_second = |arg| usize::from(arg != c.operands[0]);
    let dtypes = contraction.operands.each_ref();
    let dtypes = dtypes.map(|x| c.dtypes[is_second(x.arg)]);
    let store = Store::of(work, c.out, result_dtype(c.dtype()));
    Gemm::new(work, name, dtypes, contraction, operands, store)
}
