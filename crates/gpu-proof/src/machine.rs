//! The machine: clocks, and the ceilings that everything else is measured by.

use crate::bench::{PEAK_SIZE, has_cublas, median, peak_rates, spread};
use crate::driver::Driver;
use crate::process::ends_with_us;
use crate::report::Figure;
use crate::{Failed, Report, Settings};
use kiln_runtime::cuda;
use kiln_tensor::{DType, Tensor};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;

/// The fields that `nvidia-smi` is asked for.
const ASKED: &str = "clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.draw,power.limit,\
                     temperature.gpu,clocks_throttle_reasons.active,ecc.mode.current,mig.mode.current";

/// Bytes that are copied: more than any cache of a GPU holds.
const COPIED: usize = 256 << 20;

/// Notes clocks, power and what holds the clocks down.
fn clocks(report: &mut Report, when: &str) {
    let mut command = Command::new("nvidia-smi");
    command.args([&format!("--query-gpu={ASKED}"), "--format=csv,noheader"]);
    match ends_with_us(&mut command).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            report.note(format!("{when}: {ASKED} = {}", text.trim()));
        }
        Err(e) => report.note(format!("{when}: nvidia-smi does not start: {e}")),
    }
}

pub(crate) fn run(settings: &Settings, report: &mut Report) -> Result<(), Failed> {
    // The first machine code that this GPU gets.
    let x = Tensor::arange(0, 1000, 1)
        .to_dtype(DType::F32)
        .to(settings.device);
    let sum = (&x * 2.0 + 1.0).sum(()).item::<f32>()?;
    let right = if sum == 1_000_000.0 {
        Ok(())
    } else {
        Err(format!("{sum}, not 1000000"))
    };
    report.check("the sum of the first thousand odd numbers", right);
    if settings.emulated() {
        report.note("emulated: nothing is timed");
        return Ok(());
    }
    clocks(report, "before");
    let driver = Driver::open()?;
    let copy = driver.copier(COPIED)?;
    copy(3)?;
    let rates = (0..15).map(|_| {
        let start = Instant::now();
        copy(20)?;
        Ok(40.0 * COPIED as f64 / start.elapsed().as_secs_f64() / 1e9)
    });
    let rates = rates.collect::<Result<Vec<f64>, Failed>>()?;
    let ceiling = |name: &str, unit: &str, rates: &[f64]| Figure {
        name: name.into(),
        unit: unit.into(),
        spread: Some(spread(rates)),
        beside: BTreeMap::from([("measured".into(), median(rates))]),
        ..Figure::default()
    };
    report.figure(ceiling(
        "copies on the device, read and written",
        "GB/s",
        &rates,
    ));
    if has_cublas(settings, report) {
        let gpu = cuda::Device::get(0)?;
        let types = [
            (DType::BF16, "bf16"),
            (DType::F16, "f16"),
            (DType::F32, "f32"),
        ];
        for (dtype, name) in types {
            let rates: Vec<f64> = peak_rates(&gpu, dtype)?.iter().map(|r| r / 1e12).collect();
            let name = format!("cuBLASLt, {PEAK_SIZE}x{PEAK_SIZE}x{PEAK_SIZE} {name}");
            report.figure(ceiling(&name, "TFLOP/s", &rates));
        }
    }
    clocks(report, "after");
    Ok(())
}
