//! The machines that programs are compiled for.

use crate::{DefaultThreads, Features, LevelError};
use serde::Serialize;
use std::fmt;
use std::sync::OnceLock;

/// A machine that kernels run on: all properties that decide how programs are lowered and how fast they are. Its text
/// is the key of measurements.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Machine {
    /// A CPU.
    Cpu(Cpu),
    /// An NVIDIA GPU.
    Gpu(Gpu),
}

/// A CPU.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cpu {
    /// The model of the processor, or its architecture if the model is unknown.
    pub name: &'static str,
    /// Further identification of the model, since virtual machines give many models the same name.
    pub model: &'static str,
    /// The instruction sets that kernels use.
    pub level: Features,
    /// The threads that run concurrently. Not part of the machine's text: choices, and so results, do not depend on
    /// the number of threads.
    pub threads: usize,
    /// The bytes of a core's data caches, from the first level to the third; 0 if unknown.
    pub caches: [u64; 3],
}

/// An NVIDIA GPU.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Gpu {
    /// The model, such as `NVIDIA H200`.
    pub name: &'static str,
    /// Its compute capability, such as (9, 0).
    pub arch: (u32, u32),
    /// The number of multiprocessors.
    pub processors: u32,
    /// The registers of a multiprocessor, of 32 bits each.
    pub registers: u32,
    /// The threads that a multiprocessor holds.
    pub threads: u32,
    /// The bytes of shared memory that a block may declare.
    pub shared: u32,
    /// The bytes of shared memory that a block may request at launch.
    pub most_shared: u32,
    /// The bytes of shared memory of a multiprocessor.
    pub processor_shared: u32,
    /// True if blocks can be launched in clusters, which read each other's shared memory.
    pub clusters: bool,
    /// The version of CUDA that the driver supports, if known.
    pub driver: Option<(u32, u32)>,
    /// The version of the NVRTC that compiles for it, if there is one.
    pub nvrtc: Option<(u32, u32)>,
}

impl Machine {
    /// Returns the GPU, if it is one.
    pub fn gpu(&self) -> Option<&Gpu> {
        match self {
            Machine::Cpu(_) => None,
            Machine::Gpu(gpu) => Some(gpu),
        }
    }
}

/// The minimum CPU of the target.
impl Default for Machine {
    fn default() -> Machine {
        Machine::Cpu(Cpu::default())
    }
}

impl Default for Cpu {
    fn default() -> Cpu {
        Cpu {
            name: std::env::consts::ARCH,
            model: "",
            level: Features::BASELINE,
            threads: 1,
            caches: [0; 3],
        }
    }
}

impl Cpu {
    /// Returns the CPU that this process runs on, with the [level in use](Features::current).
    ///
    /// # Errors
    /// If there is no such level.
    pub fn current() -> Result<Cpu, LevelError> {
        static CPU: OnceLock<Cpu> = OnceLock::new();
        Ok(Cpu {
            level: Features::current()?,
            ..*CPU.get_or_init(Cpu::find)
        })
    }

    /// Finds everything except the level.
    fn find() -> Cpu {
        /// The fields that distinguish models in `/proc/cpuinfo`, on x86 and on Arm.
        const MODEL: [&str; 6] = [
            "cpu family",
            "model",
            "stepping",
            "cache size",
            "CPU implementer",
            "CPU part",
        ];
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let mut pairs = info.lines().filter_map(|line| line.split_once(':'));
            Some(pairs.find(|(key, _)| key.trim() == name)?.1.trim())
        };
        let name = field("model name").map(String::from);
        let name = name.or_else(|| std::env::var("PROCESSOR_IDENTIFIER").ok());
        let model: Vec<&str> = MODEL.into_iter().filter_map(field).collect();
        Cpu {
            name: name.map_or(std::env::consts::ARCH, |name| name.leak()),
            model: model.join(" ").leak(),
            threads: DefaultThreads::find().count,
            caches: [1, 2, 3].map(cache_bytes),
            ..Cpu::default()
        }
    }
}

/// Returns the bytes of the first core's data cache of a level; 0 if unknown.
fn cache_bytes(level: u32) -> u64 {
    let cache_size = |index: u32| {
        let folder = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
        let read = |name| std::fs::read_to_string(format!("{folder}/{name}")).ok();
        let [depth, kind, size] = ["level", "type", "size"].map(read);
        let holds_data = depth?.trim().parse() == Ok(level) && kind?.trim() != "Instruction";
        let size = size.filter(|_| holds_data)?;
        let kib = size.trim().strip_suffix('K')?.parse::<u64>().ok()?;
        kib.checked_mul(1 << 10)
    };
    (0..8).find_map(cache_size).unwrap_or(0)
}

impl Gpu {
    /// The minimum compute capability that kernels are compiled for.
    pub const MIN_ARCH: (u32, u32) = (8, 0);

    /// An H100 (SXM5), to generate kernels on machines without a GPU.
    pub const H100: Gpu = Gpu {
        name: "NVIDIA H100",
        arch: (9, 0),
        processors: 132,
        registers: 1 << 16,
        threads: 2048,
        shared: 48 << 10,
        most_shared: 227 << 10,
        processor_shared: 228 << 10,
        clusters: true,
        driver: None,
        nvrtc: None,
    };

    /// Returns the number of blocks that keep it busy: one per multiprocessor, rounded down to a multiple of 16,
    /// because many grids are powers of 2.
    pub fn busy(&self) -> i64 {
        let processors = i64::from(self.processors.max(1));
        match processors / 16 {
            0 => processors,
            sixteens => 16 * sixteens,
        }
    }

    /// Returns the number of threads that fill the GPU: half of those that its multiprocessors hold.
    pub fn filled(&self) -> i64 {
        self.busy() * i64::from(self.threads) / 2
    }

    /// Returns the number of threads of a multiprocessor that have 128 registers each.
    pub fn resident(&self) -> u32 {
        self.registers / 128
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Machine::Cpu(cpu) => {
                let (name, model, level) = (cpu.name, cpu.model, cpu.level.name());
                match model {
                    "" => write!(f, "cpu {name} {level}"),
                    _ => write!(f, "cpu {name} {model} {level}"),
                }
            }
            Machine::Gpu(gpu) => {
                let version = |v: Option<(u32, u32)>| match v {
                    Some((major, minor)) => format!("{major}.{minor}"),
                    None => "unknown".into(),
                };
                let (name, (major, minor)) = (gpu.name, gpu.arch);
                let [driver, nvrtc] = [gpu.driver, gpu.nvrtc].map(version);
                write!(
                    f,
                    "cuda {name} sm_{major}{minor} driver {driver} nvrtc {nvrtc}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_kept_busy_by_whole_sixteens_of_blocks() {
        let busy = |processors| {
            let gpu = Gpu {
                processors,
                ..Gpu::H100
            };
            gpu.busy()
        };
        assert_eq!(
            [0, 1, 15, 16, 46, 108, 132, 148].map(busy),
            [1, 1, 15, 16, 32, 96, 128, 144]
        );
        assert_eq!(Gpu::H100.filled(), 1 << 17);
        assert_eq!(Gpu::H100.resident(), 512);
    }

    #[test]
    fn machines_that_compute_at_other_speeds_have_other_names() {
        let cpu = Cpu::current().unwrap();
        let mut machines: Vec<Machine> = Vec::new();
        machines.extend(Features::LEVELS.map(|level| Machine::Cpu(Cpu { level, ..cpu })));
        machines.push(Machine::Gpu(Gpu::H100));
        for version in [(12, 4), (13, 0)] {
            let newer = Some(version);
            machines.push(Machine::Gpu(Gpu {
                driver: newer,
                ..Gpu::H100
            }));
            machines.push(Machine::Gpu(Gpu {
                nvrtc: newer,
                ..Gpu::H100
            }));
        }
        let mut names: Vec<String> = machines.iter().map(Machine::to_string).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), machines.len(), "{names:?}");
        // Results must not depend on the number of threads, even if a choice was made for that number.
        let one = Cpu { threads: 1, ..cpu };
        assert_eq!(Machine::Cpu(one).to_string(), Machine::Cpu(cpu).to_string());
    }
}
