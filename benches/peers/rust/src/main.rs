//! candle, tract and burn in the comparison: runs a workload, once a line of its input.
//!
//! `rust-peers <candle|tract|burn> <workload> <start> <threads>`

mod burn_side;
mod candle_side;
mod tract_side;

use safetensors::SafeTensors;
use std::collections::HashMap;
use std::io::BufRead;
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

/// A tensor of the start: its shape and its elements.
pub struct Array {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// The data that all sides start from.
pub struct Start {
    pub weights: HashMap<String, Array>,
    pub inputs: Vec<Array>,
}

/// One run, and its result's elements.
pub type Run = Box<dyn FnMut() -> Result<Done, Failure>>;
/// Gives the elements of a result, outside of the time that counts.
pub type Done = Box<dyn FnOnce() -> Result<Vec<f32>, Failure>>;

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().collect();
    let [_, side, name, path, threads] = &words[..] else {
        return Err("rust-peers <candle|tract|burn> <workload> <start> <threads>".into());
    };
    // SAFETY: nothing else runs yet.
    unsafe { std::env::set_var("RAYON_NUM_THREADS", threads) };
    let base = status("VmRSS")?;
    let made = match side.as_str() {
        "candle" => candle_side::workload(name, read(path)?)?,
        "burn" => burn_side::workload(name, read(path)?)?,
        _ => tract_side::workload(path, read(path)?, threads.parse()?)?,
    };
    let Some((version, threads, mut run)) = made else {
        println!("absent");
        return Ok(());
    };
    std::fs::write("/proc/self/clear_refs", "5")?;
    println!("ready\t{version}\t{threads}");
    for line in std::io::stdin().lock().lines() {
        if line?.trim() == "memory" {
            println!("{}", status("VmHWM")? - base);
            continue;
        }
        let start = Instant::now();
        let done = run()?;
        let time = start.elapsed().as_secs_f64();
        let values = done()?;
        let sum: f64 = values.iter().map(|v| f64::from(*v).abs()).sum();
        println!("{time}\t{}", sum / values.len() as f64);
    }
    Ok(())
}

fn read(path: &str) -> Result<Start, Failure> {
    let bytes = std::fs::read(path)?;
    let file = SafeTensors::deserialize(&bytes)?;
    let mut weights = HashMap::new();
    for (name, view) in file.tensors() {
        if view.dtype() == safetensors::Dtype::F32 {
            let values = view.data().chunks_exact(4);
            let values = values.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            let array = Array {
                shape: view.shape().to_vec(),
                values: values.collect(),
            };
            weights.insert(name, array);
        }
    }
    let inputs = (0..).map_while(|i| weights.remove(&format!("batch.{i}")));
    let inputs = inputs.collect();
    Ok(Start { weights, inputs })
}

/// A size from `/proc/self/status`, in bytes.
fn status(key: &str) -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find(|l| l.starts_with(key));
    let number = line.and_then(|l| l.split_whitespace().nth(1));
    Ok(number.ok_or("no such size")?.parse::<u64>()? * 1024)
}
