//! Random programs and their gradients: checks that an engine's results are the reference's.

use crate::oracle::{Engine, Oracle};
use kiln_autodiff::gradients;
use kiln_base::Role;
use kiln_base::numel;
use kiln_compiler::Options;
use kiln_ir::eval::Array;
use kiln_ir::fuzz::random_inputs;
use kiln_ir::ops::Iota;
use kiln_ir::{Builder, Graph, GraphBuilder, Loc, Op, OpError, Pw, Value};

/// The rewrite of a sum that is zero for all finite data.
const FOR_FINITE_DATA: &str = "zero_sum";

/// Options without rewrites and without fusion.
pub fn plain() -> Options {
    Options {
        optimize: false,
        fuse: false,
        ..Options::default()
    }
}

/// True if a rewrite is of a pass that changes rounding. Such rewrites are valid for finite parameters.
fn rounds(rule: &str) -> bool {
    let mut inexact = kiln_optimize::passes().iter().filter(|p| !p.exact);
    inexact.any(|p| p.rules().contains(&rule))
}

/// Compiles a program with each of these options, runs it and compares it with the reference. Returns the rewrites
/// that fired. If one of these is valid only for finite parameters or data, it suffices that the program is right for
/// finite ones.
///
/// # Errors
/// A description of the difference, and of the compilation.
pub fn check(
    graph: &Graph,
    seed: u64,
    option_sets: &[Options],
) -> Result<Vec<&'static str>, String> {
    check_by(graph, seed, option_sets, &|engine, oracle| {
        let outputs = engine.run(&oracle.inputs).map_err(|e| e.to_string())?;
        oracle.check(&outputs)
    })
}

/// A function that runs a compiled program on the inputs of an oracle, and has the oracle check the results.
pub type Run<'a> = dyn Fn(&Engine, &Oracle) -> Result<(), String> + 'a;

/// As [`check`], with `run` to run and check a program.
///
/// # Errors
/// As [`check`].
pub fn check_by(
    graph: &Graph,
    seed: u64,
    option_sets: &[Options],
    run: &Run<'_>,
) -> Result<Vec<&'static str>, String> {
    let oracle = Oracle::new(graph, random_inputs(graph, seed));
    let mut fired = Vec::new();
    for options in option_sets {
        let explained = |e: String| match options.fuse {
            true => format!("fused: {e}"),
            false => format!("plain: {e}"),
        };
        let engine = Engine::new(graph, options).map_err(|e| explained(e.to_string()))?;
        let rules: Vec<&str> = engine
            .explain
            .counts
            .iter()
            .map(|(rule, _)| *rule)
            .collect();
        let mut result = agree(&engine, &oracle, run);
        if result.is_err() && rules.iter().any(|rule| rounds(rule)) {
            let finite_only = rules.contains(&FOR_FINITE_DATA);
            let ids = graph.inputs().into_iter().zip(&oracle.inputs);
            let inputs = ids.map(|(id, array)| match &graph.node(id).op {
                Op::Input(i) if finite_only || i.role == Role::Parameter => finite(array),
                _ => array.clone(),
            });
            result = agree(&engine, &Oracle::new(graph, inputs.collect()), run);
        }
        result.map_err(explained)?;
        fired.extend(rules);
    }
    Ok(fired)
}

/// Runs twice: the second run starts with prepared values and a used arena.
fn agree(engine: &Engine, oracle: &Oracle, run: &Run<'_>) -> Result<(), String> {
    (0..2).try_for_each(|_| run(engine, oracle))
}

/// The array with every non-finite element replaced by 1.
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

/// The cotangent of a result. Neighbours differ, so that sums don't cancel and no element can be confused with
/// another; all numbers are exact in every float dtype.
fn cotangent(b: &mut GraphBuilder<'_>, y: &Value) -> Result<Value, OpError> {
    let fact = b.fact(y);
    let len = numel(&fact.shape);
    let numbers = b.op(Iota { len }, &[])?;
    let numbers = b.with(Pw::Mul, &numbers, 5)?;
    let remainders = b.with(Pw::Remainder, &numbers, 7)?;
    let remainders = b.cast(&remainders, fact.dtype)?;
    let quarters = b.with(Pw::Mul, &remainders, 0.25)?;
    let around = b.with(Pw::Sub, &quarters, 0.375)?;
    b.reshape(&around, &fact.shape)
}

/// The graph with the gradients of its float inputs as outputs; `None` if there are none.
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
    // Some row and window operations have no derivative.
    let derived = gradients(&mut graph, &seeds, &inputs).ok()?;
    graph.outputs.clear();
    derived
        .into_iter()
        .flatten()
        .for_each(|g| graph.add_output(g));
    (!graph.outputs.is_empty()).then_some(graph)
}
