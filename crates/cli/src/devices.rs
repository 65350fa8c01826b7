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

/// A device, and how busy it is.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// The device.
    #[serde(flatten)]
    pub info: Info,
    /// Bytes of memory that no process uses.
    pub free: Option<usize>,
    /// Of a GPU: the percentage of the last moments in which a kernel ran, if NVML tells.
    pub utilization: Option<u32>,
    /// Of a GPU: degrees Celsius, if NVML tells.
    pub temperature: Option<u32>,
    /// Of a GPU: milliwatts, if NVML tells.
    pub power: Option<u32>,
}

impl Listed {
    fn new(device: Device) -> Listed {
        let gpu = device.gpu();
        let sensors = gpu.as_ref().map(|gpu| gpu.sensors()).unwrap_or_default();
        Listed {
            info: info(device),
            free: gpu.and_then(|gpu| gpu.free_memory().ok()),
            utilization: sensors.utilization,
            temperature: sensors.temperature,
            power: sensors.power,
        }
    }
}

/// All devices, and the reasons why a GPU is missing, a line each.
pub fn list() -> (Vec<Listed>, Option<String>) {
    let mut listed = vec![Listed::new(Device::Cpu)];
    let mut why = Vec::new();
    // Without a driver, that of number 0 says where it was searched.
    for n in 0..Device::cuda_count().max(1) {
        match Device::cuda(n) {
            Ok(gpu) => listed.push(Listed::new(gpu)),
            Err(e) => why.push(message(&e)),
        }
    }
    (listed, (!why.is_empty()).then(|| why.join("\n")))
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
            write!(f, ", {}", gib(bytes as u64))?;
        }
        if let Some(level) = self.instructions {
            write!(f, ", {level}")?;
        }
        match self.threads {
            Some(1) => write!(f, ", 1 thread"),
            Some(threads) => write!(f, ", {threads} threads"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.fmt(f)?;
        if let Some(bytes) = self.free {
            write!(f, ", {} free", gib(bytes as u64))?;
        }
        if let Some(percent) = self.utilization {
            write!(f, ", {percent}% busy")?;
        }
        if let Some(degrees) = self.temperature {
            write!(f, ", {degrees} °C")?;
        }
        match self.power {
            Some(milliwatts) => write!(f, ", {} W", milliwatts / 1000),
            None => Ok(()),
        }
    }
}

/// A number of bytes in GiB.
pub(crate) fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}

/// A text for the terminal.
pub fn text((devices, why): &(Vec<Listed>, Option<String>)) -> String {
    let mut text = String::new();
    for d in devices {
        let _ = writeln!(text, "{:<8} {d}", d.info.device);
        let _ = writeln!(text, "         traits: {}", d.info.traits);
    }
    if let Some(why) = why {
        let _ = writeln!(text, "no GPU: {why}");
    }
    text
}
