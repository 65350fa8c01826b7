//! The speed of the emulator: warp instructions per second of the sample kernels, with and without checks of shared
//! memory. `cargo bench -p kiln-gpu-emulator`

use kiln_gpu_emulator::{Launch, Memory, Options, Program};
use std::sync::Arc;
use std::time::Instant;

/// A kernel, the sizes of its arrays in bytes, its scalar arguments, and its launch.
struct Case {
    kernel: &'static str,
    arrays: &'static [usize],
    numbers: &'static [i32],
    grid: [u32; 3],
    block: u32,
    shared: u32,
}

const N: usize = 800_000;

#[rustfmt::skip]
const CASES: [Case; 5] = [
    Case { kernel: "ew", arrays: &[4 * N; 4], numbers: &[N as i32], grid: [64, 1, 1], block: 256, shared: 0 },
    Case { kernel: "ew_bf16", arrays: &[640_000, 160, 640_000], numbers: &[40_000, 80], grid: [313, 1, 1], block: 128, shared: 0 },
    Case { kernel: "softmax", arrays: &[512 * 1031 * 4; 2], numbers: &[1031], grid: [512, 1, 1], block: 256, shared: 0 },
    Case { kernel: "matmul_smem", arrays: &[520 * 256 * 4, 520 * 256 * 4, 520 * 520 * 4], numbers: &[520, 520, 256], grid: [9, 9, 1], block: 256, shared: 0 },
    Case { kernel: "mma_bf16", arrays: &[512 * 512 * 2, 512 * 512 * 2, 512 * 512 * 4], numbers: &[512; 3], grid: [8, 8, 1], block: 128, shared: 19456 },
];

fn main() {
    println!("| kernel | threads | checks | M warp instructions/s | ms |\n|---|---|---|---|---|");
    let all = Options::default().threads;
    for case in &CASES {
        for (threads, shared_races) in [(1, false), (1, true), (all, true)] {
            let options = Options {
                threads,
                shared_races,
                ..Options::default()
            };
            let (rate, seconds) = measure(case, options);
            let checks = if shared_races { "all" } else { "bounds" };
            let (rate, ms) = (rate / 1e6, seconds * 1e3);
            println!(
                "| {} | {threads} | {checks} | {rate:.1} | {ms:.1} |",
                case.kernel
            );
        }
    }
}

/// Instructions per second and seconds of the fastest of five runs.
fn measure(case: &Case, options: Options) -> (f64, f64) {
    let file = format!(
        "{}/tests/fixtures/kernels/{}.ptx",
        env!("CARGO_MANIFEST_DIR"),
        case.kernel
    );
    let memory = Arc::new(Memory::default());
    let program = Program::load(&std::fs::read_to_string(file).unwrap(), &memory).unwrap();
    let mut parameters = Vec::new();
    for &bytes in case.arrays {
        let address = memory.allocate(bytes);
        memory.write(address, &vec![0; bytes]).unwrap();
        parameters.extend(address.to_le_bytes());
    }
    parameters.extend(case.numbers.iter().flat_map(|n| n.to_le_bytes()));
    let launch = Launch {
        kernel: program.kernel(case.kernel).unwrap(),
        grid: case.grid,
        block: [case.block, 1, 1],
        dynamic_shared: case.shared,
        parameters: &parameters,
        options,
    };
    let run = || {
        let start = Instant::now();
        let statistics = launch.run(&memory).unwrap();
        let seconds = start.elapsed().as_secs_f64();
        (statistics.instructions as f64 / seconds, seconds)
    };
    (0..5)
        .map(|_| run())
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .unwrap()
}
