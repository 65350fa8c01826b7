//! Explanations of compilations: as text, as a page, as drawings of the graph.

mod conversions;
mod dot;
mod graphs;
pub mod html;
mod layout;
mod page;
mod save;
mod timeline;

pub use conversions::ConversionInfo;

use crate::lines::{describe_op, resolved};
use crate::lowered::Lowered;
use crate::place::Placed;
use crate::tune::{Choice, Mode, Tuned, Tuning};
use crate::uses::{ix, written};
use crate::{Recomputed, Stages};
use hashbrown::HashMap;
use kiln_codegen::{Cost, Launch, LayoutReport, Origin, Program, Sequence};
use kiln_ir::{Graph, Loc, Op};
use kiln_optimize::{Fired, Report};
use kiln_plan::{Allocation, Decision};
use kiln_runtime::{Features, MemoryBlock, MemoryReport};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An explanation of a compilation: passes that fired, kernels, memory. Displays as text; [`Explain::to_html`] is
/// a page with the graphs, [`Explain::to_dot`] the optimised graph for Graphviz.
#[derive(Clone, Debug, Default)]
pub struct Explain {
    /// Rewrites, in order: rule, what it looked at, the user's line.
    pub rewrites: Vec<Fired>,
    /// The number of times that each rule fired.
    pub counts: Vec<(&'static str, usize)>,
    /// Kernels, prepare steps first.
    pub kernels: Vec<KernelInfo>,
    /// The values that are rematerialised to stay within a memory budget.
    pub recomputed: Vec<Recomputed>,
    /// The reason why kernels are smaller than they could be, if that saves memory.
    pub limited: Option<String>,
    /// The layout of images in memory, with reasons.
    pub layout: LayoutReport,
    /// The images that change their layout.
    pub conversions: Vec<ConversionInfo>,
    /// The CPU's level that it is compiled for; `None` for a GPU.
    pub level: Option<Features>,
    /// The memory that the plan needs, where all sizes are known.
    pub memory: Option<MemoryReport>,
    /// The choices of candidates.
    pub tuning: Tuning,
    /// The time that compiling took.
    pub time: Duration,
    /// The reasons for which plans of the program were compiled.
    pub reasons: Reasons,
    /// The optimised graph as text.
    pub graph: String,
    /// The temporaries of a run, where all sizes are known.
    pub temporaries: Vec<MemoryBlock>,
    /// The results of the stages; the plan cache of lazy programs drops it.
    pub stages: Option<Arc<Stages>>,
}

/// The reasons for which plans of a program were compiled, in order. Clones are one list.
#[derive(Clone, Debug, Default)]
pub struct Reasons(Arc<Mutex<Vec<String>>>);

impl Reasons {
    /// Adds a reason.
    pub fn push(&self, reason: String) {
        self.lock().push(reason);
    }

    /// The reasons, the latest last.
    pub fn list(&self) -> Vec<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Vec<String>> for Reasons {
    fn from(list: Vec<String>) -> Reasons {
        Reasons(Arc::new(Mutex::new(list)))
    }
}

/// One kernel launch.
#[derive(Clone, Debug)]
pub struct KernelInfo {
    /// The kernel's name.
    pub name: String,
    /// The candidate that was chosen, where there are several.
    pub algorithm: Option<Decision>,
    /// The tuner's choice of the candidate, if there was one.
    pub choice: Option<Arc<Choice>>,
    /// The tuner's choice of the fusion, if there was one.
    pub fusion: Option<Arc<Choice>>,
    /// Its position among the steps of its part of the plan.
    pub step: usize,
    /// Its schedule for the CPU's level, where all sizes are known: its register tile, and the loops that are
    /// emitted as machine code or interpreted.
    pub schedule: Option<String>,
    /// Its estimated cost: arithmetic operations, and bytes of the buffers it touches.
    pub cost: Cost,
    /// True if it runs only when a parameter has changed.
    pub prepared: bool,
    /// True if it is concurrent with the launch before it.
    pub concurrent: bool,
    /// True if a flag that the plan computes can skip it.
    pub guarded: bool,
    /// The ops that it computes, with the user's lines.
    pub ops: Vec<String>,
    /// True if it only changes a dtype, and perhaps the layout.
    pub casts: bool,
    /// The reasons why neighbours were not fused into it.
    pub why_not: Vec<String>,
    /// Its Kernel IR, if it has one.
    pub kir: Option<String>,
    /// The kernels of a loop's step, or of both branches.
    pub inner: Vec<KernelInfo>,
}

impl Explain {
    pub(crate) fn new(lowered: &Lowered, fired: &Report, locs: &[Loc], tuned: &Tuned) -> Explain {
        let Lowered {
            graph,
            program,
            sequence,
            placed,
        } = lowered;
        let resolve = |loc: &Loc| resolved(loc, locs);
        let rewrites = fired.fired.iter().map(|f| Fired {
            loc: resolve(&f.loc),
            ..f.clone()
        });
        Explain {
            rewrites: rewrites.collect(),
            counts: fired.counts(),
            kernels: kernels(graph, (program, sequence, tuned), Some(placed), &resolve),
            layout: program.layout.clone(),
            conversions: conversions::conversions(graph, (program, sequence), &resolve),
            graph: graph.to_string(),
            ..Explain::default()
        }
    }

    /// Returns the number of times that a rule fired.
    pub fn count(&self, rule: &str) -> usize {
        let counted = self.counts.iter().find(|(name, _)| *name == rule);
        counted.map_or(0, |(_, n)| *n)
    }

    /// Returns the number of convolutions that were folded with their batch norms.
    pub fn folded(&self) -> usize {
        self.count("conv_batch_norm")
    }

    /// Returns the number of biases that were dropped before a batch norm that uses batch statistics.
    pub fn dropped_biases(&self) -> usize {
        self.count("bias_before_norm")
    }

    /// Sets the schedules of the kernels of *prepare* and of a run.
    pub(crate) fn set_schedules(&mut self, [prepare, run]: &[Vec<Option<String>>; 2]) {
        for k in &mut self.kernels {
            let part = if k.prepared { prepare } else { run };
            k.schedule = part.get(k.step).cloned().flatten();
        }
    }

    /// The approximate memory of the texts, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let texts = |list: &[String]| list.iter().map(|t| t.len() + 32).sum::<usize>();
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let kernel = |k: &KernelInfo| {
            k.name.len() + text(&k.schedule) + texts(&k.ops) + texts(&k.why_not) + text(&k.kir)
        };
        let mut kernels: Vec<&KernelInfo> = self.kernels.iter().collect();
        let rewrites = self.rewrites.iter().map(|f| f.node.len() + 96);
        let conversions = self.conversions.iter().map(ConversionInfo::bytes);
        let temporaries = std::mem::size_of_val(&self.temporaries[..]);
        let mut bytes = self.graph.len() + temporaries;
        bytes += rewrites.chain(conversions).sum::<usize>();
        while let Some(k) = kernels.pop() {
            bytes += kernel(k);
            kernels.extend(&k.inner);
        }
        bytes
    }

    /// Number of kernels that every run starts: its launches, of which those that start together count as
    /// one. On the CPU these are one parallel region, as a `foreach` kernel of PyTorch is, on a GPU one launch.
    pub fn kernels_run(&self) -> usize {
        self.launches_run() - self.concurrent()
    }

    /// Number of launches of the plan in every run; an algorithm of several launches counts with each.
    pub fn launches_run(&self) -> usize {
        self.kernels.iter().filter(|k| !k.prepared).count()
    }

    /// Returns the number of launches of every run that only change a dtype.
    pub fn casts_alone(&self) -> usize {
        let casts = |k: &&KernelInfo| !k.prepared && k.casts;
        self.kernels.iter().filter(casts).count()
    }

    /// Returns the number of launches of every run that are concurrent with one before them.
    pub fn concurrent(&self) -> usize {
        let concurrent = |k: &&KernelInfo| !k.prepared && k.concurrent;
        self.kernels.iter().filter(concurrent).count()
    }

    /// Number of kernels that run only when a parameter has changed.
    pub fn kernels_prepared(&self) -> usize {
        self.kernels.iter().filter(|k| k.prepared).count()
    }
}

fn kernels(
    graph: &Graph,
    (program, sequence, tuned): (&Program, &Sequence, &Tuned),
    placed: Option<&Placed>,
    resolve: &dyn Fn(&Loc) -> Loc,
) -> Vec<KernelInfo> {
    let prepared = |launch: &Launch| {
        let Some(placed) = placed else { return false };
        let mut written = written(launch);
        written.all(|b| placed.plan.buffers[ix(b)].allocation == Allocation::Prepared)
    };
    let info = |(i, launch): (usize, &Launch)| {
        let task = match launch.tasks[..] {
            [task] => Some(task),
            _ => None,
        };
        KernelInfo {
            name: launch.kernel.name().to_string(),
            algorithm: launch.kernel.decision().cloned(),
            choice: task.and_then(|t| tuned.tasks.get(t).cloned().flatten()),
            fusion: fusion(sequence, launch, tuned),
            step: placed.map_or(i, |p| p.steps[i]),
            schedule: None,
            cost: launch.cost.clone(),
            prepared: prepared(launch),
            concurrent: placed.is_some_and(|p| p.concurrent[i]),
            guarded: placed.is_some_and(|p| {
                let step = p.plan.run.get(p.steps[i]).filter(|_| !prepared(launch));
                step.is_some_and(|step| step.guard.is_some())
            }),
            ops: launch
                .nodes
                .iter()
                .map(|id| graph.node(*id))
                .filter(|n| !matches!(n.op, Op::Input(_)))
                .map(|n| describe_op(n.op.name(), &n.facts[0], &resolve(&n.loc)))
                .collect(),
            casts: launch.kernel.name().split('_').all(|op| op == "cast"),
            why_not: why_not(program, launch).cloned().collect(),
            kir: task.and_then(|t| program.tasks[t].work.kir_text(&program.machine)),
            inner: inner(graph, program, launch, tuned, resolve),
        }
    };
    let launches = sequence.launches.iter().enumerate();
    let mut kernels: Vec<KernelInfo> = launches.map(info).collect();
    kernels.sort_by_key(|k| !k.prepared);
    kernels
}

/// The reasons why more was not fused into a launch.
pub(crate) fn why_not<'a>(
    program: &'a Program,
    launch: &'a Launch,
) -> impl Iterator<Item = &'a String> {
    let tasks = launch.tasks.iter();
    tasks.flat_map(|t| &program.tasks[*t].why_not)
}

/// Returns the fusion choice for one of the results of a launch.
fn fusion(sequence: &Sequence, launch: &Launch, tuned: &Tuned) -> Option<Arc<Choice>> {
    let mut choices = written(launch).filter_map(|b| match &sequence.buffers[ix(b)].origin {
        Origin::Value(value) => tuned.fusion.get(value),
        _ => None,
    });
    choices.next().cloned()
}

/// The kernels in the bodies of a launch.
fn inner(
    graph: &Graph,
    program: &Program,
    launch: &Launch,
    tuned: &Tuned,
    resolve: &dyn Fn(&Loc) -> Loc,
) -> Vec<KernelInfo> {
    if launch.bodies.is_empty() {
        return Vec::new();
    }
    let task = launch.tasks[0];
    let graphs = graph.node(launch.nodes[0]).op.bodies().iter();
    let programs = program.tasks[task].work.bodies().iter();
    let bodies = graphs.zip(programs.zip(&launch.bodies)).enumerate();
    let untuned = Tuned::default();
    bodies
        .flat_map(|(i, (graph, (program, sequence)))| {
            let tuned = tuned.bodies.get(task).and_then(|list| list.get(i));
            let lowered = (program, sequence, tuned.unwrap_or(&untuned));
            kernels(graph, lowered, None, resolve)
        })
        .collect()
}

impl KernelInfo {
    fn write(&self, f: &mut fmt::Formatter<'_>, indent: usize) -> fmt::Result {
        let when = match (self.prepared, self.concurrent) {
            (true, _) => " (prepare)",
            (_, true) => " (together with another)",
            _ => "",
        };
        let choice_note = match (&self.choice, &self.algorithm) {
            (Some(choice), _) => format!(" by {choice}"),
            (_, None) => String::new(),
            (_, Some(algorithm)) => format!(" by {algorithm}"),
        };
        let guard = match self.guarded {
            true => " (unless a flag is set)",
            false => "",
        };
        writeln!(f, "{:indent$}{}{choice_note}{when}{guard}", "", self.name)?;
        let Cost { flops, bytes, .. } = &self.cost;
        write!(f, "{:indent$}  {flops} operations, {bytes} bytes", "")?;
        match &self.schedule {
            Some(schedule) => writeln!(f, ": {schedule}")?,
            None => writeln!(f)?,
        }
        for op in &self.ops {
            writeln!(f, "{:indent$}  {op}", "")?;
        }
        if let Some(choice) = &self.fusion {
            writeln!(f, "{:indent$}  fused {choice}", "")?;
        }
        for why in &self.why_not {
            writeln!(f, "{:indent$}  not fused: {why}", "")?;
        }
        self.inner.iter().try_for_each(|k| k.write(f, indent + 4))
    }
}

/// The maximum number of rewrites of one rule that the text lists.
const SHOWN: usize = 8;

impl fmt::Display for Explain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rewrites: {}", self.rewrites.len())?;
        let mut shown: HashMap<&str, usize> = HashMap::new();
        for r in &self.rewrites {
            let of_rule = shown.entry(r.rule).or_default();
            *of_rule += 1;
            if *of_rule <= SHOWN {
                writeln!(f, "  {r}")?;
            }
        }
        for (rule, n) in self.counts.iter().filter(|(_, n)| *n > SHOWN) {
            writeln!(f, "  {rule}: {} more, which the page lists", n - SHOWN)?;
        }
        let run = match self.concurrent() {
            0 => String::new(),
            n => format!(
                " ({} launches, of which {n} start together with another)",
                self.launches_run()
            ),
        };
        let level = (self.level).map_or(String::new(), |l| format!("; CPU level {}", l.name()));
        writeln!(
            f,
            "kernels: {} in every run{run}, {} when a parameter has changed{level}",
            self.kernels_run(),
            self.kernels_prepared()
        )?;
        for k in &self.kernels {
            k.write(f, 2)?;
        }
        if self.layout.convolutions > 0 {
            writeln!(f, "{}", self.layout)?;
        }
        for conversion in &self.conversions {
            writeln!(f, "  {conversion}")?;
        }
        if let Some(choice) = self.tuning.layouts() {
            writeln!(f, "layouts {choice}")?;
        }
        if let Some(limited) = &self.limited {
            writeln!(f, "{limited}")?;
        }
        if !self.recomputed.is_empty() {
            let (bytes, flops) =
                (self.recomputed.iter()).fold((0, 0), |(b, f), r| (b + r.bytes, f + r.flops));
            let many = self.recomputed.len();
            writeln!(
                f,
                "recomputed: {many} values, {bytes} bytes that are not kept, {flops} operations more"
            )?;
            for r in &self.recomputed {
                writeln!(f, "  {r}")?;
            }
        }
        if self.tuning.mode != Mode::Off {
            write!(f, "{}", self.tuning)?;
        }
        match &self.memory {
            Some(m) => writeln!(
                f,
                "memory: {} bytes at the peak (no layout needs less than {}), {} prepared, {} of outputs",
                m.peak, m.lower_bound, m.prepared, m.outputs
            )?,
            None => writeln!(f, "memory: depends on symbolic sizes")?,
        }
        let reasons = self.reasons.list();
        if reasons.len() > 1 {
            let (many, reasons) = (reasons.len(), reasons.join("\n  "));
            writeln!(f, "plans of this program: {many}\n  {reasons}")?;
        }
        Ok(())
    }
}
