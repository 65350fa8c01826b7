//! Convolutions and their gradients, as matrix products of which one operand is gathered while it is read.
//! The rows of each product are channels of the result, groups are its batch:
//!
//! | computed | rows | columns | summed over |
//! |---|---|---|---|
//! | y | out | batch, output | in, kernel |
//! | gradient of x | in | batch, input | out, kernel |
//! | gradient of w | out | in, kernel | batch, output |
//!
//! Where a filter has one tap that falls on every position, nothing needs to be gathered: images are then
//! a batch of plain products.

use super::gemm::{Gemm, Operand};
use super::{Call, Store};
use crate::cuda::source::Source;
use crate::cuda::{Printed, Slot};
use crate::program::Launch;
use kiln_base::plan::{Conv, ConvRole, MatMul, Matrix};
use kiln_base::{Dim, numel};

/// Sizes of a convolution.
struct Sizes {
    /// Elements of a channel of x, of a filter's channel, and of a channel of y.
    input: Dim,
    kernel: Dim,
    output: Dim,
    /// Elements from image to image of x and y, and from group to group of w.
    x_image: Dim,
    y_image: Dim,
    w_group: Dim,
}

pub(super) fn print(launch: &Launch, c: &Conv) -> Printed {
    if let Some(product) = plain_product(c) {
        return super::matmul::print(launch, &product);
    }
    let (input, kernel, output) = (numel(&c.input), numel(&c.kernel), numel(&c.output));
    let product = |dims: &[&Dim]| dims.iter().fold(Dim::ONE, |n, d| &n * *d);
    let sizes = Sizes {
        x_image: product(&[&c.groups, &c.in_channels, &input]),
        y_image: product(&[&c.groups, &c.out_channels, &output]),
        w_group: product(&[&c.out_channels, &c.in_channels, &kernel]),
        input,
        kernel,
        output,
    };
    let (m, n, k) = match c.role {
        ConvRole::Result => (
            c.out_channels.clone(),
            &c.batch * &sizes.output,
            &c.in_channels * &sizes.kernel,
        ),
        ConvRole::Input => (
            c.in_channels.clone(),
            &c.batch * &sizes.input,
            &c.out_channels * &sizes.kernel,
        ),
        ConvRole::Weight => (
            c.out_channels.clone(),
            &c.in_channels * &sizes.kernel,
            &c.batch * &sizes.output,
        ),
    };
    let name = match &launch.kir {
        Some(kir) => kir.name.clone(),
        None => format!("{}_{}", c.role.name(), c.dtype),
    };
    let parameters = [
        format!("constexpr int AXES = {};", c.kernel.len().max(1)),
        format!("constexpr bool TRANSPOSED = {};", c.role == ConvRole::Input),
        format!(
            "constexpr bool TAPS_ARE_LINES = {};\n",
            c.role == ConvRole::Weight
        ),
    ];
    let gemm = Gemm {
        launch,
        name: &name,
        dtype: c.dtype,
        batches: c.groups.clone(),
        m,
        n,
        k,
        reach: vec![
            &sizes.x_image * &c.batch,
            &sizes.y_image * &c.batch,
            &sizes.w_group * &c.groups,
        ],
        at: match c.role {
            ConvRole::Weight => "(batch * m + i) * n + j".into(),
            _ => "((j / plane * batches + batch) * m + i) * plane + j % plane".into(),
        },
        store: Store::of(launch, c.out, c.dtype),
        reads: c.operands,
        operands: parameters.join("\n") + include_str!("conv.cu"),
    };
    gemm.print(|source, call| {
        [
            channels(source, call, c, &sizes),
            windows(source, call, c, &sizes),
        ]
    })
}

/// Positions of an image that fill a good part of a tile.
const MANY: i64 = 32;

/// The convolution as products of a filter matrix and images, if that is all it is.
fn plain_product(c: &Conv) -> Option<MatMul> {
    let all = |dims: &[Dim], n: i64| dims.iter().all(|d| d.is(n));
    let plane = numel(&c.output);
    let many = c.batch.is(1) || plane.as_const().is_some_and(|n| n >= MANY);
    if !(all(&c.kernel, 1) && all(&c.stride, 1) && all(&c.padding, 0) && many) {
        return None;
    }
    let (ins, outs) = (&c.in_channels, &c.out_channels);
    let (m, k, row, col) = match c.role {
        ConvRole::Result => (outs, ins, ins, &Dim::ONE),
        ConvRole::Input => (ins, outs, &Dim::ONE, ins),
        ConvRole::Weight => return None, // its sums run over images too
    };
    Some(MatMul {
        dtype: c.dtype,
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
        epilogue: None,
        algorithm: Default::default(),
    })
}

/// The operand whose lines are channels of the result: w, or for the gradient of w that of y.
fn channels(source: &mut Source, call: &Call, c: &Conv, s: &Sizes) -> Operand {
    let p = call.pointer(Slot::Arg(c.operands[1] as usize));
    let sizes = [&s.w_group, &s.kernel, &(&c.in_channels * &s.kernel)];
    let [w_group, kernel, filter] = sizes.map(|d| source.dim(d));
    let sizes = [&s.output, &s.y_image, &(&c.out_channels * &s.output)];
    let [output, y_image, y_group] = sizes.map(|d| source.dim(d));
    let text = match c.role {
        ConvRole::Result => format!("const Strided a = {{{p} + batch * {w_group}, m, k, 1}};\n"),
        ConvRole::Input => {
            format!("const Interleaved a = {{{p} + batch * {w_group}, m, {kernel}, {filter}}};\n")
        }
        ConvRole::Weight => {
            format!("const Interleaved a = {{{p} + batch * {y_group}, m, {output}, {y_image}}};\n")
        }
    };
    let filter = &c.in_channels * &s.kernel;
    let eights = filter.as_const().is_some_and(|n| n % 8 == 0);
    Operand {
        text,
        along_k: true,
        vector: c.role == ConvRole::Result && eights,
    }
}

/// The operand that is gathered: x, or for the gradient of x that of y.
fn windows(source: &mut Source, call: &Call, c: &Conv, s: &Sizes) -> Operand {
    let p = call.pointer(Slot::Arg(c.operands[0] as usize));
    let (channels, from, places, image) = match c.role {
        ConvRole::Input => (&c.out_channels, &c.output, &c.input, &s.y_image),
        _ => (&c.in_channels, &c.input, &c.output, &s.x_image),
    };
    let channel = numel(from);
    let sizes = [&(channels * &channel), image, &channel];
    let [group, image, channel] = sizes.map(|d| source.dim(d));
    // Without spatial axes there is one position.
    let mut list = |dims: &[Dim], none: i64| {
        let none = [Dim::Const(none)];
        let dims = if dims.is_empty() { &none } else { dims };
        let dims: Vec<String> = dims.iter().map(|d| source.dim(d)).collect();
        format!("{{{}}}", dims.join(", "))
    };
    let lists = [
        list(from, 1),
        list(places, 1),
        list(&c.kernel, 1),
        list(&c.stride, 1),
        list(&c.padding, 0),
        list(&c.dilation, 1),
    ];
    let plane = source.dim(&numel(places));
    Operand {
        text: format!(
            "const Index plane = {plane};\nconst Windows b = {{{p} + batch * {group}, n, {image}, {channel}, {}}};\n",
            lists.join(", ")
        ),
        along_k: c.role == ConvRole::Weight,
        vector: false,
    }
}
