//! Ops against values worked out by hand, and composites against their decomposition.

use kiln_base::prim::{RandomKind, Reduction, random_bits, random_words};
use kiln_base::{DType, Dim, Scalar};
use kiln_ir::eval::{Array, Data, EvalError, Mode, Problem, eval_op, evaluate, evaluate_all};
use kiln_ir::fuzz::Rng;
use kiln_ir::ops::{self, SliceAxis};
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, NodeId, Op, Pw, Role, Shape, Value};

fn f32s(shape: &[usize], values: &[f64]) -> Array {
    Array::from_f64(DType::F32, shape, values).unwrap()
}

fn i64s(shape: &[usize], values: &[i64]) -> Array {
    Array::from_i64(DType::I64, shape, values).unwrap()
}

fn count(shape: &[usize]) -> Array {
    let n: usize = shape.iter().product();
    f32s(shape, &(1..=n).map(|i| i as f64).collect::<Vec<_>>())
}

fn eval(op: impl Into<Op>, inputs: &[&Array]) -> Array {
    eval_op(&op.into(), inputs, &[], Mode::Rounded)
        .unwrap()
        .remove(0)
}

fn dims(shape: &[i64]) -> Shape {
    shape.iter().map(|d| Dim::Const(*d)).collect()
}

#[test]
fn gather_takes_by_index() {
    let index = [1, 1, 1, 1, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 2];
    let y = eval(
        ops::Gather { axis: 1 },
        &[&count(&[3, 3]), &i64s(&[3, 5], &index)],
    );
    let wanted = [2, 2, 2, 2, 2, 6, 4, 5, 6, 4, 8, 9, 7, 7, 9].map(f64::from);
    assert_eq!(y, f32s(&[3, 5], &wanted));
    // The index may be smaller than the operand off the axis.
    let y = eval(
        ops::Gather { axis: 0 },
        &[&count(&[3, 3]), &i64s(&[1, 2], &[2, 1])],
    );
    assert_eq!(y, f32s(&[1, 2], &[7.0, 5.0]));
}

#[test]
fn data_errors_name_the_place() {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let x = b.input(Fact::new(DType::F32, [3]), Role::Data);
    let index = b.input(Fact::new(DType::I64, [2]), Role::Data);
    let y = b.op(ops::Gather { axis: 0 }, &[x, index]).unwrap();
    graph.add_output(y);
    let inputs = [count(&[3]), i64s(&[2], &[0, -1])];
    let e = evaluate(&graph, &inputs, &[], Mode::Rounded).unwrap_err();
    assert_eq!(e.path, [NodeId(2)]);
    assert!(e.is_data_error());
    assert_eq!(
        e.to_string(),
        "%2 = gather: index -1 at element 1 is outside 0..3"
    );

    let op = Op::from(ops::Pointwise(Pw::Remainder));
    let (a, b) = (i64s(&[2], &[1, 2]), i64s(&[2], &[1, 0]));
    let e = eval_op(&op, &[&a, &b], &[], Mode::Exact).unwrap_err();
    assert_eq!(e.problem, Problem::DivisionByZero { element: 1 });
}

#[test]
fn dead_data_errors_do_not_matter() {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let x = b.input(Fact::new(DType::I64, [1]), Role::Data);
    b.pointwise(Pw::Div, &[x, x]).unwrap();
    graph.add_output(x);
    let zero = [i64s(&[1], &[0])];
    assert!(evaluate(&graph, &zero, &[], Mode::Rounded).is_ok());
    assert!(evaluate_all(&graph, &zero, &[], Mode::Rounded).is_err());
}

#[test]
fn wrong_inputs_are_errors() {
    let text = "graph {
        symbols s0 >= 3 \"batch\"
        %0: f32[s0, 2] = input(index: 0, role: Data)
        %1: f32[s0] = reduce(kind: Sum, axes: [1]) %0
        return %1
    }";
    let graph = Graph::parse(text).unwrap();
    let run = |inputs: &[Array], symbols: &[i64]| {
        let result: Result<_, EvalError> = evaluate(&graph, inputs, symbols, Mode::Rounded);
        result.map(|_| ()).map_err(|e| e.to_string())
    };
    let x = count(&[3, 2]);
    let one = std::slice::from_ref(&x);
    assert_eq!(run(one, &[3]), Ok(()));
    let errors = [
        run(&[], &[3]),
        run(one, &[]),
        run(one, &[2]),
        run(one, &[4]),
        run(&[i64s(&[3, 2], &[0; 6])], &[3]),
    ];
    insta::assert_debug_snapshot!(errors);
}

#[test]
fn views_rename_indices() {
    let x = count(&[2, 3]);
    let y = eval(
        ops::Permute {
            perm: [1, 0].into_iter().collect(),
        },
        &[&x],
    );
    assert_eq!(y, f32s(&[3, 2], &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
    let y = eval(
        ops::Reshape {
            shape: dims(&[3, 2]),
        },
        &[&x],
    );
    assert_eq!(y, count(&[3, 2]));
    let y = eval(
        ops::Broadcast {
            shape: dims(&[2, 2, 1]),
        },
        &[&f32s(&[2, 1], &[1.0, 2.0])],
    );
    assert_eq!(y, f32s(&[2, 2, 1], &[1.0, 2.0, 1.0, 2.0]));
    let y = eval(
        ops::Broadcast {
            shape: dims(&[2, 3]),
        },
        &[&f32s(&[2, 1], &[1.0, 2.0])],
    );
    assert_eq!(y, f32s(&[2, 3], &[1.0, 1.0, 1.0, 2.0, 2.0, 2.0]));
    let axis = |start: i64, len: i64, step| SliceAxis {
        start: start.into(),
        len: len.into(),
        step,
    };
    let axes = vec![axis(1, 1, 1), axis(2, 2, -2)];
    assert_eq!(eval(ops::Slice { axes }, &[&x]), f32s(&[1, 2], &[6.0, 4.0]));
    let axes = vec![axis(i64::MAX, 0, 1), axis(0, 3, 1)];
    assert_eq!(eval(ops::Slice { axes }, &[&x]), f32s(&[0, 3], &[]));
}

#[test]
fn pad_and_concat_place_elements() {
    let x = count(&[1, 2]);
    let op = ops::Pad {
        low: dims(&[1, 0]),
        high: dims(&[0, 1]),
        value: Scalar::Float(-1.0),
    };
    assert_eq!(
        eval(op, &[&x]),
        f32s(&[2, 3], &[-1.0, -1.0, -1.0, 1.0, 2.0, -1.0])
    );
    let (a, b) = (count(&[2, 1]), count(&[2, 2]));
    let y = eval(ops::Concat { axis: 1 }, &[&a, &b]);
    assert_eq!(y, f32s(&[2, 3], &[1.0, 1.0, 2.0, 2.0, 3.0, 4.0]));
    let (a, b) = (count(&[3, 4, 4]), count(&[3, 1, 4]));
    assert_eq!(eval(ops::Concat { axis: 1 }, &[&a, &b]).shape(), [3, 5, 4]);
}

#[test]
fn reductions_combine() {
    let x = count(&[2, 3]);
    let reduce = |kind, axes: &[usize], x: &Array| {
        let axes = axes.iter().copied().collect();
        eval(ops::Reduce { kind, axes }, &[x])
    };
    assert_eq!(
        reduce(Reduction::Sum, &[0], &x),
        f32s(&[3], &[5.0, 7.0, 9.0])
    );
    assert_eq!(reduce(Reduction::Prod, &[1], &x), f32s(&[2], &[6.0, 120.0]));
    assert_eq!(reduce(Reduction::Max, &[0, 1], &x), f32s(&[], &[6.0]));
    assert_eq!(reduce(Reduction::Min, &[], &x), x);
    let nothing = f32s(&[0, 2], &[]);
    assert_eq!(
        reduce(Reduction::Sum, &[0], &nothing),
        f32s(&[2], &[0.0, 0.0])
    );
    assert_eq!(
        reduce(Reduction::Prod, &[0], &nothing),
        f32s(&[2], &[1.0, 1.0])
    );
    let nan = f32s(&[3], &[1.0, f64::NAN, 2.0]);
    for kind in [Reduction::Max, Reduction::Min, Reduction::Sum] {
        assert!(reduce(kind, &[0], &nan).floats().unwrap()[0].is_nan());
    }
    let inf = f32s(&[3], &[1.0, f64::INFINITY, 2.0]);
    assert_eq!(
        reduce(Reduction::Sum, &[0], &inf),
        f32s(&[], &[f64::INFINITY])
    );
    // Integers wrap in their dtype.
    let x = Array::from_i64(DType::U8, &[2], &[200, 100]).unwrap();
    assert_eq!(reduce(Reduction::Sum, &[0], &x).ints().unwrap(), [44]);
    // A running sum in f32 or f64 would lose the small numbers.
    let x = Array::from_f64(DType::F64, &[3], &[1e100, 1.0, -1e100]).unwrap();
    assert_eq!(reduce(Reduction::Sum, &[0], &x).floats().unwrap(), [1.0]);
}

#[test]
fn the_first_extreme_is_found() {
    let arg = |kind, values: &[f64]| {
        let x = f32s(&[values.len()], values);
        eval(ops::ArgReduce { kind, axis: 0 }, &[&x])
            .ints()
            .unwrap()[0]
    };
    assert_eq!(arg(Reduction::Max, &[1.0, 3.0, 3.0]), 1);
    assert_eq!(arg(Reduction::Min, &[2.0, 1.0, 1.0]), 1);
    assert_eq!(arg(Reduction::Max, &[5.0, f64::NAN, 9.0, f64::NAN]), 1);
    assert_eq!(arg(Reduction::Min, &[f64::NAN, -9.0]), 0);
}

#[test]
fn matrices_multiply() {
    let a = count(&[2, 3]);
    let b = count(&[3, 2]);
    let y = eval(ops::MatMul {}, &[&a, &b]);
    assert_eq!(y, f32s(&[2, 2], &[22.0, 28.0, 49.0, 64.0]));
    let y = eval(ops::MatMul {}, &[&count(&[10, 3, 4]), &count(&[10, 4, 5])]);
    assert_eq!(y.shape(), [10, 3, 5]);
    let y = eval(ops::MatMul {}, &[&f32s(&[2, 0], &[]), &f32s(&[0, 2], &[])]);
    assert_eq!(y, f32s(&[2, 2], &[0.0; 4]));
}

fn conv(
    stride: usize,
    padding: (usize, usize),
    dilation: usize,
    groups: usize,
    rank: usize,
) -> ops::Conv {
    ops::Conv {
        stride: std::iter::repeat_n(stride, rank).collect(),
        padding: vec![padding; rank],
        dilation: std::iter::repeat_n(dilation, rank).collect(),
        groups,
    }
}

#[test]
fn convolutions_correlate() {
    let x = count(&[1, 1, 4]);
    let w = f32s(&[1, 1, 2], &[1.0, 10.0]);
    let y = eval(conv(1, (0, 0), 1, 1, 1), &[&x, &w]);
    assert_eq!(y, f32s(&[1, 1, 3], &[21.0, 32.0, 43.0]));
    let y = eval(conv(2, (1, 0), 2, 1, 1), &[&x, &w]);
    assert_eq!(y, f32s(&[1, 1, 2], &[20.0, 42.0]));
    // Two groups of one channel.
    let x = count(&[1, 2, 2]);
    let w = f32s(&[2, 1, 1], &[2.0, 3.0]);
    let y = eval(conv(1, (0, 0), 1, 2, 1), &[&x, &w]);
    assert_eq!(y, f32s(&[1, 2, 2], &[2.0, 4.0, 9.0, 12.0]));
    // Two input channels, 2-d.
    let x = count(&[1, 2, 2, 2]);
    let w = f32s(&[1, 2, 2, 2], &[1.0; 8]);
    assert_eq!(
        eval(conv(1, (0, 0), 1, 1, 2), &[&x, &w]),
        f32s(&[1, 1, 1, 1], &[36.0])
    );
    // Conv2d(1, 6, 5) and Conv2d(3, 16, 3).
    let zeros = |shape: &[usize]| f32s(shape, &vec![0.0; shape.iter().product()]);
    let y = eval(
        conv(1, (0, 0), 1, 1, 2),
        &[&zeros(&[16, 1, 32, 32]), &zeros(&[6, 1, 5, 5])],
    );
    assert_eq!(y.shape(), [16, 6, 28, 28]);
    let y = eval(
        conv(1, (1, 1), 1, 1, 2),
        &[&zeros(&[1, 3, 32, 32]), &zeros(&[16, 3, 3, 3])],
    );
    assert_eq!(y.shape(), [1, 16, 32, 32]);
}

#[test]
fn windows_reduce() {
    let pool = |kind, kernel: usize, stride: usize, padding, x: &Array| {
        let op = ops::WindowReduce {
            kind,
            kernel: [kernel].into_iter().collect(),
            stride: [stride].into_iter().collect(),
            padding: vec![padding],
            dilation: [1].into_iter().collect(),
        };
        eval(op, &[x])
    };
    let x = f32s(&[1, 4], &[-1.0, -2.0, -3.0, -4.0]);
    let y = pool(Reduction::Max, 2, 2, (1, 1), &x);
    assert_eq!(y, f32s(&[1, 3], &[-1.0, -2.0, -4.0]));
    assert_eq!(
        pool(Reduction::Sum, 3, 1, (0, 0), &x),
        f32s(&[1, 2], &[-6.0, -9.0])
    );
    let x = Array::from_i64(DType::I8, &[2], &[-100, 5]).unwrap();
    assert_eq!(
        pool(Reduction::Max, 2, 1, (1, 0), &x).ints().unwrap(),
        [-100, 5]
    );
    let op = ops::WindowReduce {
        kind: Reduction::Max,
        kernel: [5, 5].into_iter().collect(),
        stride: [5, 5].into_iter().collect(),
        padding: vec![(0, 0); 2],
        dilation: [1, 1].into_iter().collect(),
    };
    let y = eval(op, &[&f32s(&[3, 2, 32, 32], &vec![0.0; 6 * 1024])]);
    assert_eq!(y.shape(), [3, 2, 6, 6]);
}

#[test]
fn log_softmax_of_the_worked_example() {
    let x = count(&[3, 3]);
    let y = eval(ops::Softmax { axis: 1, log: true }, &[&x]);
    for row in y.floats().unwrap().chunks(3) {
        for (y, wanted) in row.iter().zip([-2.4076, -1.4076, -0.4076]) {
            assert!((y - wanted).abs() < 5e-5);
        }
    }
    let huge = f32s(&[2], &[1e30, 1e30]);
    let y = eval(
        ops::Softmax {
            axis: 0,
            log: false,
        },
        &[&huge],
    );
    assert_eq!(y, f32s(&[2], &[0.5, 0.5]));
}

#[test]
fn batch_norm_normalises() {
    let x = count(&[1, 2, 2]);
    let eps = Scalar::Float(0.0);
    let (mean, variance) = (f32s(&[2], &[1.0, 3.0]), f32s(&[2], &[4.0, 1.0]));
    let (weight, bias) = (f32s(&[2], &[2.0, 3.0]), f32s(&[2], &[10.0, 20.0]));
    let op = ops::BatchNorm { eps, affine: false };
    let y = eval(op, &[&x, &mean, &variance]);
    assert_eq!(y, f32s(&[1, 2, 2], &[0.0, 0.5, 0.0, 1.0]));
    let op = ops::BatchNorm { eps, affine: true };
    let y = eval(op, &[&x, &mean, &variance, &weight, &bias]);
    assert_eq!(y, f32s(&[1, 2, 2], &[10.0, 11.0, 20.0, 23.0]));
}

#[test]
fn casts_round_wrap_and_saturate() {
    let cast = |x: &Array, dtype| eval(ops::Cast::to(dtype), &[x]);
    let x = f32s(&[5], &[-1.5, f64::NAN, 300.0, f64::INFINITY, 0.5]);
    assert_eq!(cast(&x, DType::U8).ints().unwrap(), [0, 0, 255, 255, 0]);
    assert_eq!(cast(&x, DType::Bool).ints().unwrap(), [1, 1, 1, 1, 1]);
    assert_eq!(cast(&x, DType::U64).ints().unwrap(), [0, 0, 300, -1, 0]);
    let x = i64s(&[3], &[300, -1, 1 << 40]);
    assert_eq!(cast(&x, DType::U8).ints().unwrap(), [44, 255, 0]);
    assert_eq!(cast(&x, DType::Bool).ints().unwrap(), [1, 1, 1]);
    let x = Array::from_i64(DType::U64, &[1], &[-1]).unwrap();
    assert_eq!(cast(&x, DType::F32).floats().unwrap(), [2f64.powi(64)]);
    assert_eq!(x.to_f64(), [u64::MAX as f64]);
    // One rounding on the way to f32, not two.
    let x = i64s(&[1], &[(1 << 60) + (1 << 36) + 1]);
    let nearest = ((1i64 << 60) + (1 << 37)) as f64;
    assert_eq!(cast(&x, DType::F32).floats().unwrap(), [nearest]);
    let x = f32s(&[1], &[2049.0]);
    assert_eq!(cast(&x, DType::F16).floats().unwrap(), [2048.0]);
    let exact = eval_op(&ops::Cast::to(DType::F16).into(), &[&x], &[], Mode::Exact);
    assert_eq!(exact.unwrap()[0].floats().unwrap(), [2049.0]);
}

#[test]
fn pointwise_results_are_of_their_dtype() {
    let bools = Array::from_i64(DType::Bool, &[2], &[0, 1]).unwrap();
    let y = eval(ops::Pointwise(Pw::Not), &[&bools]);
    assert_eq!(y.ints().unwrap(), [1, 0]);
    let x = Array::from_i64(DType::I8, &[2], &[-128, 5]).unwrap();
    assert_eq!(
        eval(ops::Pointwise(Pw::Abs), &[&x]).ints().unwrap(),
        [-128, 5]
    );
    assert_eq!(
        eval(ops::Pointwise(Pw::Not), &[&x]).ints().unwrap(),
        [127, -6]
    );
    let (a, b) = (f32s(&[2], &[1.0, 2.0]), f32s(&[2], &[3.0, 4.0]));
    assert_eq!(
        eval(ops::Pointwise(Pw::Select), &[&bools, &a, &b]),
        f32s(&[2], &[3.0, 2.0])
    );
    let lt = eval(ops::Pointwise(Pw::Lt), &[&a, &b]);
    assert_eq!((lt.dtype(), lt.ints().unwrap()), (DType::Bool, &[1, 1][..]));
    let third = eval(ops::Pointwise(Pw::Div), &[&a, &b]).floats().unwrap()[0];
    assert_eq!(third, (1f32 / 3f32) as f64);
}

#[test]
fn random_numbers_depend_on_the_logical_index() {
    let draw = |kind, dtype, shape: &[i64], key: [i64; 2]| {
        let shape = dims(shape);
        eval(ops::Random { kind, dtype, shape }, &[&i64s(&[2], &key)])
    };
    let bits = draw(RandomKind::Bits, DType::I64, &[2, 2], [7, 100]);
    let wanted: Vec<i64> = (100..104)
        .map(|i| random_bits(random_words(RandomKind::Bits, true, i, 7)))
        .collect();
    assert_eq!(bits.ints().unwrap(), wanted);
    let half = draw(RandomKind::Uniform, DType::F16, &[4], [7, 100]);
    let single = draw(RandomKind::Uniform, DType::F32, &[4], [7, 100]);
    assert_eq!(half, eval(ops::Cast::to(DType::F16), &[&single]));
    let normal = draw(RandomKind::Normal, DType::F64, &[4000], [1, 0]);
    let mean = normal.floats().unwrap().iter().sum::<f64>() / 4000.0;
    assert!(mean.abs() < 0.06, "{mean}");
}

#[test]
fn constants_and_numbers() {
    let y = eval(ops::Iota { len: Dim::Const(3) }, &[]);
    assert_eq!(y, i64s(&[3], &[0, 1, 2]));
    let op = ops::Full {
        value: Scalar::Float(0.5),
        dtype: DType::BF16,
        shape: dims(&[2]),
    };
    assert_eq!(eval(op, &[]).floats().unwrap(), [0.5, 0.5]);
    for dtype in DType::ALL {
        let x = Array::from_i64(dtype, &[3], &[0, 1, 1]).unwrap();
        let back = Array::from_bytes(dtype, &[3], &x.to_bytes()).unwrap();
        assert_eq!(back, x);
        let op = ops::Constant {
            dtype,
            shape: vec![3],
            bytes: x.to_bytes().into(),
        };
        assert_eq!(eval(op, &[]), x);
    }
    assert!(Array::from_bytes(DType::F32, &[2], &[0; 7]).is_err());
    assert!(Array::from_f64(DType::F32, &[usize::MAX, 2], &[]).is_err());
    assert!(Array::new(DType::F32, &[1], Data::Int(vec![1])).is_err());
}

#[test]
fn absurd_sizes_are_errors() {
    let op = Op::from(ops::Broadcast {
        shape: dims(&[1 << 40, 1 << 40, 0]),
    });
    assert!(eval_op(&op, &[&count(&[1, 1])], &[], Mode::Rounded).is_err());
    let op = Op::from(conv(1, (usize::MAX, usize::MAX), usize::MAX, 1, 1));
    assert!(
        eval_op(
            &op,
            &[&count(&[1, 1, 3]), &count(&[1, 1, 3])],
            &[],
            Mode::Rounded
        )
        .is_err()
    );
    let axis = SliceAxis {
        start: 0.into(),
        len: 5.into(),
        step: 1 << 62,
    };
    let op = Op::from(ops::Slice { axes: vec![axis] });
    assert!(eval_op(&op, &[&count(&[3])], &[], Mode::Rounded).is_err());
}

#[test]
fn bodies_run() {
    let text = "graph {
        symbols s0 >= 2 \"n\"
        %0: i64[] = input(index: 0, role: Data)
        %1: i64[s0] = input(index: 1, role: Data)
        %2: i64[] = loop(trips: \"s0\") %0 {
            symbols s0 >= 2 \"n\"
            %0: i64[] = input(index: 0, role: Data)
            %1: i64[] = input(index: 1, role: Data)
            %2: i64[] = add %0, %1
            %3: i64[] = add %2, %1
            return %3
        }
        %3: bool[] = gt %2, %0
        %4: (i64[], i64[]) = if %3, %0, %2 {
            %0: i64[] = input(index: 0, role: Data)
            %1: i64[] = input(index: 1, role: Data)
            return %0, %1
        } else {
            %0: i64[] = input(index: 0, role: Data)
            %1: i64[] = input(index: 1, role: Data)
            return %1, %0
        }
        return %2, %4, %4.1
    }";
    let graph = Graph::parse(text).unwrap();
    kiln_ir::verify::verify(&graph).unwrap();
    // x → 2x + step: 1, 2, 5, 12
    let run = |x: i64| {
        let inputs = [i64s(&[], &[x]), i64s(&[3], &[0; 3])];
        let y = evaluate(&graph, &inputs, &[3], Mode::Rounded).unwrap();
        y.iter().map(|a| a.ints().unwrap()[0]).collect::<Vec<_>>()
    };
    assert_eq!(run(1), [12, 1, 12]);
    assert_eq!(run(-1), [-4, -4, -1]);
}

/// The direct evaluation of a composite and that of its decomposition, exactly.
fn both(op: impl Into<Op>, facts: &[Fact], inputs: &[Array]) -> [Array; 2] {
    let op = op.into();
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let values: Vec<Value> = facts
        .iter()
        .map(|f| b.input(f.clone(), Role::Data))
        .collect();
    let direct = b.op(op.clone(), &values).unwrap();
    let expanded = op.decompose(&mut b, &values).unwrap().unwrap();
    graph.add_output(direct);
    graph.add_output(expanded);
    let results = evaluate(&graph, inputs, &[], Mode::Exact).unwrap();
    results.try_into().unwrap()
}

fn assert_close([a, b]: &[Array; 2], tolerance: f64) {
    assert_eq!(a.shape(), b.shape());
    for (x, y) in a.floats().unwrap().iter().zip(b.floats().unwrap()) {
        let same = x == y || (x.is_nan() && y.is_nan());
        assert!(
            same || (x - y).abs() <= tolerance * (1.0 + y.abs()),
            "{x} {y}"
        );
    }
}

#[test]
fn decompositions_agree() {
    let mut rng = Rng::new(3);
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        for shape in [vec![3, 4, 5], vec![2, 1], vec![4, 7, 2, 3]] {
            let fact = Fact::new(dtype, shape.iter().copied());
            let n: usize = shape.iter().product();
            let mut values: Vec<f64> = (0..n).map(|_| rng.unit() * 20.0 - 10.0).collect();
            let x = Array::from_f64(dtype, &shape, &values).unwrap();
            for axis in 0..shape.len() {
                for log in [false, true] {
                    let op = ops::Softmax { axis, log };
                    let (fact, x) = (std::slice::from_ref(&fact), std::slice::from_ref(&x));
                    assert_close(&both(op, fact, x), 1e-12);
                }
            }
            let statistic = Fact::new(dtype, [shape[1]]);
            let facts = [vec![fact.clone()], vec![statistic; 4]].concat();
            let mut inputs = vec![x];
            for _ in 0..4 {
                let v: Vec<f64> = (0..shape[1]).map(|_| 0.1 + rng.unit()).collect();
                inputs.push(Array::from_f64(dtype, &[shape[1]], &v).unwrap());
            }
            let eps = Scalar::Float(1e-5);
            // Exact mode keeps eps as the dtype that the decomposition rounds it to.
            let tolerance = if dtype == DType::F64 { 1e-12 } else { 1e-10 };
            let op = ops::BatchNorm { eps, affine: true };
            assert_close(&both(op, &facts, &inputs), tolerance);
            let op = ops::BatchNorm { eps, affine: false };
            assert_close(&both(op, &facts[..3], &inputs[..3]), tolerance);
            values[0] = f64::NAN;
            values[1] = f64::INFINITY;
            let x = Array::from_f64(dtype, &shape, &values).unwrap();
            let op = ops::Softmax {
                axis: 0,
                log: false,
            };
            assert_close(&both(op, &[fact], &[x]), 1e-12);
        }
    }
}

/// The network of the digits example is evaluated in seconds, not minutes.
#[test]
fn a_small_network_is_evaluated_quickly() {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let mut input = |shape: &[i64]| b.input(Fact::new(DType::F32, shape.to_vec()), Role::Data);
    let x = input(&[1797, 1, 8, 8]);
    let weights = [input(&[8, 1, 3, 3]), input(&[16, 8, 3, 3])];
    let dense = [input(&[256, 64]), input(&[64, 10])];
    let mut y = x;
    for w in weights {
        y = b.op(conv(1, (1, 1), 1, 1, 2), &[y, w]).unwrap();
        y = b.pointwise(Pw::Relu, &[y]).unwrap();
    }
    let pool = ops::WindowReduce {
        kind: Reduction::Max,
        kernel: [2, 2].into_iter().collect(),
        stride: [2, 2].into_iter().collect(),
        padding: vec![(0, 0); 2],
        dilation: [1, 1].into_iter().collect(),
    };
    y = b.op(pool, &[y]).unwrap();
    y = b.reshape(&y, &dims(&[1797, 256])).unwrap();
    for w in dense {
        y = b.op(ops::MatMul {}, &[y, w]).unwrap();
    }
    graph.add_output(y);
    let inputs: Vec<Array> = graph
        .inputs()
        .iter()
        .map(|id| {
            let shape: Vec<usize> = graph
                .node(*id)
                .fact()
                .shape
                .iter()
                .map(|d| d.as_const().unwrap() as usize)
                .collect();
            let n = shape.iter().product();
            f32s(&shape, &vec![0.01; n])
        })
        .collect();
    let start = std::time::Instant::now();
    let y = evaluate(&graph, &inputs, &[], Mode::Rounded).unwrap();
    assert_eq!(y[0].shape(), [1797, 10]);
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}
