//! PyTorch's training runs, judged.

use crate::{Array, Run, TrainError, read_tensors};
use kiln_tensor::Device;
use serde_json::Value;
use std::path::Path;

/// The runs.
pub const RUNS: [&str; 4] = ["cnn_adamw_cosine", "cnn_sgd", "lm_adamw", "lm_sgd"];

/// Rounding can move the operand of a ReLU or of a maximum across a kink, which adds or removes the contribution of
/// one position to the weights of a filter. This fraction of a final weight's elements may be off for that reason...
const KINKS: f64 = 0.01;
/// ...if all belong to one filter and are off by at most this multiple of the tolerance.
const KINK: f64 = 4.0;

/// Trains a run on a device. Returns the differences from PyTorch's results: losses, first gradients, and final
/// weights and running statistics.
///
/// # Errors
/// If a file is missing or a step fails.
pub fn differences(folder: &Path, device: Device) -> Result<Vec<String>, TrainError> {
    let run = Run::load(folder)?;
    let trained = run.train(device)?;
    let settings = &run.settings;
    let list = |key: &str| -> Vec<f64> {
        let values = settings[key].as_array().into_iter().flatten();
        values.filter_map(Value::as_f64).collect()
    };
    let mut wrong = Vec::new();
    let (tolerances, expected) = (list("loss_tol"), list("losses"));
    let losses = trained["losses"].to_f64();
    if losses.len() != expected.len() || losses.len() != tolerances.len() || losses.is_empty() {
        wrong.push(format!("{} losses, not {}", losses.len(), expected.len()));
    }
    for (i, ((a, b), tolerance)) in losses.iter().zip(expected).zip(tolerances).enumerate() {
        // A NaN is never near.
        let is_near = (a - b).abs() <= tolerance;
        if !is_near {
            wrong.push(format!("loss {i} is {a}, not {b} ± {tolerance:e}"));
        }
    }
    let gradients = read_tensors(&folder.join("grad0.safetensors"))?;
    for (key, expected) in &gradients {
        let key = format!("grad0.{key}");
        wrong.extend(compare(
            &key,
            trained.get(&key),
            expected,
            1e-6,
            1e-4,
            false,
        ));
    }
    let finals = read_tensors(&folder.join("final.safetensors"))?;
    for (name, expected) in &finals {
        let tolerance = settings["final_tol"][name].as_f64();
        let tolerance = tolerance.ok_or_else(|| format!("{name} has no tolerance"))?;
        let key = format!("final.{name}");
        wrong.extend(compare(
            &key,
            trained.get(&key),
            expected,
            tolerance,
            1e-5,
            true,
        ));
    }
    let expected = 1 + gradients.len() + finals.len();
    if trained.len() != expected {
        wrong.push(format!("{} results, not {expected}", trained.len()));
    }
    Ok(wrong)
}

fn compare(
    name: &str,
    actual: Option<&Array>,
    expected: &Array,
    absolute: f64,
    relative: f64,
    at_kinks: bool,
) -> Option<String> {
    let Some(actual) = actual else {
        return Some(format!("there is no {name}"));
    };
    if (actual.dtype, &actual.shape) != (expected.dtype, &expected.shape) {
        return Some(format!(
            "{name} is {}{:?} instead of {}{:?}",
            actual.dtype, actual.shape, expected.dtype, expected.shape
        ));
    }
    let filters = expected.shape.first().map_or(1, |n| *n);
    let (actual, expected) = (actual.to_f64(), expected.to_f64());
    let is_within = |n: f64, a: f64, b: f64| (a - b).abs() <= n * (absolute + relative * b.abs());
    let pairs = actual.iter().zip(&expected).enumerate();
    // A NaN always counts as far.
    let outside: Vec<_> = pairs
        .filter(|(_, (a, b))| !is_within(1.0, **a, **b))
        .collect();
    let (first_index, (a, b)) = *outside.first()?;
    let filter = |i: usize| i * filters / expected.len();
    let is_kink = |(i, (a, b)): &(usize, (&f64, &f64))| {
        filter(*i) == filter(first_index) && is_within(KINK, **a, **b)
    };
    let are_few = outside.len() as f64 <= KINKS * expected.len() as f64;
    if at_kinks && are_few && outside.iter().all(is_kink) {
        return None;
    }
    Some(format!(
        "{name} has {a} instead of {b} ± {:e}",
        absolute + relative * b.abs()
    ))
}
