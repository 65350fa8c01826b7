//! Random programs and their gradients: an engine gives what the reference gives.

use crate::oracle::{Engine, Oracle};
use kiln_autodiff::gradients;
use kiln_base::Role;
use kiln_base::numel;
use kiln_compiler::Options;
use kiln_ir::eval::Array;
use kiln_ir::fuzz::random_inputs;
use kiln_ir::ops::Iota;
use kiln_ir::{Builder, Graph, GraphBuilder, Loc, Op, OpError, Pw, Value};

/// The rewrite that makes a sum zero, which is zero for all finite data, whatever the data.
const FOR_FINITE_DATA: &str = "zero_sum";

/// Neither rewrites nor fusion.
pub fn plain() -> Options {
    Options {
        optimize: false,
        fuse: false,
        ..Options::default()
    }
}

/// Whether a rewrite is of a pass that changes rounding. These are for finite parameters.
fn rounds(rule: &str) -> bool {
    let mut inexact = kiln_optimize::passes().iter().filter(|p| !p.exact);
    inexact.any(|p| p.rules().contains(&rule))
}

/// Runs a program compiled in each of these ways and compares it with the reference; gives the rewrites that
/// fired. Where one of these holds for finite parameters or data only, it is enough that the program is right
/// for such.
///
/// # Errors
/// What is wrong, and compiled how.
pub fn check(graph: &Graph, seed: u64, ways: &[Options]) -> Result<Vec<&'static str>, String> {
    check_by(graph, seed, ways, &|engine, oracle| {
        let outputs = engine.run(&oracle.inputs).map_err(|e| e.to_string())?;
        oracle.check(&outputs)
    })
}

/// Runs a compiled program on the inputs of an oracle, which judges it.
pub type Run<'a> = dyn Fn(&Engine, &Oracle) -> Result<(), String> + 'a;

/// As [`check`], run so.
///
/// # Errors
/// As [`check`].
pub fn check_by(
    graph: &Graph,
    seed: u64,
    ways: &[Options],
    run: &Run<'_>,
) -> Result<Vec<&'static str>, String> {
    let oracle = Oracle::new(graph, random_inputs(graph, seed));
    let mut fired = Vec::new();
    for options in ways {
        let how = |e: String| match options.fuse {
            true => format!("fused: {e}"),
            false => format!("plain: {e}"),
        };
        let engine = Engine::new(graph, options).map_err(|e| how(e.to_string()))?;
        let rules: Vec<&str> = engine
            .explain
            .counts
            .iter()
            .map(|(rule, _)| *rule)
            .collect();
        let mut result = agree(&engine, &oracle, run);
        if result.is_err() && rules.iter().any(|rule| rounds(rule)) {
            let whole = rules.contains(&FOR_FINITE_DATA);
            let ids = graph.inputs().into_iter().zip(&oracle.inputs);
            let inputs = ids.map(|(id, array)| match &graph.node(id).op {
                Op::Input(i) if whole || i.role == Role::Parameter => finite(array),
                _ => array.clone(),
            });
            result = agree(&engine, &Oracle::new(graph, inputs.collect()), run);
        }
        result.map_err(how)?;
        fired.extend(rules);
    }
    Ok(fired)
}

/// Runs twice: the second run meets prepared values and a used arena.
fn agree(engine: &Engine, oracle: &Oracle, run: &Run<'_>) -> Result<(), String> {
    (0..2).try_for_each(|_| run(engine, oracle))
}

/// The array with 1 for what is not finite.
fn finite(array: &Array) -> Array {
    if !array.dtype().is_float() {
        return array.clone();
    }
    let values = array.to_f64().into_iter();
    let values: Vec<f64> = values
        .map(|x| if x.is_finite() { x } else { 1.0 })
        .collect();
    Array::from_f64(array.dtype(), array.shape(), &values).expect("as many values")
}

/// What flows into a result: other numbers for neighbours, so that sums don't cancel and no element stands for
/// another, exact in every float.
fn cotangent(b: &mut GraphBuilder<'_>, y: &Value) -> Result<Value, OpError> {
    let fact = b.fact(y);
    let len = numel(&fact.shape);
    let places = b.op(Iota { len }, &[])?;
    let places = b.with(Pw::Mul, &places, 5)?;
    let turns = b.with(Pw::Remainder, &places, 7)?;
    let turns = b.cast(&turns, fact.dtype)?;
    let quarters = b.with(Pw::Mul, &turns, 0.25)?;
    let around = b.with(Pw::Sub, &quarters, 0.375)?;
    b.reshape(&around, &fact.shape)
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
        seeds.push((y, cotangent(&mut b, &y).ok()?));
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
