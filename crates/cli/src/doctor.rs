//! A report of everything that results and speed depend on, to paste into a bug report.

use crate::devices::{self, Listed, gib};
use kiln::{cuda, memory};
use kiln_base::{Cpu, DefaultThreads, Feature, Features, THREAD_VARIABLES, file};
use kiln_compiler::tune;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The report.
#[derive(Serialize)]
pub struct Doctor {
    /// Kiln's version.
    version: &'static str,
    /// The profile that the command was built with.
    build: &'static str,
    /// The operating system, its version and the architecture.
    system: String,
    cpu: CpuReport,
    /// The number of threads that kernels run on.
    threads: usize,
    /// The variable, limit or fact that decided on it.
    threads_from: String,
    memory: Memory,
    /// Files that can be made again.
    caches: Vec<CacheFolder>,
    /// The devices that programs can run on.
    devices: Vec<Listed>,
    /// The reasons why GPUs are missing.
    no_gpu: Option<String>,
    /// The minimum compute capability of a GPU.
    least_capability: (u32, u32),
    libraries: Vec<Library>,
    /// The variables that are set of those that matter.
    environment: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct CpuReport {
    name: &'static str,
    /// Everything that the processor has of what kernels use.
    features: Vec<String>,
    /// The level that kernels are compiled for, or what is wrong with the one that was asked for.
    level: String,
    caches: [u64; 3],
}

#[derive(Serialize)]
struct Memory {
    /// Bytes of the machine, if it tells.
    machine: Option<u64>,
    /// Bytes that this process may use: those of the machine, or of its control group.
    limit: u64,
}

#[derive(Serialize)]
struct CacheFolder {
    holds: &'static str,
    /// None if nothing is kept.
    path: Option<PathBuf>,
    bytes: u64,
}

#[derive(Serialize)]
struct Library {
    name: &'static str,
    version: Option<String>,
    file: Option<PathBuf>,
    /// The reason why it was not found.
    missing: Option<String>,
}

impl Doctor {
    /// Looks at this machine. Opens every GPU and NVIDIA's libraries.
    pub fn examine() -> Doctor {
        let cpu = Cpu::current().unwrap_or_default();
        let level = Features::current().map(Features::name);
        let threads = DefaultThreads::find();
        let (devices, no_gpu) = devices::list();
        let extra = Feature::ALL.into_iter();
        let extra = extra.filter(|f| Features::BASELINE.with(*f).is_supported());
        let libraries = cuda::libraries().into_iter().map(|l| Library {
            name: l.name,
            file: l.file,
            missing: l.version.as_ref().err().cloned(),
            version: l.version.ok(),
        });
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let kernel = read("/proc/sys/kernel/osrelease");
        let meminfo = read("/proc/meminfo");
        let machine = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"));
        let kib = machine.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
        let cache = |holds, path: Option<PathBuf>| CacheFolder {
            holds,
            bytes: path.as_deref().map_or(0, size_of),
            path,
        };
        let kernels = file::cache_folder().map(|folder| folder.join("cuda"));
        Doctor {
            version: env!("CARGO_PKG_VERSION"),
            build: if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            },
            system: format!(
                "{} {} {}",
                std::env::consts::OS,
                kernel.trim(),
                std::env::consts::ARCH
            ),
            cpu: CpuReport {
                name: cpu.name,
                features: extra.map(|f| format!("{f:?}").to_lowercase()).collect(),
                level: level.map_or_else(|e| e.to_string(), String::from),
                caches: cpu.caches,
            },
            threads: threads.count,
            threads_from: threads.reason,
            memory: Memory {
                machine: kib.map(|kib| kib << 10),
                limit: memory::machine_memory() as u64,
            },
            caches: vec![
                cache("compiled CUDA kernels", kernels),
                cache("measurements of kernels", tune::store_path()),
            ],
            devices,
            no_gpu,
            least_capability: cuda::MIN_CAPABILITY,
            libraries: libraries.collect(),
            environment: std::env::vars_os()
                .map(|(name, value)| [name, value].map(|s| s.to_string_lossy().into_owned()))
                .filter(|[name, _]| matters(name))
                .map(|[name, value]| (name, value))
                .collect(),
        }
    }
}

/// True if a variable may change what Kiln does, and may be shown.
fn matters(name: &str) -> bool {
    let begins = ["KILN_", "CUDA_", "NCCL_", "NVIDIA_"]
        .iter()
        .any(|p| name.starts_with(p));
    let read_elsewhere = [
        "LD_LIBRARY_PATH",
        "XDG_CACHE_HOME",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
    ];
    let is_secret = name == "KILN_STORE_SECRET";
    (begins && !is_secret) || read_elsewhere.contains(&name) || THREAD_VARIABLES.contains(&name)
}

/// The bytes of a file, or of the files in a folder.
fn size_of(path: &Path) -> u64 {
    let Ok(about) = path.symlink_metadata() else {
        return 0;
    };
    if !about.is_dir() {
        return about.len();
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|e| size_of(&e.path())).sum()
}

impl fmt::Display for Doctor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, text: &dyn fmt::Display| writeln!(f, "{name:<12} {text}");
        line(
            "kiln",
            &format_args!("{}, {} build, {}", self.version, self.build, self.system),
        )?;
        let cpu = &self.cpu;
        line("cpu", &cpu.name)?;
        line(
            "",
            &format_args!("features: {}; level: {}", cpu.features.join(" "), cpu.level),
        )?;
        let caches = cpu.caches.map(|bytes| (bytes >> 10).to_string());
        line("", &format_args!("caches: {} KiB", caches.join(", ")))?;
        line(
            "threads",
            &format_args!("{}, from {}", self.threads, self.threads_from),
        )?;
        let (machine, limit) = (self.memory.machine, self.memory.limit);
        match machine.filter(|bytes| *bytes > limit) {
            Some(bytes) => {
                let (limit, total) = (gib(limit), gib(bytes));
                line(
                    "memory",
                    &format_args!("{limit}, the limit of the control group, of {total}"),
                )?;
            }
            None => line("memory", &gib(machine.unwrap_or(limit)))?,
        }
        for cache in &self.caches {
            match &cache.path {
                Some(path) => {
                    let (path, kib) = (path.display(), cache.bytes.div_ceil(1 << 10));
                    line("cache", &format_args!("{path}: {}, {kib} KiB", cache.holds))?;
                }
                None => line("cache", &format_args!("none: {}", cache.holds))?,
            }
        }
        for listed in &self.devices {
            line(&listed.info.device, listed)?;
        }
        if let Some(why) = &self.no_gpu {
            line("no GPU", why)?;
        }
        let (major, minor) = self.least_capability;
        line(
            "",
            &format_args!("GPUs need compute capability {major}.{minor} or newer"),
        )?;
        for library in &self.libraries {
            // Remedies and the places that were searched follow.
            let missing = library
                .missing
                .as_deref()
                .and_then(|why| why.split("; ").next());
            let version = library.version.as_deref().or(missing).unwrap_or_default();
            match &library.file {
                Some(file) => line(
                    library.name,
                    &format_args!("{version} ({})", file.display()),
                )?,
                None => line(library.name, &version)?,
            }
        }
        for (name, value) in &self.environment {
            line("environment", &format_args!("{name}={value}"))?;
        }
        Ok(())
    }
}
