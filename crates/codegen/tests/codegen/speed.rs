//! Lowering stays fast as graphs grow.

use crate::run::lower_checked;
use kiln_base::DType;
use kiln_codegen::{Options, lower};
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, Pw, Role, ops};
use std::time::{Duration, Instant};

/// Returns a stack of layers in the shape of a transformer, without attention.
fn stack(layers: usize) -> Graph {
    let mut g = Graph::default();
    let mut b = GraphBuilder::new(&mut g, Loc::UNKNOWN);
    let mut x = b.input(Fact::new(DType::F32, [32, 64]), Role::Data);
    for _ in 0..layers {
        let w = b.input(Fact::new(DType::F32, [64, 64]), Role::Parameter);
        let bias = b.input(Fact::new(DType::F32, [64]), Role::Parameter);
        let sum = b
            .reduce_keepdim(kiln_base::prim::Reduction::Sum, &x, &[1])
            .unwrap();
        let scale = b.scalar_like(1.0 / 64.0, &sum).unwrap();
        let mean = b.pointwise(Pw::Mul, &[sum, scale]).unwrap();
        let centred = b.pointwise(Pw::Sub, &[x, mean]).unwrap();
        let square = b.pointwise(Pw::Square, &[centred]).unwrap();
        let var = b
            .reduce_keepdim(kiln_base::prim::Reduction::Sum, &square, &[1])
            .unwrap();
        let inverse_std = b.pointwise(Pw::Rsqrt, &[var]).unwrap();
        let normal = b.pointwise(Pw::Mul, &[centred, inverse_std]).unwrap();
        let y = b.op(ops::MatMul {}, &[normal, w]).unwrap();
        let y = b.pointwise(Pw::Add, &[y, bias]).unwrap();
        let y = b.pointwise(Pw::Gelu, &[y]).unwrap();
        x = b.pointwise(Pw::Add, &[x, y]).unwrap();
    }
    g.add_output(x);
    g
}

#[test]
fn a_thousand_nodes_lower_quickly() {
    let graph = stack(56);
    assert!(graph.len() >= 1000, "{}", graph.len());
    let program = lower_checked(&graph, &Options::default());
    // The first normalisation, and products with the work between them.
    assert_eq!(program.tasks.len(), 1 + 56);
    let fastest = (0..5)
        .map(|_| {
            let start = Instant::now();
            lower(&graph, &Options::default()).unwrap();
            start.elapsed()
        })
        .min();
    // A generous bound, which only quadratic algorithms exceed.
    assert!(fastest < Some(Duration::from_millis(100)), "{fastest:?}");
    if std::env::var("KILN_SHOW").is_ok() {
        println!("{fastest:?} for {} nodes", graph.len());
    }
}
