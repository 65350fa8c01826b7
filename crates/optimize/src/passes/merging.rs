//! Matrix products of one operand with several others, such as the projections of query, key and value:
//!
//! ```text
//! shared_operand         x · w₁ + b₁, x · w₂ + b₂, … = parts of x · [w₁ w₂ …] + [b₁ b₂ …]    and w₁ · x, …
//! factor_behind_product  (x · c) · y = (x · y) · c    for a number c near 1, in either operand, but of f16
//! widened_parts          cast(part of y), … = part of cast(y), …    of the result y of a product
//! ```
//!
//! Each element of a merged product has the same terms. One kernel replaces several, with a larger product
//! to share among threads. Concatenating weights and biases must cost nothing at run time. Either they depend on
//! parameters and constants only, so that concatenating them lands in *prepare*, or they are neighbouring parts of
//! one value. Products without a bias get a bias of 0. The readers of the results must be ones that read memory
//! through strides anyway: other products and attention, directly or through views, and ops that take a result apart,
//! as rotary embeddings do. Any other reader could have been part of the product's own kernel. Parts of a result of
//! f16 or bf16 that products of f32 read are cast together.
//!
//! A factor on one of the results prevents merging. So it moves after the products that read that result, where it
//! can be fused with their readers. That changes rounding, unless c is a power of two. Meanwhile the results of the
//! products are larger or smaller by c. That keeps their range, except in f16, where attention divides its query by
//! √d so that the scores fit.

use crate::pass::keeps_range;
use crate::{Pass, Patch, PatchBuilder, Run, View, rules};
use kiln_ir::ops::{Broadcast, Concat, MatMul, Permute, Slice};
use kiln_ir::{Builder, DType, Dim, NodeId, Op, Pw, Value};

/// The pass.
pub const PASS: Pass = Pass {
    name: "merging",
    about: "merges products that share an operand",
    exact: false,
    run: Run::Rules(rules![factor_behind_product, shared_operand, widened_parts]),
};

/// Values with more readers than this are skipped.
const MAX_USERS: usize = 32;

/// True if every reader of a value, through views, is a product or attention; their ids are collected.
fn is_read_by_products(view: &View<'_>, id: NodeId, readers: &mut Vec<NodeId>) -> bool {
    let users = view.users(id);
    if view.is_output(id) || users.len() + readers.len() > MAX_USERS {
        return false;
    }
    users.iter().all(|u| match &view.node(*u).op {
        op if op.is_view() => is_read_by_products(view, *u, readers),
        Op::MatMul(_) | Op::Attention(_) | Op::AttentionGrad(_) => {
            if !readers.contains(u) {
                readers.push(*u);
            }
            true
        }
        _ => false,
    })
}

/// True if no reader of a product could be part of its kernel: each is a product or attention, or several take
/// slices.
fn reads_memory(view: &View<'_>, id: NodeId) -> bool {
    let users = view.users(id);
    let is_slice = |u: &&NodeId| matches!(view.node(**u).op, Op::Slice(_));
    if view.is_output(id) || users.len() > MAX_USERS {
        return false;
    }
    users.iter().filter(is_slice).count() > 1
        || users.iter().all(|u| match &view.node(*u).op {
            op if op.is_view() => reads_memory(view, *u),
            op => matches!(op, Op::MatMul(_) | Op::Attention(_) | Op::AttentionGrad(_)),
        })
}

/// True if a product computes the value, with or without a bias, perhaps through reshapes and permutations.
fn is_product(view: &View<'_>, mut v: Value) -> bool {
    loop {
        let node = view.producer(v);
        match &node.op {
            Op::Reshape(_) | Op::Permute(_) => v = node.inputs[0],
            Op::MatMul(_) => return true,
            Op::Pointwise(p) if p.0 == Pw::Add => {
                return node.inputs.iter().any(|i| {
                    let below = view.producer(*i);
                    matches!(below.op, Op::MatMul(_))
                });
            }
            _ => return false,
        }
    }
}

/// (x · c) · y = (x · y) · c.
fn factor_behind_product(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    if !matches!(&node.op, Op::Pointwise(p) if p.0 == Pw::Mul) {
        return None;
    }
    let (x, factor) = match [0, 1].map(|i| view.as_full(node.inputs[i])) {
        [None, Some(factor)] => (node.inputs[0], factor),
        [Some(factor), None] => (node.inputs[1], factor),
        _ => return None,
    };
    let mut readers = Vec::new();
    let c = factor.value.as_f64();
    let is_unsafe = !factor.dtype.is_float() || factor.dtype == DType::F16 || !keeps_range(c);
    // A factor of a weight costs nothing at run time.
    if is_unsafe
        || view.is_prepared(id.value())
        || !is_product(view, x)
        || !is_read_by_products(view, id, &mut readers)
    {
        return None;
    }
    let mut patch = view.patch(id);
    for &r in &readers {
        let reader = view.node(r);
        if !matches!(reader.op, Op::MatMul(_)) {
            return None;
        }
        let mut operands = reader.inputs.clone();
        let mut factors = 0;
        for operand in &mut operands {
            let Some(views) = views_between(view, *operand, id) else {
                continue;
            };
            *operand = x;
            for op in views.into_iter().rev() {
                *operand = patch.op(op, &[*operand]).ok()?;
            }
            factors += 1;
        }
        if !keeps_range(c.powi(factors)) {
            return None;
        }
        let mut product = patch.op(MatMul {}, &operands).ok()?;
        for _ in 0..factors {
            product = patch.with(Pw::Mul, &product, factor.value).ok()?;
        }
        patch.replace(r.value(), product);
    }
    (!readers.is_empty()).then(|| patch.finish())
}

/// Returns the views between a value and the node `origin`, last view first.
fn views_between(view: &View<'_>, mut v: Value, origin: NodeId) -> Option<Vec<Op>> {
    let mut views = Vec::new();
    while v.node != origin {
        let node = view.producer(v);
        if !node.op.is_view() {
            return None;
        }
        views.push(node.op.clone());
        v = node.inputs[0];
    }
    Some(views)
}

/// A product `x · w` or `w · x`, perhaps with a bias, and cast.
struct ProductPart {
    product: NodeId,
    /// The node of the result.
    result: NodeId,
    weight: Value,
    /// `[n]`, of `w · x` `[n, 1]`.
    bias: Option<Value>,
    cast: Option<DType>,
}

/// x · w₁ + b₁, x · w₂ + b₂, … = parts of x · [w₁ w₂ …] + [b₁ b₂ …].
fn shared_operand(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let is_product = matches!(view.node(id).op, Op::MatMul(_));
    is_product.then(|| [0, 1].into_iter().find_map(|slot| merge_on(view, id, slot)))?
}

/// Merges all products that multiply the operand in `slot` of a node, if the node is the first of them.
fn merge_on(view: &View<'_>, id: NodeId, slot: usize) -> Option<Patch> {
    let x = view.node(id).inputs[slot];
    let users = view.users(x.node);
    if users.len() < 2 || users.len() > MAX_USERS {
        return None;
    }
    let products = users.iter().filter_map(|u| find_part(view, *u, x, slot));
    let mut products: Vec<ProductPart> = products.collect();
    products.sort_by_key(|p| p.product);
    products.dedup_by_key(|p| p.product);
    let own_product = products.iter().find(|p| p.product == id)?;
    let (has_bias, cast) = (own_product.bias.is_some(), own_product.cast);
    products.retain(|p| p.cast == cast);
    let try_merge = |products: &[ProductPart]| match products {
        [first, _, ..] if first.product == id => merge(view, id, slot, products),
        _ => None,
    };
    try_merge(&products).or_else(|| {
        products.retain(|p| p.bias.is_some() == has_bias);
        try_merge(&products)
    })
}

/// Returns the product of `x` that `id` computes, if it can be merged with others.
fn find_part(view: &View<'_>, id: NodeId, x: Value, slot: usize) -> Option<ProductPart> {
    let node = view.node(id);
    let is_product = matches!(node.op, Op::MatMul(_)) && node.inputs[slot] == x;
    if !is_product || node.inputs[1 - slot] == x || view.is_prepared(x) {
        return None;
    }
    let mut mergeable = ProductPart {
        product: id,
        result: id,
        weight: node.inputs[1 - slot],
        bias: None,
        cast: None,
    };
    let only_reader = |id| match (view.use_count(id), view.users(id)) {
        (1, &[user]) => Some(user),
        _ => None,
    };
    if let Some(user) = only_reader(id) {
        mergeable.bias = find_bias(view, user, id, slot);
        mergeable.result = mergeable.bias.map_or(id, |_| user);
    }
    if let Some(user) = only_reader(mergeable.result)
        && let Op::Cast(cast) = &view.node(user).op
    {
        (mergeable.cast, mergeable.result) = (Some(cast.dtype), user);
    }
    reads_memory(view, mergeable.result).then_some(mergeable)
}

/// The `[n]` that a node adds to each row of a product, or the `[n, 1]` that it adds to each column where
/// the shared operand is in slot 1.
fn find_bias(view: &View<'_>, id: NodeId, product: NodeId, slot: usize) -> Option<Value> {
    let node = view.node(id);
    if !matches!(&node.op, Op::Pointwise(p) if p.0 == Pw::Add) {
        return None;
    }
    let addend = node.inputs.iter().find(|v| v.node != product)?;
    let source = view.producer(*addend);
    let mut shape = node.fact().shape[node.fact().rank() - 1 - slot..].to_vec();
    if slot == 1 {
        shape[1] = Dim::ONE;
    }
    let is_bias =
        matches!(source.op, Op::Broadcast(_)) && view.fact(source.inputs[0]).shape[..] == shape;
    is_bias.then(|| source.inputs[0])
}

fn merge(view: &View<'_>, id: NodeId, slot: usize, products: &[ProductPart]) -> Option<Patch> {
    let mut patch = view.patch(id);
    // The weights are concatenated along the columns for x · w, and along the rows for w · x.
    let axis = view.node(id).fact().rank() - 1 - slot;
    let weights: Vec<Value> = products.iter().map(|p| p.weight).collect();
    let mut operands = view.node(id).inputs.clone();
    operands[1 - slot] = concat_prepared(view, &mut patch, &weights, axis)?;
    let mut y = patch.op(MatMul {}, &operands).ok()?;
    if products.iter().any(|p| p.bias.is_some()) {
        let bias = concat_biases(view, &mut patch, products, axis, slot)?;
        y = patch.pointwise(Pw::Add, &[y, bias]).ok()?;
    }
    if let Some(dtype) = products[0].cast {
        y = patch.cast(&y, dtype).ok()?;
    }
    let mut start = Dim::ZERO;
    for p in products {
        let n = view.node(p.result).fact().shape[axis].clone();
        let slice = patch.narrow(&y, axis, start.clone(), n.clone()).ok()?;
        patch.replace(p.result.value(), slice);
        start = &start + &n;
    }
    Some(patch.finish())
}

/// Concatenates the biases, with zeros for products without one.
fn concat_biases(
    view: &View<'_>,
    patch: &mut PatchBuilder<'_>,
    products: &[ProductPart],
    axis: usize,
    slot: usize,
) -> Option<Value> {
    let given_biases: Option<Vec<Value>> = products.iter().map(|p| p.bias).collect();
    if let Some(given_biases) = given_biases {
        return concat_prepared(view, patch, &given_biases, 0);
    }
    let biases = products.iter().map(|p| {
        let Some(bias) = p.bias else {
            let mut shape = vec![view.fact(p.result.value()).shape[axis].clone()];
            shape.resize(1 + slot, Dim::ONE);
            return patch.full(0.0, view.fact(p.weight).dtype, &shape).ok();
        };
        view.is_prepared(bias).then_some(bias)
    });
    let biases: Vec<Value> = biases.collect::<Option<_>>()?;
    patch.op(Concat { axis: 0 }, &biases).ok()
}

/// Concatenates values along an axis, at no cost at run time.
fn concat_prepared(
    view: &View<'_>,
    patch: &mut PatchBuilder<'_>,
    values: &[Value],
    axis: usize,
) -> Option<Value> {
    if let Some(concatenated) = join_slices(view, patch, values, axis) {
        return Some(concatenated);
    }
    if !values.iter().all(|v| view.is_prepared(*v)) {
        return None;
    }
    // Concatenate before the cast, so that a product of f16 or bf16 is recognised.
    let dtype = view.fact(values[0]).dtype;
    let uncast = values.iter().map(|v| strip_cast(view, patch, *v));
    let uncast: Option<Vec<Value>> = uncast.collect();
    let dtype_of = |v: &Value| patch.fact(v).dtype;
    match uncast.filter(|u| u.iter().all(|v| dtype_of(v) == dtype_of(&u[0]))) {
        Some(uncast) => {
            let concatenated = patch.op(Concat { axis }, &uncast).ok()?;
            patch.cast(&concatenated, dtype).ok()
        }
        None => patch.op(Concat { axis }, values).ok(),
    }
}

/// Returns a value, which may be permuted, before its cast.
fn strip_cast(view: &View<'_>, patch: &mut PatchBuilder<'_>, v: Value) -> Option<Value> {
    let node = view.producer(v);
    match &node.op {
        Op::Cast(_) => Some(node.inputs[0]),
        Op::Permute(_) => {
            let uncast = strip_cast(view, patch, node.inputs[0])?;
            patch.op(node.op.clone(), &[uncast]).ok()
        }
        _ => None,
    }
}

/// cast(part of y), … = part of cast(y), …
fn widened_parts(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let is_product_result = match &node.op {
        Op::MatMul(_) => true,
        Op::Cast(_) => is_product(view, node.inputs[0]),
        _ => false,
    };
    let is_half = node.facts.len() == 1 && node.fact().dtype.is_half();
    let mut casts = Vec::new();
    if !is_product_result || !is_half || !read_by_casts(view, id, &mut casts) || casts.len() < 2 {
        return None;
    }
    let mut patch = view.patch(id);
    let widened = patch.cast(&id.value(), DType::F32).ok()?;
    for cast in casts {
        let mut slice = widened;
        let views = views_between(view, view.node(cast).inputs[0], id)?;
        for op in views.into_iter().rev() {
            slice = patch.op(op, &[slice]).ok()?;
        }
        patch.replace(cast.value(), slice);
    }
    Some(patch.finish())
}

/// True if every reader of a value, through views, casts it to f32 for products alone; the casts are collected.
fn read_by_casts(view: &View<'_>, id: NodeId, casts: &mut Vec<NodeId>) -> bool {
    let users = view.users(id);
    if view.is_output(id) || users.len() + casts.len() > MAX_USERS {
        return false;
    }
    users.iter().all(|u| match &view.node(*u).op {
        Op::Cast(cast) => {
            casts.push(*u);
            cast.dtype == DType::F32 && is_read_by_products(view, *u, &mut Vec::new())
        }
        op => op.is_view() && read_by_casts(view, *u, casts),
    })
}

/// Joins values that are adjacent slices of one value to one slice of it.
fn join_slices(
    view: &View<'_>,
    patch: &mut PatchBuilder<'_>,
    values: &[Value],
    axis: usize,
) -> Option<Value> {
    let nodes: Vec<_> = values.iter().map(|v| view.producer(*v)).collect();
    let operands: Vec<Value> = nodes
        .iter()
        .map(|n| n.inputs.first().copied())
        .collect::<Option<_>>()?;
    match &nodes[0].op {
        Op::Permute(Permute { perm }) => {
            if nodes.iter().any(|n| n.op != nodes[0].op) {
                return None;
            }
            let wide_operand = join_slices(view, patch, &operands, perm[axis])?;
            patch.permute(&wide_operand, perm).ok()
        }
        // A batch of products with one weight.
        Op::Broadcast(_) => {
            let mut shape = nodes[0].fact().shape.clone();
            let rank = view.fact(operands[0]).rank();
            let axis_below = (axis + rank).checked_sub(shape.len())?;
            let is_batch = (nodes.iter().zip(&operands)).all(|(n, v)| {
                let from = view.fact(*v);
                matches!(n.op, Op::Broadcast(_))
                    && from.rank() == rank
                    && !from.shape[axis_below].is(1)
            });
            if !is_batch {
                return None;
            }
            shape[axis] = nodes
                .iter()
                .fold(Dim::ZERO, |sum, n| &sum + &n.fact().shape[axis]);
            let wide_operand = join_slices(view, patch, &operands, axis_below)?;
            patch.op(Broadcast { shape }, &[wide_operand]).ok()
        }
        Op::Slice(first) => {
            let mut axes = first.axes.clone();
            for (node, operand) in nodes.iter().zip(&operands).skip(1) {
                let Op::Slice(next) = &node.op else {
                    return None;
                };
                let end = &axes[axis].start + &axes[axis].len;
                let is_same_slice = |a: usize| a == axis || axes[a] == next.axes[a];
                let is_adjacent = *operand == operands[0]
                    && (axes[axis].step, next.axes[axis].step) == (1, 1)
                    && next.axes[axis].start == end
                    && (0..axes.len()).all(is_same_slice);
                if !is_adjacent {
                    return None;
                }
                axes[axis].len = &axes[axis].len + &next.axes[axis].len;
            }
            patch.op(Slice { axes }, &operands[..1]).ok()
        }
        _ => None,
    }
}
