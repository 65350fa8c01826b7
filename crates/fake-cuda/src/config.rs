//! The configuration of the fake devices from the environment.

use crate::clock::Costs;
use kiln_gpu_emulator::Options;
use std::path::PathBuf;

/// The settings, read when the library is first used.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub devices: usize,
    pub memory: u64,
    pub capability: (i32, i32),
    pub options: Options,
    pub fault_file: Option<PathBuf>,
    pub print_statistics: bool,
    pub costs: Option<Costs>,
    /// False if kernels and operations of NCCL do nothing.
    pub executes: bool,
    /// The rank whose operations of NCCL can't be captured.
    pub no_capture: Option<usize>,
    /// The number of the operation of NCCL that never ends.
    pub hangs: Option<usize>,
    /// The nanoseconds of an instruction, if events tell the time by these.
    pub instruction_time: Option<u64>,
    /// The nanoseconds of a product of cuBLASLt, likewise.
    pub product_time: u64,
}

fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Err(_) => otherwise,
        Ok(text) => text
            .trim()
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
    }
}

fn parse_variable(name: &str) -> Option<usize> {
    std::env::var_os(name).map(|_| number(name, 0) as usize)
}

impl Config {
    pub fn from_environment() -> Config {
        let defaults = Options::default();
        let capability = number("KILN_FAKE_CUDA_CAPABILITY", 90) as i32;
        Config {
            devices: number("KILN_FAKE_CUDA_DEVICES", 1) as usize,
            memory: number("KILN_FAKE_CUDA_MEMORY", 4 << 30),
            capability: (capability / 10, capability % 10),
            options: Options {
                threads: number("KILN_FAKE_CUDA_THREADS", defaults.threads as u64) as usize,
                shared_races: number("KILN_FAKE_CUDA_CHECKS", 1) != 0,
                global_races: number("KILN_FAKE_CUDA_CHECKS", 1) != 0,
                seed: number("KILN_FAKE_CUDA_SEED", 0),
                instruction_limit: number("KILN_FAKE_CUDA_LIMIT", defaults.instruction_limit),
                traffic: false,
            },
            fault_file: std::env::var_os("KILN_FAKE_CUDA_FAULT_FILE").map(PathBuf::from),
            print_statistics: number("KILN_FAKE_CUDA_STATISTICS", 0) != 0,
            costs: std::env::var("KILN_FAKE_CUDA_CLOCK").ok().map(|text| {
                Costs::parse(&text)
                    .unwrap_or_else(|| panic!("KILN_FAKE_CUDA_CLOCK={text} is not two numbers"))
            }),
            executes: number("KILN_FAKE_CUDA_EXECUTE", 1) != 0,
            no_capture: parse_variable("KILN_FAKE_CUDA_NO_CAPTURE"),
            hangs: parse_variable("KILN_FAKE_CUDA_HANG"),
            instruction_time: Some(number("KILN_FAKE_CUDA_TIMED", 0)).filter(|n| *n > 0),
            product_time: number("KILN_FAKE_CUBLASLT_TIME", 1000),
        }
    }
}
