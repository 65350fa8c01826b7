//! The rows whose result is one of their operands.

use crate::eval::{Array, Data};
use crate::{Builder, Fact, Graph, GraphBuilder, Loc, Pw, Role, ops};
use kiln_base::DType;

/// Returns the maxima, minima and clamps of every pair of −0, 0, ±1, ±∞ and NaN in a float dtype, with the inputs and
/// each result's row. The results tell the signs of zeros.
pub fn extremes(dtype: DType) -> (Graph, [Array; 2], Vec<Pw>) {
    let numbers = [
        -0.0,
        0.0,
        -1.0,
        1.0,
        f64::NEG_INFINITY,
        f64::INFINITY,
        f64::NAN,
    ];
    let pairs = || numbers.iter().flat_map(|x| numbers.map(|y| (*x, y)));
    let array = |data| Array::new(dtype, &[49], Data::Float(data)).expect("49 numbers");
    let inputs = [
        array(pairs().map(|p| p.0).collect()),
        array(pairs().map(|p| p.1).collect()),
    ];
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let [x, y] = [(); 2].map(|()| b.input(Fact::new(dtype, [49]), Role::Data));
    let (mut results, mut rows) = (Vec::new(), Vec::new());
    let mut add = |b: &mut GraphBuilder<'_>, row: Pw, operands: &[_]| {
        results.push(b.op(ops::Pointwise(row), operands).expect("floats"));
        rows.push(row);
    };
    for row in [Pw::Maximum, Pw::Minimum, Pw::Fmax, Pw::Fmin] {
        add(&mut b, row, &[x, y]);
        for number in [-0.0, 0.0, 1.0] {
            let number = b.full(number, dtype, &[49.into()]).expect("a constant");
            add(&mut b, row, &[x, number]);
            add(&mut b, row, &[number, x]);
        }
    }
    let [low, high] = [-0.0, 0.0].map(|n| b.full(n, dtype, &[49.into()]).expect("a constant"));
    for row in [Pw::Clamp, Pw::Clip] {
        add(&mut b, row, &[x, y, high]);
        add(&mut b, row, &[x, low, y]);
        add(&mut b, row, &[x, high, low]);
    }
    add(&mut b, Pw::Relu, &[x]);
    add(&mut b, Pw::Relu6, &[x]);
    results.into_iter().for_each(|r| graph.add_output(r));
    (graph, inputs, rows)
}

/// Returns the bits of an array's numbers as f64, the same for every NaN.
pub fn bits(array: &Array) -> Vec<u64> {
    let canonical = |x: f64| if x.is_nan() { f64::NAN } else { x };
    array
        .to_f64()
        .into_iter()
        .map(|x| canonical(x).to_bits())
        .collect()
}
