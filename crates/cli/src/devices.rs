//! The devices of this machine.

use crate::failure::message;
use kiln::Device;
use kiln_compiler::tune;
use kiln_runtime::Level;
use serde::Serialize;
use std::fmt::{self, Write as _};

/// A device.
#[derive(Clone, Debug, Serialize)]
pub struct Info {
    /// How programs name it: `cpu`, `cuda:0`.
    pub device: String,
    /// Its maker's name.
    pub name: String,
    /// Of a CPU: the instructions that kernels use: `baseline`, `avx2`, `avx512`.
    pub instructions: Option<&'static str>,
    /// Of a GPU: its compute capability.
    pub capability: Option<(u32, u32)>,
    /// Of a CPU: Kiln's threads.
    pub threads: Option<usize>,
    /// Of a GPU: bytes of memory.
    pub memory: Option<usize>,
    /// What measurements of it are kept under.
    pub traits: String,
}

/// All devices, and why there is no GPU, where there is none.
pub fn list() -> (Vec<Info>, Option<String>) {
    let mut all = vec![info(Device::Cpu)];
    let count = Device::cuda_count();
    let mut why = None;
    match Device::cuda(0) {
        Err(e) => why = Some(message(&e)),
        Ok(_) => all.extend((0..count).filter_map(|n| Device::cuda(n).ok()).map(info)),
    }
    (all, why)
}

/// What is known of a device.
pub fn info(device: Device) -> Info {
    let gpu = device.gpu();
    let level = || Level::current().map_or("unknown", Level::name);
    Info {
        device: device.to_string(),
        name: match gpu {
            None => processor(),
            Some(_) => device.name(),
        },
        instructions: gpu.is_none().then(level),
        capability: device.capability(),
        threads: gpu.is_none().then(kiln::threads),
        memory: gpu.as_ref().map(|g| g.total_memory()),
        traits: tune::device(gpu.as_deref()),
    }
}

/// The model of the processor, where the system says it, else its architecture.
fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|line| line.starts_with("model name"));
    let model = line.and_then(|line| Some(line.split_once(':')?.1.trim().to_string()));
    let model = model.or_else(|| std::env::var("PROCESSOR_IDENTIFIER").ok());
    model.unwrap_or_else(|| std::env::consts::ARCH.into())
}

impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some((major, minor)) = self.capability {
            write!(f, ", compute capability {major}.{minor}")?;
        }
        if let Some(bytes) = self.memory {
            write!(f, ", {:.1} GiB", bytes as f64 / (1u64 << 30) as f64)?;
        }
        if let Some(level) = self.instructions {
            write!(f, ", {level}")?;
        }
        match self.threads {
            Some(threads) => write!(f, ", {threads} threads"),
            None => Ok(()),
        }
    }
}

/// A text for the terminal.
pub fn text((devices, why): &(Vec<Info>, Option<String>)) -> String {
    let mut text = String::new();
    for d in devices {
        let _ = writeln!(text, "{:<8} {d}", d.device);
        let _ = writeln!(text, "         traits: {}", d.traits);
    }
    if let Some(why) = why {
        let _ = writeln!(text, "no GPU: {why}");
    }
    text
}
