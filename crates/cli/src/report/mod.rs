//! Reports of measurements as a table, CSV, JSON and a page.

mod labels;
mod page;

pub use page::page;

use crate::Failure;
use crate::bench::{Peaks, WorkloadMeasurements};
use crate::devices::Info;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;

/// All results of one call, with the machine and the build.
#[derive(Clone, Debug)]
pub struct Report {
    /// The device.
    pub device: Info,
    /// Kiln's version.
    pub version: String,
    /// True if this is a release build; otherwise the figures mean little.
    pub release: bool,
    /// The peaks of the device, if they were measured.
    pub peaks: Option<Peaks>,
    /// The results.
    pub results: Vec<WorkloadMeasurements>,
    /// The candidates that were not timed, with the reasons.
    pub left_out: Vec<String>,
}

/// The bytes from which a workload is assumed not to fit into the caches.
const CACHE_BYTES: f64 = (64 << 20) as f64;

impl Report {
    /// The roofs that shares refer to: the measured peaks, or the best result if it was faster. A result's bandwidth
    /// counts if its workload is too large for caches.
    pub fn roofs(&self) -> Option<Peaks> {
        let mut roofs = self.peaks.clone()?;
        for r in &self.results {
            if let Some(flops) = roofs.flops.get_mut(&r.dtype) {
                *flops = flops.max(r.flops_per_second());
            }
            if r.bytes >= CACHE_BYTES {
                roofs.bandwidth = roofs.bandwidth.max(r.bytes_per_second());
            }
        }
        Some(roofs)
    }

    /// A table for the terminal.
    pub fn table(&self) -> String {
        let width = self
            .results
            .iter()
            .map(|r| r.workload.len())
            .max()
            .unwrap_or(0)
            .max(8);
        let mut text = format!("{}\n", self.header());
        if let Some(peaks) = self.peaks_text() {
            let _ = writeln!(text, "peaks: {peaks}");
        }
        let _ = writeln!(
            text,
            "{:<width$}  {:>6}  {:>10}  {:>7}  {:>9}  {:>8}  {:>7}  algorithm",
            "workload", "dtype", "median", "spread", "GFLOP/s", "GB/s", "share"
        );
        let roofs = self.roofs();
        for r in &self.results {
            let share = roofs.as_ref().and_then(|p| r.share(p));
            let share = share.map_or(String::new(), share_text);
            let line = format!(
                "{:<width$}  {:>6}  {:>10}  {:>7}  {:>9.1}  {:>8.2}  {share:>7}  {}",
                r.workload,
                r.dtype,
                duration(r.median()),
                percent(r.spread()),
                r.flops_per_second() / 1e9,
                r.bytes_per_second() / 1e9,
                r.algorithms.join(", "),
            );
            let _ = writeln!(text, "{}", line.trim_end());
        }
        for reason in &self.left_out {
            let _ = writeln!(text, "not timed: {reason}");
        }
        text
    }

    /// The device and the build, as text.
    fn header(&self) -> String {
        let build = if self.release {
            ""
        } else {
            ", not a release build"
        };
        format!("{}, Kiln {}{build}", self.device, self.version)
    }

    /// The measured peaks.
    fn peaks_text(&self) -> Option<String> {
        let peaks = self.peaks.as_ref()?;
        let flops = peaks.flops.iter();
        let flops: String = flops
            .map(|(dtype, flops)| format!("{:.0} GFLOP/s of {dtype}, ", flops / 1e9))
            .collect();
        Some(format!("{flops}{:.1} GB/s", peaks.bandwidth / 1e9))
    }

    /// JSON: the device, and each result with the figures derived from its times.
    pub fn json(&self) -> Value {
        let roofs = self.roofs();
        let result = |r: &WorkloadMeasurements| {
            let mut value = json!(r);
            let [least, _, median, ..] = r.quartiles();
            value["least_s"] = json!(least);
            value["median_s"] = json!(median);
            value["spread"] = json!(r.spread());
            value["gflop_per_s"] = json!(r.flops_per_second() / 1e9);
            value["gb_per_s"] = json!(r.bytes_per_second() / 1e9);
            value["share_of_peak"] = json!(roofs.as_ref().and_then(|p| r.share(p)));
            value
        };
        let results: Vec<Value> = self.results.iter().map(result).collect();
        let mut value = json!(self.device);
        value["version"] = json!(self.version);
        value["release"] = json!(self.release);
        value["peaks"] = json!(self.peaks);
        value["results"] = json!(results);
        value["left_out"] = json!(self.left_out);
        value
    }

    /// Writes one line per workload.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn save_csv(&self, path: &Path) -> Result<(), Failure> {
        let mut file = csv::Writer::from_path(path)?;
        file.write_record([
            "workload",
            "dtype",
            "algorithms",
            "kernels",
            "runs",
            "least_s",
            "median_s",
            "spread",
            "gflop_per_s",
            "gb_per_s",
            "share_of_peak",
            "device",
            "instructions",
            "threads",
            "kiln",
        ])?;
        let threads = self.device.threads.map_or(String::new(), |t| t.to_string());
        let roofs = self.roofs();
        for r in &self.results {
            let share = roofs.as_ref().and_then(|p| r.share(p));
            file.write_record([
                r.workload.clone(),
                r.dtype.clone(),
                r.algorithms.join(", "),
                r.kernels.to_string(),
                r.times.len().to_string(),
                r.quartiles()[0].to_string(),
                r.median().to_string(),
                r.spread().to_string(),
                (r.flops_per_second() / 1e9).to_string(),
                (r.bytes_per_second() / 1e9).to_string(),
                share.map_or(String::new(), |s| s.to_string()),
                self.device.name.into(),
                self.device.instructions.unwrap_or_default().into(),
                threads.clone(),
                self.version.clone(),
            ])?;
        }
        Ok(file.flush()?)
    }
}

/// A fraction in percent.
pub fn percent(fraction: f64) -> String {
    format!("{:.0} %", fraction * 100.0)
}

/// A share of the roofs, as text. A share above 100 % comes from caches, not from memory.
pub fn share_text(share: f64) -> String {
    match share > 1.005 {
        true => "> 100 %".into(),
        false => percent(share),
    }
}

/// Seconds in a suitable unit.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.2} us", s * 1e6),
        s if s < 1.0 => format!("{:.3} ms", s * 1e3),
        s => format!("{s:.3} s"),
    }
}
