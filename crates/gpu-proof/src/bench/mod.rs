//! Measurements. Nothing is timed on the emulated device, where the same work runs once, at small sizes.

mod attention;
mod cublas;
mod models;
mod products;
mod roofline;
mod rows;
mod torch;

pub(crate) use attention::run as attention;
use cublas::Yardstick;
pub(crate) use cublas::{PEAK_SIZE, has_cublas, peak_rates};
pub(crate) use models::run as models;
pub(crate) use products::{convolutions, run as products};
use roofline::{Peaks, roofline};
pub(crate) use rows::{launches, run as rows};

use crate::driver::Driver;
use crate::report::{Candidate, Figure};
use crate::{Failed, Report, Settings};
use kiln_compiler::tune::{Choice, Mode, Outcome, Record, Settings as TuneSettings, Store, Trial};
use kiln_compiler::{Compilation, Options};
use kiln_ir::Graph;
use kiln_ir::fuzz::Rng;
use kiln_runtime::{Buffer, Executable, Replays, cuda};
use kiln_tensor::{DType, Result, Spec, Tensor, compile};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Rounds of a measurement, of which the median counts.
const ROUNDS: usize = 9;
/// Seconds of the runs of one graph, about.
const GRAPH: f64 = 0.003;
/// Bytes of the operands of runs that follow one another: more than twice what any cache of a GPU holds.
const COLD: usize = 256 << 20;

type Function = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>>;

/// Work to measure.
pub(crate) struct Case {
    name: String,
    /// Dtype and shape of each operand.
    operands: Vec<(DType, Vec<usize>)>,
    function: Function,
    /// Bytes that a run must read and write at least.
    bytes: f64,
    /// Operations of the products of a run; 0 where it has none.
    flops: f64,
    /// The sizes of a product `[m, k] × [k, n]` that it is.
    product: Option<[usize; 3]>,
}

impl Case {
    fn new(
        name: impl Into<String>,
        operands: Vec<(DType, Vec<usize>)>,
        bytes: f64,
        function: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'static,
    ) -> Case {
        Case {
            name: name.into(),
            operands,
            function: Box::new(function),
            bytes,
            flops: 0.0,
            product: None,
        }
    }

    /// The unit of its numbers.
    fn unit(&self) -> &'static str {
        if self.flops > 0.0 { "TFLOP/s" } else { "GB/s" }
    }

    /// Returns the operations or bytes per second of a run that takes so long, in [`Case::unit`]s.
    fn rate(&self, seconds: f64) -> f64 {
        match self.flops {
            0.0 => self.bytes / seconds / 1e9,
            flops => flops / seconds / 1e12,
        }
    }

    /// The program, as recorded.
    fn record(&self) -> Result<Graph> {
        let specs = self.operands.iter().map(|(d, s)| Spec::new(*d, &s[..]));
        let program = compile(specs.collect::<Vec<_>>(), |x| (self.function)(&x))?;
        Ok(program.recorded().clone())
    }

    /// Random operands on the device: sets of them, so many that no run finds its own in a cache.
    fn operand_sets(
        &self,
        gpu: &Arc<cuda::Device>,
        cold: usize,
    ) -> std::result::Result<Vec<Vec<Buffer>>, Failed> {
        let bytes =
            |(dtype, shape): &(DType, Vec<usize>)| shape.iter().product::<usize>() * dtype.size();
        let set_bytes: usize = self.operands.iter().map(bytes).sum();
        let count = cold.div_ceil(set_bytes.max(1)).clamp(1, 64);
        let set = |seed: usize| {
            let mut rng = Rng::new(seed as u64);
            let operands = self.operands.iter().map(|(dtype, shape)| {
                let shape: Vec<i64> = shape.iter().map(|n| *n as i64).collect();
                Ok(random(*dtype, &shape, &mut rng)?.to_gpu(gpu)?)
            });
            operands.collect()
        };
        (0..count).map(set).collect()
    }
}

/// A program for the GPU whose kernels are chosen by these settings.
fn compile_for_gpu(graph: &Graph, tune: TuneSettings) -> std::result::Result<Compilation, Failed> {
    let options = Options {
        gpu: Some(0),
        tune,
        ..Options::default()
    };
    Ok(kiln_compiler::compile(graph, &[], &options)?)
}

/// The process's settings of the tuner in another mode.
fn mode(mode: Mode) -> TuneSettings {
    TuneSettings {
        mode,
        ..TuneSettings::current()
    }
}

/// The kernels of a program that the tuner had a choice for, each once.
fn choices(program: &Compilation) -> Vec<Arc<Choice>> {
    let kernels = program.explain.kernels.iter();
    let mut choices: Vec<Arc<Choice>> = kernels.filter_map(|k| k.choice.clone()).collect();
    choices.sort_by(|a, b| a.key.cmp(&b.key));
    choices.dedup_by(|a, b| a.key == b.key);
    choices
}

/// A tuned program with another candidate for one of its kernels: compiled by a store of its own that knows nothing
/// else.
fn with_candidate(
    graph: &Graph,
    tuned: &Compilation,
    kernel: &Choice,
    name: &str,
) -> std::result::Result<Compilation, Failed> {
    let path = Path::new("");
    for choice in &tuned.explain.tuning.choices {
        let is_other = choice.key != kernel.key;
        let trial = Trial {
            name: (if is_other { &choice.chosen } else { name }).to_string(),
            workspace: 0,
            same_bits: true,
            predicted: None,
            outcome: Outcome::Timed(vec![1]),
        };
        Store::of(path).put(Record::new(choice.key.clone(), vec![trial]))?;
    }
    let store = Some(Arc::from(path));
    let other = compile_for_gpu(
        graph,
        TuneSettings {
            store,
            ..mode(Mode::Frozen)
        },
    )?;
    let is_it = |c: &Arc<Choice>| c.key == kernel.key && c.chosen == name;
    match choices(&other).iter().any(is_it) {
        true => Ok(other),
        false => Err("it is not chosen where nothing else is known".into()),
    }
}

/// Numbers from -1 to 1; integers are 0 to 15.
pub(crate) fn random(
    dtype: DType,
    shape: &[i64],
    rng: &mut Rng,
) -> std::result::Result<Buffer, Failed> {
    let n = shape.iter().product::<i64>() as usize;
    // A table that is drawn once: large operands repeat it at a distance that no tile has.
    let table: Vec<f64> = (0..4099.min(n.max(1)))
        .map(|_| 2.0 * rng.unit() - 1.0)
        .collect();
    let value = |i: usize| table[i % table.len()];
    Ok(match dtype {
        DType::F32 => {
            let values: Vec<f32> = (0..n).map(|i| value(i) as f32).collect();
            Buffer::from_slice(&values, shape)?
        }
        DType::F16 => {
            let values: Vec<half::f16> = (0..n).map(|i| half::f16::from_f64(value(i))).collect();
            Buffer::from_slice(&values, shape)?
        }
        DType::BF16 => {
            let values: Vec<half::bf16> = (0..n).map(|i| half::bf16::from_f64(value(i))).collect();
            Buffer::from_slice(&values, shape)?
        }
        DType::I64 => {
            let values: Vec<i64> = (0..n).map(|i| (value(i).abs() * 15.0) as i64).collect();
            Buffer::from_slice(&values, shape)?
        }
        other => return Err(format!("no random operands of {other}").into()),
    })
}

pub(crate) fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The distance between the quartiles as a part of the median.
pub(crate) fn spread(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let quarter = sorted.len() / 4;
    (sorted[sorted.len() - 1 - quarter] - sorted[quarter]) / median(times)
}

/// Measures cases, and PyTorch's of the same names before.
fn table(
    settings: &Settings,
    report: &mut Report,
    part: &str,
    cases: impl Iterator<Item = Case>,
) -> std::result::Result<(), Failed> {
    let gpu = cuda::Device::get(0)?;
    let emulated = settings.emulated();
    let torch = match emulated {
        true => Default::default(),
        false => torch::times(settings, part, report),
    };
    if emulated {
        report.note("emulated: every case runs once at a small size, and nothing is timed");
    }
    let driver = Driver::open()?;
    let copy = driver.copier(if emulated { 1 << 10 } else { COLD / 4 })?;
    let has_cublas = has_cublas(settings, report);
    let mut bench = Bench {
        emulated,
        gpu: &gpu,
        has_cublas,
        copy: &copy,
        torch,
        peaks: Peaks::new(&gpu, &driver, has_cublas)?,
        report,
    };
    for case in cases {
        if settings.is_over() {
            let remaining = format!("{} and what comes after it", case.name);
            bench.report.leave_out(remaining);
            return Ok(());
        }
        match bench.measure(&case) {
            Ok(figure) => {
                bench.report.check(&case.name, Ok(()));
                if !emulated {
                    bench.report.figure(figure);
                }
            }
            Err(e) => bench.report.wrong(format!("{}: {e}", case.name)),
        }
        gpu.empty_cache()?;
    }
    Ok(())
}

/// The environment in which cases are measured.
struct Bench<'a> {
    /// Everything runs once then, and its times mean nothing.
    emulated: bool,
    gpu: &'a Arc<cuda::Device>,
    has_cublas: bool,
    /// Copies [`COLD`] / 4 bytes so many times.
    copy: &'a dyn Fn(usize) -> std::result::Result<(), Failed>,
    /// PyTorch's seconds by the names of cases.
    torch: BTreeMap<String, f64>,
    peaks: Peaks<'a>,
    report: &'a mut Report,
}

/// A program to time.
struct Timed {
    /// Where the program is the tuned one but for the candidate of one kernel: the kernel's key, the candidate's name,
    /// and what is predicted of it.
    candidate: Option<(String, String, Option<f64>)>,
    replays: Replays,
    /// Of a run, in each round.
    seconds: Vec<f64>,
}

impl Timed {
    fn candidate(&self) -> Option<Candidate> {
        let (kernel, name, predicted) = self.candidate.clone()?;
        Some(Candidate {
            kernel,
            name,
            seconds: median(&self.seconds),
            spread: spread(&self.seconds),
            predicted,
        })
    }
}

impl Bench<'_> {
    /// Measures Kiln's choices, its tuner's and the tuner's candidates in turns with cuBLASLt and a copy.
    fn measure(&mut self, case: &Case) -> std::result::Result<Figure, Failed> {
        let graph = case.record()?;
        let default = compile_for_gpu(&graph, mode(Mode::Off))?.executable;
        let tuned = compile_for_gpu(&graph, mode(Mode::On))?;
        let sets = case.operand_sets(self.gpu, if self.emulated { 0 } else { COLD })?;
        check_finite(&default, &sets[0])?;
        let default = Arc::new(default);
        let replays = default.replays(&sets, sets.len())?;
        let seconds = replays.time(0).and_then(|_| replays.time(0))?;
        let runs = GRAPH / seconds.as_secs_f64().max(1e-7);
        let max_runs = if self.emulated { 1 } else { 256 };
        let runs = (runs as usize).clamp(sets.len(), max_runs);
        let runs: Vec<Vec<Buffer>> = sets.iter().cycle().take(runs).cloned().collect();
        let mut timed_programs = vec![warm_up(default, &runs, None)?];
        timed_programs.extend(self.candidates(case, &graph, &tuned, &runs));
        timed_programs.push(warm_up(Arc::new(tuned.executable), &runs, None)?);
        let yardstick = self.yardstick(case, &runs);
        self.rounds(case, timed_programs, yardstick)
    }

    /// The tuned program with each candidate that the tuner found right.
    fn candidates(
        &mut self,
        case: &Case,
        graph: &Graph,
        tuned: &Compilation,
        runs: &[Vec<Buffer>],
    ) -> Vec<Timed> {
        let kernels = choices(tuned);
        let tuning = tuned.explain.tuning.to_string();
        let untried = kernels.iter().filter(|k| k.trials.is_empty());
        let untried: Vec<String> = untried.map(|k| k.to_string()).collect();
        for line in tuning.lines().chain(untried.iter().map(|k| &k[..])) {
            if !self.emulated {
                self.report.note(format!("{}: {}", case.name, line.trim()));
            }
        }
        let mut candidates = Vec::new();
        for kernel in kernels {
            // Those of other sizes with this key may not be among its candidates.
            let right = kernel.trials.iter().filter(|t| t.time().is_some());
            let right = right.filter(|t| kernel.candidates.contains(&t.name));
            let right = right.map(|t| (&t.name, t.predicted));
            // The tuner tries nothing on the emulated device.
            let last = kernel.candidates.last().map(|name| (name, None));
            let last = last.filter(|_| self.emulated && case.product.is_some());
            for (name, predicted) in right.chain(last) {
                let candidate = Some((kernel.key.clone(), name.clone(), predicted));
                let other = with_candidate(graph, tuned, &kernel, name);
                match other.and_then(|c| warm_up(Arc::new(c.executable), runs, candidate)) {
                    Ok(other) => candidates.push(other),
                    Err(e) => self.report.wrong(format!("{}: {name}: {e}", case.name)),
                }
            }
        }
        candidates
    }

    /// The product that a case is, by cuBLASLt.
    fn yardstick(&mut self, case: &Case, runs: &[Vec<Buffer>]) -> Option<Yardstick> {
        let sizes = case.product.filter(|_| self.has_cublas)?;
        match Yardstick::new(self.gpu, case.operands[0].0, sizes, runs) {
            Ok(yardstick) => {
                let name = format!("{} by cuBLASLt", case.name);
                self.report.check(&name, Ok(()));
                Some(yardstick)
            }
            Err(e) => {
                self.report.note(format!("{}: cuBLASLt: {e}", case.name));
                None
            }
        }
    }

    /// Times programs, of which the first is the default and the last the tuned one.
    fn rounds(
        &mut self,
        case: &Case,
        mut programs: Vec<Timed>,
        mut yardstick: Option<Yardstick>,
    ) -> std::result::Result<Figure, Failed> {
        let dtype = case.operands[0].0;
        let mut copies = Vec::new();
        for round in 0..if self.emulated { 1 } else { ROUNDS } {
            for timed in &mut programs {
                timed.seconds.push(timed.replays.time(round)?.as_secs_f64());
            }
            if let Some(yardstick) = &mut yardstick {
                yardstick.time(round)?;
            }
            let start = Instant::now();
            (self.copy)(8)?;
            copies.push(start.elapsed().as_secs_f64() / 8.0);
        }
        // Each copied byte is read and written.
        let bandwidth = (COLD / 2) as f64 / median(&copies);
        let peak = match case.flops > 0.0 && !self.emulated {
            true => self.peaks.of(dtype, self.report),
            false => None,
        };
        let number = |seconds: &[f64]| case.rate(median(seconds));
        let references = [
            ("tuned", programs.last().map(|t| number(&t.seconds))),
            ("cuBLASLt", yardstick.map(|y| number(y.best()))),
            ("PyTorch", self.torch.get(&case.name).map(|t| case.rate(*t))),
            ("a copy", (case.flops == 0.0).then_some(bandwidth / 1e9)),
        ];
        let references = references
            .into_iter()
            .filter_map(|(who, n)| Some((who.into(), n?)));
        Ok(Figure {
            name: case.name.clone(),
            unit: case.unit().into(),
            kiln: Some(number(&programs[0].seconds)),
            spread: Some(spread(&programs[0].seconds)),
            predicted: roofline(case.bytes, bandwidth, case.flops, peak).map(|t| case.rate(t)),
            beside: references.collect(),
            candidates: programs.iter().filter_map(Timed::candidate).collect(),
        })
    }
}

fn warm_up(
    executable: Arc<Executable>,
    runs: &[Vec<Buffer>],
    candidate: Option<(String, String, Option<f64>)>,
) -> std::result::Result<Timed, Failed> {
    Ok(Timed {
        candidate,
        replays: executable.replays(runs, runs.len())?,
        seconds: Vec::new(),
    })
}

/// Makes sure that all results of a program are finite.
fn check_finite(executable: &Executable, set: &[Buffer]) -> std::result::Result<(), Failed> {
    for result in executable.run(&mut set.to_vec(), &vec![false; set.len()])? {
        let result = result.to_host()?;
        let shape: Vec<usize> = result.shape().iter().map(|n| *n as usize).collect();
        let array = kiln_ir::eval::Array::from_bytes(result.dtype(), &shape, result.bytes()?);
        let finite = array.map(|a| a.to_f64().iter().all(|x| x.is_finite()));
        if !finite.unwrap_or(false) {
            return Err("a result is not finite".into());
        }
    }
    Ok(())
}

/// The CPU's generator draws the same numbers everywhere; `x` on the device.
fn randn(shape: impl AsRef<[usize]>, dtype: DType, device: kiln_tensor::Device) -> Result<Tensor> {
    let x = Tensor::randn(shape.as_ref(), DType::F32);
    let x = x.to_dtype(dtype).to(device);
    x.realize()?;
    Ok(x)
}
