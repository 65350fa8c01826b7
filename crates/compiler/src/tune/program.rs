//! The tasks of a lowered program.

use super::candidates::{infos, limit};
use super::choose::{Choice, Chooser, Tuning};
use super::fusion::Region;
use super::library::Library;
use super::record::{Limits, Trial};
use super::search::{Effort, Subject, SystemClock, search};
use super::settings::Precision;
use super::subject::KernelSubject;
use super::{Mode, Why, key, layouts};
use crate::lowered::Lowered;
use crate::{CompileError, Options};
use hashbrown::HashMap;
use kiln_base::Machine;
use kiln_codegen::{Body, Hints, Program, Schedule, Task};
use kiln_ir::{Op, Value};
use kiln_plan::Plan;
use kiln_runtime::{cuda, memory};
use std::sync::Arc;
use std::time::Instant;

/// The choices for the tasks of a program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tuned {
    /// For each task, its choice; `None` where there is none.
    pub tasks: Vec<Option<Arc<Choice>>>,
    /// For each task, the choices of the programs that it runs.
    pub bodies: Vec<Vec<Tuned>>,
    /// The choices of fusion, by value.
    pub fusion: HashMap<Value, Arc<Choice>>,
}

/// Chooses the fusion, where it may change, and then the algorithms of the kernels. The program was lowered with the
/// hints that are [`known`].
///
/// # Errors
/// If the program can't be lowered with another candidate, which would be a bug.
pub(crate) fn tune(
    mut lowered: Lowered,
    known: &Hints,
    options: &Options,
    lowering: &kiln_codegen::Options,
    may_change: bool,
    gpu: Option<&Arc<cuda::Device>>,
) -> Result<(Lowered, Tuned, Tuning), CompileError> {
    let settings = &options.tune;
    if settings.mode == Mode::Off {
        return Ok((lowered, Tuned::default(), Tuning::default()));
    }
    let start = Instant::now();
    let clock = SystemClock::default();
    let emulated = gpu.is_some_and(|gpu| gpu.is_emulated());
    let mut tuner = Tuner {
        chooser: Chooser::new(settings, &clock, emulated),
        device: key::device(&lowering.machine),
        symbols: lowered.graph.symbols.len(),
        precision: options.precision(),
        gpu,
        library: gpu.and_then(|gpu| Library::new(gpu, options)),
    };
    let mut fusion = HashMap::new();
    if may_change && lowered.graph.symbols.is_empty() {
        let mut hints = tuner.choose_fusion(&lowered, lowering, &mut fusion)?;
        // Layouts are measured on the whole program, where other processes would have to take part.
        let communicates = (lowered.graph.iter()).any(|(_, n)| matches!(n.op, Op::Collective(_)));
        let convolves = lowered.program.layout.convolutions > 0;
        let may_choose_layouts = convolves && layouts::are_measured(options) && !communicates;
        if gpu.is_none() && may_choose_layouts {
            hints.extend(tuner.choose_layouts(&lowered.graph, lowering)?);
        }
        if hints != *known {
            lowered = Lowered::hinted(lowered.graph, lowering, &hints)?;
        }
    }
    tuner.add_library(&mut lowered.program);
    let mut tuned = tuner.tune_program(&mut lowered.program);
    tuned.fusion = fusion;
    lowered = Lowered::chosen(lowered.graph, lowered.program)?;
    let mut tuning = tuner.chooser.finish();
    if tuning.choices.iter().any(|c| c.why == Why::Measured) {
        // The memory used for measuring is returned for the run to use. A GPU that can't free it reports that in the
        // run.
        match gpu {
            None => memory::empty_cache(),
            Some(gpu) => drop(gpu.empty_cache()),
        }
    }
    tuning.time = start.elapsed();
    Ok((lowered, tuned, tuning))
}

/// Returns the plan for packages, with Kiln's kernels instead of a library's; `None` if it is the plan that runs here.
///
/// # Errors
/// If the program contradicts itself, which would be a bug.
pub(crate) fn for_packages(
    lowered: &Lowered,
    tuned: &Tuned,
    options: &Options,
) -> Result<Option<Plan>, CompileError> {
    let by_library = |task: &Task| matches!(task.candidate().schedule, Schedule::Library(_));
    if !lowered.program.tasks.iter().any(by_library) {
        return Ok(None);
    }
    let mut program = lowered.program.clone();
    let tasks = program.tasks.iter_mut().zip(&tuned.tasks);
    for (task, choice) in tasks.filter(|(task, _)| by_library(task)) {
        let packaged_name = choice.as_ref().and_then(|c| c.in_packages.as_ref());
        let packaged = task
            .candidates
            .iter()
            .position(|c| Some(&c.name()) == packaged_name);
        task.chosen = packaged.unwrap_or(0);
    }
    let mut lowered = Lowered::chosen(lowered.graph.clone(), program)?;
    lowered.merge(options)?;
    Ok(Some(lowered.placed.plan))
}

/// Tries the candidates of a task within `effort`, without reading or writing the store. Empty if there is no choice.
pub fn measure(
    task: &Task,
    symbols: usize,
    precision: Precision,
    effort: &Effort,
    gpu: Option<&Arc<cuda::Device>>,
) -> Vec<Trial> {
    let mut candidates = task.candidates.clone();
    limit(&mut candidates, symbols, precision);
    if candidates.len() < 2 {
        return Vec::new();
    }
    let values = key::typical(symbols);
    let subject = KernelSubject::of_work(&task.work, &candidates, values, gpu.cloned());
    let subject: Arc<dyn Subject> = Arc::new(subject);
    search(
        &subject,
        &Limits::default(),
        effort,
        &SystemClock::default(),
    )
}

/// The state of tuning a program.
pub(super) struct Tuner<'a> {
    pub chooser: Chooser<'a>,
    pub device: String,
    pub symbols: usize,
    pub precision: Precision,
    pub gpu: Option<&'a Arc<cuda::Device>>,
    pub library: Option<Library>,
}

impl Tuner<'_> {
    /// Adds the candidates of a library to the tasks of a program. A library can't be kept from writing, so tasks in
    /// loops and branches have none.
    fn add_library(&mut self, program: &mut Program) {
        if let (Some(library), Machine::Gpu(gpu)) = (&self.library, &program.machine) {
            for task in &mut program.tasks {
                let candidates = library.candidates(&task.work, gpu, self.precision);
                task.candidates.extend(candidates);
            }
        }
    }

    /// Returns hints for the nodes that the rules would lower differently. Records the choices by value.
    fn choose_fusion(
        &mut self,
        lowered: &Lowered,
        options: &kiln_codegen::Options,
        choices: &mut HashMap<Value, Arc<Choice>>,
    ) -> Result<Hints, CompileError> {
        let without_candidates = kiln_codegen::Options {
            candidates: false,
            ..*options
        };
        let mut hints = Hints::default();
        for task in 0..lowered.program.tasks.len() {
            let Some(region) = Region::of(&lowered.graph, &lowered.program, task) else {
                continue;
            };
            let (choice, chosen) = region.choose(
                &mut self.chooser,
                &without_candidates,
                &self.device,
                self.gpu,
            )?;
            hints.extend(chosen);
            choices.extend(region.values.iter().map(|v| (*v, choice.clone())));
        }
        Ok(hints)
    }

    /// Chooses the candidates of a program's tasks, and of those in its loops and branches.
    pub(super) fn tune_program(&mut self, program: &mut Program) -> Tuned {
        let mut tuned = Tuned::default();
        let buffers = &program.buffers;
        for task in &mut program.tasks {
            let is_prepared = (task.written()).all(|b| buffers[b.0 as usize].parameter_only);
            // Fused work that runs once for all runs is not worth measuring.
            tuned.tasks.push(match (&task.work.body, is_prepared) {
                (Body::Fused(_), true) => None,
                _ => self.choose(task),
            });
            let bodies = task.work.bodies_mut().iter_mut();
            tuned
                .bodies
                .push(bodies.map(|b| self.tune_program(b)).collect());
        }
        tuned
    }

    /// Chooses the candidate of a task, where there is a choice.
    pub(super) fn choose(&mut self, task: &mut Task) -> Option<Arc<Choice>> {
        limit(&mut task.candidates, self.symbols, self.precision);
        let candidates = &task.candidates;
        // The choice of a layout needs the time of a convolution.
        if candidates.len() < 2 && !task.work.body.is_conv() {
            return None;
        }
        let values = key::typical(self.symbols);
        let key = key::key(&task.work, &values, &candidates[0].name(), &self.device)?;
        let infos = infos(candidates, &values);
        let choice = self.chooser.choose(key, &infos, || {
            let gpu = self.gpu.cloned();
            Arc::new(KernelSubject::of_work(&task.work, candidates, values, gpu))
        });
        // Tasks with one key may differ in the candidates that are legal.
        let choice = choice.among(infos.iter().map(|c| &c.name));
        let chosen = candidates.iter().position(|c| c.name() == choice.chosen);
        task.chosen = chosen.unwrap_or(0);
        Some(choice)
    }
}
