//! The reference's tolerance where floats become discrete.

use kiln_ir::eval::{Array, Mode, Oracle, evaluate};
use kiln_ir::fuzz::Rng;
use kiln_ir::{Graph, NodeId};

/// Programs that continue from sums of products, `%3`, and a matrix of the same shape, `%2`.
const PROGRAMS: [(&str, &str); 8] = [
    (
        "quantised",
        "%4: $[64, 50] = round %3
         %5: i8[64, 50] = cast %4
         return %5",
    ),
    (
        "truncated",
        "%4: i32[64, 50] = cast %3
         return %4",
    ),
    (
        "compared",
        "%4: bool[64, 50] = gt %3, %2
         return %4",
    ),
    (
        "remainder",
        "%4: $[64, 50] = remainder %3, %2
         return %4",
    ),
    (
        "largest",
        "%4: i64[64] = arg_reduce(kind: Max, axis: 1) %3
         return %4",
    ),
    (
        "sorted",
        "%4: i64[64, 50] = arg_sort(axis: 1, descending: false, first: None) %3
         return %4",
    ),
    (
        "quantised twice",
        "%4: $[64, 50] = round %3
         %5: $[50, 64] = permute(perm: [1, 0]) %4
         %6: $[50, 40] = matmul %5, %0
         %7: $[50, 40] = round %6
         return %7",
    ),
    (
        "summed",
        "%4: bool[64, 50] = ge %3, %2
         %5: $[64, 50] = select %4, %3, %2
         %6: $[64, 50] = floor %5
         %7: $[64] = reduce(kind: Sum, axes: [1]) %6
         return %7",
    ),
];

fn program(text: &str, dtype: &str) -> Graph {
    let text = format!(
        "graph {{
         %0: $[64, 40] = input(index: 0, role: Data)
         %1: $[40, 50] = input(index: 1, role: Data)
         %2: $[64, 50] = input(index: 2, role: Data)
         %3: $[64, 50] = matmul %0, %1
         {text}
         }}"
    );
    Graph::parse(&text.replace('$', dtype)).unwrap()
}

/// Inputs from −1 to 1.
fn inputs(graph: &Graph, seed: u64) -> Vec<Array> {
    let mut rng = Rng::new(seed);
    let input = |id: NodeId| {
        let fact = graph.fact(id.value());
        let shape: Vec<usize> = fact.shape.iter().map(|d| d.eval(&[]) as usize).collect();
        let n = shape.iter().product();
        let values: Vec<f64> = (0..n).map(|_| 2.0 * rng.unit() - 1.0).collect();
        Array::from_f64(fact.dtype, &shape, &values).unwrap()
    };
    graph.inputs().into_iter().map(input).collect()
}

/// An engine's result is right whichever way its floats were rounded.
#[test]
fn floats_near_edges_may_cross_them() {
    for (name, text) in PROGRAMS {
        let mut crossed = 0;
        let narrow = (6..10).flat_map(|seed| [("f16", seed), ("bf16", seed)]);
        for (dtype, seed) in [("f32", 0), ("f32", 1)].into_iter().chain(narrow) {
            let graph = program(text, dtype);
            let inputs = inputs(&graph, seed);
            let oracle = Oracle::new(&graph, &inputs, 1.0).unwrap();
            let right = evaluate(&graph, &inputs, &[], Mode::Rounded).unwrap();
            for seed in 100..110 {
                let mode = Mode::Stochastic { seed };
                let got = evaluate(&graph, &inputs, &[], mode).unwrap();
                let found = oracle.compare(0, &got[0]).unwrap();
                assert!(found.is_right(), "{name} {dtype} {seed}: {found:?}");
                crossed += usize::from(got[0].to_f64() != right[0].to_f64());
            }
        }
        assert!(crossed > 0, "{name}: no float crosses an edge");
    }
}

/// A result that is wrong where no float is near an edge is found.
#[test]
fn other_results_are_wrong() {
    let mut rng = Rng::new(5);
    for (name, text) in PROGRAMS {
        let graph = program(text, "f32");
        for seed in 0..4 {
            let inputs = inputs(&graph, seed);
            let oracle = Oracle::new(&graph, &inputs, 1.0).unwrap();
            let right = evaluate(&graph, &inputs, &[], Mode::Rounded)
                .unwrap()
                .remove(0);
            assert!(oracle.compare(0, &right).unwrap().is_right(), "{name}");
            let mut found = 0;
            for _ in 0..20 {
                let mut values = right.to_f64();
                let at = rng.below(values.len());
                values[at] = if values[at] == 0.0 {
                    1.0
                } else {
                    values[at] - values[at].signum()
                };
                let wrong = Array::from_f64(right.dtype(), right.shape(), &values).unwrap();
                found += usize::from(!oracle.compare(0, &wrong).unwrap().is_right());
            }
            assert!(found >= 10, "{name} {seed}: {found} of 20");
        }
    }
}

/// Floats that are compared with themselves are equal however they were rounded. Zeros that every run gives are
/// zeros, and inputs are exact.
#[test]
fn what_is_not_near_an_edge_stays() {
    for text in [
        "%1: f32[40, 50] = exp %0
         %2: f32[40] = reduce(kind: Max, axes: [1]) %1
         %3: f32[40, 1] = reshape %2
         %4: f32[40, 50] = broadcast %3
         %5: bool[40, 50] = eq %1, %4
         return %5",
        "%1: f32[40, 50] = sin %0
         %2: f32[40, 50] = relu %1
         %3: f32[40, 50] = sign %2
         return %3",
        "%1: f32[40, 50] = relu %0
         %2: f32[40, 50] = sign %1
         return %2",
    ] {
        let text = format!("graph {{\n%0: f32[40, 50] = input(index: 0, role: Data)\n{text}\n}}");
        let graph = Graph::parse(&text).unwrap();
        let inputs = inputs(&graph, 1);
        let oracle = Oracle::new(&graph, &inputs, 1.0).unwrap();
        let right = evaluate(&graph, &inputs, &[], Mode::Rounded)
            .unwrap()
            .remove(0);
        let values = right.to_f64();
        for at in 0..values.len() {
            let mut values = values.clone();
            values[at] = 1.0 - values[at];
            let wrong = Array::from_f64(right.dtype(), right.shape(), &values).unwrap();
            let found = oracle.compare(0, &wrong).unwrap();

            assert!(!found.is_right(), "element {at} of\n{graph}");
        }
    }
}
