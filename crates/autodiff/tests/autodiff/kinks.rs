//! PyTorch's rules at points without a derivative, and the gradients that exist.

use kiln_autodiff::gradients;
use kiln_base::prim::Reduction;
use kiln_base::{DType, Dim};
use kiln_ir::eval::{Array, Mode, evaluate};
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, Op, Pw, Role, Value, ops};

/// The gradients of the sum of an op's result.
fn slopes(op: impl Into<Op>, operands: &[(&[usize], &[f64])]) -> Vec<Vec<f64>> {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let inputs: Vec<Value> = operands
        .iter()
        .map(|(shape, _)| b.input(Fact::new(DType::F32, shape.iter().copied()), Role::Data))
        .collect();
    let y = b.op(op, &inputs).unwrap();
    let fact = b.fact(&y);
    let ones = b.full(1.0, fact.dtype, &fact.shape).unwrap();
    for g in gradients(&mut graph, &[(y, ones)], &inputs).unwrap() {
        graph.add_output(g.unwrap());
    }
    let arrays: Vec<Array> = operands
        .iter()
        .map(|(shape, values)| Array::from_f64(DType::F32, shape, values).unwrap())
        .collect();
    let out = evaluate(&graph, &arrays, &[], Mode::Rounded).unwrap();
    out.iter().map(Array::to_f64).collect()
}

fn row(op: Pw, operands: &[&[f64]]) -> Vec<Vec<f64>> {
    let shapes: Vec<[usize; 1]> = operands.iter().map(|v| [v.len()]).collect();
    let operands: Vec<(&[usize], &[f64])> = shapes
        .iter()
        .zip(operands)
        .map(|(s, v)| (&s[..], *v))
        .collect();
    slopes(ops::Pointwise(op), &operands)
}

/// Returns the gradient of the first operand, after checking that the others have none.
fn slope_of_first(op: Pw, operands: &[&[f64]]) -> Vec<f64> {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let fact = Fact::new(DType::F32, [operands[0].len()]);
    let inputs: Vec<Value> = (operands.iter())
        .map(|_| b.input(fact.clone(), Role::Data))
        .collect();
    let y = b.pointwise(op, &inputs).unwrap();
    let ones = b.full(1.0, DType::F32, &fact.shape).unwrap();
    let found = gradients(&mut graph, &[(y, ones)], &inputs).unwrap();
    assert!(found[1..].iter().all(Option::is_none));
    graph.add_output(found[0].unwrap());
    let array = |v: &&[f64]| Array::from_f64(DType::F32, &[v.len()], v).unwrap();
    let arrays: Vec<Array> = operands.iter().map(array).collect();
    evaluate(&graph, &arrays, &[], Mode::Rounded).unwrap()[0].to_f64()
}

#[test]
fn kinks_follow_pytorch() {
    assert_eq!(row(Pw::Relu, &[&[0.0, -0.0, 1.0]]), [[0.0, 0.0, 1.0]]);
    assert_eq!(row(Pw::Abs, &[&[0.0, -2.0]]), [[0.0, -1.0]]);
    assert_eq!(row(Pw::Relu6, &[&[0.0, 6.0, 3.0]]), [[0.0, 0.0, 1.0]]);
    let halves = row(Pw::Maximum, &[&[1.0, 2.0, 0.0], &[1.0, 0.0, 2.0]]);
    assert_eq!(halves, [[0.5, 1.0, 0.0], [0.5, 0.0, 1.0]]);
    let clamp = row(Pw::Clamp, &[&[1.0, -1.0, 2.0], &[-1.0; 3], &[1.0; 3]]);
    assert_eq!(clamp[0], [0.5, 0.5, 0.0]);
    assert_eq!(clamp[1], [0.0, 0.5, 0.0]);
    assert_eq!(clamp[2], [0.5, 0.0, 1.0]);
    let clip = [&[1.0, -1.0, 0.0][..], &[-1.0; 3], &[1.0; 3]];
    let [low, high] = [f64::NEG_INFINITY, f64::INFINITY].map(|b| [b; 3]);
    let inside = |operands: &[&[f64]]| slope_of_first(Pw::Clip, operands);
    assert_eq!(inside(&clip), [0.0, 0.0, 1.0]);
    assert_eq!(inside(&[clip[0], &low, &high]), [1.0; 3]);
    // 0⁰ and 0²: neither has an infinite or undefined slope.
    let pow = row(Pw::Pow, &[&[0.0, 0.0], &[0.0, 2.0]]);
    assert_eq!(pow, [[0.0, 0.0], [0.0, 0.0]]);
}

#[test]
fn ties_of_extremes_share() {
    let op = ops::Reduce {
        kind: Reduction::Max,
        axes: [1].into_iter().collect(),
    };
    let got = slopes(op, &[(&[2, 3], &[1.0, 3.0, 3.0, 5.0, 4.0, 4.0])]);
    assert_eq!(got, [[0.0, 0.5, 0.5, 1.0, 0.0, 0.0]]);
    // A window's gradient goes to its first maximum.
    let pool = ops::WindowReduce {
        kind: Reduction::Max,
        kernel: [2].into_iter().collect(),
        stride: [2].into_iter().collect(),
        padding: vec![(0, 0)],
        dilation: [1].into_iter().collect(),
    };
    assert_eq!(
        slopes(pool, &[(&[4], &[2.0, 2.0, 1.0, 3.0])]),
        [[1.0, 0.0, 0.0, 1.0]]
    );
}

#[test]
fn products_with_zeros() {
    let op = ops::Reduce {
        kind: Reduction::Prod,
        axes: [0].into_iter().collect(),
    };
    assert_eq!(
        slopes(op.clone(), &[(&[3], &[2.0, 0.0, 4.0])]),
        [[0.0, 8.0, 0.0]]
    );
    assert_eq!(slopes(op, &[(&[3], &[0.0, 0.0, 4.0])]), [[0.0, 0.0, 0.0]]);
    let scan = ops::Scan {
        kind: kiln_base::prim::ScanKind::Prod,
        axis: 0,
        reverse: false,
    };
    // y = [2, 0, 0, 0]: the gradient of the first zero is 2 + 2·3 + 2·3·0.
    let got = slopes(scan, &[(&[4], &[2.0, 0.0, 3.0, 0.0])]);
    assert_eq!(got, [[1.0, 8.0, 0.0, 0.0]]);
}

#[test]
fn nothing_flows_through_integers() {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let x = b.input(Fact::new(DType::F32, [3]), Role::Data);
    let unused = b.input(Fact::new(DType::F32, [2]), Role::Data);
    let whole = b.cast(&x, DType::I64).unwrap();
    let y = b.cast(&whole, DType::F32).unwrap();
    let ones = b.full(1.0, DType::F32, &[Dim::Const(3)]).unwrap();
    let found = gradients(&mut graph, &[(y, ones)], &[x, unused]).unwrap();
    assert_eq!(found, [None, None]);
}

#[test]
fn ops_without_derivative_are_named() {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let x = b.input(Fact::new(DType::F32, [4]), Role::Data);
    let op = ops::WindowReduce {
        kind: Reduction::Prod,
        kernel: [2].into_iter().collect(),
        stride: [1].into_iter().collect(),
        padding: vec![(0, 0)],
        dilation: [1].into_iter().collect(),
    };
    let y = b.op(op, &[x]).unwrap();
    let g = b.full(1.0, DType::F32, &[Dim::Const(3)]).unwrap();
    let problem = gradients(&mut graph, &[(y, g)], &[x]).unwrap_err();
    assert_eq!(problem.step, y.node.index());
    assert!(
        problem.error.0.contains("no derivative"),
        "{:?}",
        problem.error
    );
}
