//! A plan made by the compiler, run with nothing but the runtime linked.

use kiln_plan::Plan;
use kiln_runtime::{Buffer, Executable};

/// The input that the fixture was made with: element i of input k.
fn input(k: usize, shape: &[i64]) -> Buffer {
    let count: i64 = shape.iter().product();
    let values: Vec<f32> = (0..count)
        .map(|i| ((i * 37 + k as i64 * 11) % 101) as f32 / 101.0)
        .collect();
    Buffer::from_slice(&values, shape).expect("the shape fits")
}

#[test]
fn a_compiled_network_runs_without_the_compiler() {
    let plan = Plan::from_bytes(include_bytes!("../fixtures/small_cnn.plan")).expect("a plan");
    let executable = Executable::new(plan).expect("a sound plan");
    let shapes = executable.plan().inputs.iter();
    let shapes: Vec<Vec<i64>> = shapes
        .map(|i| i.shape.iter().map(|d| d.eval(&[3])).collect())
        .collect();
    let inputs: Vec<Buffer> = shapes
        .iter()
        .enumerate()
        .map(|(k, s)| input(k, s))
        .collect();
    let outputs = executable.run_shared(&inputs).expect("a run");
    let got = outputs[0].to_vec::<f32>().expect("f32");
    let wanted = include_bytes!("../fixtures/small_cnn.f32")
        .as_chunks::<4>()
        .0;
    assert_eq!(outputs[0].shape(), [3, 5]);
    assert_eq!(got.len(), wanted.len());
    for (a, b) in got.iter().zip(wanted) {
        assert!((a - f32::from_le_bytes(*b)).abs() < 1e-6, "{a}");
    }
}
