//! Whole-system tests: one binary, with a module for each claim.

mod access;
mod accuracy;
mod algorithms;
mod anomaly;
mod any_size;
mod attention;
mod autograd;
mod bias_before_norm;
mod calls;
mod checkpointing;
mod commits;
mod compared;
mod compiled;
mod control_flow;
mod cuda;
mod cuda_sweep;
mod custom_ops;
mod default_device;
mod determinism;
mod embedded;
mod empties;
mod errors;
mod explain;
mod float8;
mod functions;
mod fusion_counts;
mod fuzz;
mod fuzz_gradients;
mod gpu_tools;
mod growth;
mod higher_orders;
mod in_place;
mod indexing;
mod integers;
mod kernel_counts;
mod kinks;
mod layout;
mod lines;
mod memory_budget;
mod mixed_precision;
mod named;
mod numbers;
mod odd_slices;
mod operators;
mod ops;
mod plan_cache;
mod plan_cache_fuzz;
mod plans;
mod pretrained;
mod printing;
mod profile;
mod quantization;
mod random;
mod reading;
mod resuming;
mod rounded_batches;
mod rules;
mod seeded_bugs;
mod sizes;
mod structure;
mod threads;
mod tuning;
mod tuning_precision;
mod two_devices;
mod vars;
mod verify;
mod views;
mod while_loops;
mod worked_examples;

use kiln::{DType, Tensor};
use kiln_testkit::oracle;
use kiln_testkit::sweep::seeds;

/// True if this process runs the test of this path alone, for what is set or counted by process. Otherwise the test has
/// passed in a child process, with these variables of the environment.
fn is_alone(path: &str, variables: &[(&str, &str)]) -> bool {
    if std::env::var_os("KILN_ALONE").is_some() {
        return true;
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args([path, "--exact", "--nocapture"])
        .env("KILN_ALONE", "1")
        .envs(variables.iter().copied())
        .status();
    assert!(status.unwrap().success(), "see the output above");
    false
}

/// An f32 tensor of these values, shape `[n]`.
#[track_caller]
fn vector(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len()])
}

/// A small deterministic matrix of f32 values that are not round.
#[track_caller]
fn matrix(rows: usize, columns: usize) -> Tensor {
    let values: Vec<f32> = (0..rows * columns)
        .map(|i| ((i * 37 % 101) as f32 - 50.0) / 17.0)
        .collect();
    Tensor::from_slice(&values, [rows, columns])
}

/// Asserts that two f32 slices agree to a few units in the last place of their largest element.
#[track_caller]
fn assert_close(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    let scale = b.iter().fold(1e-30f32, |m, x| m.max(x.abs()));
    for (x, y) in a.iter().zip(b) {
        assert!(
            (x - y).abs() <= 32.0 * f32::EPSILON * scale || x == y || x.is_nan() && y.is_nan(),
            "{a:?}\n{b:?}"
        );
    }
}

/// Asserts that the engine and the reference agree on a tensor.
#[track_caller]
fn assert_reference(t: &Tensor) {
    let reference = kiln::evaluate_reference(t).unwrap();
    let (a, b) = (t.to_dtype(DType::F32), reference.to_dtype(DType::F32));
    assert_close(&a.to_vec::<f32>().unwrap(), &b.to_vec::<f32>().unwrap());
}
