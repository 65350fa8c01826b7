//! Measurements. Nothing is timed on the emulated device, where the same work runs once, at small sizes.

mod attention;
mod cublas;
mod models;
mod products;
mod rows;
mod torch;

pub(crate) use attention::run as attention;
pub(crate) use cublas::Cublas;
pub(crate) use models::run as models;
pub(crate) use products::{convolutions, run as products};
pub(crate) use rows::{launches, run as rows};

use crate::driver::Driver;
use crate::report::Figure;
use crate::{Failed, Report, Settings};
use kiln_compiler::Options;
use kiln_compiler::tune::{Mode, Settings as Tune};
use kiln_ir::Graph;
use kiln_ir::fuzz::Rng;
use kiln_runtime::{Buffer, Executable, Replays, cuda};
use kiln_tensor::{DType, Result, Spec, Tensor, compile};
use std::sync::Arc;
use std::time::Instant;

/// Rounds of a measurement, of which the median counts.
const ROUNDS: usize = 9;
/// Seconds of the runs of one graph, about.
const GRAPH: f64 = 0.003;
/// Bytes of the operands of runs that follow one another: more than twice what any cache of a GPU holds.
const COLD: usize = 256 << 20;

/// The unit of tables beside which a copy stands.
const BANDWIDTH: &str = "GB/s";

type Function = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>>;

/// Work to measure.
pub(crate) struct Case {
    name: String,
    /// Dtype and shape of each operand.
    operands: Vec<(DType, Vec<usize>)>,
    function: Function,
    /// The work of a run, such as its operations or bytes.
    work: f64,
    /// The sizes of a product `[m, k] × [k, n]` that it is.
    product: Option<[usize; 3]>,
}

impl Case {
    fn new(
        name: impl Into<String>,
        operands: Vec<(DType, Vec<usize>)>,
        work: f64,
        function: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'static,
    ) -> Case {
        Case {
            name: name.into(),
            operands,
            function: Box::new(function),
            work,
            product: None,
        }
    }

    /// The program, as recorded.
    fn recorded(&self) -> Result<Graph> {
        let specs = self.operands.iter().map(|(d, s)| Spec::new(*d, &s[..]));
        let program = compile(specs.collect::<Vec<_>>(), |x| (self.function)(&x))?;
        Ok(program.recorded().clone())
    }

    /// Random operands on the device: sets of them, so many that no run finds its own in a cache.
    fn sets(
        &self,
        gpu: &Arc<cuda::Device>,
        cold: usize,
    ) -> std::result::Result<Vec<Vec<Buffer>>, Failed> {
        let bytes =
            |(dtype, shape): &(DType, Vec<usize>)| shape.iter().product::<usize>() * dtype.size();
        let each: usize = self.operands.iter().map(bytes).sum();
        let count = cold.div_ceil(each.max(1)).clamp(1, 64);
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

/// A program for the GPU by Kiln's default choices, or by those that its tuner measures, and the tuner's report.
fn compiled(graph: &Graph, mode: Mode) -> std::result::Result<(Arc<Executable>, String), Failed> {
    let options = Options {
        gpu: Some(0),
        tune: Tune {
            mode,
            ..Tune::current()
        },
        ..Options::default()
    };
    let compilation = kiln_compiler::compile(graph, &[], &options)?;
    let tuning = compilation.explain.tuning.to_string();
    Ok((Arc::new(compilation.executable), tuning))
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
            let all: Vec<f32> = (0..n).map(|i| value(i) as f32).collect();
            Buffer::from_slice(&all, shape)?
        }
        DType::F16 => {
            let all: Vec<half::f16> = (0..n).map(|i| half::f16::from_f64(value(i))).collect();
            Buffer::from_slice(&all, shape)?
        }
        DType::BF16 => {
            let all: Vec<half::bf16> = (0..n).map(|i| half::bf16::from_f64(value(i))).collect();
            Buffer::from_slice(&all, shape)?
        }
        DType::I64 => {
            let all: Vec<i64> = (0..n).map(|i| (value(i).abs() * 15.0) as i64).collect();
            Buffer::from_slice(&all, shape)?
        }
        other => return Err(format!("no random operands of {other}").into()),
    })
}

/// Graphs of some runs on sets of operands in turn, of about [`GRAPH`] seconds.
fn replays(
    executable: &Arc<Executable>,
    sets: &[Vec<Buffer>],
) -> std::result::Result<Replays, Failed> {
    let first = executable.replays(sets, sets.len())?;
    first.time(0)?;
    let once = first.time(0)?.as_secs_f64().max(1e-7);
    let runs = ((GRAPH / once) as usize).clamp(sets.len(), 256);
    let all: Vec<Vec<Buffer>> = sets.iter().cycle().take(runs).cloned().collect();
    Ok(executable.replays(&all, runs)?)
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

/// Measures cases, Kiln's choices and its tuner's in turns with cuBLASLt and a copy, and PyTorch's of the same names
/// before; `number` makes one of the table's unit of seconds and the case's work.
fn table(
    settings: &Settings,
    report: &mut Report,
    part: &str,
    unit: &str,
    cases: impl Iterator<Item = Case>,
    number: impl Fn(f64, f64) -> f64,
) -> std::result::Result<(), Failed> {
    let gpu = cuda::Device::get(0)?;
    let emulated = settings.emulated();
    let beside = match emulated {
        true => Default::default(),
        false => torch::times(settings, part, report),
    };
    if emulated {
        report.note("emulated: every case runs once at a small size, and nothing is timed");
    }
    let driver = Driver::open()?;
    let copy = driver.copier(if emulated { 1 << 10 } else { COLD / 4 })?;
    let cublas = Cublas::open(settings, report);
    for case in cases {
        if settings.is_over() {
            report.leave_out(format!("{} and what comes after it", case.name));
            return Ok(());
        }
        let measured = measure(&case, &gpu, emulated, cublas.as_ref(), &copy, report);
        let Measured {
            kiln,
            others,
            copied,
        } = match measured {
            Ok(measured) => measured,
            Err(e) => {
                report.wrong(format!("{}: {e}", case.name));
                continue;
            }
        };
        report.check(&case.name, Ok(()));
        if !emulated {
            let torch = beside.get(&case.name).map(|t| ("PyTorch".to_string(), *t));
            let others = others.into_iter().chain(torch);
            let others = others.map(|(who, t)| (who, number(t, case.work)));
            let copy = (unit == BANDWIDTH).then(|| ("a copy".to_string(), copied / 1e9));
            report.figure(Figure {
                name: case.name.clone(),
                unit: unit.into(),
                kiln: Some(number(median(&kiln), case.work)),
                spread: Some(spread(&kiln)),
                beside: others.chain(copy).collect(),
            });
        }
        gpu.empty_cache()?;
    }
    Ok(())
}

/// Times of the rounds of a case.
struct Measured {
    /// Seconds of a run in each round.
    kiln: Vec<f64>,
    /// The medians of others.
    others: Vec<(String, f64)>,
    /// Bytes a second that a copy reads and writes.
    copied: f64,
}

fn measure(
    case: &Case,
    gpu: &Arc<cuda::Device>,
    emulated: bool,
    cublas: Option<&Cublas>,
    copy: &dyn Fn(usize) -> std::result::Result<(), Failed>,
    report: &mut Report,
) -> std::result::Result<Measured, Failed> {
    let graph = case.recorded()?;
    let (default, _) = compiled(&graph, Mode::Off)?;
    let sets = case.sets(gpu, if emulated { 0 } else { COLD })?;
    let results = default.run(&mut sets[0].clone(), &vec![false; sets[0].len()])?;
    for result in results {
        let result = result.to_host()?;
        let shape: Vec<usize> = result.shape().iter().map(|n| *n as usize).collect();
        let array = kiln_ir::eval::Array::from_bytes(result.dtype(), &shape, result.bytes()?);
        let finite = array.map(|a| a.to_f64().iter().all(|x| x.is_finite()));
        if !finite.unwrap_or(false) {
            return Err("a result is not finite".into());
        }
    }
    let ours = replays(&default, &sets)?;
    if emulated {
        // The tuner measures nothing there, and the times mean nothing.
        return Ok(Measured {
            kiln: vec![ours.time(0)?.as_secs_f64()],
            others: vec![],
            copied: f64::NAN,
        });
    }
    let (tuned, found) = compiled(&graph, Mode::On)?;
    found
        .lines()
        .for_each(|line| report.note(format!("{}: {}", case.name, line.trim())));
    let tuned = replays(&tuned, &sets)?;
    let dtype = case.operands[0].0;
    let product = cublas.zip(case.product);
    let product = product.and_then(|(cublas, sizes)| match cublas.product(dtype, sizes) {
        Ok(product) => Some(product),
        Err(e) => {
            report.note(format!("{}: cuBLASLt: {e}", case.name));
            None
        }
    });
    let mut times = [const { Vec::new() }; 4];
    for round in 0..ROUNDS {
        times[0].push(ours.time(round)?.as_secs_f64());
        times[1].push(tuned.time(round)?.as_secs_f64());
        if let Some(product) = &product {
            times[2].push(product.seconds(GRAPH)?);
        }
        let start = Instant::now();
        copy(8)?;
        times[3].push(start.elapsed().as_secs_f64() / 8.0);
    }
    let mut others = vec![("tuned".to_string(), median(&times[1]))];
    if !times[2].is_empty() {
        others.push(("cuBLASLt".to_string(), median(&times[2])));
    }
    // What is copied is read and written.
    let copied = (COLD / 2) as f64 / median(&times[3]);
    let [kiln, ..] = times;
    Ok(Measured {
        kiln,
        others,
        copied,
    })
}

/// The CPU's generator draws the same numbers everywhere; `x` on the device.
fn randn(shape: impl AsRef<[usize]>, dtype: DType, device: kiln_tensor::Device) -> Result<Tensor> {
    let x = Tensor::randn(shape.as_ref(), DType::F32);
    let x = x.to_dtype(dtype).to(device);
    x.realize()?;
    Ok(x)
}
