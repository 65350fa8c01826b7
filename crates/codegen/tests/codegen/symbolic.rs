//! Symbolic sizes lower to the same results as known ones, and lowering is deterministic.

use crate::run::{Engine, decompose, lower_checked, run};
use kiln_base::{DType, Dim, Sym};
use kiln_codegen::Options;
use kiln_ir::eval::{Array, Mode, evaluate};
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, Pw, Role, SymbolInfo, ops};

/// A small network over a batch.
fn network(batch: Dim) -> Graph {
    let mut g = Graph::default();
    if batch.as_const().is_none() {
        g.symbols.push(SymbolInfo {
            name: "batch".into(),
            min: 2,
        });
    }
    let mut b = GraphBuilder::new(&mut g, Loc::UNKNOWN);
    let twelve = Dim::Const(12);
    let x = b.input(
        Fact::new(DType::F32, [batch.clone(), twelve.clone()]),
        Role::Data,
    );
    let w = b.input(Fact::new(DType::F32, [12, 12]), Role::Parameter);
    let y = b.op(ops::MatMul {}, &[x, w]).unwrap();
    let y = b.pointwise(Pw::Tanh, &[y]).unwrap();
    let y = b
        .reshape(&y, &[batch.clone(), Dim::Const(3), Dim::Const(4)])
        .unwrap();
    let perm = [0, 2, 1].into_iter().collect();
    let y = b.op(ops::Permute { perm }, &[y]).unwrap();
    let y = b
        .reshape(&y, &[&batch * &Dim::Const(4), Dim::Const(3)])
        .unwrap();
    let y = b
        .op(
            ops::Softmax {
                axis: 1,
                log: false,
            },
            &[y],
        )
        .unwrap();
    let y = b.reshape(&y, &[batch, twelve]).unwrap();
    let y = b.pointwise(Pw::Add, &[y, x]).unwrap();
    g.add_output(y);
    decompose(&g)
}

#[test]
fn symbolic_batches_equal_known_ones() {
    let symbolic = network(Dim::symbol(Sym(0)));
    for n in [2usize, 5] {
        let values: Vec<f64> = (0..12 * n)
            .map(|i| ((i * 7) % 11) as f64 * 0.1 - 0.5)
            .collect();
        let x = Array::from_f64(DType::F32, &[n, 12], &values).unwrap();
        let w: Vec<f64> = (0..144)
            .map(|i| ((i * 5) % 13) as f64 * 0.05 - 0.3)
            .collect();
        let w = Array::from_f64(DType::F32, &[12, 12], &w).unwrap();
        let inputs = [x, w];
        let known = network(Dim::from(n));
        let expected = evaluate(&known, &inputs, &[], Mode::Exact).unwrap();
        for (graph, symbols) in [(&symbolic, vec![n as i64]), (&known, vec![])] {
            let program = lower_checked(graph, &Options::default());
            assert!(program.tasks.len() <= 2, "{:?}", program.tasks);
            for engine in [Engine::Points, Engine::Tiles] {
                let got = run(&program, &inputs, &symbols, engine).unwrap();
                let got = got[0].as_ref().unwrap().to_f64();
                for (g, w) in got.iter().zip(expected[0].to_f64()) {
                    assert!((g - w).abs() < 1e-5, "{g} {w}");
                }
            }
        }
    }
}

#[test]
fn lowering_is_deterministic() {
    for seed in 0..20 {
        let config = kiln_ir::fuzz::Config {
            control_flow: false,
            ..Default::default()
        };
        let graph = decompose(&config.graph(seed));
        let print = || format!("{:?}", lower_checked(&graph, &Options::default()));
        assert_eq!(print(), print());
    }
}

/// Data errors are reported where an element is read, and nowhere else.
#[test]
fn excluded_points_report_no_data_error() {
    let text = "graph {
          %0: f32[3] = input(index: 0, role: Data)
          %1: i64[2] = input(index: 1, role: Data)
          %2: i64[2] = input(index: 2, role: Data)
          %3: i64[2] = floor_divide %1, %2
          %4: f32[2] = gather(axis: 0) %0, %3
          %5: f32[4] = pad(low: [1], high: [1], value: Float(9.0)) %4
          %6: f32[4] = exp %5
          return %6
        }";
    let graph = Graph::parse(text).unwrap();
    let x = Array::from_f64(DType::F32, &[3], &[0.0, 0.5, 1.0]).unwrap();
    let ints = |v: [i64; 2]| Array::from_i64(DType::I64, &[2], &v).unwrap();
    let program = lower_checked(&graph, &Options::default());
    assert_eq!(program.tasks.len(), 1);
    for engine in [Engine::Points, Engine::Tiles] {
        let ok = run(
            &program,
            &[x.clone(), ints([4, 3]), ints([2, 2])],
            &[],
            engine,
        )
        .unwrap();
        let ok = ok[0].as_ref().unwrap().to_f64();
        assert!((ok[1] - 1f64.exp()).abs() < 1e-6 && (ok[3] - 9f64.exp()).abs() < 1e-2);
        assert!(
            run(
                &program,
                &[x.clone(), ints([4, 3]), ints([2, 0])],
                &[],
                engine
            )
            .is_none()
        );
        assert!(
            run(
                &program,
                &[x.clone(), ints([9, 3]), ints([2, 1])],
                &[],
                engine
            )
            .is_none()
        );
    }
    let kinds: Vec<&str> = program.tasks[0]
        .sites
        .iter()
        .map(|s| s.op.as_str())
        .collect();
    assert_eq!(kinds, ["floor_divide", "gather"]);
}
