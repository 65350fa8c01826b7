//! Parts of values that were just assembled:
//!
//! ```text
//! slice_of_slice       x[a + s·i][b + t·i] = x[a + s·b + s·t·i]
//! slice_of_pad         a part of pad(x) = pad(the part of x in it)
//! slice_of_concat      a part of concat(x, y, …) = concat of the operands that contain it
//! slice_of_broadcast   a part of broadcast(x) = broadcast(the part of x)
//! slice_of_product     rows and columns of a · b = (rows of a) · (columns of b)
//! concat_of_concat     concat(x, concat(y, z)) = concat(x, y, z)
//! concat_of_slices     concat(x[a..b], x[b..c]) = x[a..c]
//! pad_of_pad           pad(pad(x)) = pad(x) with both pads, where they hold the same number
//! ```
//!
//! They move elements and compute none, so they hold for every number. A product loses the rows and
//! columns that nothing reads, so the rule is for products that nothing else reads.

use crate::{Pass, Patch, Run, View, rules};
use kiln_ir::ops::{Broadcast, Concat, MatMul, Pad, Slice, SliceAxis};
use kiln_ir::{Builder, Dim, Node, NodeId, Op, Shape, Value};

/// The pass.
pub const PASS: Pass = Pass {
    name: "slices",
    about: "takes parts from what is nearest to memory",
    exact: true,
    run: Run::Rules(rules![
        slice_of_slice,
        slice_of_pad,
        slice_of_concat,
        slice_of_broadcast,
        slice_of_product,
        concat_of_concat,
        concat_of_slices,
        pad_of_pad,
    ]),
};

/// The axes of a slice, and the node that computes its operand.
fn slice<'a>(view: &View<'a>, id: NodeId) -> Option<(&'a [SliceAxis], &'a Node)> {
    let node = view.node(id);
    match &node.op {
        Op::Slice(slice) => Some((&slice.axes, view.producer(node.inputs[0]))),
        _ => None,
    }
}

/// The lowest and the highest index that an axis takes; `None` if unknown or if it takes none.
fn span(axis: &SliceAxis) -> Option<(i64, i64)> {
    let (start, len) = (axis.start.as_const()?, axis.len.as_const()?);
    let last = (len > 0).then(|| start + (len - 1) * axis.step)?;
    Some((start.min(last), start.max(last)))
}

fn takes_all(axis: &SliceAxis, extent: &Dim) -> bool {
    *axis == SliceAxis::all(extent)
}

fn slice_of_slice(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (axes, below) = slice(view, id)?;
    let Op::Slice(inner) = &below.op else {
        return None;
    };
    let composed = inner.axes.iter().zip(axes).map(|(inner, outer)| {
        let step = inner.step.checked_mul(outer.step)?;
        let start = &inner.start + &(&outer.start * &Dim::Const(inner.step));
        let len = outer.len.clone();
        Some(SliceAxis { start, len, step })
    });
    let axes = composed.collect::<Option<Vec<_>>>()?;
    view.replace_with(id, Slice { axes }, &below.inputs)
}

fn slice_of_pad(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (axes, below) = slice(view, id)?;
    let Op::Pad(pad) = &below.op else {
        return None;
    };
    let x = below.inputs[0];
    let mut slices = Vec::with_capacity(axes.len());
    let (mut low, mut high) = (pad.low.clone(), pad.high.clone());
    let mut shrinks = false;
    for (a, axis) in axes.iter().enumerate() {
        if pad.low[a].is(0) && pad.high[a].is(0) {
            slices.push(axis.clone());
            continue;
        }
        if takes_all(axis, &below.fact().shape[a]) {
            slices.push(SliceAxis::all(&view.fact(x).shape[a]));
            continue;
        }
        let (first_read, last_read) = span(axis)?;
        let first_data = pad.low[a].as_const()?;
        let last_data = first_data + view.fact(x).shape[a].as_const()? - 1;
        let reads_padding = first_read < first_data || last_read > last_data;
        if first_read > last_data || last_read < first_data || (reads_padding && axis.step != 1) {
            return None;
        }
        let low_padding = (first_data - first_read).max(0);
        let high_padding = (last_read - last_data).max(0);
        shrinks |=
            low_padding < first_data || pad.high[a].as_const().is_none_or(|h| high_padding < h);
        let start = match axis.step > 0 {
            true => first_read.max(first_data) - first_data,
            false => last_read - first_data,
        };
        let len = Dim::Const(axis.len.as_const()? - low_padding - high_padding);
        let (start, step) = (Dim::Const(start), axis.step);
        slices.push(SliceAxis { start, len, step });
        (low[a], high[a]) = (Dim::Const(low_padding), Dim::Const(high_padding));
    }
    if !shrinks {
        return None;
    }
    let mut patch = view.patch(id);
    let slice_of_data = patch.op(Slice { axes: slices }, &[x]).ok()?;
    let value = pad.value;
    let new = patch.op(Pad { low, high, value }, &[slice_of_data]).ok()?;
    Some(patch.replacing(id.value(), new))
}

fn slice_of_concat(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (axes, below) = slice(view, id)?;
    let Op::Concat(Concat { axis }) = below.op else {
        return None;
    };
    let (first_read, last_read) = span(&axes[axis])?;
    let step = axes[axis].step;
    let mut patch = view.patch(id);
    let mut slices: Vec<Value> = Vec::new();
    let mut offset = 0;
    for &x in &below.inputs {
        let extent = view.fact(x).shape[axis].as_const()?;
        let (first, last) = (offset, offset + extent - 1);
        offset += extent;
        if extent == 0 || last_read < first || first_read > last {
            continue;
        }
        let is_inside = first_read >= first && last_read <= last;
        if !is_inside && step != 1 {
            return None;
        }
        let (low, high) = (first_read.max(first), last_read.min(last));
        let mut axes = axes.to_vec();
        axes[axis] = match is_inside {
            true => SliceAxis {
                start: &axes[axis].start - &Dim::Const(first),
                ..axes[axis].clone()
            },
            false => SliceAxis {
                start: Dim::Const(low - first),
                len: Dim::Const(high - low + 1),
                step: 1,
            },
        };
        slices.push(patch.op(Slice { axes }, &[x]).ok()?);
    }
    let is_whole_axis = takes_all(&axes[axis], &below.fact().shape[axis]);
    if slices.is_empty() || is_whole_axis && slices.len() == below.inputs.len() {
        return None;
    }
    let new = match slices[..] {
        [single] => single,
        _ => patch.op(Concat { axis }, &slices).ok()?,
    };
    Some(patch.replacing(id.value(), new))
}

fn slice_of_broadcast(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (axes, below) = slice(view, id)?;
    let Op::Broadcast(_) = &below.op else {
        return None;
    };
    let x = below.inputs[0];
    let from = &view.fact(x).shape;
    let extra = axes.len() - from.len();
    let source_slice = from
        .iter()
        .zip(&axes[extra..])
        .map(|(d, axis)| match d.is(1) {
            true => SliceAxis::all(d),
            false => axis.clone(),
        });
    let source_slice = Slice {
        axes: source_slice.collect(),
    };
    let mut patch = view.patch(id);
    let source_slice = patch.op(source_slice, &[x]).ok()?;
    let shape = view.node(id).fact().shape.clone();
    let new = patch.op(Broadcast { shape }, &[source_slice]).ok()?;
    Some(patch.replacing(id.value(), new))
}

fn slice_of_product(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (axes, below) = slice(view, id)?;
    let shape = &below.fact().shape;
    let product = view.node(id).inputs[0].node;
    let is_identity = axes.iter().zip(shape).all(|(a, d)| takes_all(a, d));
    if !matches!(below.op, Op::MatMul(_)) || is_identity || view.use_count(product) != 1 {
        return None;
    }
    let rank = axes.len();
    let mut patch = view.patch(id);
    let mut operand = |slot: usize, contracted: usize| {
        let x = below.inputs[slot];
        let mut axes = axes.to_vec();
        axes[contracted] = SliceAxis::all(&view.fact(x).shape[contracted]);
        patch.op(Slice { axes }, &[x]).ok()
    };
    let (a, b) = (operand(0, rank - 1)?, operand(1, rank - 2)?);
    let new = patch.op(MatMul {}, &[a, b]).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// concat(x, concat(y, z)) = concat(x, y, z).
fn concat_of_concat(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Concat(outer) = &node.op else {
        return None;
    };
    let nested = |v: &Value| match &view.producer(*v).op {
        Op::Concat(c) if c.axis == outer.axis => &view.producer(*v).inputs[..],
        _ => &[],
    };
    if node.inputs.iter().all(|v| nested(v).is_empty()) {
        return None;
    }
    let mut operands: Vec<Value> = Vec::new();
    for v in &node.inputs {
        match nested(v) {
            [] => operands.push(*v),
            nested => operands.extend(nested),
        }
    }
    view.replace_with(id, *outer, &operands)
}

/// concat(x[a..b], x[b..c]) = x[a..c], for neighbouring operands.
fn concat_of_slices(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Concat(Concat { axis }) = node.op else {
        return None;
    };
    let mut runs: Vec<Neighbours> = Vec::new();
    for v in &node.inputs {
        if !runs.last_mut().is_some_and(|run| run.grow(view, *v, axis)) {
            runs.push(Neighbours::of(view, *v));
        }
    }
    if runs.len() == node.inputs.len() {
        return None;
    }
    let mut patch = view.patch(id);
    let concatenate = |run: Neighbours| match run.slice {
        Some((x, axes)) if run.count > 1 => patch.op(Slice { axes }, &[x]).ok(),
        _ => Some(run.first_new),
    };
    let operands: Vec<Value> = runs.into_iter().map(concatenate).collect::<Option<_>>()?;
    let new = match operands[..] {
        [single] => single,
        _ => patch.op(Concat { axis }, &operands).ok()?,
    };
    Some(patch.replacing(id.value(), new))
}

/// Consecutive operands of a concatenation that are adjacent slices of one value, or a single operand.
struct Neighbours {
    first_new: Value,
    count: usize,
    /// The value, and the one slice that these slices form together.
    slice: Option<(Value, Vec<SliceAxis>)>,
}

impl Neighbours {
    fn of(view: &View<'_>, v: Value) -> Neighbours {
        let node = view.producer(v);
        let slice = match &node.op {
            Op::Slice(slice) => Some((node.inputs[0], slice.axes.clone())),
            _ => None,
        };
        Neighbours {
            first_new: v,
            count: 1,
            slice,
        }
    }

    /// Appends the next operand if it is the adjacent slice. Returns true if so.
    fn grow(&mut self, view: &View<'_>, v: Value, axis: usize) -> bool {
        let node = view.producer(v);
        let (Some((x, axes)), Op::Slice(next)) = (&mut self.slice, &node.op) else {
            return false;
        };
        let is_same_slice = |i: usize| i == axis || axes[i] == next.axes[i];
        let (merged, appended) = (&axes[axis], &next.axes[axis]);
        let is_adjacent = node.inputs[0] == *x
            && (0..axes.len()).all(is_same_slice)
            && (merged.step, appended.step) == (1, 1)
            && appended.start == &merged.start + &merged.len;
        if is_adjacent {
            axes[axis].len = &axes[axis].len + &appended.len;
            self.count += 1;
        }
        is_adjacent
    }
}

/// pad(pad(x)) = pad(x) with both pads.
fn pad_of_pad(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Pad(outer) = &node.op else {
        return None;
    };
    let below = view.producer(node.inputs[0]);
    let Op::Pad(inner) = &below.op else {
        return None;
    };
    let sum = |a: &Shape, b: &Shape| a.iter().zip(b).map(|(a, b)| a + b).collect();
    let merged = Pad {
        low: sum(&outer.low, &inner.low),
        high: sum(&outer.high, &inner.high),
        value: outer.value,
    };
    (outer.value == inner.value).then(|| view.replace_with(id, merged, &below.inputs))?
}
