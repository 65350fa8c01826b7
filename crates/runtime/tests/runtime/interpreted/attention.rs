//! Attention of f16, bf16 and f32 and its gradients; the machine code is interpreted.

use super::programs::run;
use kiln_base::{DType, Features, Scalar};
use kiln_compiler::Options;
use kiln_ir::eval::{Array, Mode, evaluate};
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, OpError, Role, ops};
use kiln_testkit::oracle::Engine;
use std::ops::Range;

/// Query rows, keys, width, and columns of the value; there are two matrices.
type Sizes = [usize; 4];

/// Odd and even sizes, more keys than a block has, and more rows than a block has.
const SIZES: [Sizes; 6] = [
    [1, 9, 16, 16],
    [7, 33, 5, 3],
    [19, 301, 8, 20],
    [130, 40, 4, 17],
    [5, 513, 2, 2],
    [33, 70, 64, 48],
];

fn graph([l, s, e, v]: Sizes, dtype: DType, causal: bool, derived: bool) -> Result<Graph, OpError> {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let mut input = |rows, columns| b.input(Fact::new(dtype, [2, rows, columns]), Role::Data);
    let mut operands = vec![input(l, e), input(s, e), input(s, v)];
    let scale = Scalar::Float(1.0 / (e as f64).sqrt());
    let of = ops::Attention {
        scale,
        causal,
        dropout: None,
    };
    let y = match derived {
        true => {
            operands.push(input(l, v));
            b.op(ops::AttentionGrad { of }, &operands)?
        }
        false => b.op(of, &operands)?,
    };
    graph.add_output(y);
    Ok(graph)
}

/// The error that results may have, as a part of the largest: for f32 a few roundings of a sum. f16 and bf16 are
/// rounded as results and, where pairs of them are multiplied, as weights: each by half a unit in the last place.
fn close(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 2.0 / 256.0,
        DType::F16 => 2.0 / 2048.0,
        _ => 4e-6,
    }
}

fn check(sizes: Sizes, dtype: DType, level: Features, causal: bool) {
    for derived in [false, true] {
        let graph = graph(sizes, dtype, causal, derived).unwrap();
        let mut rng = Rng::new(7);
        let mut numbers = |shape: &[usize]| {
            let n = shape.iter().product();
            let values: Vec<f64> = (0..n).map(|_| rng.range(-32, 32) as f64 / 16.0).collect();
            Array::from_f64(dtype, shape, &values).unwrap()
        };
        let [l, s, e, v] = sizes;
        let shapes = [[2, l, e], [2, s, e], [2, s, v], [2, l, v]];
        let count = if derived { 4 } else { 3 };
        let inputs: Vec<Array> = shapes[..count].iter().map(|s| numbers(s)).collect();
        let want = evaluate(&graph, &inputs, &[], Mode::Exact).unwrap();
        let want = want[0].to_f64();
        let parts: Vec<Range<usize>> = match derived {
            true => {
                let ends = [0, 2 * l * e, 2 * (l + s) * e, want.len()];
                ends.windows(2).map(|w| w[0]..w[1]).collect()
            }
            false => std::iter::once(0..want.len()).collect(),
        };
        let engine = Engine::new(&graph, &Options::default()).unwrap();
        let plan = engine.executable.plan().clone();
        let about =
            format!("{sizes:?} of {dtype} at {level:?}, causal {causal}, derived {derived}");
        let calls = run(plan, &inputs, level, &mut |outputs| {
            let found = outputs[0].to_f64();
            for part in &parts {
                let (found, want) = (&found[part.clone()], &want[part.clone()]);
                let most = want.iter().fold(1.0f64, |m, x| m.max(x.abs()));
                for (i, (x, y)) in found.iter().zip(want).enumerate() {
                    let near = (x - y).abs() <= close(dtype) * most;
                    if !near {
                        return Err(format!("{i} is {x}, not {y}"));
                    }
                }
            }
            Ok(())
        });
        let calls = calls.unwrap_or_else(|e| panic!("{about}: {e}"));
        let prints = cfg!(all(target_arch = "x86_64", not(portable), unix));
        assert!(calls > 0 || !prints, "{about}: nothing is printed");
    }
}

#[test]
fn attention_that_is_interpreted_gives_what_f64_gives() {
    for sizes in SIZES {
        for causal in [false, true] {
            for level in [
                Features::AVX2,
                Features::AVX512,
                Features::AVX512_BF16,
                Features::AMX,
            ] {
                check(sizes, DType::BF16, level, causal);
            }
            check(sizes, DType::F32, Features::AVX512, causal);
            check(sizes, DType::F16, Features::AVX512_BF16, causal);
            check(sizes, DType::F16, Features::AMX_FP16, causal);
        }
    }
}
