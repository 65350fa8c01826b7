//! Convolutions whose result holds the channels of a position side by side: matrix products again, of which
//! the rows are positions, so that what lies side by side is a row of each matrix:
//!
//! | rows | columns | summed over |
//! |---|---|---|
//! | batch, output | out | kernel, in |
//!
//! Filters lie as `[groups · out, kernel.., in]`. So do images, or with channels first
//! ([`Images::Turned`]), and are then read through strides, by lanes of neighbouring positions.

use super::conv::{Sizes, is_pointwise, list, name};
use super::gemm::{Gemm, Operand};
use super::{Call, Store, made};
use crate::cuda::source::Source;
use crate::cuda::{Slot, Way};
use crate::kir;
use crate::program::Launch;
use kiln_base::plan::{Conv, Images, MatMul, Matrix};
use kiln_base::{DType, Dim};

pub(super) fn print(launch: &Launch, c: &Conv, all: bool) -> Vec<Way> {
    if let Some(product) = plain_product(c) {
        return super::matmul::print(launch, &product, all);
    }
    let sizes = Sizes::of(c);
    let made = c.prologue.as_ref().and_then(|_| launch.made.first());
    let reach = sizes.reach(c);
    let gemm = Gemm {
        launch,
        name: &name(launch, c),
        dtype: c.dtype,
        batches: c.groups.clone(),
        m: &c.batch * &sizes.output,
        n: c.out_channels.clone(),
        k: &c.in_channels * &sizes.kernel,
        total: reach[1].clone(),
        reach: reach.to_vec(),
        at: "const Index at = (i * batches + batch) * n + j;".into(),
        store: Store::of(launch, c.out, c.dtype),
        reads: made::reads([made, None], c.operands, c.dtype),
        operands: classes(c, made),
        // Each line that a thread reads is a position, which takes registers.
        costly: c.dtype == DType::F64 || made.is_some_and(made::is_costly),
    };
    gemm.print(all, |source, call| {
        [
            patches(source, call, c, &sizes, made),
            filters(source, call, c, &sizes),
        ]
    })
}

/// The convolution as products of positions and filters, if that is all it is.
fn plain_product(c: &Conv) -> Option<MatMul> {
    if !is_pointwise(c) || !c.groups.is(1) {
        return None;
    }
    let (ins, outs) = (&c.in_channels, &c.out_channels);
    let plane = kiln_base::numel(&c.output);
    let (batch, m, strides) = match c.images {
        Images::Turned => (
            vec![c.batch.clone()],
            plane.clone(),
            (vec![ins * &plane], Dim::ONE, plane),
        ),
        _ => (
            Vec::new(),
            &c.batch * &plane,
            (Vec::new(), ins.clone(), Dim::ONE),
        ),
    };
    let (batch_strides, row, col) = strides;
    Some(MatMul {
        dtype: c.dtype,
        m,
        k: ins.clone(),
        n: outs.clone(),
        lhs: Matrix {
            arg: c.operands[0],
            offset: Dim::ZERO,
            batch_strides,
            row,
            col,
        },
        rhs: Matrix {
            arg: c.operands[1],
            offset: Dim::ZERO,
            batch_strides: vec![Dim::ZERO; batch.len()],
            row: Dim::ONE,
            col: ins.clone(),
        },
        batch,
        out: c.out,
        prologues: [c.prologue.clone(), None],
        epilogue: None,
        algorithm: Default::default(),
    })
}

/// The classes of what is gathered.
pub(super) fn classes(c: &Conv, made: Option<&kir::Kernel>) -> String {
    let axes = format!("constexpr int AXES = {};\n", c.kernel.len().max(1));
    let made = made.map_or("", |_| made::CLASS);
    made.to_string() + &axes + include_str!("conv.cu") + include_str!("conv_last.cu")
}

fn eights(d: &Dim) -> bool {
    d.as_const().is_some_and(|n| n % 8 == 0)
}

/// The operand that is gathered: x, of which product `batch` is of the channels of one group.
pub(super) fn patches(
    source: &mut Source,
    call: &Call,
    c: &Conv,
    s: &Sizes,
    made: Option<&kir::Kernel>,
) -> Operand {
    let (function, class, p) = made::place(source, call, made, c.operands[0], "a");
    let last = c.images == Images::ChannelsLast;
    let (channel, step) = match last {
        true => (Dim::ONE, &c.groups * &c.in_channels),
        false => (s.input.clone(), Dim::ONE),
    };
    let sizes = [
        &(&c.in_channels * &channel),
        &c.in_channels,
        &s.x_image,
        &channel,
        &step,
    ];
    let [group, channels, image, channel, step] = sizes.map(|d| source.dim(d));
    let lists = [
        list(source, &c.input, 1),
        list(source, &c.output, 1),
        list(source, &c.kernel, 1),
        list(source, &c.stride, 1),
        list(source, &c.padding, 0),
        list(source, &c.dilation, 1),
    ];
    Operand {
        text: format!(
            "{function}const Patches<{class}> a = {{{p} + batch * {group}, m, {channels}, {image}, {channel}, {step}, {}}};\n",
            lists.join(", ")
        ),
        along_k: last,
        vector: last && made.is_none() && eights(&c.in_channels),
    }
}

/// The operand whose lines are channels of the result: w.
fn filters(source: &mut Source, call: &Call, c: &Conv, s: &Sizes) -> Operand {
    let p = call.pointer(Slot::Arg(c.operands[1] as usize));
    let w_group = source.dim(&s.w_group);
    Operand {
        text: format!("const Strided b = {{{p} + batch * {w_group}, n, k, 1}};\n"),
        along_k: true,
        vector: eights(&(&c.in_channels * &s.kernel)),
    }
}
