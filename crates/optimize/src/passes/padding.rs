//! Pads that an op can do itself, and parts of a result that it need not compute:
//!
//! ```text
//! pad_in_conv      conv(pad(x), w) = conv(x, w) with more padding, where the pad is 0
//! pad_in_window    window(pad(x)) = window(x) with more padding, where the pad is the reduction's identity
//! crop_in_conv     part of conv_transpose(y, w) = conv_transpose(y, w) of a smaller result
//! ```
//!
//! Padding of a convolution is literal zeros, so each sum has the same terms; the gradient with respect to the weight
//! is such a sum too. The padded value need not be written to memory. Pads are along spatial axes and of known size.
//! The last rule is for a result that nothing else reads.

use crate::view::is_number;
use crate::{Pass, Patch, Run, View, rules};
use kiln_base::Scalar;
use kiln_ir::ops::{Conv, ConvTranspose, ConvWeight, Pad, SliceAxis, WindowReduce};
use kiln_ir::{DType, Dim, Node, NodeId, Op, Value};

/// The pass.
pub const PASS: Pass = Pass {
    name: "padding",
    about: "lets convolutions and pooling make borders themselves",
    exact: true,
    run: Run::Rules(rules![pad_in_conv, pad_in_window, crop_in_conv]),
};

type Borders = Vec<(usize, usize)>;

/// The operand of a pad and the known pads, which lie along the last `spatial` axes.
fn padded<'a>(view: &View<'a>, v: Value, spatial: usize) -> Option<(Value, Borders, &'a Pad)> {
    let node = view.producer(v);
    let Op::Pad(pad) = &node.op else {
        return None;
    };
    let leading = pad.low.len() - spatial;
    let zero = |a: usize| pad.low[a].is(0) && pad.high[a].is(0);
    if !(0..leading).all(zero) {
        return None;
    }
    let size = |d: &Dim| usize::try_from(d.as_const()?).ok();
    let borders = pad.low[leading..].iter().zip(&pad.high[leading..]);
    let borders = borders.map(|(l, h)| Some((size(l)?, size(h)?)));
    Some((node.inputs[0], borders.collect::<Option<_>>()?, pad))
}

fn sum(a: &[(usize, usize)], b: &[(usize, usize)]) -> Borders {
    a.iter()
        .zip(b)
        .map(|(a, b)| (a.0 + b.0, a.1 + b.1))
        .collect()
}

/// conv(pad(x), w) = conv(x, w) with more padding, for a convolution and its gradient with respect to the weight.
fn pad_in_conv(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let conv = match &node.op {
        Op::Conv(conv) => conv,
        Op::ConvWeight(gradient) => &gradient.conv,
        _ => return None,
    };
    let (x, borders, pad) = padded(view, node.inputs[0], conv.stride.len())?;
    if !is_number(pad.value, 0.0) {
        return None;
    }
    let conv = Conv {
        padding: sum(&conv.padding, &borders),
        ..conv.clone()
    };
    let op: Op = match &node.op {
        Op::ConvWeight(gradient) => ConvWeight {
            conv,
            kernel: gradient.kernel.clone(),
        }
        .into(),
        _ => conv.into(),
    };
    view.replace_with(id, op, &[x, node.inputs[1]])
}

/// window(pad(x)) = window(x) with more padding.
fn pad_in_window(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::WindowReduce(window) = &node.op else {
        return None;
    };
    let (x, borders, pad) = padded(view, node.inputs[0], window.kernel.len())?;
    let neutral = pad.value == Scalar::Float(window.kind.identity_f64());
    let window = WindowReduce {
        padding: sum(&window.padding, &borders),
        ..window.clone()
    };
    neutral.then(|| view.replace_with(id, window, &[x]))?
}

/// Part of conv_transpose(y, w) = conv_transpose(y, w) of a smaller result: the cropped borders become padding of the
/// convolution.
fn crop_in_conv(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Slice(slice) = &node.op else {
        return None;
    };
    let below = view.producer(node.inputs[0]);
    let Op::ConvTranspose(transpose) = &below.op else {
        return None;
    };
    let is_library = matches!(node.fact().dtype, DType::F32 | DType::F64);
    if !is_library || view.use_count(node.inputs[0].node) != 1 {
        return None;
    }
    let borders = cropped_borders(below, &slice.axes)?;
    let input = node.fact().shape[2..].iter().cloned().collect();
    let conv = Conv {
        padding: sum(&transpose.conv.padding, &borders),
        ..transpose.conv.clone()
    };
    view.replace_with(id, ConvTranspose { conv, input }, &below.inputs)
}

/// Returns the numbers of elements that a slice crops from both ends of the spatial axes, if it keeps everything else.
fn cropped_borders(below: &Node, axes: &[SliceAxis]) -> Option<Borders> {
    let shape = &below.fact().shape;
    let is_whole = |a: usize| axes[a] == SliceAxis::all(&shape[a]);
    if !is_whole(0) || !is_whole(1) {
        return None;
    }
    let borders = axes.iter().zip(shape).skip(2).map(|(axis, extent)| {
        let (start, len) = (axis.start.as_const()?, axis.len.as_const()?);
        let end = extent.as_const()? - start - len;
        let front = usize::try_from(start).ok()?;
        (axis.step == 1 && len > 0).then_some((front, usize::try_from(end).ok()?))
    });
    let borders: Borders = borders.collect::<Option<_>>()?;
    borders.iter().any(|c| *c != (0, 0)).then_some(borders)
}
