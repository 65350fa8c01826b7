//! The text form and the texts of errors.

use kiln_base::prim::Reduction;
use kiln_base::{DType, Dim, Loc, Scalar, Sym};
use kiln_ir::ops::{self, SliceAxis};
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Op, Output, Pw, Role, SymbolInfo, Target};
use std::sync::Arc;

/// A graph with every construct that has its own text form.
fn sample() -> Graph {
    let mut graph = Graph::default();
    graph.symbols.push(SymbolInfo {
        name: "batch \"n\"".into(),
        min: 2,
    });
    let loc = Loc::new("src/main.rs", 10, 5);
    let mut b = GraphBuilder::new(&mut graph, loc);
    let n = Dim::symbol(Sym(0));
    let x = b.input(Fact::new(DType::F32, [n.clone(), 8.into()]), Role::Data);
    let w = b.input(Fact::new(DType::F32, [8, 4]), Role::Parameter);
    let y = b.op(ops::MatMul {}, &[x, w]).unwrap();
    let half = b.scalar_like(0.5, &y).unwrap();
    let z = b.pointwise(Pw::Mul, &[y, half]).unwrap();
    let axes = vec![
        SliceAxis {
            start: Dim::ONE,
            len: &n - &Dim::ONE,
            step: 1,
        },
        SliceAxis {
            start: 3.into(),
            len: 2.into(),
            step: -2,
        },
    ];
    let s = b.op(ops::Slice { axes }, &[z]).unwrap();
    let bytes: Vec<u8> = [1f32, -0.0, f32::NAN]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let constant = ops::Constant {
        dtype: DType::F32,
        shape: vec![3],
        bytes: bytes.into(),
    };
    let c = b.op(constant, &[]).unwrap();
    let nan = b
        .full(Scalar::Float(f64::NEG_INFINITY), DType::F64, &[])
        .unwrap();
    let body = {
        let mut body = Graph::default();
        body.symbols.clone_from(&b.graph().symbols);
        let mut b = GraphBuilder::new(&mut body, Loc::UNKNOWN);
        b.input(Fact::new(DType::I64, [0i64; 0]), Role::Data);
        let x = b.input(Fact::new(DType::F32, [8, 4]), Role::Data);
        let y = b.pointwise(Pw::Relu, &[x]).unwrap();
        body.add_output(y);
        Arc::new(body)
    };
    let trips = &n * &Dim::Const(2);
    let updated = b.op(ops::Loop::repeat(trips, body), &[w]).unwrap();
    for value in [s, c, nan] {
        graph.add_output(value);
    }
    let extra = [(updated, Target::Assign(1)), (y, Target::Kept)];
    let outputs = extra.map(|(value, target)| Output { value, target });
    graph.outputs.extend(outputs);
    graph
}

#[test]
fn text_form() {
    let graph = sample();
    kiln_ir::verify::verify(&graph).unwrap();
    insta::assert_snapshot!(graph);
    assert_eq!(
        Graph::parse(&graph.to_string()).unwrap(),
        graph.without_locs()
    );
}

#[test]
fn text_form_with_locations() {
    insta::assert_snapshot!(format!("{:#}", sample()));
}

#[test]
fn negative_nan_round_trips() {
    for x in [f64::NAN, -f64::NAN, f64::INFINITY, -0.0, 1e-310, 0.1] {
        let mut graph = Graph::default();
        GraphBuilder::new(&mut graph, Loc::UNKNOWN)
            .full(x, DType::F64, &[])
            .unwrap();
        let back = Graph::parse(&graph.to_string()).unwrap();
        let bits = |g: &Graph| g.node(kiln_ir::NodeId(0)).op.scalar();
        assert_eq!(bits(&back), bits(&graph), "{x:?} {graph}");
    }
}

#[test]
fn collective_operations_print_their_kinds_and_check_their_operands() {
    use kiln_base::collective::{Kind, Reducer};
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let x = b.input(Fact::new(DType::F32, [6, 2]), Role::Data);
    let token = b.input(Fact::new(DType::I64, [1]), Role::Data);
    let op = |kind| ops::Collective {
        group: "world".into(),
        ranks: 3,
        kind,
    };
    let scattered = op(Kind::ReduceScatter(Reducer::Mean));
    let first = b.emit(scattered.into(), &[x, token]).unwrap();
    let gather = Kind::Gather {
        root: 1,
        here: true,
    };
    let second = b.emit(op(gather).into(), &[first[0], first[1]]).unwrap();
    graph.add_output(second[0]);
    graph.add_output(second[1]);
    kiln_ir::verify::verify(&graph).unwrap();
    let text = graph.to_string();
    assert!(text.contains("kind: ReduceScatter(Mean)"), "{text}");
    assert!(text.contains("f32[2, 2], i64[1]"), "{text}");
    assert_eq!(Graph::parse(&text).unwrap(), graph);
    let infer = |kind, x: Fact| {
        let token = Fact::new(DType::I64, [1]);
        let found = Op::from(op(kind)).infer(&[&x, &token]);
        found.map(|facts| facts[0].to_string()).map_err(|e| e.0)
    };
    let x = |shape: &[i64]| Fact::new(DType::F32, shape.iter().copied());
    assert_eq!(infer(Kind::AllGather, x(&[0, 5])).unwrap(), "f32[0, 5]");
    assert_eq!(infer(Kind::AllToAll, x(&[3])).unwrap(), "f32[3]");
    let scatter = |here| Kind::Scatter { root: 0, here };
    assert_eq!(infer(scatter(true), x(&[9, 1])).unwrap(), "f32[3, 1]");
    assert_eq!(infer(scatter(false), x(&[3, 1])).unwrap(), "f32[3, 1]");
    let wrong = infer(Kind::AllToAll, x(&[4])).unwrap_err();
    assert!(
        wrong.contains("3 parts of equal size can't be made"),
        "{wrong}"
    );
    let wrong = infer(Kind::Broadcast(3), x(&[])).unwrap_err();
    assert!(
        wrong.contains("rank 3 is not one of the 3 ranks"),
        "{wrong}"
    );
}

#[test]
fn custom_ops_print_their_names_and_need_their_kernels() {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let x = b.input(Fact::new(DType::F32, [2]), Role::Data);
    let output = Fact::new(DType::I64, [3, 1]);
    let custom = ops::Custom {
        name: "test::absent".into(),
        output,
    };
    let y = b.op(custom.clone(), &[x]).unwrap();
    graph.add_output(y);
    kiln_ir::verify::verify(&graph).unwrap();
    let text = graph.to_string();
    assert!(
        text.contains(r#"%1: i64[3, 1] = custom(name: "test::absent") %0"#),
        "{text}"
    );
    assert_eq!(Graph::parse(&text).unwrap(), graph);
    let x = kiln_ir::eval::Array::from_f64(DType::F32, &[2], &[1.0, 2.0]).unwrap();
    let mode = kiln_ir::eval::Mode::Rounded;
    let e = kiln_ir::eval::evaluate(&graph, &[x], &[], mode).unwrap_err();
    assert!(
        e.to_string()
            .contains("no custom op `test::absent` is registered"),
        "{e}"
    );
    let negative = Fact::new(DType::F32, [-1i64]);
    let op = Op::from(ops::Custom {
        output: negative,
        ..custom
    });
    assert!(op.infer(&[graph.node(kiln_ir::NodeId(0)).fact()]).is_err());
}

#[test]
fn casts_say_whether_they_are_steps() {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let x = b.input(Fact::new(DType::F32, [3i64]), Role::Data);
    let [asked, step] = [b.cast(&x, DType::BF16), b.narrowed(&x, DType::BF16)].map(Result::unwrap);
    assert_ne!(asked, step);
    graph.add_output(asked);
    graph.add_output(step);
    let text = graph.to_string();
    assert!(text.contains("%1: bf16[3] = cast %0"), "{text}");
    let of_step = "%2: bf16[3] = cast(is_step: true) %0";
    assert!(text.contains(of_step), "{text}");
    assert_eq!(Graph::parse(&text).unwrap(), graph);
    assert!(Graph::parse(&text.replace("is_step: true", "step: true")).is_err());
}

#[test]
fn parse_errors_say_where() {
    let texts = [
        "",
        "graph {",
        "graph { return } }",
        "graph {\n  %1: f32[] = exp %0\n  return\n}",
        "graph {\n  %0: f33[] = exp %0\n  return\n}",
        "graph {\n  %0: f32[x] = exp %0\n  return\n}",
        "graph {\n  %0: f32[] = expo %0\n  return\n}",
        "graph {\n  %0: f32[] = input(index: 0\n  return\n}",
        "graph {\n  %0: f32[] = input(index: -1, role: Data)\n  return\n}",
        "graph {\n  %0: f32[] = exp(fast: true) %0\n  return\n}",
        "graph {\n  %0: f32[1] = constant(hex: \"0g\")\n  return\n}",
        "graph {\n  symbols s1 >= 2 \"x\"\n  return\n}",
        "graph {\n  %0: f32[] = exp %0 { return }\n  return\n}",
        "graph {\n  %0: f32[] = exp %99999999999\n  return\n}",
    ];
    let errors = texts.map(|t| Graph::parse(t).unwrap_err().to_string());
    insta::assert_debug_snapshot!(errors);
}

#[test]
fn deep_nesting_is_an_error() {
    let text = format!("graph {}", "{ %0: f32[] = loop(trips: 1) ".repeat(10_000));
    assert!(
        Graph::parse(&text)
            .unwrap_err()
            .message
            .contains("more than 32 deep")
    );
}

#[test]
fn inference_errors() {
    let f = |dtype, shape: &[i64]| Fact::new(dtype, shape.to_vec());
    let (a, b) = (f(DType::F32, &[2, 3]), f(DType::F32, &[4, 5]));
    let (i64s, u32s, none) = (f(DType::I64, &[2]), f(DType::U32, &[]), f(DType::F32, &[0]));
    let image = f(DType::F32, &[1, 3, 8, 8]);
    let weight = f(DType::F32, &[4, 2, 3, 3]);
    let conv = |groups| ops::Conv {
        stride: [1, 1].into_iter().collect(),
        padding: vec![(0, 0); 2],
        dilation: [1, 1].into_iter().collect(),
        groups,
    };
    let max = ops::Reduce {
        kind: Reduction::Max,
        axes: [0].into_iter().collect(),
    };
    let cases: [(Op, Vec<&Fact>); 11] = [
        (ops::MatMul {}.into(), vec![&a, &b]),
        (ops::MatMul {}.into(), vec![&a]),
        (ops::Pointwise(Pw::Add).into(), vec![&a, &b]),
        (ops::Pointwise(Pw::Sqrt).into(), vec![&i64s]),
        (ops::Pointwise(Pw::Add).into(), vec![&u32s, &u32s]),
        (conv(1).into(), vec![&image, &weight]),
        (conv(0).into(), vec![&image, &weight]),
        (max.into(), vec![&none]),
        (ops::Concat { axis: 0 }.into(), vec![&a, &b]),
        (ops::Gather { axis: 0 }.into(), vec![&a, &b]),
        (
            ops::Softmax {
                axis: 2,
                log: false,
            }
            .into(),
            vec![&a],
        ),
    ];
    let errors: Vec<String> = cases
        .iter()
        .map(|(op, facts)| format!("{}: {}", op.name(), op.infer(facts).unwrap_err()))
        .collect();
    insta::assert_snapshot!(errors.join("\n"));
}
