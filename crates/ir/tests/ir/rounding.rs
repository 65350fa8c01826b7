//! Floats that the reference rounds.

use kiln_base::round_float;
use kiln_ir::eval::{Array, Mode, evaluate};
use kiln_ir::{DType, Graph};

/// The result of a graph of f64 vectors `%0` and `%1` of length `n`.
fn result(n: usize, body: &str, inputs: [&[f64]; 2], mode: Mode) -> Vec<f64> {
    let text = format!(
        "graph {{
            %0: f64[{n}] = input(index: 0, role: Data)
            %1: f64[{n}] = input(index: 1, role: Data)
            {body}
        }}"
    );
    let graph = Graph::parse(&text).unwrap();
    let array = |x: &[f64]| Array::from_f64(DType::F64, &[n], x).unwrap();
    let results = evaluate(&graph, &inputs.map(array), &[], mode).unwrap();
    results[0].floats().unwrap().to_vec()
}

#[test]
fn floor_division_is_pythons() {
    let operands: [&[f64]; 2] = [&[7.0, -7.0, 1.0, 1.0], &[2.0, 2.0, 0.1, 0.0]];
    let body = "%2: f64[4] = floor_divide %0, %1
        return %2";
    let found = result(4, body, operands, Mode::Exact);
    assert_eq!(found, [3.0, -4.0, 9.0, f64::INFINITY]);
}

/// `n` casts of `x` to a dtype.
fn casts(x: f64, dtype: DType, n: usize) -> Vec<f64> {
    let body = format!(
        "%2: {dtype}[{n}] = cast %0
        return %2"
    );
    let x = vec![x; n];
    result(n, &body, [&x, &x], Mode::Stochastic { seed: 7 })
}

/// The mean of many roundings is the number, and each is a neighbour.
#[test]
fn roundings_are_neighbours_and_unbiased() {
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for x in [0.3, -1.7, 1023.4, -6.1e-6, 1e-7, 1.0001] {
            let near = round_float(x, dtype);
            let all = casts(x, dtype, 4000);
            let (low, high) = all
                .iter()
                .fold((f64::MAX, f64::MIN), |(l, h), y| (l.min(*y), h.max(*y)));
            assert!(
                low <= x && x <= high || low == high && near == low,
                "{dtype} {x}"
            );
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            assert!(
                (mean - x).abs() <= 0.05 * (high - low).max(1e-8),
                "{dtype} {x} {mean}"
            );
            assert!(all.iter().all(|y| *y == low || *y == high), "{dtype} {x}");
            assert!(low == near || high == near, "{dtype} {x}");
        }
        for x in [0.0, 1.0, -2.5, f64::INFINITY, 2f64.powi(-24)] {
            assert_eq!(casts(x, dtype, 4), [x; 4]);
        }
        assert!(casts(f64::NAN, dtype, 1)[0].is_nan());
    }
    assert_eq!(casts(65519.0, DType::F16, 1)[0].min(65504.0), 65504.0);
}
