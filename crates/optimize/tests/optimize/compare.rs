//! The differential check: the optimised graph against the original.

use crate::rng::{Rng, random_inputs};
use kiln_ir::eval::{Array, Data, Mode, evaluate, symbol_values};
use kiln_ir::{Fact, Graph, Op, Target};
use kiln_optimize::{OptimizeError, Options, Pass, Report, optimize_with};

/// True if the elements are the same numbers: NaN is NaN, and zeros have their sign.
pub fn same_bits(a: &Array, b: &Array) -> bool {
    let floats = |a: &[f64], b: &[f64]| {
        let same = |(x, y): (&f64, &f64)| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan();
        a.iter().zip(b).all(same)
    };
    (a.dtype(), a.shape()) == (b.dtype(), b.shape())
        && match (a.data(), b.data()) {
            (Data::Float(a), Data::Float(b)) => floats(a, b),
            (Data::Int(a), Data::Int(b)) => a == b,
            _ => false,
        }
}

fn interface(graph: &Graph) -> (Vec<Op>, Vec<(Target, Fact)>) {
    let inputs = graph
        .inputs()
        .into_iter()
        .map(|id| graph.node(id).op.clone());
    let outputs = (graph.outputs.iter()).map(|o| (o.target, graph.fact(o.value).clone()));
    (inputs.collect(), outputs.collect())
}

/// The outputs of a graph.
pub fn outputs_of(graph: &Graph, inputs: &[Array], mode: Mode) -> Vec<Array> {
    let symbols = symbol_values(graph, inputs).expect("each symbol is a dim of an input");
    evaluate(graph, inputs, &symbols, mode).expect("no data errors")
}

/// The first difference between two graphs, on inputs drawn from a seed. `None` if every output is the same bit for
/// bit, and a data error stays one.
pub fn difference(before: &Graph, after: &Graph, seed: u64) -> Option<String> {
    let mut rng = Rng::new(seed);
    (0..2).find_map(|_| difference_on(before, after, &random_inputs(before, &mut rng)))
}

/// [`difference`] on given inputs.
pub fn difference_on(before: &Graph, after: &Graph, inputs: &[Array]) -> Option<String> {
    if interface(before) != interface(after) {
        return Some("the interface differs".into());
    }
    let symbols = symbol_values(before, inputs).expect("each symbol is a dim of an input");
    let old = evaluate(before, inputs, &symbols, Mode::Rounded);
    let new = evaluate(after, inputs, &symbols, Mode::Rounded);
    match (old, new) {
        (Ok(old), Ok(new)) => {
            let mut pairs = old.iter().zip(&new).enumerate();
            let (i, (a, b)) = pairs.find(|(_, (a, b))| !same_bits(a, b))?;
            Some(format!("output {i} was {a:?} and is {b:?}"))
        }
        (Err(old), Err(new)) if old.is_data_error() == new.is_data_error() => None,
        (old, new) => Some(format!("was {:?}, is {:?}", old.err(), new.err())),
    }
}

/// The error of a list of passes on a graph: an error of the driver, or a difference.
pub fn flaw(
    graph: &Graph,
    passes: &[Pass],
    options: &Options,
    seed: u64,
) -> Result<Report, String> {
    let result = optimize_with(graph.clone(), passes, options);
    let (after, report) = result.map_err(|e: OptimizeError| e.to_string())?;
    match difference(graph, &after, seed) {
        None => Ok(report),
        Some(text) => Err(format!("{text}\n{report}")),
    }
}
