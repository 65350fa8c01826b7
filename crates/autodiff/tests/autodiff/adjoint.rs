//! The three ops of a convolution are each other's transposes: ⟨conv(x, w), y⟩ = ⟨x, transpose(y, w)⟩ = ⟨w, weight(x,
//! y)⟩, evaluated directly and by their decompositions.

use kiln_base::{DType, Dim};
use kiln_ir::eval::{Array, Mode, evaluate};
use kiln_ir::fuzz::Rng;
use kiln_ir::ops::{Axes, Conv, ConvTranspose, ConvWeight};
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, Op, Role, Shape};

fn random(rng: &mut Rng, shape: &[usize]) -> Array {
    let n = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|_| rng.unit() * 2.0 - 1.0).collect();
    Array::from_f64(DType::F64, shape, &values).unwrap()
}

/// The op's result, evaluated directly and through its decomposition.
fn both(op: impl Into<Op>, inputs: &[&Array]) -> [Array; 2] {
    let op = op.into();
    [true, false].map(|whole| {
        let mut graph = Graph::default();
        let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
        let fact = |x: &&Array| Fact::new(x.dtype(), x.shape().iter().copied());
        let values: Vec<_> = inputs
            .iter()
            .map(|x| b.input(fact(x), Role::Data))
            .collect();
        let y = match whole {
            true => b.op(op.clone(), &values).unwrap(),
            false => op.decompose(&mut b, &values).unwrap().unwrap(),
        };
        graph.add_output(y);
        let arrays: Vec<Array> = inputs.iter().map(|x| (*x).clone()).collect();
        evaluate(&graph, &arrays, &[], Mode::Exact)
            .unwrap()
            .remove(0)
    })
}

fn dot(a: &Array, b: &Array) -> f64 {
    assert_eq!(a.shape(), b.shape());
    a.to_f64().iter().zip(b.to_f64()).map(|(a, b)| a * b).sum()
}

#[test]
fn partners_are_adjoint() {
    let mut rng = Rng::new(9);
    let mut tried = 0;
    for _ in 0..300 {
        let spatial = 1 + rng.below(2);
        let groups = 1 + rng.below(2);
        let (n, c, o) = (rng.below(3), 1 + rng.below(2), 1 + rng.below(2));
        let list = |rng: &mut Rng, low: usize, high: usize| -> Axes {
            (0..spatial)
                .map(|_| low + rng.below(high - low + 1))
                .collect()
        };
        let conv = Conv {
            stride: list(&mut rng, 1, 3),
            padding: (0..spatial).map(|_| (rng.below(4), rng.below(4))).collect(),
            dilation: list(&mut rng, 1, 3),
            groups,
        };
        let (input, kernel) = (list(&mut rng, 1, 9), list(&mut rng, 1, 4));
        let shape = |lead: [usize; 2], rest: &Axes| -> Vec<usize> {
            lead.into_iter().chain(rest.iter().copied()).collect()
        };
        let x = random(&mut rng, &shape([n, groups * c], &input));
        let w = random(&mut rng, &shape([groups * o, c], &kernel));
        let fact = |a: &Array| Fact::new(a.dtype(), a.shape().iter().copied());
        let Ok(facts) = Op::from(conv.clone()).infer(&[&fact(&x), &fact(&w)]) else {
            continue;
        };
        tried += 1;
        let y_shape: Vec<usize> = facts[0]
            .shape
            .iter()
            .map(|d| d.as_const().unwrap() as usize)
            .collect();
        let y = random(&mut rng, &y_shape);
        let through = evaluate_conv(&conv, &x, &w);
        let wanted = dot(&through, &y);
        let extents: Shape = input.iter().map(|n| Dim::from(*n)).collect();
        let transpose = ConvTranspose {
            conv: conv.clone(),
            input: extents,
        };
        for dx in both(transpose, &[&y, &w]) {
            assert!(
                (dot(&dx, &x) - wanted).abs() < 1e-9,
                "{conv:?} {:?}",
                x.shape()
            );
        }
        for dw in both(
            ConvWeight {
                conv: conv.clone(),
                kernel: kernel.clone(),
            },
            &[&x, &y],
        ) {
            assert!(
                (dot(&dw, &w) - wanted).abs() < 1e-9,
                "{conv:?} {:?}",
                x.shape()
            );
        }
    }
    assert!(tried > 100, "{tried}");
}

fn evaluate_conv(conv: &Conv, x: &Array, w: &Array) -> Array {
    let op = Op::from(conv.clone());
    kiln_ir::eval::eval_op(&op, &[x, w], &[], Mode::Exact)
        .unwrap()
        .remove(0)
}
