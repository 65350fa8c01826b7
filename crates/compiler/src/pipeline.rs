//! Graph in, plan out.

use crate::dump::Dump;
use crate::explain::Explain;
use crate::place::{self, Placed};
use crate::stages::{Stages, with_lines};
use crate::tune::{self, Precision, Settings};
use crate::{lean, recompute};
use kiln_base::Machine;
use kiln_codegen::{self as codegen, Hints};
use kiln_ir::{Graph, Loc, Need, Op, Role, Target};
use kiln_optimize as optimize;
use kiln_plan as plan;
use kiln_runtime::{Error as RunError, Executable, cuda};
use std::sync::Arc;
use std::time::Instant;

/// The passes that make one product of several.
const MERGING: [&str; 2] = [
    optimize::passes::merging::PASS.name,
    optimize::passes::stacking::PASS.name,
];

/// Bytes of temporaries that do not matter to a GPU.
const HARDLY: usize = 1 << 16;

/// How to compile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// Which approximations may be used.
    pub precision: Precision,
    /// The same as [`Precision::Exact`], whatever `precision` says.
    pub exact: bool,
    /// How algorithms are chosen.
    pub tune: Settings,
    /// The number of the GPU to compile for; `None` for the CPU.
    pub gpu: Option<u32>,
    /// Whether to optimise the graph at all.
    pub optimize: bool,
    /// Whether to fuse ops into common kernels.
    pub fuse: bool,
    /// How images lie in memory between the kernels of the CPU engine.
    pub layout: codegen::Layout,
    /// Stops after this many rewrites, to find the one that makes a result wrong.
    pub max_patches: Option<usize>,
    /// The most bytes of temporaries that a run may need. Values that live long and are cheap to compute
    /// again from what is in memory anyway are then computed again instead of being kept, as many as it
    /// takes; [`Explain::recomputed`] lists them. Parameters, inputs and results do not count. Sizes must
    /// be known.
    pub memory_budget: Option<usize>,
}

impl Options {
    /// Which approximations may be used.
    pub fn precision(&self) -> Precision {
        match self.exact {
            true => Precision::Exact,
            false => self.precision,
        }
    }
}

/// Precision and tuning are those of the process; see [`tune::set_precision`] and [`tune::set`].
impl Default for Options {
    fn default() -> Options {
        Options {
            precision: Precision::current(),
            exact: false,
            tune: Settings::current(),
            gpu: None,
            optimize: true,
            fuse: true,
            layout: codegen::Layout::Auto,
            max_patches: None,
            memory_budget: None,
        }
    }
}

impl Options {
    /// How to lower.
    pub(crate) fn codegen(&self, machine: &Machine) -> codegen::Options {
        codegen::Options {
            machine: *machine,
            fuse: self.fuse,
            layout: self.layout,
            // Ways differ in the memory that they take, which a budget is kept without.
            ways: self.tune.mode != tune::Mode::Off && self.memory_budget.is_none(),
            ..codegen::Options::default()
        }
    }
}

/// Why a graph could not be compiled.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CompileError {
    /// The engine can't run an op.
    #[error("{message}")]
    Unsupported {
        /// The position of the op in its recording, where that is known.
        at: Option<usize>,
        /// What can't be done.
        message: String,
    },
    /// The kernel of a custom op can't be compiled.
    #[error("{op}: {text}")]
    Custom {
        /// The position of the call in its recording, or its node.
        at: usize,
        /// The op's name.
        op: String,
        /// What is wrong.
        text: String,
    },
    /// The device, its driver or its compiler is missing or failed.
    #[error("{0}")]
    Device(String),
    /// The memory budget can't be kept.
    #[error("{0}")]
    Memory(String),
    /// What the stages gave can't be written where the environment asks for it.
    #[error("{0}")]
    Dump(String),
    /// A setting in the environment can't be read.
    #[error("{0}")]
    Environment(String),
    /// A defect in the compiler.
    #[error("internal error of the compiler: {0}")]
    Internal(String),
}

/// A compiled graph.
pub struct Compilation {
    /// The program, ready to run.
    pub executable: Executable,
    /// For each output of the graph its position among the plan's outputs; `None` for kept values
    /// that the plan does not write to memory.
    pub outputs: Vec<Option<usize>>,
    /// What was done and why.
    pub explain: Explain,
    /// What the stages gave.
    pub stages: Arc<Stages>,
}

/// A graph that is lowered, with its memory plan.
pub(crate) struct Lowered {
    pub graph: Graph,
    pub program: codegen::Program,
    /// The program by the ways that are chosen.
    pub sequence: codegen::Sequence,
    pub placed: Placed,
}

impl Lowered {
    /// # Errors
    /// If an op is not supported by the engine.
    pub fn with(graph: Graph, options: &codegen::Options) -> Result<Lowered, CompileError> {
        Lowered::hinted(graph, options, &Hints::default())
    }

    /// # Errors
    /// If an op is not supported by the engine.
    pub fn hinted(
        graph: Graph,
        options: &codegen::Options,
        hints: &Hints,
    ) -> Result<Lowered, CompileError> {
        let program = codegen::lower_with(&graph, options, hints);
        let program = program.map_err(|e| lower_error(&graph, e))?;
        Lowered::chosen(graph, program)
    }

    /// # Errors
    /// If the program contradicts itself; that would be a bug.
    pub fn chosen(graph: Graph, program: codegen::Program) -> Result<Lowered, CompileError> {
        let sequence = program.sequence();
        let placed = place::place(&graph, &sequence)?;
        Ok(Lowered {
            graph,
            program,
            sequence,
            placed,
        })
    }

    /// Makes one launch of several for a GPU, if that needs hardly more memory and every cell that is written
    /// over its old value still is.
    fn merge(&mut self, options: &Options) -> Result<(), CompileError> {
        if options.gpu.is_none() || !options.fuse {
            return Ok(());
        }
        let budget = options.memory_budget.unwrap_or(usize::MAX);
        let most = (self.peak()).map(|peak| (peak + (peak / place::MORE).max(HARDLY)).min(budget));
        let donated = |placed: &Placed| {
            let outputs = placed.plan.outputs.iter();
            outputs.filter(|o| o.donor.is_some()).count()
        };
        for near in [place::NEAR, 1, 0] {
            let groups = place::groups(&self.graph, &self.sequence, near);
            if groups.iter().all(|g| g.len() == 1) {
                break;
            }
            let sequence = codegen::side_by_side(&self.sequence, &groups);
            let placed = place::place(&self.graph, &sequence)?;
            if placed.peak() <= most && donated(&placed) >= donated(&self.placed) {
                (self.sequence, self.placed) = (sequence, placed);
                break;
            }
        }
        Ok(())
    }

    /// Bytes of temporaries that a run needs, where sizes are known.
    pub fn peak(&self) -> Option<usize> {
        self.placed.peak()
    }
}

/// Compiles a graph: the whole pipeline.
///
/// Locations of `graph` may be positions in `locs` ([`Loc::recorded`]); then the plan's data-error sites name
/// those positions, so that one plan serves programs recorded at other lines.
///
/// # Errors
/// If an op is not supported by the engine, or a memory budget can't be kept.
pub fn compile(
    graph: &Graph,
    locs: &[Loc],
    options: &Options,
) -> Result<Compilation, CompileError> {
    compile_with(graph, locs, options, optimize::passes())
}

/// [`compile`] with another list of passes, for tests and experiments.
///
/// # Errors
/// As for [`compile`].
pub fn compile_with(
    graph: &Graph,
    locs: &[Loc],
    options: &Options,
    passes: &[optimize::Pass],
) -> Result<Compilation, CompileError> {
    if let Some(problem) = tune::problem() {
        return Err(CompileError::Environment(problem));
    }
    let start = Instant::now();
    let graph = written_inputs_are_data(graph);
    let needs = graph.needs().into_iter().map(need).collect();
    let mut dump = Dump::new()?;
    if dump.on() {
        dump.graph("recorded", &with_lines(graph.clone(), locs))?;
    }
    let gpu = options.gpu.map(cuda::Device::get).transpose();
    let gpu = gpu.map_err(internal)?;
    let machine = kiln_runtime::machine(gpu.as_deref()).map_err(internal)?;
    let lowering = options.codegen(&machine);
    let mut run = |graph: &Graph, passes: &[optimize::Pass]| {
        run_passes(graph.clone(), &machine, options, passes, &mut dump, locs)
    };
    let (optimized, mut fired) = run(&graph, passes)?;
    let known = tune::known(&optimized, &machine, options);
    let mut lowered = Lowered::hinted(optimized, &lowering, &known)?;
    // Products that were made one hold all their results until the last is read.
    if lowered
        .peak()
        .zip(options.memory_budget)
        .is_some_and(|(peak, budget)| peak > budget)
        && fired.fired.iter().any(|f| MERGING.contains(&f.pass))
    {
        let apart = passes
            .iter()
            .copied()
            .filter(|p| !MERGING.contains(&p.name));
        let apart: Vec<optimize::Pass> = apart.collect();
        let (graph, report) = run(&graph, &apart)?;
        let apart = Lowered::with(graph, &lowering)?;
        if apart.peak() < lowered.peak() {
            (lowered, fired) = (apart, report);
        }
    }
    let (lowered, limited) = lean::no_more_than_unfused(lowered, &lowering)?;
    let (lowered, recomputed) = match options.memory_budget {
        Some(budget) => recompute::within(lowered, budget, &lowering, locs)?,
        None => (lowered, Vec::new()),
    };
    // What keeps memory small is left as it is.
    let may_change = options.fuse && limited.is_none() && options.memory_budget.is_none();
    let tuned = tune::tune(
        lowered,
        &known,
        options,
        &lowering,
        may_change,
        gpu.as_ref(),
    )?;
    let (mut lowered, tuned, tuning) = tuned;
    lowered.merge(options)?;
    let mut explain = Explain::new(&lowered, &fired, locs, &tuned);
    explain.recomputed = recomputed;
    explain.limited = limited;
    explain.tuning = tuning;
    let (stages, placed) = Stages::new(graph, lowered, locs);
    let stages = Arc::new(stages);
    let (mut plan, outputs) = (placed.plan, placed.outputs);
    plan.needs = needs;
    let sized = plan.symbols.is_empty();
    let executable = match &gpu {
        None => Executable::new(plan),
        Some(gpu) => Executable::on_gpu(plan, gpu),
    };
    let executable = executable.map_err(internal)?;
    if sized {
        let memory = executable.memory(&[]).map_err(internal)?;
        explain.memory = Some(memory);
        if let Some(budget) = options.memory_budget.filter(|b| memory.peak > *b) {
            let text = format!(
                "a run needs {} bytes of temporaries, more than the memory budget of {budget}",
                memory.peak
            );
            return Err(CompileError::Memory(text));
        }
        explain.temporaries = executable.temporaries(&[]).map_err(internal)?;
    }
    explain.stages = Some(stages.clone());
    explain.time = start.elapsed();
    dump.lowered(&stages, &explain)?;
    Ok(Compilation {
        executable,
        outputs,
        explain,
        stages,
    })
}

fn internal(e: RunError) -> CompileError {
    match e {
        RunError::Cuda(text) => CompileError::Device(text),
        RunError::Level(e) => CompileError::Environment(e.to_string()),
        RunError::OutOfMemory { .. } => CompileError::Memory(e.to_string()),
        RunError::Custom { node, op, text } => CompileError::Custom {
            at: node as usize,
            op,
            text,
        },
        e => CompileError::Internal(e.to_string()),
    }
}

/// A number that must not be negative, at its node's marked position.
fn need(Need { size, node, id }: Need<'_>) -> plan::Need {
    let at = node.loc.position().unwrap_or(id.index());
    let (op, node) = (node.op.name().to_string(), at as u32);
    plan::Need { size, op, node }
}

/// What depends on a cell that the program writes runs every time, so such an input is no parameter.
fn written_inputs_are_data(graph: &Graph) -> Graph {
    let mut graph = graph.clone();
    let inputs = graph.inputs();
    for output in graph.outputs.clone() {
        if let Target::Assign(i) = output.target
            && let Op::Input(input) = &mut graph.node_mut(inputs[i as usize]).op
        {
            input.role = Role::Data;
        }
    }
    graph
}

/// Optimises, takes composites apart, and optimises what that leaves.
fn run_passes(
    graph: Graph,
    machine: &Machine,
    options: &Options,
    list: &[optimize::Pass],
    dump: &mut Dump,
    locs: &[Loc],
) -> Result<(Graph, optimize::Report), CompileError> {
    if !options.optimize {
        let graph = optimize::decompose(graph, machine);
        return Ok((graph, optimize::Report::default()));
    }
    let mut passes = optimize::Options {
        exact: options.precision() == Precision::Exact,
        max_patches: options.max_patches,
        ..optimize::Options::default()
    };
    let mut run = |graph: Graph, passes: &optimize::Options| {
        let mut dumped = Ok(());
        let mut seen = |pass: &optimize::Pass, graph: &Graph| {
            if dump.on() && dumped.is_ok() {
                dumped = dump.graph(pass.name, &with_lines(graph.clone(), locs));
            }
        };
        let done = optimize::optimize_seen(graph, list, passes, &mut seen);
        dumped?;
        done.map_err(|e| CompileError::Internal(e.to_string()))
    };
    let (graph, mut report) = run(graph, &passes)?;
    passes.max_patches = options.max_patches.map(|n| n - report.fired.len().min(n));
    let (graph, rest) = run(optimize::decompose(graph, machine), &passes)?;
    report.fired.extend(rest.fired);
    report.stopped |= rest.stopped;
    report.nodes_after = rest.nodes_after;
    Ok((graph, report))
}

/// Why a graph can't be lowered, at the op's position in its recording.
pub(crate) fn lower_error(graph: &Graph, e: codegen::LowerError) -> CompileError {
    let node = graph.node(e.node);
    CompileError::Unsupported {
        at: node.loc.position(),
        message: format!("{}: {}", node.op.name(), e.text),
    }
}
