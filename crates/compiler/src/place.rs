//! The memory plan: from launches over named buffers to a [`Plan`].
//!
//! Launches that depend on parameters alone become *prepare* steps. Outputs that assign to an input may
//! take over its memory (donation): their launches move to the end of the run, behind everything that
//! can fail or still reads the input, or stay where they are if they are behind it already. A temporary that dies where another of the same size is written
//! element by element is overwritten in place. Offsets are left to
//! [`kiln_base::memory::solve`], which runs when sizes are known.

use crate::CompileError;
use crate::explain::marked;
use crate::join::{Joiner, can_join};
use kiln_base::memory::planned;
use kiln_base::plan::{
    Buffer, BufferId, Constant, Input, Kernel, Output, Place, Plan, Step, Symbol,
};
use kiln_codegen::{BufId, Launch, Origin, Program, shares_a_launch};
use kiln_ir::{Graph, NodeId, Op, Target};

/// The plan of a lowered program. Sites name the position that their node's location marks, where it marks
/// one.
pub(crate) struct Placed {
    pub plan: Plan,
    /// For each graph output its position among the plan's outputs.
    pub outputs: Vec<Option<usize>>,
    /// Which launches start together with another.
    pub joined: Vec<bool>,
    /// The launches of the *prepare* steps, in order.
    pub prepare: Vec<usize>,
    /// The launches of the *run* steps, in order.
    pub run: Vec<usize>,
}

impl Placed {
    /// The position of a launch among the steps of its part.
    pub(crate) fn step(&self, launch: usize) -> usize {
        let mut lists = [&self.prepare, &self.run].into_iter();
        let found = lists.find_map(|list| list.iter().position(|l| *l == launch));
        found.unwrap_or(launch)
    }
}

/// Decides when launches run and where buffers live.
pub(crate) fn place(graph: &Graph, program: &Program) -> Result<Placed, CompileError> {
    let symbols = symbols(graph)?;
    let arranged = |near: usize| {
        let mut placed = arrange(graph, program, Order::new(program), near);
        placed.plan.symbols.clone_from(&symbols);
        placed
    };
    let placed = arranged(NEAR);
    let product = |l: usize| !matches!(program.launches[l].kernel, Kernel::Tile(_));
    if !(0..program.launches.len()).any(|l| placed.joined[l] && product(l)) {
        return Ok(placed);
    }
    // What runs at the same time is in memory at the same time.
    let peak = |p: &Placed| planned(&p.plan, &[]).map_or(0, |(_, layout)| layout.peak);
    let apart = arranged(0);
    let least = peak(&apart);
    let most = least + least / MORE;
    let closer = || Some(arranged(1)).filter(|p| peak(p) <= most);
    let found = Some(placed).filter(|p| peak(p) <= most).or_else(closer);
    Ok(found.unwrap_or(apart))
}

/// The launches of a program for a GPU in groups that can be one, in the order in which they run. Any that
/// is not small may be moved over `near` others.
pub(crate) fn groups(graph: &Graph, program: &Program, near: usize) -> Vec<Vec<usize>> {
    let mut order = Order::new(program);
    let donors = order.donate(graph, program);
    let mut groups: Vec<Vec<usize>> = order.prepare.iter().map(|l| vec![*l]).collect();
    groups.extend(order.join(graph, program, &donors, near, shares_a_launch));
    groups
}

/// How many groups a product or convolution may be moved over to start with another.
pub(crate) const NEAR: usize = 4;
/// Launches start together if the peak of memory grows by no more than this part of it.
pub(crate) const MORE: usize = 50;

/// The plan of a body: its sizes use the symbols of the program, and every step runs every time.
fn body(graph: &Graph, program: &Program) -> Plan {
    let order = Order {
        prepare: Vec::new(),
        run: (0..program.launches.len()).collect(),
        commit: Vec::new(),
        commit_from: program.launches.len(),
    };
    arrange(graph, program, order, NEAR).plan
}

fn arrange(graph: &Graph, program: &Program, mut order: Order, near: usize) -> Placed {
    let donors = order.donate(graph, program);
    let groups = order.join(graph, program, &donors, near, can_join);
    let mut plan = Plan {
        buffers: program
            .buffers
            .iter()
            .map(|b| Buffer {
                dtype: b.dtype,
                len: kiln_base::numel(&b.shape),
                place: Place::Temporary,
            })
            .collect(),
        ..Plan::default()
    };
    inputs_and_constants(graph, program, &mut plan);
    let positions = outputs(program, &donors, &mut plan);
    for &l in &order.prepare {
        for buffer in written(&program.launches[l]) {
            let place = &mut plan.buffers[ix(buffer)].place;
            if *place == Place::Temporary {
                *place = Place::Prepared;
            }
        }
    }
    for &l in &order.prepare {
        let step = step(graph, &program.launches[l], &mut plan);
        plan.prepare.push(step);
    }
    for group in &groups {
        for (i, &l) in group.iter().enumerate() {
            let step = step(graph, &program.launches[l], &mut plan);
            plan.run.push(Step {
                joined: i > 0,
                ..step
            });
        }
    }
    plan.commit = order.commit_from as u32;
    in_place(program, &groups, &mut plan);
    let mut joined = vec![false; program.launches.len()];
    for l in groups.iter().flat_map(|g| &g[1..]) {
        joined[*l] = true;
    }
    Placed {
        plan,
        outputs: positions,
        joined,
        run: groups.concat(),
        prepare: order.prepare,
    }
}

/// Each symbol is given by the first input dim that is exactly this symbol.
fn symbols(graph: &Graph) -> Result<Vec<Symbol>, CompileError> {
    let inputs = graph.inputs();
    let define = |(s, info): (usize, &kiln_ir::SymbolInfo)| {
        let dim = Plan::symbol(s);
        let place = inputs.iter().enumerate().find_map(|(i, id)| {
            let axis = graph
                .node(*id)
                .fact()
                .shape
                .iter()
                .position(|d| *d == dim)?;
            Some((i as u32, axis as u32))
        });
        let (input, axis) = place.ok_or_else(|| {
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

fn inputs_and_constants(graph: &Graph, program: &Program, plan: &mut Plan) {
    let mut given = vec![None; graph.inputs().len()];
    for (i, info) in program.buffers.iter().enumerate() {
        match &info.origin {
            Origin::Input(index) => {
                plan.buffers[i].place = Place::Input;
                given[*index as usize] = Some(BufferId(i as u32));
            }
            Origin::Constant(bytes) => {
                plan.buffers[i].place = Place::Constant;
                plan.constants.push(Constant {
                    dtype: info.dtype,
                    bytes: bytes.to_vec(),
                    buffer: BufferId(i as u32),
                });
            }
            _ => {}
        }
    }
    for (id, buffer) in graph.inputs().into_iter().zip(given) {
        let node = graph.node(id);
        let Op::Input(input) = &node.op else { continue };
        // An input that nothing reads still has a place in the list.
        let buffer = buffer.unwrap_or_else(|| {
            plan.buffers.push(Buffer {
                dtype: input.fact.dtype,
                len: input.fact.numel(),
                place: Place::Input,
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

fn outputs(program: &Program, donors: &[Option<u32>], plan: &mut Plan) -> Vec<Option<usize>> {
    let mut positions = Vec::new();
    for (output, donor) in program.outputs.iter().zip(donors) {
        positions.push(output.map(|buffer| {
            let info = &program.buffers[ix(buffer)];
            plan.buffers[ix(buffer)].place = Place::Output;
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

fn step(graph: &Graph, launch: &Launch, plan: &mut Plan) -> Step {
    let mut kernel = launch.kernel.clone();
    let mut sites = launch.sites.clone();
    for s in &mut sites {
        let at = marked(&graph.node(NodeId(s.node)).loc);
        s.node = at.map_or(s.node, |at| at as u32);
    }
    if let [node] = launch.nodes[..] {
        let graphs = graph.node(node).op.bodies().iter();
        for ((plan, graph), program) in kernel
            .bodies_mut()
            .iter_mut()
            .zip(graphs)
            .zip(&launch.bodies)
        {
            *plan = body(graph, program);
            sites.extend(plan.sites.iter().cloned());
        }
    }
    let at = plan.kernels.iter().position(|k| *k == kernel);
    let at = at.unwrap_or_else(|| {
        plan.kernels.push(kernel);
        plan.kernels.len() - 1
    });
    let first = plan.sites.len() as u32;
    plan.sites.extend(sites);
    Step {
        kernel: at as u32,
        sites: (first..plan.sites.len() as u32).collect(),
        args: launch.args.iter().map(|b| BufferId(b.0)).collect(),
        joined: false,
    }
}

/// The launches of each part, in order.
struct Order {
    prepare: Vec<usize>,
    run: Vec<usize>,
    /// Those that were moved behind the others to write into donated inputs.
    commit: Vec<usize>,
    /// The first step of `run` and `commit` that may write into a donated input.
    commit_from: usize,
}

impl Order {
    fn new(program: &Program) -> Order {
        // A value that the caller gets is written in every run, even where it depends on parameters
        // alone: the caller owns it afterwards.
        let mut prepared = vec![false; program.launches.len()];
        let outputs: Vec<BufId> = program.outputs.iter().flatten().copied().collect();
        for (l, launch) in program.launches.iter().enumerate() {
            prepared[l] = written(launch)
                .all(|b| program.buffers[ix(b)].parameter_only && !outputs.contains(&b));
        }
        // A step may only be prepared if what it reads is.
        let mut run_writes = vec![false; program.buffers.len()];
        for (l, launch) in program.launches.iter().enumerate() {
            prepared[l] &= read(launch).all(|b| !run_writes[ix(b)]);
            if !prepared[l] {
                written(launch).for_each(|b| run_writes[ix(b)] = true);
            }
        }
        let (prepare, run) = (0..program.launches.len()).partition(|l| prepared[*l]);
        Order {
            prepare,
            commit_from: run.len(),
            run,
            commit: Vec::new(),
        }
    }

    /// The run and the commit in groups of launches that start together.
    fn join(
        &self,
        graph: &Graph,
        program: &Program,
        donors: &[Option<u32>],
        near: usize,
        can: fn(&Launch) -> bool,
    ) -> Vec<Vec<usize>> {
        let buffer = |input: u32| {
            let origin = |b: &kiln_codegen::BufferInfo| b.origin == Origin::Input(input);
            program.buffers.iter().position(origin)
        };
        let donors = donors.iter().map(|d| d.and_then(buffer));
        let joiner = Joiner::new(graph, program, donors, near, can);
        let all: Vec<usize> = self.run.iter().chain(&self.commit).copied().collect();
        let (run, commit) = all.split_at(self.commit_from);
        [joiner.groups(run), joiner.groups(commit)].concat()
    }

    /// Moves the launches of donated outputs to the end where they are not safe already; gives each
    /// output's donor.
    fn donate(&mut self, graph: &Graph, program: &Program) -> Vec<Option<u32>> {
        let input_buffer = |index: u32| {
            program
                .buffers
                .iter()
                .position(|b| matches!(b.origin, Origin::Input(i) if i == index))
        };
        let wanted: Vec<Option<(u32, usize, usize)>> = graph
            .outputs
            .iter()
            .zip(&program.outputs)
            .map(|(o, buffer)| {
                let (Target::Assign(input), Some(out)) = (o.target, buffer) else {
                    return None;
                };
                let writer = self
                    .run
                    .iter()
                    .position(|l| written(&program.launches[*l]).any(|b| b == *out))?;
                Some((input, self.run[writer], input_buffer(input)?))
            })
            .collect();
        // A launch may move if nothing reads what it writes and it cannot fail.
        let movable = |l: usize| {
            let launch = &program.launches[l];
            !can_fail(launch)
                && written(launch).all(|b| {
                    program
                        .launches
                        .iter()
                        .all(|other| !read(other).any(|r| r == b))
                })
        };
        // A launch may stay if nothing behind it can fail or reads the input.
        let fallible = |l: &usize| can_fail(&program.launches[*l]);
        let safe = self.run.iter().rposition(fallible).map_or(0, |at| at + 1);
        let stays = |l: usize, buffer: usize| {
            let behind = self.run.iter().skip_while(|o| **o != l).skip(1);
            self.run[safe..].contains(&l)
                && behind
                    .flat_map(|o| read(&program.launches[*o]))
                    .all(|r| ix(r) != buffer)
        };
        let mut donors = vec![None; wanted.len()];
        let candidates: Vec<usize> = wanted
            .iter()
            .flatten()
            .filter(|(_, l, buffer)| movable(*l) || stays(*l, *buffer))
            .map(|w| w.1)
            .collect();
        for (slot, want) in wanted.iter().enumerate() {
            let Some((input, l, buffer)) = *want else {
                continue;
            };
            let launch = &program.launches[l];
            let out = program.outputs[slot].map(ix);
            // Other launches that move to the end must not read the old value.
            let reads = |c: &usize| read(&program.launches[*c]).any(|r| ix(r) == buffer);
            let mut moving = candidates.iter().filter(|c| movable(**c));
            let alone = moving.all(|c| *c == l || !reads(c));
            let reads_itself = read(launch).any(|r| ix(r) == buffer);
            let pairs = launch
                .in_place
                .iter()
                .any(|(r, w)| ix(launch.args[*r]) == buffer && Some(ix(launch.args[*w])) == out);
            let placed = movable(l) || stays(l, buffer);
            if placed && alone && (!reads_itself || pairs) {
                donors[slot] = Some(input);
            }
        }
        let donated = wanted.iter().zip(&donors);
        let moved: Vec<(usize, usize)> = donated
            .filter(|(_, d)| d.is_some())
            .filter_map(|(w, _)| w.map(|w| (w.1, w.2)))
            .collect();
        let staying = moved.iter().any(|(l, _)| !movable(*l));
        let moved: Vec<(usize, usize)> = moved.into_iter().filter(|m| movable(m.0)).collect();
        self.commit_moved(program, safe, &moved, staying);
        donors
    }

    /// Moves launches, each with the buffer that it writes over: to the end, where small ones start together;
    /// but those that hold more memory than that is worth only behind the last that reads the buffer, if
    /// nothing behind `safe` can fail.
    fn commit_moved(
        &mut self,
        program: &Program,
        safe: usize,
        moved: &[(usize, usize)],
        staying: bool,
    ) {
        let is_moved = |l: &usize| moved.iter().any(|m| m.0 == *l);
        let waits = |l: &Launch| matches!(l.kernel, Kernel::Tile(_)) && can_join(l);
        let early = |l: &usize| !waits(&program.launches[*l]);
        let from = self.run[..safe].iter().filter(|l| !is_moved(l)).count();
        let mut run: Vec<usize> = Vec::with_capacity(self.run.len());
        // What waits until its buffer is read no more.
        let mut waiting: Vec<(usize, usize)> = Vec::new();
        let last_read = |buffer: usize| {
            let reads =
                |l: &usize| !is_moved(l) && read(&program.launches[*l]).any(|r| ix(r) == buffer);
            self.run.iter().rposition(reads)
        };
        for (at, l) in self.run.iter().enumerate() {
            match is_moved(l) {
                false => run.push(*l),
                true if early(l) => {
                    let buffers = moved.iter().filter(|m| m.0 == *l).map(|m| m.1);
                    let until = buffers.filter_map(last_read).chain([at]).max();
                    waiting.push((until.unwrap_or(at).max(safe.saturating_sub(1)), *l));
                }
                true => self.commit.push(*l),
            }
            waiting.retain(|(until, l)| {
                if *until <= at {
                    run.push(*l);
                }
                *until > at
            });
        }
        let inside = run.len() + self.commit.len() == self.run.len();
        debug_assert!(inside, "every launch runs once");
        let alone = staying || moved.iter().any(|m| early(&m.0));
        self.commit_from = if alone { from } else { run.len() };
        self.run = run;
    }
}

/// Lets a temporary take over the memory of one that dies where it is written.
fn in_place(program: &Program, groups: &[Vec<usize>], plan: &mut Plan) {
    let mut last_read = vec![0; plan.buffers.len()];
    for (at, group) in groups.iter().enumerate() {
        for b in group.iter().flat_map(|l| read(&program.launches[*l])) {
            last_read[ix(b)] = at;
        }
    }
    let mut taken = vec![false; plan.buffers.len()];
    for (at, group) in groups.iter().enumerate() {
        for &l in group {
            let launch = &program.launches[l];
            // What another launch reads at the same time must stay.
            let others = || group.iter().filter(|o| **o != l);
            let read_beside =
                |b: usize| others().any(|o| read(&program.launches[*o]).any(|r| ix(r) == b));
            for &(r, w) in &launch.in_place {
                let (from, to) = (ix(launch.args[r]), ix(launch.args[w]));
                let temporary = |p: Place| matches!(p, Place::Temporary | Place::InPlace(_));
                let fits = temporary(plan.buffers[from].place)
                    && plan.buffers[to].place == Place::Temporary
                    && plan.buffers[from].len == plan.buffers[to].len
                    && plan.buffers[from].dtype.size() == plan.buffers[to].dtype.size();
                if fits && last_read[from] == at && !taken[from] && !read_beside(from) {
                    plan.buffers[to].place = Place::InPlace(BufferId(from as u32));
                    taken[from] = true;
                }
            }
        }
    }
}

/// Whether a launch may report a data error.
fn can_fail(launch: &Launch) -> bool {
    let inner = launch.bodies.iter().flat_map(|b| &b.launches);
    !launch.sites.is_empty() || inner.into_iter().any(can_fail)
}

fn args(launch: &Launch, written: bool) -> impl Iterator<Item = BufId> {
    let flagged = launch.args.iter().zip(&launch.written);
    flagged
        .filter(move |(_, w)| **w == written)
        .map(|(b, _)| *b)
}

pub(crate) fn written(launch: &Launch) -> impl Iterator<Item = BufId> {
    args(launch, true)
}

pub(crate) fn read(launch: &Launch) -> impl Iterator<Item = BufId> {
    args(launch, false)
}

pub(crate) fn ix(b: BufId) -> usize {
    b.0 as usize
}
