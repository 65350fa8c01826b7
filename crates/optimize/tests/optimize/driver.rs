//! The driver: options, order, outputs, bodies and time.

use crate::rng::loc;
use kiln_base::{Gpu, Machine};
use kiln_ir::ops::{self, If, Loop};
use kiln_ir::{
    Builder, DType, Dim, Fact, Graph, GraphBuilder, Op, Output, Pw, Role, Sym, SymbolInfo, Target,
    Value,
};
use kiln_optimize::{OptimizeError, Options, decompose, optimize, passes};
use std::time::Instant;

fn f32s(shape: &[i64]) -> Fact {
    Fact::new(DType::F32, shape.iter().copied())
}

/// tanh(x) + tanh(x).
fn twice_tanh(b: &mut GraphBuilder<'_>, x: Value) -> Value {
    let one = b.pointwise(Pw::Tanh, &[x]).unwrap();
    let two = b.pointwise(Pw::Tanh, &[x]).unwrap();
    b.pointwise(Pw::Add, &[one, two]).unwrap()
}

#[test]
fn the_list_of_passes_reads_well() {
    let lines: Vec<String> = (passes().iter())
        .map(|p| {
            format!(
                "{}: {}{}",
                p.name,
                p.about,
                if p.exact { "" } else { " (rounds)" }
            )
        })
        .collect();
    insta::assert_snapshot!(lines.join("\n"), @r"
    dead_code: removes nodes that nothing reads
    emptiness: makes values without elements of nothing
    loop_values: removes what loops carry, scan and stack but nothing reads
    branch_values: removes what branches and barriers give but nothing reads
    views: removes views and casts that do nothing and merges adjacent ones
    identities: removes pointwise operations that do nothing
    slices: takes parts from what is nearest to memory
    padding: lets convolutions and pooling make borders themselves
    broadcasts: computes before values are stretched, not after
    gathers: computes what is chosen by index, not what it is chosen from
    scatters: rewrites scatters of one element per lane as pointwise work
    products: moves transpositions of products to their operands, and biases and factors to their products
    constant_fold: computes what depends on constants only
    common_subexpressions: computes equal expressions once
    folding: folds scales, shifts and batch norms beside a product into its weight (rounds)
    merging: merges products that share an operand (rounds)
    stacking: merges products and sums whose results are put side by side (rounds)
    reductions: merges extremes of extremes, and reductions of integers (rounds)
    centring: drops what a mean takes away, such as the bias in front of a batch norm (rounds)
    ");
}

#[test]
fn selected_passes_alone_run() {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(1));
    let x = b.input(f32s(&[4]), Role::Data);
    let y = twice_tanh(&mut b, x);
    let y = b.op(ops::Cast::to(DType::F32), &[y]).unwrap();
    graph.add_output(y);
    let rules = |passes: Vec<&'static str>| {
        let options = Options {
            passes: Some(passes),
            ..Options::default()
        };
        let (_, report) = optimize(graph.clone(), &options).unwrap();
        report.counts()
    };
    let others = passes().iter().map(|p| p.name).filter(|n| *n != "views");
    assert_eq!(rules(vec!["views"]), [("identity_view", 1)]);
    assert_eq!(rules(others.collect()), [("common_subexpression", 1)]);
    assert_eq!(rules(vec![]), []);
}

#[test]
fn an_invalid_graph_is_an_error_and_not_a_panic() {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(1));
    let x = b.input(f32s(&[4]), Role::Data);
    let y = b.pointwise(Pw::Exp, &[x]).unwrap();
    graph.add_output(y);
    graph.node_mut(y.node).facts[0] = f32s(&[5]);
    let options = Options {
        verify: true,
        ..Options::default()
    };
    let error = optimize(graph, &options).unwrap_err();
    assert!(
        matches!(error, OptimizeError::InvalidInput { .. }),
        "{error}"
    );
}

#[test]
fn outputs_may_come_to_share_a_value_and_keep_their_targets() {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(1));
    let p = b.input(f32s(&[4]), Role::Parameter);
    let q = b.input(f32s(&[4]), Role::Parameter);
    let values = [0; 4].map(|_| b.pointwise(Pw::Exp, &[p]).unwrap());
    let unused = b.pointwise(Pw::Exp, &[q]).unwrap();
    let targets = [
        Target::Assign(1),
        Target::Result,
        Target::Kept,
        Target::Assign(0),
    ];
    for (value, target) in values.into_iter().zip(targets) {
        graph.outputs.push(Output { value, target });
    }
    let (after, report) = optimize(graph, &Options::default()).unwrap();
    assert_eq!(after.len(), 3, "two inputs and one exp: {unused} is gone");
    assert_eq!(report.count("common_subexpression"), 3);
    assert!(
        after
            .outputs
            .iter()
            .all(|o| o.value == after.outputs[0].value)
    );
    let kept: Vec<Target> = after.outputs.iter().map(|o| o.target).collect();
    assert_eq!(kept, targets);
}

#[test]
fn values_of_ops_with_several_outputs_merge_output_by_output() {
    let mut body = Graph::default();
    let mut b = GraphBuilder::new(&mut body, loc(2));
    b.input(Fact::new(DType::I64, [0i64; 0]), Role::Data);
    let x = b.input(f32s(&[4]), Role::Data);
    let y = b.input(f32s(&[2]), Role::Data);
    let next = twice_tanh(&mut b, x);
    body.add_output(next);
    body.add_output(y);

    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(1));
    let x = b.input(f32s(&[4]), Role::Data);
    let y = b.input(f32s(&[2]), Role::Data);
    let op = Op::from(Loop::repeat(Dim::from(3), body));
    let one = b.emit(op.clone(), &[x, y]).unwrap();
    let two = b.emit(op, &[x, y]).unwrap();
    for v in [one[0], two[1], two[0]] {
        graph.add_output(v);
    }
    let options = Options {
        passes: Some(
            (passes().iter())
                .map(|p| p.name)
                .filter(|n| *n != "loop_values")
                .collect(),
        ),
        ..Options::default()
    };
    let (after, report) = optimize(graph, &options).unwrap();
    assert_eq!(after.len(), 3);
    assert_eq!(
        after
            .outputs
            .iter()
            .map(|o| o.value.output)
            .collect::<Vec<_>>(),
        [0, 1, 0]
    );
    assert_eq!(
        report.count("common_subexpression"),
        3,
        "two bodies and the loops"
    );
    let Op::Loop(after) = &after.node(after.outputs[0].value.node).op else {
        panic!("not a loop")
    };
    assert_eq!(after.body.len(), 5);
}

#[test]
fn bodies_of_bodies_and_bodies_with_symbols_are_optimised() {
    let s = Dim::symbol(Sym(0));
    let x_fact = Fact::new(DType::F32, [s.clone()]);
    let branch = |double: bool| {
        let mut g = Graph::default();
        let mut b = GraphBuilder::new(&mut g, loc(3));
        let x = b.input(x_fact.clone(), Role::Data);
        let y = if double { twice_tanh(&mut b, x) } else { x };
        g.add_output(y);
        g
    };
    let mut body = Graph::default();
    let mut b = GraphBuilder::new(&mut body, loc(2));
    let step = b.input(Fact::new(DType::I64, [0i64; 0]), Role::Data);
    let x = b.input(x_fact.clone(), Role::Data);
    let one = b.full(1i64, DType::I64, &[]).unwrap();
    let late = b.pointwise(Pw::Lt, &[one, step]).unwrap();
    let branches = [branch(true).into(), branch(false).into()];
    let y = b.op(If { branches }, &[late, x]).unwrap();
    body.add_output(y);

    let mut graph = Graph::default();
    graph.symbols.push(SymbolInfo {
        name: "batch".into(),
        min: 2,
    });
    let mut b = GraphBuilder::new(&mut graph, loc(1));
    let x = b.input(x_fact.clone(), Role::Data);
    let op = Loop::repeat(Dim::from(3), body);
    let y = b.op(op, &[x]).unwrap();
    graph.add_output(y);
    let options = Options {
        verify: true,
        ..Options::default()
    };
    let (_, report) = optimize(graph, &options).unwrap();
    assert_eq!(report.fired.len(), 1);
    assert_eq!(
        (report.fired[0].rule, report.fired[0].depth),
        ("common_subexpression", 2)
    );
}

#[test]
fn new_nodes_stand_where_the_old_one_stood() {
    // The second permute is merged with the first; what comes after it stays after it.
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(1));
    let x = b.input(f32s(&[2, 3, 4]), Role::Data);
    let perm = || [1usize, 2, 0].into_iter().collect();
    let one = b.op(ops::Permute { perm: perm() }, &[x]).unwrap();
    let two = b.op(ops::Permute { perm: perm() }, &[one]).unwrap();
    let y = b.pointwise(Pw::Exp, &[two]).unwrap();
    let z = b.pointwise(Pw::Neg, &[x]).unwrap();
    graph.add_output(y);
    graph.add_output(z);
    let (after, _) = optimize(graph, &Options::default()).unwrap();
    let names: Vec<&str> = after.iter().map(|(_, n)| n.op.name()).collect();
    assert_eq!(names, ["input", "permute", "exp", "neg"]);
}

#[test]
fn a_transposed_product_reads_transposed_operands() {
    let run = |perm: [usize; 3], shared: bool| {
        let mut graph = Graph::default();
        let mut b = GraphBuilder::new(&mut graph, loc(1));
        let x = b.input(f32s(&[2, 3, 3]), Role::Data);
        let y = b.input(f32s(&[2, 3, 3]), Role::Data);
        let product = b.op(ops::MatMul {}, &[x, y]).unwrap();
        let perm = perm.into_iter().collect();
        let transposed = b.op(ops::Permute { perm }, &[product]).unwrap();
        graph.add_output(transposed);
        if shared {
            graph.add_output(product);
        }
        let (after, _) = optimize(graph.clone(), &Options::default()).unwrap();
        let inputs = kiln_ir::fuzz::random_inputs(&graph, 3);
        let mode = kiln_ir::eval::Mode::Rounded;
        let values = |g: &Graph| kiln_ir::eval::evaluate(g, &inputs, &[], mode).unwrap();
        assert_eq!(values(&graph)[0].floats(), values(&after)[0].floats());
        let names: Vec<&str> = after.iter().map(|(_, n)| n.op.name()).collect();
        names[names.len() - 1].to_string()
    };
    assert_eq!(run([0, 2, 1], false), "matmul");
    // If another node reads the product, it stays; it also stays under other permutations.
    assert_eq!(run([0, 2, 1], true), "permute");
    assert_eq!(run([1, 0, 2], false), "permute");
}

#[test]
fn decompose_leaves_no_composite_in_graph_or_bodies() {
    let softmax = ops::Softmax {
        axis: 1,
        log: false,
    };
    let mut body = Graph::default();
    let mut b = GraphBuilder::new(&mut body, loc(2));
    b.input(Fact::new(DType::I64, [0i64; 0]), Role::Data);
    let x = b.input(f32s(&[2, 3]), Role::Data);
    let y = b.op(softmax, &[x]).unwrap();
    body.add_output(y);
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(1));
    let x = b.input(f32s(&[2, 3]), Role::Data);
    let y = b.op(softmax, &[x]).unwrap();
    let op = Loop::repeat(Dim::from(2), body);
    let y = b.op(op, &[y]).unwrap();
    graph.add_output(y);
    let text = decompose(graph, &Machine::default()).to_string();
    assert!(
        !text.contains("softmax") && text.matches("exp").count() == 2,
        "{text}"
    );
}

#[test]
fn attention_stays_whole_unless_its_weights_are_read() {
    let graph = |read: bool| {
        let mut graph = Graph::default();
        let mut b = GraphBuilder::new(&mut graph, loc(1));
        let [q, k, v] = [0; 3].map(|_| b.input(f32s(&[5, 3]), Role::Data));
        let op = ops::Attention {
            scale: kiln_ir::Scalar::Float(0.5),
            causal: false,
            dropout: None,
        };
        let y = b.op(op, &[q, k, v]).unwrap();
        let weights = op.weights(&mut b, &q, &k, None).unwrap();
        // Other readers of the query or the key do not compute weights.
        let sum = b.pointwise(kiln_ir::Pw::Add, &[q, k]).unwrap();
        graph.add_output(y);
        graph.add_output(sum);
        if read {
            graph.add_output(weights);
        }
        graph
    };
    let text = |read: bool, machine: Machine| {
        let (graph, _) = optimize(graph(read), &Options::default()).unwrap();
        let graph = decompose(graph, &machine);
        optimize(graph, &Options::default()).unwrap().0.to_string()
    };
    let products = |text: &str| text.matches("matmul").count();
    for machine in [Machine::default(), Machine::Gpu(Gpu::H100)] {
        assert!(text(false, machine).contains("attention"));
        let text = text(true, machine);
        assert!(
            !text.contains("attention") && products(&text) == 2,
            "{text}"
        );
    }
}

#[test]
fn reports_name_the_users_lines() {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(12));
    let x = b.input(f32s(&[4]), Role::Data);
    let y = twice_tanh(&mut b, x);
    graph.add_output(y);
    let (_, report) = optimize(graph, &Options::default()).unwrap();
    insta::assert_snapshot!(report, @r"
    4 -> 3 nodes, 1 rewrite
      common_subexpression: tanh(f32[4]) -> f32[4] at user.rs:12:5
    ");
}

/// Layers of exp(reshape(reshape(x))) + exp(…), all of which read one number.
fn deep(layers: usize) -> Graph {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(1));
    let mut x = b.input(f32s(&[4, 4]), Role::Data);
    for _ in 0..layers {
        let flat = b.reshape(&x, &[Dim::from(16)]).unwrap();
        let back = b.reshape(&flat, &[Dim::from(4), Dim::from(4)]).unwrap();
        let two = b.scalar_like(2.0, &back).unwrap();
        let one = b.pointwise(Pw::Exp, &[back]).unwrap();
        let other = b.pointwise(Pw::Exp, &[back]).unwrap();
        let sum = b.pointwise(Pw::Add, &[one, other]).unwrap();
        x = b.pointwise(Pw::Div, &[sum, two]).unwrap();
    }
    graph.add_output(x);
    graph
}

#[test]
fn time_is_linear_in_nodes() {
    let options = Options {
        verify: false,
        ..Options::default()
    };
    let time = |layers: usize| {
        let best = (0..3).map(|_| {
            let graph = deep(layers);
            let start = Instant::now();
            let (after, _) = optimize(graph, &options).unwrap();
            assert_eq!(after.len(), 2 + 3 * layers);
            start.elapsed().as_secs_f64()
        });
        best.fold(f64::INFINITY, f64::min)
    };
    let (small, large) = (time(625), time(5000));
    println!("{} nodes: {:.1} ms", 625 * 8, small * 1e3);
    println!("{} nodes: {:.1} ms", 5000 * 8, large * 1e3);
    // Eight times the nodes: quadratic work would take 64 times as long.
    assert!(large < 40.0 * small.max(1e-3), "{small} s, then {large} s");
}
