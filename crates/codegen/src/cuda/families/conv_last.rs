//! Convolutions of images that hold the channels of a position side by side, and their gradients: matrix
//! products again, of which the rows are positions, so that what lies side by side is a row of a matrix:
//!
//! | computed | rows | columns | summed over |
//! |---|---|---|---|
//! | y | batch, output | out | kernel, in |
//! | gradient of x | batch, input of a phase | in | kernel of a phase, out |
//! | gradient of w | out | kernel, in | batch, output |
//!
//! Filters that are read lie as `[groups · out, kernel.., in]`. What is written has channels last, but the
//! gradient of w, which has channels first. An image that is read may have channels first: then it is read
//! through strides, by lanes of neighbouring positions.

use super::call::{Call, Store};
use super::conv_phases::Phases;
use super::conv_sizes::{Sizes, eights, is_pointwise, name, windows_of};
use super::gemm::{Gemm, Operand};
use super::made;
use crate::cuda::job::Job;
use crate::cuda::source::Source;
use crate::kir;
use crate::work::{Slot, Way};
use kiln_base::Dim;
use kiln_plan::{Conv, ConvRole, MatMul, Matrix};

pub(super) fn print(work: Job, c: &Conv, all: bool) -> Vec<Way> {
    if let Some(product) = plain_product(c) {
        return super::matmul::print(work, &product, work.made(), all);
    }
    let (sizes, phases) = (Sizes::of(c), Phases::of(c));
    let made = work.made()[0];
    let reach = sizes.reach(c);
    let (ins, outs, groups) = (&c.in_channels, &c.out_channels, &c.groups);
    let (m, n, k, total) = match c.role {
        ConvRole::Result => (
            &c.batch * &sizes.output,
            outs.clone(),
            ins * &sizes.kernel,
            &reach[1],
        ),
        ConvRole::Input => (
            &c.batch * &kiln_base::numel(&phases.places),
            ins.clone(),
            outs * &kiln_base::numel(&phases.turns),
            &reach[0],
        ),
        ConvRole::Weight => (
            outs.clone(),
            ins * &sizes.kernel,
            &c.batch * &sizes.output,
            &reach[2],
        ),
    };
    let gemm = Gemm {
        work,
        name: &name(work, c),
        dtype: c.dtype(),
        batches: match c.role {
            ConvRole::Input => groups * &Dim::Const(phases.count),
            _ => groups.clone(),
        },
        m,
        n,
        k,
        total: total.clone(),
        reach: reach.to_vec(),
        at: at(c.role).into(),
        store: Store::of(work, c.out, c.dtype()),
        reads: made::reads([made, None], c.operands, c.dtype()),
        operands: match c.role {
            ConvRole::Input => phases.classes(c),
            _ => classes(c, made),
        },
        // Each line that a thread reads is a position, which takes registers.
        costly: c.dtype().size() == 8
            || c.role == ConvRole::Input
            || made.is_some_and(made::is_costly),
    };
    gemm.print(all, |source, call| match c.role {
        ConvRole::Result => [
            patches(source, call, c, &sizes, made),
            filters(source, call, c, &sizes, "b"),
        ],
        ConvRole::Input => phases.operands(source, call, c, &sizes),
        ConvRole::Weight => [
            gradient(source, call, c, &sizes),
            patches(source, call, c, &sizes, None),
        ],
    })
}

/// The place of an element in the result.
fn at(role: ConvRole) -> &'static str {
    match role {
        ConvRole::Result => "const Index at = (i * batches + batch) * n + j;",
        ConvRole::Input => {
            "\
const Parts place = a.line(i);
if (place.outer < 0) continue;
if (raw != raw) raw = sum_inside(b, a, j, place, first, end);
const Index at = ((place.outer * plane + a.position(place)) * (batches / PHASES) + group) * n + j;"
        }
        ConvRole::Weight => {
            "const Index at = (batch * m + i) * n + j % b.channels * (n / b.channels) + j / b.channels;"
        }
    }
}

/// The convolution as products of positions and filters, or of positions and positions, if that is all it is.
fn plain_product(c: &Conv) -> Option<MatMul> {
    if !is_pointwise(c) || !c.groups.is(1) {
        return None;
    }
    let (ins, outs) = (&c.in_channels, &c.out_channels);
    let (plane, last) = (kiln_base::numel(&c.output), c.images.last());
    let matrix = |arg: usize, batch_strides: &[Dim], row: &Dim, col: &Dim| Matrix {
        arg: c.operands[arg],
        offset: Dim::ZERO,
        batch_strides: batch_strides.to_vec(),
        row: row.clone(),
        col: col.clone(),
    };
    let one = &Dim::ONE;
    let (read, k, n, filters) = match c.role {
        ConvRole::Result => (last[0], ins, outs, [one, ins]),
        ConvRole::Input => (last[1], outs, ins, [ins, one]),
        ConvRole::Weight if last == [true; 2] => {
            return Some(MatMul {
                dtypes: c.dtypes,
                seven_bits: false,
                batch: Vec::new(),
                m: outs.clone(),
                k: &c.batch * &plane,
                n: ins.clone(),
                lhs: matrix(1, &[], one, outs),
                rhs: matrix(0, &[], ins, one),
                out: c.out,
                prologues: [None, None],
                epilogue: None,
                algorithm: Default::default(),
            });
        }
        ConvRole::Weight => return None,
    };
    let [row, col] = filters;
    let (batch, m, lhs, shared) = match read {
        true => (
            Vec::new(),
            &c.batch * &plane,
            matrix(0, &[], k, one),
            Vec::new(),
        ),
        false => (
            vec![c.batch.clone()],
            plane.clone(),
            matrix(0, &[k * &plane], one, &plane),
            vec![Dim::ZERO],
        ),
    };
    Some(MatMul {
        dtypes: c.dtypes,
        seven_bits: false,
        batch,
        m,
        k: k.clone(),
        n: n.clone(),
        lhs,
        rhs: matrix(1, &shared, row, col),
        out: c.out,
        prologues: [None, None],
        epilogue: None,
        algorithm: Default::default(),
    })
}

/// The classes of what is gathered.
pub(super) fn classes(c: &Conv, made: Option<&kir::Kernel>) -> String {
    let axes = format!("constexpr int AXES = {};\n", c.kernel.len().max(1));
    let made = made.map_or("", |_| made::CLASS);
    let classes = concat!(
        include_str!("conv.cu"),
        include_str!("conv_interleaved.cu"),
        include_str!("conv_last.cu"),
    );
    made.to_string() + &axes + classes
}

/// The operand that is gathered: x, of which product `batch` is of the channels of one group.
pub(super) fn patches(
    source: &mut Source,
    call: &Call,
    c: &Conv,
    s: &Sizes,
    made: Option<&kir::Kernel>,
) -> Operand {
    let weight = c.role == ConvRole::Weight;
    let [name, lines] = if weight { ["b", "n"] } else { ["a", "m"] };
    let (function, class, p) = made::place(source, call, made, c.operands[0], name);
    let last = c.images.last()[0];
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
    let windows = windows_of(source, c);
    Operand {
        text: format!(
            "{function}const Patches<{class}, {weight}> {name} = {{{p} + batch * {group}, {lines}, {channels}, {image}, {channel}, {step}, {windows}}};\n"
        ),
        along_k: last != weight,
        vector: last && made.is_none() && eights(&c.in_channels),
    }
}

/// The operand whose lines are channels of the result: w.
pub(super) fn filters(
    source: &mut Source,
    call: &Call,
    c: &Conv,
    s: &Sizes,
    name: &str,
) -> Operand {
    let p = call.pointer(Slot::Arg(c.operands[1] as usize));
    let w_group = source.dim(&s.w_group);
    let lines = if name == "a" { "m" } else { "n" };
    Operand {
        text: format!("const Strided {name} = {{{p} + batch * {w_group}, {lines}, k, 1}};\n"),
        along_k: true,
        vector: eights(&(&c.in_channels * &s.kernel)),
    }
}

/// The operand whose lines are channels of the result: the gradient of y.
pub(super) fn gradient(source: &mut Source, call: &Call, c: &Conv, s: &Sizes) -> Operand {
    let p = call.pointer(Slot::Arg(c.operands[1] as usize));
    let last = c.images.last()[1];
    let text = if last {
        let sizes = [&c.out_channels, &(&c.groups * &c.out_channels)];
        let [group, step] = sizes.map(|d| source.dim(d));
        format!("const Strided a = {{{p} + batch * {group}, m, 1, {step}}};\n")
    } else {
        let sizes = [&(&c.out_channels * &s.output), &s.output, &s.y_image];
        let [group, plane, image] = sizes.map(|d| source.dim(d));
        format!("const Interleaved a = {{{p} + batch * {group}, m, {plane}, {image}}};\n")
    };
    Operand {
        text,
        along_k: !last,
        vector: last && eights(&c.out_channels),
    }
}
