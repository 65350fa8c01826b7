//! The compilation pipeline, from a graph to a plan.

use crate::dump::Dump;
use crate::error::internal;
use crate::explain::Explain;
use crate::lines::with_lines;
use crate::lowered::Lowered;
use crate::tune::{self, Precision};
use crate::{CompileError, Options, Stages, lean, recompute};
use kiln_base::Machine;
use kiln_ir::{Graph, Loc, Need, Op, Role, Target};
use kiln_optimize as optimize;
use kiln_plan as plan;
use kiln_runtime::{Executable, cuda};
use std::sync::Arc;
use std::time::Instant;

/// The passes that merge several products into one.
const MERGING: [&str; 2] = [
    optimize::passes::merging::PASS.name,
    optimize::passes::stacking::PASS.name,
];

/// A compiled graph.
pub struct Compilation {
    /// The program, ready to run.
    pub executable: Executable,
    /// For each output of the graph, its position among the plan's outputs; `None` for kept values that the plan does
    /// not write to memory.
    pub outputs: Vec<Option<usize>>,
    /// A report of the compiler's decisions and their reasons.
    pub explain: Explain,
    /// The results of the stages.
    pub stages: Arc<Stages>,
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
    let needs: Vec<plan::Need> = graph.needs().into_iter().map(need).collect();
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
    // Merged products hold all their results until the last is read.
    if lowered
        .peak()
        .zip(options.memory_budget)
        .is_some_and(|(peak, budget)| peak > budget)
        && fired.fired.iter().any(|f| MERGING.contains(&f.pass))
    {
        let unmerged = passes
            .iter()
            .copied()
            .filter(|p| !MERGING.contains(&p.name));
        let unmerged: Vec<optimize::Pass> = unmerged.collect();
        let (graph, report) = run(&graph, &unmerged)?;
        let unmerged = Lowered::with(graph, &lowering)?;
        if unmerged.peak() < lowered.peak() {
            (lowered, fired) = (unmerged, report);
        }
    }
    let (lowered, limited) = lean::limit_to_unfused_memory(lowered, &lowering)?;
    let (lowered, recomputed) = match options.memory_budget {
        Some(budget) => recompute::fit_budget(lowered, budget, &lowering, locs)?,
        None => (lowered, Vec::new()),
    };
    // The tuner must not undo choices that save memory.
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
    let for_packages = tune::for_packages(&lowered, &tuned, options)?;
    let mut explain = Explain::new(&lowered, &fired, locs, &tuned);
    explain.recomputed = recomputed;
    explain.limited = limited;
    explain.tuning = tuning;
    let (mut stages, placed) = Stages::new(graph, lowered, locs);
    stages.for_packages = for_packages.map(|plan| plan::Plan {
        needs: Vec::clone(&needs),
        ..plan
    });
    let stages = Arc::new(stages);
    let (mut plan, outputs) = (placed.plan, placed.outputs);
    plan.needs = needs;
    let has_sizes = plan.symbols.is_empty();
    let executable = match &gpu {
        None => Executable::new(plan),
        Some(gpu) => Executable::on_gpu(plan, gpu),
    };
    let executable = executable.map_err(internal)?;
    explain.level = gpu.is_none().then(|| executable.level());
    if has_sizes {
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
        explain.set_schedules(&executable.schedules(&[]).map_err(internal)?);
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

/// Converts a number that must not be negative; its node is named by its recorded position.
fn need(Need { size, node, id }: Need<'_>) -> plan::Need {
    let at = node.loc.position().unwrap_or(id.index());
    let (op, node) = (node.op.name().to_string(), at as u32);
    plan::Need { size, op, node }
}

/// Steps that depend on a cell that the program writes run every time, so such an input is not a parameter.
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

/// Optimises the graph, decomposes composites, and optimises the result.
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
        machine: *machine,
        ..optimize::Options::default()
    };
    let mut run = |graph: Graph, passes: &optimize::Options| {
        let mut dumped = Ok(());
        let mut observe = |pass: &optimize::Pass, graph: &Graph| {
            if dump.on() && dumped.is_ok() {
                dumped = dump.graph(pass.name, &with_lines(graph.clone(), locs));
            }
        };
        let result = optimize::optimize_observed(graph, list, passes, &mut observe);
        dumped?;
        result.map_err(|e| CompileError::Internal(e.to_string()))
    };
    let (graph, mut report) = run(graph, &passes)?;
    passes.max_patches = options.max_patches.map(|n| n - report.fired.len().min(n));
    let (graph, second_report) = run(optimize::decompose(graph, machine), &passes)?;
    report.fired.extend(second_report.fired);
    report.stopped |= second_report.stopped;
    report.nodes_after = second_report.nodes_after;
    Ok((graph, report))
}
