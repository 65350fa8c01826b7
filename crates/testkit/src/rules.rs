//! A program for every rewrite rule, which fires it.

mod cases;
mod maker;

use cases::CASES;
use kiln_ir::fuzz::Rng;
use kiln_ir::{Graph, GraphBuilder, Loc};
use maker::Maker;
use std::collections::BTreeMap;

/// The names of all rules of all passes.
pub fn rules() -> impl Iterator<Item = &'static str> {
    kiln_optimize::passes().iter().flat_map(|p| p.rules())
}

/// A program, of random sizes, that fires a rule; `None` if the rule has no program.
///
/// # Panics
/// If the program is not well formed.
pub fn program(rule: &str, seed: u64) -> Option<Graph> {
    let (_, make) = CASES.iter().find(|(name, _)| *name == rule)?;
    let mut graph = Graph::default();
    let mut maker = Maker {
        b: GraphBuilder::new(&mut graph, Loc::UNKNOWN),
        rng: Rng::new(seed),
    };
    let y = make(&mut maker).unwrap_or_else(|e| panic!("{rule}, seed {seed}: {e}"));
    graph.add_output(y);
    Some(graph)
}

/// A program for one of the rules; consecutive seeds go through all rules.
///
/// # Panics
/// If a rule has no program.
pub fn some_program(seed: u64) -> Graph {
    let names: Vec<&str> = rules().collect();
    let rule = names[seed as usize % names.len()];
    program(rule, seed).unwrap_or_else(|| panic!("no program fires {rule}"))
}

/// The rules that fired in less than 1% of `programs` programs.
pub fn rare(fired: &BTreeMap<&'static str, u64>, programs: u64) -> Vec<String> {
    let count = |rule: &str| fired.get(rule).copied().unwrap_or(0);
    let rare = rules().filter(|rule| count(rule) * 100 < programs);
    rare.map(|rule| format!("{rule} fired in {} of {programs} programs", count(rule)))
        .collect()
}
