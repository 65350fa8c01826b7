//! More seeded bugs: rules without a precondition, or with a wrong index.

use crate::bugs::{below, flagged, wrong_pass};
use crate::folding::flaws;
use kiln_base::prim::Reduction;
use kiln_ir::ops::{self, Conv, Pointwise, SliceAxis};
use kiln_ir::{Builder, Dim, NodeId, Op, Pw, Value};
use kiln_optimize::{Pass, Patch, Run, View};

fn row<'a>(view: &View<'a>, id: NodeId) -> Option<(Pw, &'a [Value])> {
    let node = view.node(id);
    match &node.op {
        Op::Pointwise(p) => Some((p.0, &node.inputs)),
        _ => None,
    }
}

fn under(view: &View<'_>, v: Value, which: Pw) -> Option<Value> {
    let (pw, operands) = row(view, v.node)?;
    (pw == which).then(|| operands[0])
}

/// The number that a value holds everywhere, stretched or not.
fn number(view: &View<'_>, v: Value) -> Option<f64> {
    let source = match view.producer(v).op {
        Op::Broadcast(_) => view.producer(v).inputs[0],
        _ => v,
    };
    let full = view.as_full(source).filter(|f| f.dtype.is_float())?;
    Some(full.value.as_f64())
}

/// x + 0 = x, though −0 + 0 is 0.
fn plus_zero(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (Pw::Add, &[x, zero]) = row(view, id)? else {
        return None;
    };
    let zero = number(view, zero)? == 0.0;
    if zero { view.replace(id, x) } else { None }
}

/// |−x| = |x|, of unsigned numbers too.
fn size_of_unsigned(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (Pw::Abs, &[x]) = row(view, id)? else {
        return None;
    };
    view.replace_with(id, Pointwise(Pw::Abs), &[under(view, x, Pw::Neg)?])
}

/// a − (−b) = a − b.
fn loses_a_sign(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (Pw::Sub, &[a, b]) = row(view, id)? else {
        return None;
    };
    view.replace_with(id, Pointwise(Pw::Sub), &[a, under(view, b, Pw::Neg)?])
}

/// ¬c ? a : b = c ? a : b.
fn choice_is_not_swapped(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (Pw::Select, &[c, a, b]) = row(view, id)? else {
        return None;
    };
    view.replace_with(id, Pointwise(Pw::Select), &[under(view, c, Pw::Not)?, a, b])
}

/// x ^ x = x, as x | x is.
fn exclusive_or_is_idempotent(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (Pw::Xor | Pw::Sub, &[a, b]) = row(view, id)? else {
        return None;
    };
    if a == b { view.replace(id, a) } else { None }
}

/// x / c = x · (1 / c) for every c.
fn division_by_any_number(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (Pw::Div, &[x, c]) = row(view, id)? else {
        return None;
    };
    let inverse = 1.0 / number(view, c)?;
    let mut patch = view.patch(id);
    let inverse = patch.scalar_like(inverse, &x).ok()?;
    let new = patch.pointwise(Pw::Mul, &[x, inverse]).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// x\[a + s·i\]\[b + t·i\] starts at a + b.
fn slice_forgets_the_inner_step(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (Op::Slice(outer), Op::Slice(inner)) = (&view.node(id).op, &below(view, id)?.op) else {
        return None;
    };
    let both = inner.axes.iter().zip(&outer.axes).map(|(i, o)| SliceAxis {
        start: &i.start + &o.start,
        len: o.len.clone(),
        step: i.step * o.step,
    });
    let axes = both.collect();
    view.replace_with(id, ops::Slice { axes }, &below(view, id)?.inputs)
}

/// A gather, its index, and the operands of the difference that it reads.
fn chosen<'a>(view: &View<'a>, id: NodeId) -> Option<(ops::Gather, Value, [Value; 2])> {
    let node = view.node(id);
    let (Op::Gather(gather), &[y, index]) = (&node.op, &node.inputs[..]) else {
        return None;
    };
    match row(view, y.node)? {
        (Pw::Sub, &[a, b]) => Some((*gather, index, [a, b])),
        _ => None,
    }
}

/// gather(a − b, i) = gather(a, i) − the first elements of b.
fn chooses_of_one_operand(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (gather, index, [a, b]) = chosen(view, id)?;
    let len = view.fact(index).shape[gather.axis].clone();
    let mut patch = view.patch(id);
    let a = patch.op(gather, &[a, index]).ok()?;
    let b = patch.narrow(&b, gather.axis, Dim::ZERO, len).ok()?;
    let new = patch.pointwise(Pw::Sub, &[a, b]).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// gather(a − b, i) = gather(a, i) − gather(b, i), where an index out of range is not an error.
fn chooses_out_of_range(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (gather, index, [a, b]) = chosen(view, id)?;
    let last = view.fact(a).shape[gather.axis].as_const()? - 1;
    let mut patch = view.patch(id);
    let last = patch.scalar_like(last, &index).ok()?;
    let index = patch.pointwise(Pw::Minimum, &[index, last]).ok()?;
    let a = patch.op(gather, &[a, index]).ok()?;
    let b = patch.op(gather, &[b, index]).ok()?;
    let new = patch.pointwise(Pw::Sub, &[a, b]).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// A part of concat(x, y) is x if it is as large as x.
fn slice_of_the_first_operand(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let (Op::Slice(_), Op::Concat(_)) = (&node.op, &below(view, id)?.op) else {
        return None;
    };
    let first = below(view, id)?.inputs[0];
    if view.fact(first) == node.fact() {
        view.replace(id, first)
    } else {
        None
    }
}

/// concat(x\[..\], x\[..\]) = x wherever it has the shape of x.
fn slices_in_any_order(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Concat(_) = node.op else { return None };
    let from = |v: &Value| match view.producer(*v).op {
        Op::Slice(_) => Some(view.producer(*v).inputs[0]),
        _ => None,
    };
    let x = from(node.inputs.first()?)?;
    let all = node.inputs.iter().all(|v| from(v) == Some(x));
    if all && view.fact(x) == node.fact() {
        view.replace(id, x)
    } else {
        None
    }
}

/// pad(pad(x)) = pad(x), even if the pads hold different numbers.
fn borders_of_another_number(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (Op::Pad(outer), Op::Pad(inner)) = (&view.node(id).op, &below(view, id)?.op) else {
        return None;
    };
    let sum = |a: &[Dim], b: &[Dim]| a.iter().zip(b).map(|(a, b)| a + b).collect();
    let pad = ops::Pad {
        low: sum(&outer.low, &inner.low),
        high: sum(&outer.high, &inner.high),
        value: outer.value,
    };
    view.replace_with(id, pad, &below(view, id)?.inputs)
}

/// conv(pad(x), w) = conv(x, w) with more padding, for a pad of any number.
fn conv_pads_any_number(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let (Op::Conv(conv), Op::Pad(pad)) = (&node.op, &below(view, id)?.op) else {
        return None;
    };
    let size = |d: &Dim| d.as_const().unwrap_or(0) as usize;
    let borders = pad.low.iter().zip(&pad.high).skip(2);
    let padding = (conv.padding.iter().zip(borders))
        .map(|(p, (low, high))| (p.0 + size(low), p.1 + size(high)));
    let conv = Conv {
        padding: padding.collect(),
        ..conv.clone()
    };
    view.replace_with(id, conv, &[below(view, id)?.inputs[0], node.inputs[1]])
}

/// Part of conv_transpose(y, w), with the front's crop taken from the end.
fn crops_the_other_end(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let transpose = below(view, id)?;
    let (Op::Slice(slice), Op::ConvTranspose(op)) = (&node.op, &transpose.op) else {
        return None;
    };
    let axis = &slice.axes[2];
    let (start, len) = (axis.start.as_const()?, axis.len.as_const()?);
    let behind = transpose.fact().shape[2].as_const()? - start - len;
    if axis.step != 1 || (start, behind) == (0, 0) {
        return None;
    }
    let padding = op.conv.padding[0];
    let conv = Conv {
        padding: vec![(padding.0 + behind as usize, padding.1 + start as usize)],
        ..op.conv.clone()
    };
    let input = [Dim::Const(len)].into_iter().collect();
    view.replace_with(id, ops::ConvTranspose { conv, input }, &transpose.inputs)
}

/// Σ broadcast(x) = x, as the maximum is.
fn sum_of_broadcast(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let (Op::Reduce(reduce), Op::Broadcast(_)) = (&node.op, &below(view, id)?.op) else {
        return None;
    };
    let x = below(view, id)?.inputs[0];
    let fits = reduce.kind == Reduction::Sum && view.fact(x) == node.fact();
    if fits { view.replace(id, x) } else { None }
}

#[test]
fn rules_without_their_preconditions_are_flagged() {
    flagged(&[
        wrong_pass!(plus_zero),
        wrong_pass!(size_of_unsigned),
        wrong_pass!(loses_a_sign),
        wrong_pass!(choice_is_not_swapped),
        wrong_pass!(exclusive_or_is_idempotent),
        wrong_pass!(division_by_any_number),
        wrong_pass!(slice_forgets_the_inner_step),
        wrong_pass!(slice_of_the_first_operand),
        wrong_pass!(slices_in_any_order),
        wrong_pass!(borders_of_another_number),
        wrong_pass!(conv_pads_any_number),
        wrong_pass!(crops_the_other_end),
        wrong_pass!(sum_of_broadcast),
        wrong_pass!(chooses_of_one_operand),
        wrong_pass!(chooses_out_of_range),
    ]);
}

/// The convolution or product below a value, and its weight scaled along an axis by a column `[c, 1, ..]`.
fn scaled(view: &View<'_>, id: NodeId, y: Value, c: Value, axis: usize) -> Option<Patch> {
    let product = view.producer(y);
    if !matches!(product.op, Op::Conv(_) | Op::ConvTranspose(_)) {
        return None;
    }
    let Op::Broadcast(_) = view.producer(c).op else {
        return None;
    };
    let c = view.producer(c).inputs[0];
    let mut patch = view.patch(id);
    let shape = view.fact(product.inputs[1]).shape.clone();
    let mut column = vec![Dim::ONE; shape.len()];
    column[axis] = view.fact(c).numel();
    let c = patch.reshape(&c, &column).ok()?;
    let w = patch.pointwise(Pw::Mul, &[product.inputs[1], c]).ok()?;
    let new = patch.op(product.op.clone(), &[product.inputs[0], w]).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// c / P(x, w) = P(x, w · c).
fn quotient_folds(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (Pw::Div, &[c, y]) = row(view, id)? else {
        return None;
    };
    scaled(view, id, y, c, 0)
}

/// P(x, w) · c = P(x, w · c) with c along axis 0 of every weight, or axis 1 where it fits.
fn scales_one_axis(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (Pw::Mul, &[y, c]) = row(view, id)? else {
        return None;
    };
    let transposed = matches!(view.producer(y).op, Op::ConvTranspose(_));
    if transposed {
        scaled(view, id, y, c, 0)
    } else {
        None
    }
}

/// c − P(x, w) = P(x, w) − c.
fn difference_folds(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (Pw::Sub, &[c, y]) = row(view, id)? else {
        return None;
    };
    let product = matches!(view.producer(y).op, Op::Conv(_) | Op::MatMul(_));
    if product {
        view.replace_with(id, Pointwise(Pw::Sub), &[y, c])
    } else {
        None
    }
}

/// (P(x, w) + b) · c = P(x, w · c) + b.
fn bias_is_not_scaled(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (Pw::Mul, &[sum, c]) = row(view, id)? else {
        return None;
    };
    let (Pw::Add | Pw::Sub, &[y, b]) = row(view, sum.node)? else {
        return None;
    };
    let mut patch = view.patch(id);
    if !matches!(view.producer(y).op, Op::Conv(_) | Op::MatMul(_)) {
        return None;
    }
    let y = patch.pointwise(Pw::Mul, &[y, c]).ok()?;
    let new = patch.op(view.producer(sum).op.clone(), &[y, b]).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// conv(x + b, w) = conv(x, w) + (conv of b), with padding.
fn shift_ignores_padding(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Conv(conv) = &node.op else {
        return None;
    };
    let (Pw::Add, &[x, b]) = row(view, node.inputs[0].node)? else {
        return None;
    };
    let rank = view.fact(x).rank();
    if conv.padding.iter().all(|p| *p == (0, 0)) {
        return None;
    }
    let mut patch = view.patch(id);
    let bare = Conv {
        padding: vec![(0, 0); rank - 2],
        ..conv.clone()
    };
    let y = patch.op(conv.clone(), &[x, node.inputs[1]]).ok()?;
    let of_b = patch.op(bare, &[b, node.inputs[1]]).ok()?;
    let mut first = of_b;
    for axis in 2..rank {
        first = patch.narrow(&first, axis, 0i64, 1i64).ok()?;
    }
    let new = patch.pointwise(Pw::Add, &[y, first]).ok()?;
    Some(patch.replacing(id.value(), new))
}

#[test]
fn wrong_folding_is_flagged() {
    for pass in [
        wrong_pass!(quotient_folds),
        wrong_pass!(scales_one_axis),
        wrong_pass!(difference_folds),
        wrong_pass!(bias_is_not_scaled),
        wrong_pass!(shift_ignores_padding),
    ] {
        let flaws = flaws(&[pass]);
        println!("{}: {flaws} programs flagged", pass.name);
        assert!(flaws > 0, "{} is not flagged", pass.name);
    }
    assert_eq!(flaws(&[]), 0, "without passes nothing differs");
}
