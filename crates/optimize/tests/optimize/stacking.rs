//! Concatenated results of products and sums equal those of one product and one sum; wrong rules about them are
//! flagged.

use crate::bugs::wrong_pass;
use crate::merging::{compared, same};
use crate::random::seeds;
use crate::rng::{Rng, loc};
use kiln_base::Scalar;
use kiln_base::prim::Reduction;
use kiln_ir::ops::{Concat, MatMul, Pad, Reduce};
use kiln_ir::{
    Builder, DType, Dim, Fact, Graph, GraphBuilder, Node, NodeId, Op, OpError, Pw, Role, Value,
};
use kiln_optimize::{Options, Pass, Patch, Run, View};

/// The gradients of a weight and a bias of which several projections use parts: from `x[m, k]` and one gradient
/// `[m, n]` a part, the gradient of the weight `[Σ n, k]` and that of the bias `[Σ n]`. The parts are added in the
/// given order, with `gap` rows between them.
fn gradients_of_parts(widths: &[usize], order: &[usize], gap: usize) -> Result<Graph, OpError> {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(1));
    let f64s = |shape: &[usize]| Fact::new(DType::F64, shape.iter().copied());
    let x = b.input(f64s(&[7, 5]), Role::Data);
    let total = widths.iter().sum::<usize>() + gap * (widths.len() - 1);
    let (mut weight, mut bias) = (None, None);
    for &i in order {
        let n = widths[i];
        let g = b.input(f64s(&[7, n]), Role::Data);
        let transposed = b.permute(&g, &[1, 0])?;
        let before = widths[..i].iter().sum::<usize>() + gap * i;
        let product = b.op(MatMul {}, &[transposed, x])?;
        let sum = b.sum(&g, &[0])?;
        for (whole, part) in [(&mut weight, product), (&mut bias, sum)] {
            let rank = b.fact(&part).rank();
            let border = |n: usize| {
                let mut border = vec![Dim::ZERO; rank];
                border[0] = Dim::from(n);
                border.into_iter().collect()
            };
            let pad = Pad {
                low: border(before),
                high: border(total - before - n),
                value: Scalar::Float(0.0),
            };
            let part = b.op(pad, &[part])?;
            *whole = Some(match whole.take() {
                Some(sum) => b.pointwise(Pw::Add, &[sum, part])?,
                None => part,
            });
        }
    }
    let [weight, bias] = [weight, bias].map(|v| v.expect("at least one part"));
    let weight = b.pointwise(Pw::Square, &[weight])?;
    graph.add_output(weight);
    graph.add_output(bias);
    Ok(graph)
}

#[test]
fn gradients_of_parts_become_one_product_and_one_sum() {
    let mut rng = Rng::new(17);
    let orders: [&[usize]; 4] = [&[0, 1, 2], &[2, 0, 1], &[2, 1, 0], &[1, 2, 0]];
    for seed in 0..seeds().min(40) {
        let widths = [1 + rng.below(4), 1 + rng.below(4), 1 + rng.below(4)];
        let order = orders[seed as usize % orders.len()];
        let graph = gradients_of_parts(&widths, order, 0).unwrap();
        let (after, report) = same(&graph, &mut rng);
        let count = |name: &str| after.iter().filter(|(_, n)| n.op.name() == name).count();
        let counts = ["matmul", "reduce", "concat", "pad"].map(count);
        assert_eq!(counts, [1, 1, 1, 0], "{report}\n{after}");
        // Parts with a gap between them stay apart.
        let graph = gradients_of_parts(&widths, order, 1).unwrap();
        let (_, report) = same(&graph, &mut rng);
        assert_eq!(report.count("pads_side_by_side"), 0, "{report}");
    }
}

/// Looking at all terms below each addition would be quadratic, and recursion would exhaust the stack.
#[test]
fn long_sums_are_looked_at_to_a_depth() {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(1));
    let x = b.input(Fact::new(DType::F32, [4]), Role::Data);
    let mut sum = x;
    for _ in 0..100_000 {
        sum = b.pointwise(Pw::Add, &[sum, x]).unwrap();
    }
    graph.add_output(sum);
    let nodes = graph.len();
    let pass = kiln_optimize::passes::stacking::PASS;
    let (after, _) = kiln_optimize::optimize_with(graph, &[pass], &Options::default()).unwrap();
    assert_eq!(after.len(), nodes);
}

/// Long sums of small products would copy more than they save.
#[test]
fn products_of_long_operands_are_not_stacked() {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(1));
    let f64s = |shape: &[usize]| Fact::new(DType::F64, shape.iter().copied());
    let x = b.input(f64s(&[64, 3]), Role::Data);
    let parts = [2, 3].map(|n| b.input(f64s(&[n, 64]), Role::Data));
    let parts = parts.map(|a| b.op(MatMul {}, &[a, x]).unwrap());
    let whole = b.op(Concat { axis: 0 }, &parts).unwrap();
    graph.add_output(whole);
    let (_, report) = same(&graph, &mut Rng::new(3));
    assert_eq!(report.count("stacked_products"), 0, "{report}");
}

/// Concatenated products, of two operands that are shared by some; and concatenated extremes and sums.
fn neighbours(rng: &mut Rng) -> Result<Graph, OpError> {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(1));
    let f64s = |shape: &[usize]| Fact::new(DType::F64, shape.iter().copied());
    let shared = [0; 2].map(|_| b.input(f64s(&[3, 5]), Role::Data));
    let kinds = [Reduction::Sum, Reduction::Sum, Reduction::Max];
    let (mut products, mut reduced) = (Vec::new(), Vec::new());
    for _ in 0..2 + rng.below(2) {
        let x = b.input(f64s(&[1 + rng.below(4), 3]), Role::Data);
        products.push(b.op(MatMul {}, &[x, rng.pick(&shared)])?);
        let kind = rng.pick(&kinds);
        let axes = [0].into_iter().collect();
        reduced.push(b.op(Reduce { kind, axes }, &[x])?);
    }
    let wholes = [products, reduced].map(|parts| b.op(Concat { axis: 0 }, &parts));
    for whole in wholes {
        graph.add_output(whole?);
    }
    Ok(graph)
}

#[test]
fn neighbours_compute_the_same() {
    let mut rng = Rng::new(18);
    let mut stacked = [0; 2];
    for _ in 0..seeds().min(200) {
        let (_, report) = same(&neighbours(&mut rng).unwrap(), &mut rng);
        for (n, rule) in stacked.iter_mut().zip(["stacked_products", "stacked_sums"]) {
            *n += report.count(rule);
        }
    }
    assert!(stacked.iter().all(|n| *n > 0), "{stacked:?}");
}

/// pad(a) + pad(b) = pad(concat(a, b)), in either order.
fn parts_as_they_are_added(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let is_sum = matches!(&node.op, Op::Pointwise(p) if p.0 == Pw::Add);
    let pads = node.inputs.iter().map(|v| view.producer(*v));
    let pads: Vec<&Node> = pads.filter(|_| is_sum).collect();
    let [Op::Pad(p), Op::Pad(q)] = [&pads.first()?.op, &pads.get(1)?.op] else {
        return None;
    };
    let least = |a: &[Dim], b: &[Dim]| {
        let pairs = a.iter().zip(b);
        pairs
            .map(|(a, b)| if a.as_const() < b.as_const() { a } else { b }.clone())
            .collect()
    };
    let whole = Pad {
        low: least(&p.low, &q.low),
        high: least(&p.high, &q.high),
        value: p.value,
    };
    let parts: Vec<Value> = pads.iter().map(|n| n.inputs[0]).collect();
    let mut patch = view.patch(id);
    let stacked = patch.op(Concat { axis: 0 }, &parts).ok()?;
    let new = patch.op(whole, &[stacked]).ok()?;
    (patch.fact(&new) == *node.fact()).then(|| patch.replacing(id.value(), new))
}

/// The nodes below a concatenation.
fn parts<'a>(view: &View<'a>, id: NodeId) -> Option<Vec<&'a Node>> {
    let node = view.node(id);
    let is_concat = matches!(node.op, Op::Concat(_));
    is_concat.then(|| node.inputs.iter().map(|v| view.producer(*v)).collect())
}

/// concat(a · x, b · y) = concat(a, b) · x.
fn products_of_any_operand(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let nodes = parts(view, id)?;
    if nodes.iter().any(|n| !matches!(n.op, Op::MatMul(_))) {
        return None;
    }
    let left: Vec<Value> = nodes.iter().map(|n| n.inputs[0]).collect();
    let mut patch = view.patch(id);
    let stacked = patch.op(Concat { axis: 0 }, &left).ok()?;
    let new = patch.op(MatMul {}, &[stacked, nodes[0].inputs[1]]).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// concat(Σ a, max b) = concat(Σ a, Σ b).
fn reductions_of_any_kind(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let nodes = parts(view, id)?;
    let Op::Reduce(first) = &nodes.first()?.op else {
        return None;
    };
    let alike = |n: &&Node| matches!(&n.op, Op::Reduce(r) if r.axes == first.axes);
    if nodes.iter().all(|n| n.op == nodes[0].op) || !nodes.iter().all(alike) {
        return None;
    }
    let mut patch = view.patch(id);
    let mut reduced = Vec::new();
    for n in nodes {
        reduced.push(patch.op(first.clone(), &[n.inputs[0]]).ok()?);
    }
    let new = patch.op(Concat { axis: 0 }, &reduced).ok()?;
    Some(patch.replacing(id.value(), new))
}

#[test]
fn wrong_stacking_is_flagged() {
    let mut rng = Rng::new(19);
    let mut programs = Vec::new();
    for _ in 0..20 {
        let widths = [1 + rng.below(4), 1 + rng.below(4), 1 + rng.below(4)];
        let order = rng.pick(&[[0, 1, 2], [2, 1, 0]]);
        programs.push(gradients_of_parts(&widths, &order, 0).unwrap());
        programs.push(neighbours(&mut rng).unwrap());
    }
    for pass in [
        wrong_pass!(parts_as_they_are_added),
        wrong_pass!(products_of_any_operand),
        wrong_pass!(reductions_of_any_kind),
    ] {
        let flawed = |g: &&Graph| compared(g, &[pass], &mut rng).is_err();
        let flaws = programs.iter().filter(flawed).count();
        println!("{}: {flaws} programs flagged", pass.name);
        assert!(flaws > 0, "{} is not flagged", pass.name);
    }
}
