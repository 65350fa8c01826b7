//! Convolutions and their gradients, as matrix products of which one operand is gathered while it is read.
//! The rows of each product are channels of the result, groups are its batch:
//!
//! | computed | rows | columns | summed over |
//! |---|---|---|---|
//! | y | out | batch, output | in, kernel |
//! | gradient of x | in | batch, input of a phase | out, kernel of a phase |
//! | gradient of w | out | in, kernel | batch, output |
//!
//! The gradient of x is such a product for each phase of the stride ([`Phases`]).
//!
//! Where a filter has one tap that falls on every position, nothing needs to be gathered: images are then
//! a batch of plain products.

use super::call::{Call, Store};
use super::conv_phases::Phases;
use super::conv_sizes::{Sizes, is_pointwise, name, windows_of};
use super::gemm::{Gemm, Operand};
use super::{conv_each, conv_last, made, winograd};
use crate::cuda::job::Job;
use crate::cuda::source::Source;
use crate::kir;
use crate::work::Way;
use kiln_base::{Dim, numel};
use kiln_plan::{Conv, ConvRole, Images, MatMul, Matrix};

pub(super) fn print(work: Job, c: &Conv, all: bool) -> Vec<Way> {
    if conv_each::computes(c) {
        let mut ways = vec![conv_each::print(work, c)];
        if all {
            ways.extend(winograd::ways(work, c, &name(work, c)));
        }
        return ways;
    }
    if c.images != Images::ChannelsFirst {
        return conv_last::print(work, c, all);
    }
    if let Some(product) = plain_product(c) {
        let [made, _] = work.made();
        return super::matmul::print(work, &product, [None, made], all);
    }
    let (sizes, phases) = (Sizes::of(c), Phases::of(c));
    let reach = sizes.reach(c);
    let (m, n, k, total) = match c.role {
        ConvRole::Result => (
            &c.out_channels,
            &c.batch * &sizes.output,
            &c.in_channels * &sizes.kernel,
            &reach[1],
        ),
        ConvRole::Input => (
            &c.in_channels,
            &c.batch * &numel(&phases.places),
            &c.out_channels * &numel(&phases.turns),
            &reach[0],
        ),
        ConvRole::Weight => (
            &c.out_channels,
            &c.in_channels * &sizes.kernel,
            &c.batch * &sizes.output,
            &reach[2],
        ),
    };
    let name = name(work, c);
    let made = work.made()[0];
    let gemm = Gemm {
        work,
        name: &name,
        dtype: c.dtype(),
        batches: match c.role {
            ConvRole::Input => &c.groups * &Dim::Const(phases.count),
            _ => c.groups.clone(),
        },
        m: m.clone(),
        n,
        k,
        total: total.clone(),
        reach: reach.to_vec(),
        at: at(c.role).into(),
        store: Store::of(work, c.out, c.dtype()),
        reads: made::reads([made, None], c.operands, c.dtype()),
        operands: made.map_or("", |_| made::CLASS).to_string() + &phases.classes(c),
        costly: c.role == ConvRole::Input || made.is_some_and(made::is_costly),
    };
    let mut ways = gemm.print(all, |source, call| match c.role {
        ConvRole::Input => phases.operands(source, call, c, &sizes),
        _ => [
            match c.role {
                ConvRole::Weight => conv_last::gradient(source, call, c, &sizes),
                _ => conv_last::filters(source, call, c, &sizes, "a"),
            },
            windows(source, call, c, &sizes, made),
        ],
    });
    if all {
        ways.extend(winograd::ways(work, c, &name));
    }
    ways
}

/// The place of an element in the result.
fn at(role: ConvRole) -> &'static str {
    match role {
        ConvRole::Result => {
            "const Index at = ((j / plane * batches + batch) * m + i) * plane + j % plane;"
        }
        ConvRole::Input => {
            "\
const Parts place = b.line(j);
if (place.outer < 0) continue;
if (raw != raw) raw = sum_inside(a, b, i, place, first, end);
const Index at = ((place.outer * (batches / PHASES) + group) * m + i) * plane + b.position(place);"
        }
        ConvRole::Weight => "const Index at = (batch * m + i) * n + j;",
    }
}

/// Positions of an image that fill a good part of a tile.
const MANY: i64 = 32;

/// The convolution as products of a filter matrix and images, if that is all it is.
fn plain_product(c: &Conv) -> Option<MatMul> {
    let plane = numel(&c.output);
    let many = c.batch.is(1) || plane.as_const().is_some_and(|n| n >= MANY);
    if !(is_pointwise(c) && many) {
        return None;
    }
    let (ins, outs) = (&c.in_channels, &c.out_channels);
    let (m, k, row, col) = match c.role {
        ConvRole::Result => (outs, ins, ins, &Dim::ONE),
        ConvRole::Input => (ins, outs, &Dim::ONE, ins),
        ConvRole::Weight => return None, // its sums run over images too
    };
    Some(MatMul {
        dtypes: c.dtypes,
        seven_bits: false,
        batch: vec![c.batch.clone(), c.groups.clone()],
        m: m.clone(),
        k: k.clone(),
        n: plane.clone(),
        lhs: Matrix {
            arg: c.operands[1],
            offset: Dim::ZERO,
            batch_strides: vec![Dim::ZERO, ins * outs],
            row: row.clone(),
            col: col.clone(),
        },
        rhs: Matrix {
            arg: c.operands[0],
            offset: Dim::ZERO,
            batch_strides: vec![&(&c.groups * k) * &plane, k * &plane],
            row: plane,
            col: Dim::ONE,
        },
        out: c.out,
        prologues: [None, None],
        epilogue: None,
        algorithm: Default::default(),
    })
}

/// The operand that is gathered: x.
fn windows(
    source: &mut Source,
    call: &Call,
    c: &Conv,
    s: &Sizes,
    made: Option<&kir::Kernel>,
) -> Operand {
    let (function, class, p) = made::place(source, call, made, c.operands[0], "b");
    let sizes = [
        &(&c.in_channels * &s.input),
        &s.x_image,
        &s.input,
        &s.output,
    ];
    let [group, image, channel, plane] = sizes.map(|d| source.dim(d));
    let windows = windows_of(source, c);
    Operand {
        text: format!(
            "{function}const Index plane = {plane};\nconst Windows<{class}> b = {{{p} + batch * {group}, n, {image}, {channel}, {windows}}};\n"
        ),
        along_k: c.role == ConvRole::Weight,
        vector: false,
    }
}
