//! Scatters of one element to each lane, such as the gradient of a loss with respect to the label's logit:
//!
//! ```text
//! scatter_of_one   scatter_add(0, index, src)[.., i, ..] = i = index ? 0 + src : 0
//! ```
//!
//! for an index of one element along the axis. This is pointwise work, so it can be fused with its readers. A scatter
//! is a kernel of its own, which reads and writes memory. Conditions:
//!
//! * x is full of +0: the sums of a scatter begin at +0, so zeros of x that are negative could change their sign.
//! * Index and source are as large as x along all other axes.
//! * A gather in the program reads the same index along an axis of the same extent, so that an index out of range is
//!   still reported. A constant index must be in range: if no element of that gather is used, it may be removed.

use crate::{Pass, Patch, PatchBuilder, Run, View, rules};
use kiln_base::prim::ScatterKind;
use kiln_ir::eval::{Data, Mode, eval_op};
use kiln_ir::ops::Iota;
use kiln_ir::{Builder, Dim, NodeId, Op, OpError, Pw, Shape, Value};

/// The pass.
pub const PASS: Pass = Pass {
    name: "scatters",
    about: "rewrites scatters of one element per lane as pointwise work",
    exact: true,
    run: Run::Rules(rules![scatter_of_one]),
};

/// scatter_add(0, index, src) = i = index ? 0 + src : 0.
fn scatter_of_one(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Scatter(scatter) = &node.op else {
        return None;
    };
    let [x, index, src] = node.inputs[..] else {
        return None;
    };
    let (shape, lanes) = (&view.fact(x).shape, &view.fact(index).shape);
    let axis = scatter.axis;
    let same_lanes = (0..shape.len()).all(|a| a == axis || shape[a] == lanes[a]);
    let adds_one = scatter.kind == ScatterKind::Sum && lanes[axis].is(1) && same_lanes;
    let zeros = view.holds(x, 0.0);
    let checked = is_checked(view, index, &shape[axis]);
    if !adds_one || !zeros || !checked || is_known_to_miss(view, index, &shape[axis]) {
        return None;
    }
    let mut patch = view.patch(id);
    let new = select_sum(&mut patch, [x, index, src], axis).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// `i = index ? x + src : x`.
fn select_sum(
    b: &mut PatchBuilder<'_>,
    operands: [Value; 3],
    axis: usize,
) -> Result<Value, OpError> {
    let [x, index, src] = operands;
    let shape = b.fact(&x).shape;
    let mut column = Shape::from_elem(Dim::ONE, shape.len() - axis);
    column[0] = shape[axis].clone();
    let len = shape[axis].clone();
    let position = b.op(Iota { len }, &[])?;
    let position = b.reshape(&position, &column)?;
    let position = b.broadcast_to(&position, &shape)?;
    let hit = b.pointwise(Pw::Eq, &[position, index])?;
    let sum = b.pointwise(Pw::Add, &[x, src])?;
    b.pointwise(Pw::Select, &[hit, sum, x])
}

/// True if the index is a constant and some element of it is out of range.
fn is_known_to_miss(view: &View<'_>, index: Value, extent: &Dim) -> bool {
    let op = &view.producer(index).op;
    if !matches!(op, Op::Constant(_) | Op::Full(_)) {
        return false;
    }
    let value = eval_op(op, &[], &[], Mode::Rounded).map(|mut values| values.pop());
    match (value, extent.as_const()) {
        (Ok(Some(array)), Some(n)) => match array.data() {
            Data::Int(indices) => indices.iter().any(|i| !(0..n).contains(i)),
            Data::Float(_) => true,
        },
        _ => true,
    }
}

/// True if a gather checks the index against an extent.
fn is_checked(view: &View<'_>, index: Value, extent: &Dim) -> bool {
    view.users(index.node).iter().any(|u| {
        let node = view.node(*u);
        let Op::Gather(gather) = &node.op else {
            return false;
        };
        node.inputs[1] == index && view.fact(node.inputs[0]).shape[gather.axis] == *extent
    })
}
