//! The driver: it walks the list of passes until nothing changes.

use crate::arena::Arena;
use crate::rewriter::violations;
use crate::{OptimizeError, Options, Pass, Report, Rewriter, Run, passes};
use kiln_ir::{Fact, Graph, Op, Target};
use std::sync::Arc;

/// The maximum number of walks of the list; the graph is then left as it is. Each walk runs every pass to its own fixed
/// point, so more than a few are rare.
const MAX_ROUNDS: usize = 10;

/// Runs the selected [`passes()`] on a graph and the bodies of its loops and branches, until nothing changes. Inputs
/// and outputs are kept, in order.
///
/// # Errors
/// If the graph is invalid, or if the checks find a bug of a rule.
pub fn optimize(graph: Graph, options: &Options) -> Result<(Graph, Report), OptimizeError> {
    optimize_with(graph, passes(), options)
}

/// [`optimize`] with another list of passes, for tests and experiments.
///
/// # Errors
/// As for [`optimize`].
pub fn optimize_with(
    graph: Graph,
    passes: &[Pass],
    options: &Options,
) -> Result<(Graph, Report), OptimizeError> {
    optimize_observed(graph, passes, options, &mut |_, _| {})
}

/// [`optimize_with`], calling `observe` with each pass that changed the graph and with the result.
///
/// # Errors
/// As for [`optimize`].
pub fn optimize_observed(
    graph: Graph,
    passes: &[Pass],
    options: &Options,
    observe: &mut dyn FnMut(&Pass, &Graph),
) -> Result<(Graph, Report), OptimizeError> {
    if options.verify {
        violations(&graph, false)
            .map_err(|violations| OptimizeError::InvalidInput { violations })?;
    }
    let named = |p: &Pass| (options.passes.as_ref()).is_none_or(|names| names.contains(&p.name));
    let runs = |p: &&Pass| named(p) && (p.exact || !options.exact);
    let selected: Vec<Pass> = passes.iter().filter(runs).copied().collect();
    let mut report = Report {
        nodes_before: graph.len(),
        ..Report::default()
    };
    let graph = run_list(graph, &selected, options, &mut report, 0, observe)?;
    report.nodes_after = graph.len();
    Ok((graph, report))
}

fn run_list(
    mut graph: Graph,
    passes: &[Pass],
    options: &Options,
    report: &mut Report,
    depth: usize,
    observe: &mut dyn FnMut(&Pass, &Graph),
) -> Result<Graph, OptimizeError> {
    for id in graph.ids() {
        for body in graph.node_mut(id).op.bodies_mut() {
            let fired_before = report.fired.len();
            let recorded = Graph::clone(body);
            let optimized = run_list(recorded, passes, options, report, depth + 1, &mut |_, _| {})?;
            if report.fired.len() > fired_before {
                *body = Arc::new(optimized);
            }
        }
    }
    let interface = Interface::of(&graph);
    let mut arena = Arena::new(graph, depth > 0);
    for round in 1..=MAX_ROUNDS {
        if depth == 0 {
            report.rounds = round;
        }
        let fired_before = report.fired.len();
        for pass in passes {
            let fired = report.fired.len();
            arena = run_pass(arena, pass, options, report, depth)?;
            if report.fired.len() > fired {
                interface.check(pass, &arena.graph)?;
                observe(pass, &arena.graph);
            }
        }
        if report.fired.len() == fired_before || report.stopped {
            break;
        }
    }
    Ok(arena.graph)
}

/// Runs one pass.
fn run_pass(
    arena: Arena,
    pass: &Pass,
    options: &Options,
    report: &mut Report,
    depth: usize,
) -> Result<Arena, OptimizeError> {
    if report.stopped {
        return Ok(arena);
    }
    let mut rewriter = Rewriter::new(arena, pass.name, depth, options, report);
    match pass.run {
        Run::Rules(rules) => rewriter.run_rules(rules)?,
        Run::Walk(_, walk) => walk(&mut rewriter)?,
    }
    rewriter.finish()
}

/// The part of a graph that every pass keeps: its inputs and outputs.
#[derive(Debug, PartialEq)]
struct Interface {
    inputs: Vec<Op>,
    outputs: Vec<(Target, Fact)>,
}

impl Interface {
    fn of(graph: &Graph) -> Interface {
        Interface {
            inputs: (graph.inputs().iter())
                .map(|id| graph.node(*id).op.clone())
                .collect(),
            outputs: (graph.outputs.iter())
                .map(|o| (o.target, graph.fact(o.value).clone()))
                .collect(),
        }
    }

    fn check(&self, pass: &Pass, graph: &Graph) -> Result<(), OptimizeError> {
        let after = Interface::of(graph);
        if *self != after {
            return Err(OptimizeError::InterfaceChanged {
                pass: pass.name,
                problem: format!("from {self:?} to {after:?}"),
            });
        }
        Ok(())
    }
}
