//! Measurements. Nothing is timed on the emulated device, where the same work runs once, at small sizes.

mod models;
mod products;
mod rows;
mod torch;

pub(crate) use models::run as models;
pub(crate) use products::run as products;
pub(crate) use rows::{bandwidth, launches};

use crate::{Failed, Report, Settings};
use kiln_tensor::{Compiled, Device, Result, Tensor, compile};
use std::time::Instant;

/// Rounds of a measurement, of which the median counts.
const ROUNDS: usize = 7;
/// Seconds that a round takes at least.
const ROUND: f64 = 0.05;

/// Work to measure.
struct Case {
    name: String,
    inputs: Vec<Tensor>,
    run: Compiled,
}

impl Case {
    /// Compiles a function for arguments like these.
    fn new(
        name: impl Into<String>,
        inputs: Vec<Tensor>,
        f: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
    ) -> Result<Case> {
        Ok(Case {
            name: name.into(),
            run: compile(&inputs, |x| f(&x))?,
            inputs,
        })
    }

    fn once(&self) -> Result<Vec<Tensor>> {
        self.run.run(&self.inputs)
    }

    /// Runs once, to see that it does.
    fn check(&self, report: &mut Report) -> Result<()> {
        for result in self.once()? {
            let finite = result.sum(()).isfinite().item::<bool>()?;
            let result = if finite {
                Ok(())
            } else {
                Err("is not finite".into())
            };
            report.check(&self.name, result);
        }
        Ok(())
    }

    /// Seconds of a run, of many given to the device one after the other.
    fn seconds(&self, device: Device) -> Result<f64> {
        seconds(device, || self.once().map(drop))
    }
}

/// The median over rounds of the seconds of one call, of many given to the device before it is waited for.
fn seconds(device: Device, mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut round = |count: usize| -> Result<f64> {
        let start = Instant::now();
        for _ in 0..count {
            f()?;
        }
        device.synchronize()?;
        Ok(start.elapsed().as_secs_f64())
    };
    // Compiles, captures graphs and fills the pool of memory.
    round(5)?;
    let mut count = 1;
    while round(count)? < ROUND && count < 1 << 20 {
        count *= 2;
    }
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..ROUNDS {
        times.push(round(count)? / count as f64);
    }
    Ok(median(times))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Measures cases beside PyTorch's of the same names; `unit` and how seconds and the case's amount of work make
/// a number of it.
fn table(
    settings: &Settings,
    report: &mut Report,
    part: &str,
    unit: &str,
    cases: impl Iterator<Item = std::result::Result<(Case, f64), Failed>>,
    number: impl Fn(f64, f64) -> f64,
) -> std::result::Result<(), Failed> {
    if settings.emulated() {
        report.note("emulated: every case runs once at a small size, and nothing is timed");
        for case in cases {
            case?.0.check(report)?;
        }
        return Ok(());
    }
    let beside = torch::times(settings, part, report);
    for case in cases {
        let (case, work) = case?;
        let time = case.seconds(settings.device)?;
        let torch = beside.get(&case.name).map(|t| number(*t, work));
        report.figure(case.name.clone(), unit, number(time, work), torch);
        report.held += 1;
        settings.device.empty_cache()?;
    }
    Ok(())
}

/// The CPU's generator draws the same numbers everywhere; `x` on the device.
fn randn(shape: impl AsRef<[usize]>, dtype: kiln_tensor::DType, device: Device) -> Result<Tensor> {
    let x = Tensor::randn(shape.as_ref(), kiln_tensor::DType::F32);
    let x = x.to_dtype(dtype).to(device);
    x.realize()?;
    Ok(x)
}
