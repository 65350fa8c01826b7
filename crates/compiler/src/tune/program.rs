//! The kernels of a lowered program.

use super::alone::Arg;
use super::choose::{Choice, Chooser, Tuning};
use super::kernel::{candidates, named};
use super::record::{Limits, Trial};
use super::search::{Candidate, Effort, Subject, SystemClock, search};
use super::settings::Precision;
use super::subject::KernelSubject;
use super::{Mode, Settings, Why, key, ways};
use kiln_base::numel;
use kiln_base::plan::{Algorithm, Kernel};
use kiln_codegen::{Launch, Origin, Program};
use kiln_ir::{Graph, Target};
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
        *self = Tuned {
            launches: groups.iter().map(of).collect(),
            bodies: groups.iter().map(bodies).collect(),
        };
    }
}

/// Chooses the algorithms of a graph's kernels.
pub(crate) fn tune(
    graph: &Graph,
    program: &mut Program,
    settings: &Settings,
    precision: Precision,
    gpu: Option<&Arc<cuda::Device>>,
) -> (Tuned, Tuning) {
    if settings.mode == Mode::Off {
        return Default::default();
    }
    let start = Instant::now();
    let clock = SystemClock::default();
    let emulated = gpu.is_some_and(|gpu| gpu.is_emulated());
    let mut tuner = Tuner {
        chooser: Chooser::new(settings, &clock, emulated),
        device: key::device(gpu.map(|gpu| &**gpu)),
        symbols: graph.symbols.len(),
        assigned: assigned(graph),
        precision,
        gpu,
    };
    let tuned = tuner.program(program);
    let mut tuning = tuner.chooser.finish();
    if tuning.choices.iter().any(|c| c.why == Why::Measured) {
        // What measuring took is for the run to have. A GPU that can't give it back says so there.
        match gpu {
            None => memory::empty_cache(),
            Some(gpu) => drop(gpu.empty_cache()),
        }
    }
    tuning.time = start.elapsed();
    (tuned, tuning)
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
    let subject = match &launch.ways {
        Some(w) => ways::subject(w, args(program, &w.launch, &[]), values, gpu),
        None => {
            let args = args(program, launch, &[]);
            let fixed = fixed(&args);
            let list = candidates(&launch.kernel, symbols, &fixed, precision, gpu.is_some());
            KernelSubject::new(list, args, values, gpu.cloned())
        }
    };
    if subject.candidates().is_empty() {
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
    fn program(&mut self, program: &mut Program) -> Tuned {
        let mut tuned = Tuned::default();
        let mut l = 0;
        while l < program.launches.len() {
            if let Some(ways) = program.launches[l].ways.clone() {
                let (choice, count) = self.way(program, l, &ways);
                tuned.launches.extend(vec![choice; count]);
                tuned.bodies.extend(vec![Vec::new(); count]);
                l += count;
                continue;
            }
            let chosen = self.launch(program, l);
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
    fn launch(&mut self, program: &Program, l: usize) -> Option<(Arc<Choice>, Kernel)> {
        let launch = &program.launches[l];
        let args = args(program, launch, &self.assigned);
        let fixed = fixed(&args);
        let list = candidates(
            &launch.kernel,
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
        let chosen = kernels.into_iter().find(|(c, _)| c.name == choice.chosen);
        // Kernels of one key may differ in what is legal.
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
    let arg = |(id, written): (&kiln_codegen::BufId, &bool)| {
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
