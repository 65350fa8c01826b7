//! The cost of a large checkpoint: `cargo test --release -p kiln-formats --test formats -- --ignored --nocapture
//! large`.

use kiln_formats::{StateDict, load, save};
use kiln_tensor::{Result, Tensor};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// The time of the fastest of several runs, in seconds.
fn fastest(mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..7 {
        let start = Instant::now();
        f()?;
        least = least.min(start.elapsed().as_secs_f64());
    }
    Ok(least)
}

/// Reads a file, and computes the CRC-32 of its contents, as the form's checksums do.
fn summed(path: &Path) -> u32 {
    let mut file = File::open(path).expect("it was written");
    let (mut sum, mut block) = (flate2::Crc::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut block).expect("readable") {
            0 => return sum.sum(),
            n => sum.update(&block[..n]),
        }
    }
}

/// A figure of this process, which the system reports in kB, in bytes.
fn memory(what: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(what));
    let kb = line.and_then(|l| l.split_whitespace().nth(1)?.parse::<f64>().ok());
    kb.unwrap_or(f64::NAN) * 1024.0
}

const PARTS: usize = 16;
const ELEMENTS: usize = 16 << 20;
/// The variable that passes the file's path to the process that reads it.
const FILE: &str = "KILN_LARGE";

#[test]
#[ignore = "writes a gigabyte, and prints what reading it costs"]
fn large_checkpoints_cost_little_more_than_reading_them() -> Result<()> {
    if let Some(path) = std::env::var_os(FILE) {
        return read_by_a_new_process(Path::new(&path));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.pt");
    let values: Vec<f32> = (0..ELEMENTS as u32)
        .map(|i| i.wrapping_mul(2_654_435_761) as f32)
        .collect();
    let part = |i: usize| {
        (
            i.to_string(),
            Tensor::from_slice(&values, [ELEMENTS]) + i as f64,
        )
    };
    save((0..PARTS).map(part).collect::<StateDict>(), &path)?;
    // A new process reads the file, since this one has free memory left from writing it.
    let name = "large::large_checkpoints_cost_little_more_than_reading_them";
    let read = Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--nocapture", "--exact", name])
        .env(FILE, &path)
        .status();
    assert!(read.expect("it runs").success());
    Ok(())
}

fn read_by_a_new_process(path: &Path) -> Result<()> {
    let tensors = (4 * PARTS * ELEMENTS) as f64;
    assert!(fs::metadata(path).expect("it was written").len() as f64 > tensors);
    summed(path);
    let before = memory("VmRSS");
    let state = load(path)?.state_dict()?;
    assert_eq!(state.len(), PARTS);
    let (after, most) = (memory("VmRSS") - before, memory("VmHWM") - before);
    drop(state);
    let mut sums = Vec::new();
    let reading = fastest(|| {
        sums.push(summed(path));
        Ok(())
    })?;
    assert!(sums.windows(2).all(|s| s[0] == s[1]));
    let loading = fastest(|| load(path).map(drop))?;
    println!(
        "reading and summing {reading:.3} s, loading {loading:.3} s, {:.2} times; resident {:.3} of the tensors, at \
         most {:.3}",
        loading / reading,
        after / tensors,
        most / tensors
    );
    Ok(())
}
