//! Ops that own graphs.

use super::prelude::*;
use crate::fact::list;
use crate::{Graph, GraphBuilder, NodeId, Role, Value};
use kiln_base::{Loc, MAX_DEPTH};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Runs one of two graphs. Operands are a rank-0 bool and the inputs of both graphs; the outputs are
/// those of the graph that runs. Both graphs have the same facts.
#[derive(Clone, Debug, Eq, Serialize, Deserialize)]
pub struct If {
    /// `[then, else]`.
    pub branches: [Arc<Graph>; 2],
}

impl OpDef for If {
    const NAME: &'static str = "if";
    const ARITY: RangeInclusive<usize> = 1..=usize::MAX;
    const HAS_SIZES: bool = true;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let condition = inputs[0];
        ensure!(
            condition.dtype == DType::Bool && condition.rank() == 0,
            "the condition must be bool[], not {condition}"
        );
        let then = body_facts(&self.branches[0], &inputs[1..])?;
        let otherwise = body_facts(&self.branches[1], &inputs[1..])?;
        ensure!(
            then == otherwise,
            "the branches give different facts: {} and {}",
            list(&then),
            list(&otherwise)
        );
        Ok(then)
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        for branch in &mut self.branches {
            Arc::make_mut(branch).dims_mut(f);
        }
    }

    fn offsets_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        for branch in &mut self.branches {
            Arc::make_mut(branch).offsets_mut(f);
        }
    }
}

/// Runs a graph a number of times: PyTorch's and JAX's `scan`.
///
/// Operands come in three groups: first values of those *carried* from step to step, then those *scanned* (first dim
/// `trips`; each step gets its slice), then those that every step gets alike. The body takes the rank-0 i64 number of
/// the step and these three groups. It gives the next carried values, then the *stacked* ones. The outputs are the
/// carried values after the last step and the stacked values (first dim `trips`), where slice i is that of step i.
///
/// A *conditional* loop is PyTorch's and JAX's `while_loop`: the first carried value is a rank-0 bool, and a step runs
/// only while it holds. Nothing is scanned or stacked.
#[derive(Clone, Debug, Eq, Serialize, Deserialize)]
pub struct Loop {
    /// The number of steps.
    pub trips: Dim,
    /// The number of operands, and of outputs, that are carried.
    pub carried: usize,
    /// The number of operands that are scanned.
    pub scanned: usize,
    /// True if the step with the last number comes first.
    pub reverse: bool,
    /// True if it ends where the first carried value is false, after `trips` steps at the latest.
    pub conditional: bool,
    /// One step.
    pub body: Arc<Graph>,
}

impl Loop {
    /// The number of steps of a conditional loop without a largest number: more than can be run.
    pub const UNBOUNDED: Dim = Dim::Const(1 << 59);

    /// A loop in which every operand and every output is carried.
    pub fn repeat(trips: Dim, body: impl Into<Arc<Graph>>) -> Loop {
        let body = body.into();
        Loop {
            trips,
            carried: body.outputs.len(),
            scanned: 0,
            reverse: false,
            conditional: false,
            body,
        }
    }

    /// Returns a loop of a fixed number of steps with the results of a conditional one: once the condition is false,
    /// its steps do nothing. `None` if the number of steps is unbounded.
    ///
    /// # Errors
    /// If the ops contradict each other, which inference has excluded.
    pub fn masked(&self) -> Option<Result<Loop, OpError>> {
        let is_bounded = self.trips != Loop::UNBOUNDED;
        (self.conditional && is_bounded).then(|| {
            let inputs = self.body.inputs();
            let mut graph = Graph::default();
            graph.symbols.clone_from(&self.body.symbols);
            let mut idle = graph.clone();
            let add = |graph: &mut Graph, id: &NodeId| {
                let fact = self.body.node(*id).fact().clone();
                GraphBuilder::new(graph, Loc::UNKNOWN).input(fact, Role::Data)
            };
            let loop_inputs: Vec<Value> = inputs.iter().map(|id| add(&mut graph, id)).collect();
            let idle_inputs: Vec<Value> = inputs.iter().map(|id| add(&mut idle, id)).collect();
            (idle_inputs[1..=self.carried].iter()).for_each(|v| idle.add_output(*v));
            let branches = [self.body.clone(), Arc::new(idle)];
            let mut operands = vec![loop_inputs[1]];
            operands.extend(loop_inputs);
            let step = GraphBuilder::new(&mut graph, Loc::UNKNOWN)
                .emit(If { branches }.into(), &operands)?;
            step.into_iter().for_each(|v| graph.add_output(v));
            Ok(Loop {
                conditional: false,
                body: Arc::new(graph),
                ..self.clone()
            })
        })
    }
}

impl OpDef for Loop {
    const NAME: &'static str = "loop";
    const ARITY: RangeInclusive<usize> = 0..=usize::MAX;
    const HAS_SIZES: bool = true;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        ensure!(
            self.trips.as_const().is_none_or(|n| n >= 0),
            "can't run {} times",
            self.trips
        );
        let (carried, scanned) = (self.carried, self.scanned);
        ensure!(
            inputs.len() >= carried + scanned && self.body.outputs.len() >= carried,
            "{carried} carried and {scanned} scanned values, but {} operands and {} outputs",
            inputs.len(),
            self.body.outputs.len()
        );
        ensure!(
            !self.conditional
                || inputs[..carried]
                    .first()
                    .is_some_and(|c| c.dtype == DType::Bool && c.rank() == 0)
                    && (scanned, self.body.outputs.len()) == (0, carried),
            "a conditional loop carries bool[] first, and neither scans nor stacks"
        );
        let mut body_inputs = vec![Fact::new(DType::I64, [0i64; 0])];
        for (i, f) in inputs.iter().enumerate() {
            let mut f = (*f).clone();
            if (carried..carried + scanned).contains(&i) {
                ensure!(
                    f.shape.first() == Some(&self.trips),
                    "what is scanned must have {} as its first dim, not {f}",
                    self.trips
                );
                f.shape.remove(0);
            }
            body_inputs.push(f);
        }
        let body_inputs: Vec<&Fact> = body_inputs.iter().collect();
        let mut facts = body_facts(&self.body, &body_inputs)?;
        for (i, (f, initial)) in facts.iter().take(carried).zip(inputs).enumerate() {
            ensure!(
                f == *initial,
                "carried value {i} begins as {initial}, but a step makes it {f}; carried values keep dtype and shape"
            );
        }
        for f in &mut facts[carried..] {
            f.shape.insert(0, self.trips.clone());
        }
        ensure!(!facts.is_empty(), "the body gives nothing");
        Ok(facts)
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        f(&mut self.trips);
        Arc::make_mut(&mut self.body).dims_mut(f);
    }

    fn offsets_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        Arc::make_mut(&mut self.body).offsets_mut(f);
    }
}

// Ops are equal if they mean the same. Source locations do not count, and facts follow from the rest.

impl PartialEq for If {
    fn eq(&self, other: &If) -> bool {
        let mut pairs = self.branches.iter().zip(&other.branches);
        pairs.all(|(a, b)| Graph::same_program(a, b))
    }
}

impl PartialEq for Loop {
    fn eq(&self, other: &Loop) -> bool {
        self.trips == other.trips
            && (self.carried, self.scanned) == (other.carried, other.scanned)
            && (self.reverse, self.conditional) == (other.reverse, other.conditional)
            && Graph::same_program(&self.body, &other.body)
    }
}

impl Hash for If {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.branches.hash(state);
    }
}

impl Hash for Loop {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.trips, self.carried, self.scanned).hash(state);
        (self.reverse, self.conditional).hash(state);
        self.body.hash(state);
    }
}

/// True if bodies in the graph nest at most `levels` deep.
fn nests_within(graph: &Graph, levels: usize) -> bool {
    let mut bodies = graph.iter().flat_map(|(_, node)| node.op.bodies());
    bodies.all(|body| levels > 0 && nests_within(body, levels - 1))
}

/// Returns the facts of the results of a body for these inputs.
fn body_facts(body: &Graph, inputs: &[&Fact]) -> Result<Facts, OpError> {
    ensure!(
        nests_within(body, MAX_DEPTH - 1),
        "loops and branches nest at most {MAX_DEPTH} deep, and this one holds as many already"
    );
    let parameters = body.inputs();
    ensure!(
        parameters.len() == inputs.len(),
        "the body takes {} inputs, not {}",
        parameters.len(),
        inputs.len()
    );
    for (i, (id, input)) in parameters.iter().zip(inputs).enumerate() {
        let parameter = body.node(*id).fact();
        ensure!(
            parameter == *input,
            "input {i} of the body is {parameter}, not {input}"
        );
    }
    Ok(body
        .outputs
        .iter()
        .map(|o| body.fact(o.value).clone())
        .collect())
}
