//! Random programs for tests.
//!
//! A seed gives the same graph and the same inputs everywhere. Graphs are sound (the verifier accepts
//! them) and small, and cover every op, every pointwise row and every dtype; see [`features`].
//! Besides random ops they hold the patterns that rewrites look for: convolutions before batch norms, repeated
//! subexpressions, foldable constants, chains of views, identities that NaN breaks, reductions that are broadcast
//! back, dead code.
//!
//! Values stay tame, so that results in different precisions can be compared. Ops that amplify rounding errors
//! without bound (rounding to integers, comparing, casting floats to integers, looking for the largest element) are
//! applied to exactly known values only, and magnitudes are limited. There are no data errors: indices are inside
//! their axes, and integer divisors are not 0.

mod bodies;
mod corners;
mod float8;
mod generate;
mod inputs;
mod ordered;
mod patterns;
mod pointwise;
mod rng;
mod structured;
mod zeros;

pub use float8::float8_casts;
pub use inputs::random_inputs;
pub use rng::Rng;
pub use zeros::{bits, extremes};

use crate::{Graph, Op};
use std::collections::{BTreeMap, BTreeSet};

/// The kinds of programs to generate.
#[derive(Clone, Debug)]
pub struct Config {
    /// True to give some programs `if` and `loop`.
    pub control_flow: bool,
    /// True to give some programs symbolic sizes.
    pub symbolic: bool,
    /// True to give some programs work on values without elements, which lowering expects a pass to remove.
    pub empty: bool,
    /// The minimum number of nodes.
    pub min_nodes: usize,
    /// The number of nodes from which no further op is started.
    pub max_nodes: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            control_flow: true,
            symbolic: true,
            empty: true,
            min_nodes: 15,
            max_nodes: 50,
        }
    }
}

impl Config {
    /// The program of a seed.
    pub fn graph(&self, seed: u64) -> Graph {
        generate::Generator::new(self.clone(), seed).run(seed)
    }
}

/// The program of a seed, with the default [`Config`]: 15 to about 60 nodes.
pub fn random_graph(seed: u64) -> Graph {
    Config::default().graph(seed)
}

/// The features that a program uses: `op:conv`, `row:add`, `dtype:f16`, `row:add:f16`, and from the structure
/// `outputs`, `symbols`, `kept`, `assign`, `parameter`, `rank:4`, `empty`, `quotient`, `dead`.
pub fn features(graph: &Graph) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut used = vec![false; graph.len()];
    for (_, node) in graph.iter() {
        for v in &node.inputs {
            used[v.node.index()] = true;
        }
        match &node.op {
            Op::Pointwise(op) => {
                names.insert("op:pointwise".into());
                names.insert(format!("row:{}", op.0.name()));
                // The last operand is never the mask.
                if let Some(v) = node.inputs.last() {
                    names.insert(format!("row:{}:{}", op.0.name(), graph.fact(*v).dtype));
                }
            }
            op => {
                names.insert(format!("op:{}", op.name()));
            }
        }
        if matches!(&node.op, Op::Loop(l) if l.conditional) {
            names.insert("conditional".into());
        }
        if let Op::Input(op) = &node.op {
            names.insert(format!("{:?}", op.role).to_lowercase());
        }
        for fact in &node.facts {
            names.insert(format!("dtype:{}", fact.dtype));
            names.insert(format!("rank:{}", fact.rank()));
            if fact.shape.iter().any(|d| d.is(0)) {
                names.insert("empty".into());
            }
            if fact.shape.iter().any(|d| d.to_string().contains("//")) {
                names.insert("quotient".into());
            }
        }
        for body in node.op.bodies() {
            names.extend(features(body));
        }
    }
    for o in &graph.outputs {
        used[o.value.node.index()] = true;
        let target = format!("{:?}", o.target).to_lowercase();
        names.extend(target.split('(').next().map(String::from));
    }
    let facts = [
        (graph.outputs.len() >= 2, "outputs"),
        (!graph.symbols.is_empty(), "symbols"),
        (used.contains(&false), "dead"),
    ];
    names.extend(facts.iter().filter(|f| f.0).map(|f| f.1.to_string()));
    names
}

/// The number of these programs that use each of their [`features`].
pub fn coverage<'g>(graphs: impl IntoIterator<Item = &'g Graph>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for graph in graphs {
        for feature in features(graph) {
            *counts.entry(feature).or_insert(0) += 1;
        }
    }
    counts
}
