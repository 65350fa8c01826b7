//! What was measured, as a table, CSV, JSON and a page.

mod labels;
mod page;

pub use page::page;

use crate::Failure;
use crate::bench::{Measured, Peaks};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

/// All results of one call, with what they were measured on.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The device's name.
    pub device: String,
    /// Threads of Kiln's pool.
    pub threads: usize,
    /// Kiln's version.
    pub version: String,
    /// What the device can do at most, where that was measured.
    pub peaks: Option<Peaks>,
    /// The results.
    pub results: Vec<Measured>,
}

/// Workloads of so many bytes are larger than caches.
const LARGE: f64 = (64 << 20) as f64;

impl Report {
    /// What shares are of: the peaks, where they were measured, or the best of the results where that was faster.
    /// A bandwidth counts if the workload is too large for caches.
    pub fn roofs(&self) -> Option<Peaks> {
        let mut roofs = self.peaks?;
        for r in &self.results {
            roofs.flops = roofs.flops.max(r.flops_per_second());
            if r.bytes >= LARGE {
                roofs.bandwidth = roofs.bandwidth.max(r.bytes_per_second());
            }
        }
        Some(roofs)
    }

    /// A table for the terminal.
    pub fn table(&self) -> String {
        let wide = self
            .results
            .iter()
            .map(|r| r.workload.len())
            .max()
            .unwrap_or(0)
            .max(8);
        let mut text = format!(
            "{}, {} threads, Kiln {}\n",
            self.device, self.threads, self.version
        );
        if let Some(p) = &self.peaks {
            let (flops, bytes) = (p.flops / 1e9, p.bandwidth / 1e9);
            let _ = writeln!(text, "peaks: {flops:.0} GFLOP/s, {bytes:.1} GB/s");
        }
        let _ = writeln!(
            text,
            "{:<wide$}  {:>6}  {:>10}  {:>7}  {:>9}  {:>8}  {:>7}  algorithm",
            "workload", "dtype", "median", "spread", "GFLOP/s", "GB/s", "share"
        );
        let roofs = self.roofs();
        for r in &self.results {
            let share = roofs.map_or(String::new(), |p| share(r.share(&p)));
            let _ = writeln!(
                text,
                "{:<wide$}  {:>6}  {:>10}  {:>7}  {:>9.1}  {:>8.2}  {share:>7}  {}",
                r.workload,
                r.dtype,
                duration(r.median()),
                percent(r.spread()),
                r.flops_per_second() / 1e9,
                r.bytes_per_second() / 1e9,
                r.algorithms.join(", "),
            );
        }
        text
    }

    /// JSON.
    ///
    /// # Errors
    /// None that is known.
    pub fn json(&self) -> Result<String, Failure> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    /// Writes a line a workload.
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
        ])?;
        let roofs = self.roofs();
        for r in &self.results {
            let share = roofs.map_or(String::new(), |p| r.share(&p).to_string());
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
                share,
            ])?;
        }
        Ok(file.flush()?)
    }
}

/// A part of one, in percent.
pub fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// A share of what the roofs allow. More than all of it is what memory does not have to give.
pub fn share(part: f64) -> String {
    match part > 1.005 {
        true => "> 100 %".into(),
        false => percent(part),
    }
}

/// Seconds in a unit that fits.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.2} us", s * 1e6),
        s if s < 1.0 => format!("{:.3} ms", s * 1e3),
        s => format!("{s:.3} s"),
    }
}
