//! The kernels of a lowered program.

use super::alone::Arg;
use super::choose::{Choice, Chooser, Tuning};
use super::fusion::Region;
use super::kernel::{candidates, named};
use super::record::{Limits, Trial};
use super::search::{Candidate, Effort, Subject, SystemClock, search};
use super::settings::Precision;
use super::subject::KernelSubject;
use super::{Mode, Why, key, layouts, ways};
use crate::pipeline::{CompileError, Lowered, Options};
use crate::{place, uses};
use hashbrown::HashMap;
use kiln_base::numel;
use kiln_codegen::{BufId, Hints, Launch, Origin, Program};
use kiln_ir::{Graph, Target, Value};
use kiln_plan::{Algorithm, Kernel};
use kiln_runtime::{cuda, memory};
use std::sync::Arc;
use std::time::Instant;

/// What was chosen for the launches of a program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tuned {
    /// For each launch; `None` where there is no choice.
    pub launches: Vec<Option<Arc<Choice>>>,
    /// For each launch the choices of the programs that it runs.
    pub bodies: Vec<Vec<Tuned>>,
    /// How the launches are cut that give these values, where there was a choice.
    pub fusion: HashMap<Value, Arc<Choice>>,
}

impl Tuned {
    /// Follows launches that became one, of which nothing is said.
    pub fn merge(&mut self, groups: &[Vec<usize>]) {
        if self.launches.is_empty() {
            return;
        }
        let alone = |g: &Vec<usize>| (g.len() == 1).then(|| g[0]);
        let of = |g| alone(g).and_then(|l| self.launches[l].clone());
        let bodies = |g| alone(g).map_or_else(Vec::new, |l| self.bodies[l].clone());
        let (launches, bodies) = (
            groups.iter().map(of).collect(),
            groups.iter().map(bodies).collect(),
        );
        (self.launches, self.bodies) = (launches, bodies);
    }
}

/// Chooses what is fused, where that may change, and then the algorithms of the kernels. The program was
/// lowered with what is [`known`].
///
/// # Errors
/// If the program can't be lowered in another way; that would be a bug.
pub(crate) fn tune(
    mut lowered: Lowered,
    known: &Hints,
    options: &Options,
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
        device: key::device(gpu.map(|gpu| &**gpu)),
        symbols: lowered.graph.symbols.len(),
        assigned: assigned(&lowered.graph),
        precision: options.precision(),
        gpu,
    };
    let mut fusion = HashMap::new();
    if may_change && lowered.graph.symbols.is_empty() {
        let mut hints = tuner.fusion(&lowered, &options.codegen(), &mut fusion)?;
        let images = lowered.program.layout.convolutions > 0 && layouts::are_measured(options);
        if gpu.is_none() && images {
            hints.extend(tuner.layouts(&lowered.graph, options)?);
        }
        if hints != *known {
            lowered = Lowered::hinted(lowered.graph, &options.codegen(), &hints)?;
        }
    }
    let mut tuned = tuner.program(&mut lowered.program);
    tuned.fusion = fusion;
    lowered.placed = place::place(&lowered.graph, &lowered.program)?;
    let mut tuning = tuner.chooser.finish();
    if tuning.choices.iter().any(|c| c.why == Why::Measured) {
        // What measuring took is for the run to have. A GPU that can't give it back says so there.
        match gpu {
            None => memory::empty_cache(),
            Some(gpu) => drop(gpu.empty_cache()),
        }
    }
    tuning.time = start.elapsed();
    Ok((lowered, tuned, tuning))
}

/// The inputs that a graph assigns to.
pub(crate) fn assigned(graph: &Graph) -> Vec<u32> {
    let targets = graph.outputs.iter().map(|o| o.target);
    let inputs = targets.filter_map(|t| match t {
        Target::Assign(input) => Some(input),
        _ => None,
    });
    inputs.collect()
}

/// How a launch of the program of a graph, which assigns to some inputs, is computed, where there are several
/// ways: where the sizes decide that and are known, what they decide on.
pub(crate) fn algorithm(
    graph: &Graph,
    assigned: &[u32],
    program: &Program,
    launch: &Launch,
) -> Option<Algorithm> {
    let algorithm = launch.kernel.algorithm();
    if algorithm != Some(Algorithm::Auto) || !graph.symbols.is_empty() {
        return algorithm;
    }
    let fixed = fixed(&args(program, launch, assigned));
    named(&launch.kernel, &[], &fixed).or(algorithm)
}

/// Tries the candidates of a launch as long as `effort` says, whatever the store knows, and remembers
/// nothing. Empty if there is no choice.
pub fn measure(
    program: &Program,
    launch: usize,
    symbols: usize,
    precision: Precision,
    effort: &Effort,
    gpu: Option<&Arc<cuda::Device>>,
) -> Vec<Trial> {
    let (launch, values) = (&program.launches[launch], key::typical(symbols));
    let subject = match launch.ways.clone() {
        Some(mut w) => {
            ways::limit(&mut w, precision);
            ways::subject(&w, args(program, &w.launch, &[]), values, gpu)
        }
        None => {
            let args = args(program, launch, &[]);
            let fixed = fixed(&args);
            let list = candidates(launch, symbols, &fixed, precision, gpu.is_some());
            KernelSubject::new(list, args, values, gpu.cloned())
        }
    };
    if subject.candidates().len() < 2 {
        return Vec::new();
    }
    let subject: Arc<dyn Subject> = Arc::new(subject);
    search(
        &subject,
        &Limits::default(),
        effort,
        &SystemClock::default(),
    )
}

pub(super) struct Tuner<'a> {
    pub chooser: Chooser<'a>,
    pub device: String,
    pub symbols: usize,
    /// The inputs that the program assigns to.
    pub assigned: Vec<u32>,
    precision: Precision,
    pub gpu: Option<&'a Arc<cuda::Device>>,
}

impl Tuner<'_> {
    /// What is lowered otherwise than by the rules. Notes the choices by the values that they are of.
    fn fusion(
        &mut self,
        lowered: &Lowered,
        options: &kiln_codegen::Options,
        choices: &mut HashMap<Value, Arc<Choice>>,
    ) -> Result<Hints, CompileError> {
        let plain = kiln_codegen::Options {
            ways: false,
            ..*options
        };
        let mut hints = Hints::default();
        for launch in 0..lowered.program.launches.len() {
            let Some(region) = Region::of(&lowered.graph, &lowered.program, launch) else {
                continue;
            };
            let (choice, chosen) =
                region.choose(&mut self.chooser, &plain, &self.device, self.gpu)?;
            hints.extend(chosen);
            choices.extend(region.values.iter().map(|v| (*v, choice.clone())));
        }
        Ok(hints)
    }

    pub(super) fn program(&mut self, program: &mut Program) -> Tuned {
        let mut tuned = Tuned::default();
        let mut l = 0;
        while l < program.launches.len() {
            if let Some(ways) = &mut program.launches[l].ways {
                ways::limit(ways, self.precision);
                let ways = ways.clone();
                let (choice, count) = self.way(program, l, &ways);
                tuned.launches.extend(vec![choice; count]);
                tuned.bodies.extend(vec![Vec::new(); count]);
                l += count;
                continue;
            }
            let chosen = self.choose(program, &program.launches[l]);
            let launch = &mut program.launches[l];
            tuned.launches.push(chosen.map(|(choice, kernel)| {
                launch.kernel = kernel;
                choice
            }));
            let bodies = launch.bodies.iter_mut().map(|body| self.program(body));
            tuned.bodies.push(bodies.collect());
            l += 1;
        }
        tuned
    }

    /// What was chosen for a launch, and the kernel that it is.
    pub(super) fn choose(
        &mut self,
        program: &Program,
        launch: &Launch,
    ) -> Option<(Arc<Choice>, Kernel)> {
        let args = args(program, launch, &self.assigned);
        let fixed = fixed(&args);
        let once = |b: BufId| program.buffers[uses::ix(b)].parameter_only;
        if !launch.variants.is_empty() && uses::written(launch).all(once) {
            // It runs once for all runs.
            return None;
        }
        let list = candidates(
            launch,
            self.symbols,
            &fixed,
            self.precision,
            self.gpu.is_some(),
        );
        if list.is_empty() {
            return None;
        }
        let values = key::typical(self.symbols);
        let key = key::key(&launch.kernel, &values, &fixed, &self.device)?;
        let kernels: Vec<(Candidate, Kernel)> = list.clone();
        let names: Vec<Candidate> = list.into_iter().map(|(c, _)| c).collect();
        let gpu = self.gpu.cloned();
        let choice = self.chooser.choose(key, &names, || {
            Arc::new(KernelSubject::new(kernels.clone(), args, values, gpu))
        });
        // Kernels of one key may differ in what is legal.
        let choice = choice.among(names.iter().map(|c| &c.name));
        let chosen = kernels.into_iter().find(|(c, _)| c.name == choice.chosen);
        let kernel = chosen.map_or_else(|| launch.kernel.clone(), |(_, kernel)| kernel);
        Some((choice, kernel))
    }
}

/// Which arguments depend on parameters alone.
fn fixed(args: &[Arg]) -> Vec<bool> {
    args.iter().map(|a| a.parameter).collect()
}

/// The arguments of a launch. What is made of inputs that the program assigns to is not kept.
pub(super) fn args(program: &Program, launch: &Launch, assigned: &[u32]) -> Vec<Arg> {
    let pairs = launch.args.iter().zip(&launch.written);
    let changes = |origin: &Origin| matches!(origin, Origin::Input(i) if assigned.contains(i));
    let arg = |(id, written): (&BufId, &bool)| {
        let buffer = &program.buffers[id.0 as usize];
        Arg {
            dtype: buffer.dtype,
            len: numel(&buffer.shape),
            written: *written,
            parameter: buffer.parameter_only && !*written && !changes(&buffer.origin),
        }
    };
    pairs.map(arg).collect()
}
