//! Scans, sorting, scattering and attention against values worked out by hand.

use kiln_base::prim::{ScanKind, ScatterKind};
use kiln_base::{DType, Dim, Scalar};
use kiln_ir::eval::{Array, Data, Mode, Problem, eval_op, evaluate};
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, Op, Role, Value, ops};

fn floats(shape: &[usize], values: &[f64]) -> Array {
    Array::from_f64(DType::F64, shape, values).unwrap()
}

fn ints(shape: &[usize], values: &[i64]) -> Array {
    Array::from_i64(DType::I64, shape, values).unwrap()
}

fn eval(op: impl Into<Op>, inputs: &[&Array]) -> Array {
    let outputs = eval_op(&op.into(), inputs, &[], Mode::Rounded);
    outputs.unwrap().remove(0)
}

/// Equal with NaN equal to NaN.
fn assert_same(got: &Array, wanted: &[f64]) {
    let same = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan();
    let got = got.to_f64();
    assert!(
        got.len() == wanted.len() && got.iter().zip(wanted).all(same),
        "{got:?} is not {wanted:?}"
    );
}

fn scan(kind: ScanKind, reverse: bool, x: &Array) -> Array {
    let axis = x.shape().len() - 1;
    eval(
        ops::Scan {
            kind,
            axis,
            reverse,
        },
        &[x],
    )
}

#[test]
fn scans_keep_what_they_passed() {
    let x = floats(&[2, 3], &[1.0, 2.0, 3.0, 4.0, f64::NAN, 6.0]);
    let nan = f64::NAN;
    assert_same(
        &scan(ScanKind::Sum, false, &x),
        &[1.0, 3.0, 6.0, 4.0, nan, nan],
    );
    assert_same(
        &scan(ScanKind::Sum, true, &x),
        &[6.0, 5.0, 3.0, nan, nan, 6.0],
    );
    assert_same(
        &scan(ScanKind::Prod, false, &x),
        &[1.0, 2.0, 6.0, 4.0, nan, nan],
    );
    assert_same(
        &scan(ScanKind::Min, false, &x),
        &[1.0, 1.0, 1.0, 4.0, nan, nan],
    );
    let op = ops::Scan {
        kind: ScanKind::Max,
        axis: 0,
        reverse: false,
    };
    assert_same(&eval(op, &[&x]), &[1.0, 2.0, 3.0, 4.0, nan, 6.0]);
    let wrapped = Array::from_i64(DType::U8, &[3], &[200, 100, 1]).unwrap();
    assert_eq!(
        scan(ScanKind::Sum, false, &wrapped).ints(),
        Some(&[200, 44, 45][..])
    );
}

#[test]
fn log_sum_exp_scans_survive_infinities() {
    let inf = f64::INFINITY;
    let x = floats(&[4], &[-inf, -inf, 1000.0, 1000.0]);
    let got = scan(ScanKind::LogSumExp, false, &x);
    assert_same(&got, &[-inf, -inf, 1000.0, 1000.0 + 2f64.ln()]);
    let x = floats(&[3], &[inf, 1.0, f64::NAN]);
    let got = scan(ScanKind::LogSumExp, false, &x);
    assert_same(&got, &[inf, inf, f64::NAN]);
}

#[test]
fn sorting_is_stable_and_puts_nan_last() {
    let x = floats(&[6], &[2.0, f64::NAN, -0.0, 0.0, f64::NEG_INFINITY, 2.0]);
    let order = |descending, first: Option<usize>| {
        let op = ops::ArgSort {
            axis: 0,
            descending,
            first: first.map(Dim::from),
        };
        eval(op, &[&x]).ints().unwrap().to_vec()
    };
    assert_eq!(order(false, None), [4, 2, 3, 0, 5, 1]);
    assert_eq!(order(true, None), [1, 0, 5, 2, 3, 4]);
    assert_eq!(order(true, Some(2)), [1, 0]);
    assert_eq!(order(true, Some(0)), []);
    let columns = ints(&[3, 2], &[3, 1, 2, 2, 1, 3]);
    let op = ops::ArgSort {
        axis: 0,
        descending: false,
        first: Some(Dim::from(2)),
    };
    assert_eq!(eval(op, &[&columns]).ints(), Some(&[2, 0, 1, 1][..]));
}

#[test]
fn scatters_combine_in_order() {
    let zeros = floats(&[3, 3], &[0.0; 9]);
    let src = floats(&[3, 4], &(1..=12).map(f64::from).collect::<Vec<_>>());
    let index = ints(&[3, 4], &[1, 1, 1, 1, 2, 0, 1, 2, 2, 0, 1, 2]);
    let scatter = |kind| eval(ops::Scatter { axis: 1, kind }, &[&zeros, &index, &src]);
    assert_same(
        &scatter(ScatterKind::Set),
        &[0.0, 4.0, 0.0, 6.0, 7.0, 8.0, 10.0, 11.0, 12.0],
    );
    assert_same(
        &scatter(ScatterKind::Sum),
        &[0.0, 10.0, 0.0, 6.0, 7.0, 13.0, 10.0, 11.0, 21.0],
    );
    assert_same(&scatter(ScatterKind::Prod), &[0.0; 9]);
    assert_same(&scatter(ScatterKind::Min), &[0.0; 9]);
    assert_same(
        &scatter(ScatterKind::Max),
        &[0.0, 4.0, 0.0, 6.0, 7.0, 8.0, 10.0, 11.0, 12.0],
    );
    let op = ops::Scatter {
        axis: 1,
        kind: ScatterKind::Set,
    };
    let wild = ints(&[1, 1], &[3]);
    let one = floats(&[1, 1], &[1.0]);
    let e = eval_op(&op.into(), &[&zeros, &wild, &one], &[], Mode::Rounded).unwrap_err();
    assert!(matches!(
        e.problem,
        Problem::Index {
            index: 3,
            bound: 3,
            ..
        }
    ));
}

#[test]
fn attention_is_its_decomposition() {
    let mut rng = Rng::new(11);
    for dtype in [DType::F16, DType::F32, DType::F64] {
        for (batch, l, s, e, v) in [(2, 3, 5, 4, 2), (1, 1, 0, 3, 2), (3, 4, 4, 1, 0)] {
            for (causal, mask) in [
                (false, None),
                (true, None),
                (false, Some(DType::Bool)),
                (false, Some(dtype)),
            ] {
                let shapes = [[batch, l, e], [batch, s, e], [batch, s, v], [batch, l, s]];
                let dtypes = [Some(dtype), Some(dtype), Some(dtype), mask];
                let mut inputs: Vec<Array> = shapes
                    .iter()
                    .zip(dtypes)
                    .filter_map(|(shape, dtype)| Some((shape, dtype?)))
                    .map(|(shape, dtype)| {
                        let n = shape.iter().product();
                        let values: Vec<f64> = (0..n).map(|_| rng.unit() * 3.0 - 1.5).collect();
                        Array::from_f64(dtype, shape, &values).unwrap()
                    })
                    .collect();
                let scale = Scalar::Float(0.7);
                let op = ops::Attention {
                    scale,
                    causal,
                    dropout: None,
                };
                let same = |op, inputs: &[Array]| {
                    let [whole, parts] = both(op, inputs).map(|x| x.to_f64());
                    for (a, b) in whole.iter().zip(&parts) {
                        assert!((a - b).abs() <= 1e-6, "{a} is not {b}");
                    }
                    whole
                };
                let all = same(op, &inputs);
                let key = Data::Int(vec![-5, 7]);
                inputs.push(Array::new(DType::I64, &[2], key).unwrap());
                let dropout = Some(Scalar::Float(0.4));
                let some = same(ops::Attention { dropout, ..op }, &inputs);
                assert!(all.len() < 8 || all != some);
            }
        }
    }
}

#[test]
fn a_query_without_keys_gives_zeros() {
    let x = floats(&[1, 1], &[1.0]);
    let nothing = Array::new(DType::Bool, &[1, 1], Data::Int(vec![0])).unwrap();
    let inputs = [x.clone(), x.clone(), x, nothing];
    let op = ops::Attention {
        scale: Scalar::Float(1.0),
        causal: false,
        dropout: None,
    };
    for y in both(op, &inputs) {
        assert_same(&y, &[0.0]);
    }
}

/// A composite evaluated whole and in parts.
fn both(op: ops::Attention, inputs: &[Array]) -> [Array; 2] {
    [true, false].map(|whole| {
        let mut graph = Graph::default();
        let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
        let operands: Vec<Value> = inputs
            .iter()
            .map(|x| Fact::new(x.dtype(), x.shape().iter().copied()))
            .map(|fact| b.input(fact, Role::Data))
            .collect();
        let y = if whole {
            b.op(op, &operands).unwrap()
        } else {
            Op::from(op).decompose(&mut b, &operands).unwrap().unwrap()
        };
        graph.add_output(y);
        evaluate(&graph, inputs, &[], Mode::Exact)
            .unwrap()
            .remove(0)
    })
}
