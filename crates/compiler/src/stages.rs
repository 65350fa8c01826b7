//! The results of the stages of one compilation, for inspection afterwards.

use crate::lines::with_lines;
use crate::lowered::Lowered;
use crate::place::Placed;
use hashbrown::HashMap;
use kiln_codegen::{Program, Sequence};
use kiln_ir::{Graph, Loc, Op};
use kiln_plan::Plan;

/// The results of the stages of one compilation. Locations are the user's lines.
#[derive(Clone, Debug)]
pub struct Stages {
    /// The program as it was recorded.
    pub recorded: Graph,
    /// The program that was lowered: optimised, and without composites.
    pub optimized: Graph,
    /// Its tasks, with the candidates to compute them.
    pub program: Program,
    /// Its launches, by the candidates that were chosen.
    pub sequence: Sequence,
    /// For each step of the plan's *prepare* part, its launch.
    pub prepare: Vec<usize>,
    /// For each step of the plan's *run* part, its launch.
    pub run: Vec<usize>,
    /// For each node of the optimised graph, the recorded node that it came from, where that is known.
    pub came_from: Vec<Option<usize>>,
    /// The plan for packages, if it is not the one that runs here: without kernels of libraries.
    pub for_packages: Option<Plan>,
}

impl Stages {
    pub(crate) fn new(recorded: Graph, lowered: Lowered, locs: &[Loc]) -> (Stages, Placed) {
        let Lowered {
            graph: optimized,
            program,
            sequence,
            placed,
        } = lowered;
        let marks = recorded
            .iter()
            .map(|(id, n)| (n.loc.position(), id.index()));
        let marks: HashMap<Option<usize>, usize> = marks.collect();
        let origin = |loc: &Loc| marks.get(&Some(loc.position()?)).copied();
        let stages = Stages {
            came_from: optimized.iter().map(|(_, n)| origin(&n.loc)).collect(),
            recorded: with_lines(recorded, locs),
            optimized: with_lines(optimized, locs),
            program,
            sequence,
            prepare: placed.prepare.clone(),
            run: placed.run.clone(),
            for_packages: None,
        };
        (stages, placed)
    }

    /// For each node of the optimised graph, the launches that compute it, ascending.
    pub fn kernels(&self) -> Vec<Vec<usize>> {
        launches_of(&self.optimized, &self.sequence)
    }

    /// The launch of a step.
    pub(crate) fn launch(&self, prepare: bool, step: usize) -> usize {
        match prepare {
            true => self.prepare[step],
            false => self.run[step],
        }
    }
}

/// For each node of a graph, the launches of its program that compute it, ascending.
pub(crate) fn launches_of(graph: &Graph, sequence: &Sequence) -> Vec<Vec<usize>> {
    let mut launches = vec![Vec::new(); graph.len()];
    for (l, launch) in sequence.launches.iter().enumerate() {
        for id in &launch.nodes {
            if !matches!(graph.node(*id).op, Op::Input(_)) {
                launches[id.index()].push(l);
            }
        }
    }
    launches
}
