//! The devices of this machine.

use crate::failure::message;
use kiln::Device;
use kiln_base::{Gpu, Machine};
use kiln_compiler::tune;
use serde::Serialize;
use std::fmt::{self, Write as _};

/// A device.
#[derive(Clone, Debug, Serialize)]
pub struct Info {
    /// Its name in programs: `cpu`, `cuda:0`.
    pub device: String,
    /// Its maker's name.
    pub name: &'static str,
    /// Of a CPU: the level of instructions that kernels use: `baseline`, `avx2`, `avx512`.
    pub instructions: Option<&'static str>,
    /// Of a CPU: bytes of its caches, from the first level to the third; 0 if the system does not report them.
    pub caches: Option<[u64; 3]>,
    /// Of a CPU: the number of Kiln's threads.
    pub threads: Option<usize>,
    /// Of a GPU: the target that programs are compiled for.
    pub gpu: Option<Gpu>,
    /// Of a GPU: bytes of memory.
    pub memory: Option<usize>,
    /// The text under which measurements of it are stored.
    pub traits: String,
}

/// All devices, and the reason if there is no GPU.
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

/// The properties of a device. If the environment asks for CPU instructions that are not there, the program that runs
/// reports it.
pub fn info(device: Device) -> Info {
    let gpu = device.gpu();
    let machine = kiln_runtime::machine(gpu.as_deref()).unwrap_or_default();
    let (name, cpu) = match machine {
        Machine::Cpu(cpu) => (cpu.name, Some(cpu)),
        Machine::Gpu(gpu) => (gpu.name, None),
    };
    Info {
        device: device.to_string(),
        name,
        instructions: cpu.map(|cpu| cpu.level.name()),
        caches: cpu.map(|cpu| cpu.caches),
        threads: cpu.map(|_| kiln::threads()),
        gpu: machine.gpu().copied(),
        memory: gpu.map(|g| g.total_memory()),
        traits: tune::device(&machine),
    }
}

impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        if let Some(gpu) = &self.gpu {
            let ((major, minor), processors) = (gpu.arch, gpu.processors);
            write!(
                f,
                ", compute capability {major}.{minor}, {processors} multiprocessors"
            )?;
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
