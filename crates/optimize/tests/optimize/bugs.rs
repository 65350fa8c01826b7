//! Seeded bugs: rules that are wrong on purpose, each of which the checks must flag.

use crate::compare::{difference, flaw};
use crate::generate::random_graph;
use crate::norms::{Bias, Case};
use crate::rng::{Rng, loc};
use kiln_base::Scalar;
use kiln_ir::eval::{Array, Mode, eval_op, evaluate};
use kiln_ir::ops::{self, Axes, BatchNorm};
use kiln_ir::{
    Builder, DType, Dim, Fact, Graph, GraphBuilder, NodeId, Op, Output, Pw, Role, Target, Value,
};
use kiln_optimize::{
    Fired, OptimizeError, Options, Pass, Patch, Rewriter, Run, View, first_wrong, optimize_with,
    passes,
};

macro_rules! wrong_pass {
    ($rule:ident) => {
        Pass {
            name: stringify!($rule),
            about: "wrong on purpose",
            exact: false,
            run: Run::Rules(kiln_optimize::rules![$rule]),
        }
    };
}
pub(crate) use wrong_pass;

/// The earlier node below an op of one operand.
pub fn below<'a>(view: &View<'a>, id: NodeId) -> Option<&'a kiln_ir::Node> {
    Some(view.producer(*view.node(id).inputs.first()?))
}

/// permute(permute(x, p), q) with `q[p[i]]`.
fn permutes_in_the_wrong_order(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (Op::Permute(outer), Op::Permute(inner)) = (&view.node(id).op, &below(view, id)?.op) else {
        return None;
    };
    let perm: Axes = inner.perm.iter().map(|a| outer.perm[*a]).collect();
    view.replace_with(id, ops::Permute { perm }, &below(view, id)?.inputs)
}

/// reshape(slice(x), s) = reshape(x, s), where the numbers of elements are equal.
fn reshape_across_slice(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (Op::Reshape(outer), Op::Slice(_)) = (&view.node(id).op, &below(view, id)?.op) else {
        return None;
    };
    view.replace_with(id, outer.clone(), &below(view, id)?.inputs)
}

/// cast(cast(x, a), b) = cast(x, b), though the inner one rounds or wraps.
fn casts_cancel(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (Op::Cast(outer), Op::Cast(_)) = (&view.node(id).op, &below(view, id)?.op) else {
        return None;
    };
    view.replace_with(id, *outer, &below(view, id)?.inputs)
}

/// Two nodes with the same operands and facts are one, even if their attributes differ.
fn equal_without_attributes(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let twin = (0..id.0).map(NodeId).find(|other| {
        let other = view.node(*other);
        !node.inputs.is_empty()
            && std::mem::discriminant(&other.op) == std::mem::discriminant(&node.op)
            && (&other.inputs, &other.facts) == (&node.inputs, &node.facts)
    })?;
    view.replace(id, twin.value())
}

/// Two nodes with the same op and facts are one, even if their operands differ.
fn equal_without_operands(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let twin = (0..id.0).map(NodeId).find(|other| {
        let other = view.node(*other);
        !matches!(node.op, Op::Input(_)) && (&other.op, &other.facts) == (&node.op, &node.facts)
    })?;
    view.replace(id, twin.value())
}

/// f(full, full) computed in f64 and truncated, not rounded, to the dtype.
fn folds_with_wrong_rounding(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    if !matches!(node.op, Op::Pointwise(_)) || node.fact().dtype != DType::F32 {
        return None;
    }
    let scalars: Option<Vec<Array>> = (node.inputs.iter())
        .map(|v| {
            let f = view.as_full(*v)?;
            Array::from_f64(f.dtype, &[], &[f.value.as_f64()]).ok()
        })
        .collect();
    let scalars = scalars?;
    let operands: Vec<&Array> = scalars.iter().collect();
    let result = eval_op(&node.op, &operands, &[], Mode::Exact).ok()?.pop()?;
    let cut = f32::from_bits((result.to_f64()[0] as f32).to_bits() & !1) as f64;
    let full = ops::Full {
        value: Scalar::Float(cut),
        dtype: DType::F32,
        shape: node.fact().shape.clone(),
    };
    view.replace_with(id, full, &[])
}

/// x · 0 = 0, wrong for NaN, infinities and negative numbers.
fn times_zero_is_zero(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    if !matches!(&node.op, Op::Pointwise(p) if p.0 == Pw::Mul) {
        return None;
    }
    let is_zero = |v: &Value| {
        let source = match &view.producer(*v).op {
            Op::Broadcast(_) => view.producer(*v).inputs[0],
            _ => *v,
        };
        view.as_full(source)
            .is_some_and(|f| f.value.as_f64() == 0.0)
    };
    let zero = node.inputs.iter().find(|v| is_zero(v))?;
    view.replace(id, *zero)
}

/// a < b = b < a.
fn less_commutes(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let is_less = matches!(&node.op, Op::Pointwise(p) if p.0 == Pw::Lt);
    if !is_less || node.inputs[0] <= node.inputs[1] {
        return None;
    }
    view.replace_with(id, node.op.clone(), &[node.inputs[1], node.inputs[0]])
}

/// A slice is taken for the whole wherever it has the operand's shape.
fn slice_ignores_the_step(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let x = *node.inputs.first()?;
    let same = matches!(node.op, Op::Slice(_)) && view.fact(x) == node.fact();
    if same { view.replace(id, x) } else { None }
}

/// The operand of every negation is redirected too, so its other readers get the wrong value.
fn replaces_for_other_readers(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let is_neg = matches!(&node.op, Op::Pointwise(p) if p.0 == Pw::Neg);
    let x = *node.inputs.first()?;
    if !is_neg || view.users(x.node).len() < 2 || !matches!(view.producer(x).op, Op::Pointwise(_)) {
        return None;
    }
    let mut patch = view.patch(id);
    let new = patch.op(node.op.clone(), &[x]).ok()?;
    patch.replace(x, new);
    Some(patch.replacing(id.value(), new))
}

/// The first seed whose graph the list gets wrong, if a few thousand find one.
fn first_flaw(list: &[Pass]) -> Option<(u64, String)> {
    let options = Options {
        verify: true,
        ..Options::default()
    };
    (0..3000).find_map(|seed| {
        let found = flaw(&random_graph(seed), list, &options, seed);
        found.err().map(|text| (seed, text))
    })
}

/// Each of these passes changes the result of some program.
pub fn flagged(passes: &[Pass]) {
    for pass in passes {
        let flaw = first_flaw(&[*pass]);
        let (seed, text) = flaw.unwrap_or_else(|| panic!("{} is not flagged", pass.name));
        println!(
            "{}: seed {seed}: {}",
            pass.name,
            text.lines().next().unwrap_or("")
        );
    }
}

#[test]
fn wrong_exact_rules_are_flagged() {
    flagged(&[
        wrong_pass!(permutes_in_the_wrong_order),
        wrong_pass!(reshape_across_slice),
        wrong_pass!(casts_cancel),
        wrong_pass!(equal_without_attributes),
        wrong_pass!(equal_without_operands),
        wrong_pass!(folds_with_wrong_rounding),
        wrong_pass!(times_zero_is_zero),
        wrong_pass!(less_commutes),
        wrong_pass!(slice_ignores_the_step),
        wrong_pass!(replaces_for_other_readers),
    ]);
}

/// Writes conv(x, w · s) + shift wrongly: `eps` is added to the variance, and the weight is scaled
/// along `axis`.
fn fold_norm(view: &View<'_>, id: NodeId, forget_eps: bool, axis: usize) -> Option<Patch> {
    let node = view.node(id);
    let Op::BatchNorm(BatchNorm { eps, affine: true }) = &node.op else {
        return None;
    };
    let conv = view.producer(node.inputs[0]);
    if !matches!(conv.op, Op::Conv(_)) {
        return None;
    }
    let (x, w) = (conv.inputs[0], conv.inputs[1]);
    let Fact { dtype, shape } = view.fact(w).clone();
    let [mean, variance, weight, shift] = [1, 2, 3, 4].map(|i| node.inputs[i]);
    let mut b = view.patch(id);
    let eps = b
        .full(
            if forget_eps { Scalar::Float(0.0) } else { *eps },
            dtype,
            &[],
        )
        .ok()?;
    let spread = b.pointwise(Pw::Add, &[variance, eps]).ok()?;
    let scale = b.pointwise(Pw::Rsqrt, &[spread]).ok()?;
    let scale = b.pointwise(Pw::Mul, &[scale, weight]).ok()?;
    let mut rows = vec![Dim::ONE; shape.len()];
    rows[axis] = shape[0].clone();
    let rows = b.reshape(&scale, &rows).ok()?;
    let weight = b.pointwise(Pw::Mul, &[w, rows]).ok()?;
    let y = b.op(conv.op.clone(), &[x, weight]).ok()?;
    let scaled = b.pointwise(Pw::Mul, &[mean, scale]).ok()?;
    let shift = b.pointwise(Pw::Sub, &[shift, scaled]).ok()?;
    let mut column = vec![Dim::ONE; shape.len() - 1];
    column[0] = shape[0].clone();
    let shift = b.reshape(&shift, &column).ok()?;
    let y = b.pointwise(Pw::Add, &[y, shift]).ok()?;
    Some(b.replacing(id.value(), y))
}

fn norm_as_it_should_be(view: &View<'_>, id: NodeId) -> Option<Patch> {
    fold_norm(view, id, false, 0)
}

fn norm_forgets_eps(view: &View<'_>, id: NodeId) -> Option<Patch> {
    fold_norm(view, id, true, 0)
}

fn norm_scales_the_input_axis(view: &View<'_>, id: NodeId) -> Option<Patch> {
    fold_norm(view, id, false, 1)
}

/// batch_norm(conv + bias, ..) = batch_norm(conv, ..).
fn norm_drops_the_bias(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let sum = view.producer(*node.inputs.first()?);
    let is_sum = matches!(&sum.op, Op::Pointwise(p) if p.0 == Pw::Add);
    if !matches!(node.op, Op::BatchNorm(_)) || !is_sum {
        return None;
    }
    let mut operands = node.inputs.clone();
    operands[0] = sum.inputs[0];
    view.replace_with(id, node.op.clone(), &operands)
}

/// Every reader of the convolution gets the normalised one.
fn norm_for_other_readers(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let conv = *node.inputs.first()?;
    let is_pair = matches!(node.op, Op::BatchNorm(_)) && view.use_count(conv.node) > 1;
    if !is_pair {
        return None;
    }
    let mut patch = view.patch(id);
    let y = patch.op(node.op.clone(), &node.inputs).ok()?;
    patch.replace(conv, y);
    Some(patch.replacing(id.value(), y))
}

#[test]
fn wrong_norm_rules_are_flagged() {
    // The skeleton of the wrong rules is right, so it is their bugs that are flagged.
    assert_eq!(norm_flaws(&wrong_pass!(norm_as_it_should_be)), 0);
    for pass in [
        wrong_pass!(norm_forgets_eps),
        wrong_pass!(norm_scales_the_input_axis),
        wrong_pass!(norm_drops_the_bias),
        wrong_pass!(norm_for_other_readers),
    ] {
        let flaws = norm_flaws(&pass);
        println!("{}: {flaws} of 200 cases flagged", pass.name);
        assert!(flaws > 0, "{} is not flagged", pass.name);
    }
}

fn norm_flaws(pass: &Pass) -> usize {
    let mut rng = Rng::new(11);
    let options = Options {
        verify: true,
        ..Options::default()
    };
    let flawed = (0..200).filter(|i| {
        let mut case = Case::random(&mut rng);
        case.affine = true;
        if i % 2 == 0 {
            case.bias = Bias::None;
        }
        case.keeps_conv = i % 4 == 0;
        (case.flaw(std::slice::from_ref(pass), &options, &mut rng)).is_err()
    });
    flawed.count()
}

/// exp(x) · exp(x), kept and assigned.
fn kept_and_assigned() -> Graph {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(3));
    let x = b.input(Fact::new(DType::F32, [4]), Role::Parameter);
    let e = b.pointwise(Pw::Exp, &[x]).unwrap();
    let y = b.pointwise(Pw::Mul, &[e, e]).unwrap();
    let s = b.pointwise(Pw::Sqrt, &[e]).unwrap();
    graph.add_output(y);
    for (value, target) in [(s, Target::Assign(0)), (e, Target::Kept)] {
        graph.outputs.push(Output { value, target });
    }
    graph
}

/// Dead code elimination that counts only results as outputs.
fn drops_kept(rewriter: &mut Rewriter<'_>) -> Result<(), OptimizeError> {
    for id in rewriter.ids().into_iter().rev() {
        let view = rewriter.view();
        let is_result =
            (view.outputs().iter()).any(|o| o.target == Target::Result && o.value.node == id);
        if view.users(id).is_empty() && !is_result {
            rewriter.remove("drops_kept", id)?;
        }
    }
    Ok(())
}

#[test]
fn dropping_kept_and_assigned_outputs_is_refused() {
    let pass = Pass {
        name: "drops_kept",
        about: "wrong on purpose",
        exact: true,
        run: Run::Walk(&["drops_kept"], drops_kept),
    };
    let error = optimize_with(kept_and_assigned(), &[pass], &Options::default()).unwrap_err();
    insta::assert_snapshot!(error, @"rule drops_kept gives an illegal patch for sqrt(f32[4]) -> f32[4] recorded at user.rs:3:5: it removes a node that is an input or still read");
}

fn changes_a_shape(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let is_mul = matches!(&view.node(id).op, Op::Pointwise(p) if p.0 == Pw::Mul);
    let shape = [Dim::from(2), Dim::from(2)].into_iter().collect();
    let x = view.node(id).inputs.first()?;
    if is_mul {
        view.replace_with(id, ops::Reshape { shape }, &[*x])
    } else {
        None
    }
}

#[test]
fn changing_a_fact_is_refused() {
    let list = [wrong_pass!(changes_a_shape)];
    let error = optimize_with(kept_and_assigned(), &list, &Options::default()).unwrap_err();
    insta::assert_snapshot!(error, @"rule changes_a_shape replaces f32[4] by f32[2, 2], for mul(f32[4], f32[4]) -> f32[4] recorded at user.rs:3:5");
}

/// exp(x) = the node that reads it.
fn makes_a_cycle(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let is_exp = matches!(&view.node(id).op, Op::Pointwise(p) if p.0 == Pw::Exp);
    let reader = *view.users(id).first()?;
    if is_exp {
        view.replace(id, reader.value())
    } else {
        None
    }
}

#[test]
fn a_cycle_is_refused_with_and_without_verification() {
    for verify in [true, false] {
        let options = Options {
            verify,
            ..Options::default()
        };
        let list = [wrong_pass!(makes_a_cycle)];
        let error = optimize_with(kept_and_assigned(), &list, &options).unwrap_err();
        let named =
            matches!(&error, OptimizeError::Invalid { rule, .. } if *rule == "makes_a_cycle");
        assert!(named, "{error}");
    }
}

/// a · b = b · a, for ever.
fn turns_in_circles(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let is_mul = matches!(&node.op, Op::Pointwise(p) if p.0 == Pw::Mul);
    if !is_mul {
        return None;
    }
    view.replace_with(id, node.op.clone(), &[node.inputs[1], node.inputs[0]])
}

#[test]
fn rules_that_turn_in_circles_are_stopped() {
    let list = [wrong_pass!(turns_in_circles)];
    let error = optimize_with(kept_and_assigned(), &list, &Options::default()).unwrap_err();
    assert!(matches!(
        error,
        OptimizeError::NoFixedPoint {
            rule: "turns_in_circles",
            ..
        }
    ));
}

/// The patch that makes the optimised graph wrong; `None` if it is right, or the graph is wrong from the start.
fn bisect(graph: &Graph, list: &[Pass], is_right: impl Fn(&Graph) -> bool) -> Option<Fired> {
    let run = |max_patches: Option<usize>| {
        let options = Options {
            max_patches,
            ..Options::default()
        };
        let (graph, report) = optimize_with(graph.clone(), list, &options).unwrap();
        (is_right(&graph), report.fired)
    };
    let (right, fired) = run(None);
    if right || !run(Some(0)).0 {
        return None;
    }
    let first = first_wrong(fired.len(), |n| Ok::<bool, ()>(run(Some(n)).0));
    fired.into_iter().nth(first.unwrap())
}

#[test]
fn bisect_names_the_wrong_rule() {
    // Among the right passes, on graphs that the wrong rule breaks.
    for wrong in [
        wrong_pass!(times_zero_is_zero),
        wrong_pass!(slice_ignores_the_step),
        wrong_pass!(casts_cancel),
    ] {
        let mut list: Vec<Pass> = passes().iter().filter(|p| p.exact).copied().collect();
        list.insert(0, wrong);
        let mut found = 0;
        for seed in 0..3000 {
            let graph = random_graph(seed);
            // An error of the driver names the rule that it refuses.
            let Ok((after, _)) = optimize_with(graph.clone(), &list, &Options::default()) else {
                continue;
            };
            if difference(&graph, &after, seed).is_none() {
                continue;
            }
            let is_right = |g: &Graph| difference(&graph, g, seed).is_none();
            let fired = bisect(&graph, &list, is_right);
            assert_eq!(fired.map(|f| f.rule), Some(wrong.name), "seed {seed}");
            found += 1;
            if found == 5 {
                break;
            }
        }
        assert_eq!(found, 5, "{}", wrong.name);
    }
}

#[test]
fn bisect_of_a_right_list_is_nothing() {
    let graph = random_graph(1);
    let is_right = |g: &Graph| difference(&graph, g, 1).is_none();
    assert_eq!(bisect(&graph, passes(), is_right), None);
    assert_eq!(bisect(&graph, passes(), |_| false), None);
    let x = Array::from_f64(DType::F32, &[4], &[0.0; 4]).unwrap();
    assert!(evaluate(&kept_and_assigned(), &[x], &[], Mode::Rounded).is_ok());
}
