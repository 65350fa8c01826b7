//! The memory plan: from launches over named buffers to a [`Plan`].
//!
//! Launches that depend on parameters alone become *prepare* steps. Outputs that are assigned to an input may take
//! over its memory (donation). Their launches move to the end of the run, after everything that can fail or still
//! reads the input; they stay where they are if they are after it already. A temporary that dies where another of
//! the same size is written element by element is overwritten in place. Updates that a flag skips get it as their
//! guard ([`Guards`]). Offsets are left to [`kiln_plan::memory::solve`], which runs when sizes are known.

use crate::CompileError;
use crate::guard::Guards;
use crate::join::can_join;
use crate::order::Order;
use crate::uses::{Uses, ix, read, written};
use hashbrown::HashMap;
use kiln_codegen::{Launch, Origin, Sequence, shares_a_launch};
use kiln_ir::{Graph, NodeId, Op};
use kiln_plan::memory::planned;
use kiln_plan::{
    Allocation, Buffer, BufferId, Constant, Input, Kernel, Output, Plan, Step, Symbol,
};
use std::sync::{Arc, OnceLock};

/// The plan of a lowered sequence. Sites name the position that their node's location marks, where it marks
/// one.
pub(crate) struct Placed {
    pub plan: Plan,
    /// For each graph output its position among the plan's outputs.
    pub outputs: Vec<Option<usize>>,
    /// For each launch, true if it is concurrent with the one before it.
    pub concurrent: Vec<bool>,
    /// The launches of the *prepare* steps, in order.
    pub prepare: Vec<usize>,
    /// The launches of the *run* steps, in order.
    pub run: Vec<usize>,
    /// The position of each launch among the steps of its part.
    pub steps: Vec<usize>,
    peak: OnceLock<Option<usize>>,
}

impl Placed {
    /// Returns the bytes of temporaries that a run needs, if sizes are known.
    pub(crate) fn peak(&self) -> Option<usize> {
        let compute = || planned(&self.plan, &[]).map(|(_, layout)| layout.peak);
        *self.peak.get_or_init(compute)
    }
}

/// Decides when launches run and where buffers live.
pub(crate) fn place(graph: &Graph, sequence: &Sequence) -> Result<Placed, CompileError> {
    let symbols = symbols(graph)?;
    let uses = Uses::new(sequence);
    let arrange_near = |near: usize| {
        let mut placed = arrange(graph, sequence, &uses, Order::new(sequence), near);
        placed.plan.symbols.clone_from(&symbols);
        placed
    };
    let placed = arrange_near(NEAR);
    let is_product = |l: usize| !matches!(*sequence.launches[l].kernel, Kernel::Tile(_));
    if !(0..sequence.launches.len()).any(|l| placed.concurrent[l] && is_product(l)) {
        return Ok(placed);
    }
    // Buffers of launches that run at the same time are in memory at the same time.
    let peak = |p: &Placed| p.peak().unwrap_or(0);
    let sequential = arrange_near(0);
    let min_peak = peak(&sequential);
    let max_peak = min_peak + min_peak / MORE;
    let closer = || Some(arrange_near(1)).filter(|p| peak(p) <= max_peak);
    let concurrent = Some(placed).filter(|p| peak(p) <= max_peak).or_else(closer);
    Ok(concurrent.unwrap_or(sequential))
}

/// Groups the launches of a program for a GPU that can be merged, in the order in which they run. A launch that is
/// not small may be moved over `near` groups.
pub(crate) fn groups(graph: &Graph, sequence: &Sequence, near: usize) -> Vec<Vec<usize>> {
    let uses = Uses::new(sequence);
    let mut order = Order::new(sequence);
    let donors = order.donate(graph, sequence, &uses);
    let mut groups: Vec<Vec<usize>> = order.prepare.iter().map(|l| vec![*l]).collect();
    groups.extend(order.join(graph, sequence, &uses, &donors, near, shares_a_launch));
    groups
}

/// The number of groups that a product or convolution may be moved over to start with another.
pub(crate) const NEAR: usize = 4;
/// Launches start together if the peak of memory grows by no more than 1 / `MORE` of it.
pub(crate) const MORE: usize = 50;

/// The plan of a body: its sizes use the symbols of the sequence, and every step runs every time.
fn body(graph: &Graph, sequence: &Sequence) -> Plan {
    let order = Order {
        prepare: Vec::new(),
        run: (0..sequence.launches.len()).collect(),
        commit: Vec::new(),
        commit_from: sequence.launches.len(),
    };
    arrange(graph, sequence, &Uses::new(sequence), order, NEAR).plan
}

fn arrange(
    graph: &Graph,
    sequence: &Sequence,
    uses: &Uses,
    mut order: Order,
    near: usize,
) -> Placed {
    let donors = order.donate(graph, sequence, uses);
    let groups = order.join(graph, sequence, uses, &donors, near, can_join);
    let mut plan = Plan {
        buffers: sequence
            .buffers
            .iter()
            .map(|b| Buffer {
                dtype: b.dtype,
                len: kiln_base::numel(&b.shape),
                allocation: Allocation::Temporary,
            })
            .collect(),
        ..Plan::default()
    };
    inputs_and_constants(graph, sequence, &mut plan);
    let positions = outputs(sequence, &donors, &mut plan);
    for &l in &order.prepare {
        for buffer in written(&sequence.launches[l]) {
            let allocation = &mut plan.buffers[ix(buffer)].allocation;
            if *allocation == Allocation::Temporary {
                *allocation = Allocation::Prepared;
            }
        }
    }
    let mut steps = Steps::new(graph, &mut plan);
    let prepare: Vec<Step> = (order.prepare.iter())
        .map(|l| steps.step(&sequence.launches[*l]))
        .collect();
    let guards = Guards::new(graph, sequence, uses, &donors);
    let mut run = Vec::with_capacity(order.run.len() + order.commit.len());
    for group in &groups {
        for (i, &l) in group.iter().enumerate() {
            let launch = &sequence.launches[l];
            let guard = guards.of(launch);
            run.push(Step {
                concurrent: i > 0,
                guard: guard.map(|b| BufferId(b.0)),
                ..steps.step(launch)
            });
        }
    }
    (plan.prepare, plan.run) = (prepare, run);
    plan.commit = order.commit_from as u32;
    in_place(sequence, &groups, &mut plan);
    let mut concurrent = vec![false; sequence.launches.len()];
    for l in groups.iter().flat_map(|g| &g[1..]) {
        concurrent[*l] = true;
    }
    let (prepare, run) = (order.prepare, groups.concat());
    let mut steps: Vec<usize> = (0..sequence.launches.len()).collect();
    for (step, l) in prepare.iter().enumerate().chain(run.iter().enumerate()) {
        steps[*l] = step;
    }
    Placed {
        plan,
        outputs: positions,
        concurrent,
        prepare,
        run,
        steps,
        peak: OnceLock::new(),
    }
}

/// Returns the symbols; the first input dim that equals a symbol defines it.
fn symbols(graph: &Graph) -> Result<Vec<Symbol>, CompileError> {
    let inputs = graph.inputs();
    let define = |(s, info): (usize, &kiln_ir::SymbolInfo)| {
        let dim = Plan::symbol(s);
        let location = inputs.iter().enumerate().find_map(|(i, id)| {
            let axis = graph
                .node(*id)
                .fact()
                .shape
                .iter()
                .position(|d| *d == dim)?;
            Some((i as u32, axis as u32))
        });
        let (input, axis) = location.ok_or_else(|| {
            CompileError::Internal(format!("no input dim gives the symbol {}", info.name))
        })?;
        Ok(Symbol {
            name: info.name.clone(),
            min: info.min,
            input,
            axis,
        })
    };
    graph.symbols.iter().enumerate().map(define).collect()
}

fn inputs_and_constants(graph: &Graph, sequence: &Sequence, plan: &mut Plan) {
    let mut buffers = vec![None; graph.inputs().len()];
    for (i, info) in sequence.buffers.iter().enumerate() {
        match &info.origin {
            Origin::Input(index) => {
                plan.buffers[i].allocation = Allocation::Input;
                buffers[*index as usize] = Some(BufferId(i as u32));
            }
            Origin::Constant(bytes) => {
                plan.buffers[i].allocation = Allocation::Constant;
                plan.constants.push(Constant {
                    dtype: info.dtype,
                    bytes: bytes.to_vec(),
                    buffer: BufferId(i as u32),
                });
            }
            _ => {}
        }
    }
    for (id, buffer) in graph.inputs().into_iter().zip(buffers) {
        let node = graph.node(id);
        let Op::Input(input) = &node.op else { continue };
        // An input that nothing reads is still in the list.
        let buffer = buffer.unwrap_or_else(|| {
            plan.buffers.push(Buffer {
                dtype: input.fact.dtype,
                len: input.fact.numel(),
                allocation: Allocation::Input,
            });
            BufferId(plan.buffers.len() as u32 - 1)
        });
        plan.inputs.push(Input {
            dtype: input.fact.dtype,
            shape: input.fact.shape.to_vec(),
            role: input.role,
            buffer,
        });
    }
}

fn outputs(sequence: &Sequence, donors: &[Option<u32>], plan: &mut Plan) -> Vec<Option<usize>> {
    let mut positions = Vec::new();
    for (output, donor) in sequence.outputs.iter().zip(donors) {
        positions.push(output.map(|buffer| {
            let info = &sequence.buffers[ix(buffer)];
            plan.buffers[ix(buffer)].allocation = Allocation::Output;
            plan.outputs.push(Output {
                dtype: info.dtype,
                shape: info.shape.to_vec(),
                buffer: BufferId(ix(buffer) as u32),
                donor: *donor,
            });
            plan.outputs.len() - 1
        }));
    }
    positions
}

/// Turns launches into steps of a plan.
struct Steps<'a> {
    graph: &'a Graph,
    plan: &'a mut Plan,
    /// The positions of the plan's kernels, by fingerprint.
    kernels: HashMap<u64, Vec<u32>>,
}

impl<'a> Steps<'a> {
    fn new(graph: &'a Graph, plan: &'a mut Plan) -> Steps<'a> {
        Steps {
            graph,
            plan,
            kernels: HashMap::new(),
        }
    }

    fn step(&mut self, launch: &Launch) -> Step {
        let mut kernel = launch.kernel.clone();
        let mut sites = launch.sites.clone();
        for s in &mut sites {
            let position = self.graph.node(NodeId(s.node)).loc.position();
            s.node = position.map_or(s.node, |position| position as u32);
        }
        if let [node] = launch.nodes[..] {
            let graphs = self.graph.node(node).op.bodies().iter();
            for (position, (graph, sequence)) in graphs.zip(&launch.bodies).enumerate() {
                let plan = &mut Arc::make_mut(&mut kernel).bodies_mut()[position];
                *plan = body(graph, sequence);
                sites.extend(plan.sites.iter().cloned());
            }
        }
        let first = self.plan.sites.len() as u32;
        self.plan.sites.extend(sites);
        Step {
            kernel: self.kernel(kernel),
            sites: (first..self.plan.sites.len() as u32).collect(),
            args: launch.args.iter().map(|b| BufferId(b.0)).collect(),
            concurrent: false,
            guard: None,
        }
    }

    /// Returns the index of a kernel in the plan, which has each once.
    fn kernel(&mut self, kernel: Arc<Kernel>) -> u32 {
        let kernels = &mut self.plan.kernels;
        let same = self.kernels.entry(kernel.fingerprint()).or_default();
        if let Some(i) = same.iter().find(|i| kernels[**i as usize] == kernel) {
            return *i;
        }
        kernels.push(kernel);
        same.push(kernels.len() as u32 - 1);
        kernels.len() as u32 - 1
    }
}

/// Reuses the memory of a temporary in place for the result of its last reader.
fn in_place(sequence: &Sequence, groups: &[Vec<usize>], plan: &mut Plan) {
    let mut last_read = vec![0; plan.buffers.len()];
    for (step, group) in groups.iter().enumerate() {
        for b in group.iter().flat_map(|l| read(&sequence.launches[*l])) {
            last_read[ix(b)] = step;
        }
    }
    let mut taken = vec![false; plan.buffers.len()];
    for (step, group) in groups.iter().enumerate() {
        for &l in group {
            let launch = &sequence.launches[l];
            // A buffer that another launch of the group reads must keep its values.
            let others = || group.iter().filter(|o| **o != l);
            let is_shared =
                |b: usize| others().any(|o| read(&sequence.launches[*o]).any(|r| ix(r) == b));
            for &(r, w) in &launch.in_place {
                let (source, target) = (ix(launch.args[r]), ix(launch.args[w]));
                let temporary =
                    |p: Allocation| matches!(p, Allocation::Temporary | Allocation::InPlace(_));
                let fits = temporary(plan.buffers[source].allocation)
                    && plan.buffers[target].allocation == Allocation::Temporary
                    && plan.buffers[source].len == plan.buffers[target].len
                    && plan.buffers[source].dtype.size() == plan.buffers[target].dtype.size();
                if fits && last_read[source] == step && !taken[source] && !is_shared(source) {
                    plan.buffers[target].allocation = Allocation::InPlace(BufferId(source as u32));
                    taken[source] = true;
                }
            }
        }
    }
}
