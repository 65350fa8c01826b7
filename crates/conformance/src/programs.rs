//! Random programs and their gradients: an engine gives what the reference gives.

use crate::oracle::{Engine, Oracle};
use kiln_autodiff::gradients;
use kiln_base::plan::Role;
use kiln_compiler::Options;
use kiln_ir::fuzz::random_inputs;
use kiln_ir::{Builder, Graph, GraphBuilder, Loc, Op, Value};

/// The rewrites that must fire in at least 1% of the programs.
pub const RULES: [&str; 10] = [
    "dead_code",
    "unread_loop_value",
    "identity_view",
    "reshape_of_reshape",
    "broadcast_of_broadcast",
    "permute_of_permute",
    "full_fold",
    "constant_fold",
    "common_subexpression",
    "conv_batch_norm",
];

/// Programs whose gradients an engine rightly gives in another way than the reference.
pub const OTHERWISE: [u64; 2] = [
    261, // taken at a kink, which rounding reaches from another side
    423, // a sum that is zero for all finite data, of data that are not finite
];

/// Neither rewrites nor fusion.
pub fn plain() -> Options {
    Options {
        optimize: false,
        fuse: false,
        ..Options::default()
    }
}

/// Runs a program compiled in each of these ways and compares it with the reference; gives the rewrites that
/// fired.
///
/// # Errors
/// What is wrong, and compiled how.
pub fn check(graph: &Graph, seed: u64, ways: &[Options]) -> Result<Vec<&'static str>, String> {
    let oracle = Oracle::new(graph, random_inputs(graph, seed));
    let mut fired = Vec::new();
    for options in ways {
        let how = if options.fuse { "fused" } else { "plain" };
        let engine = Engine::new(graph, options).map_err(|e| format!("{how}: {e}"))?;
        // The second run meets prepared values and a used arena.
        for _ in 0..2 {
            let outputs = engine
                .run(&oracle.inputs)
                .map_err(|e| format!("{how}: {e}"))?;
            oracle.check(&outputs).map_err(|e| format!("{how}: {e}"))?;
        }
        fired.extend(engine.explain.counts.iter().map(|(rule, _)| *rule));
    }
    Ok(fired)
}

/// The graph with the gradients of its float inputs as outputs; `None` where nothing flows.
pub fn differentiated(mut graph: Graph) -> Option<Graph> {
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
