//! The plan that the runtime's own tests run with nothing above the runtime linked.

use crate::vector;
use kiln::{Conv, DType, Pool, RunningStats, Spec, Tensor, Var, compile};
use kiln_runtime::{Buffer, Executable};
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("crates/runtime/tests/fixtures")
}

/// A convolution, batch norm, pooling and linear layer for any batch size.
fn plan() -> Vec<u8> {
    let var = |shape: &[usize]| Var::new(Tensor::ones(shape, DType::F32)).unwrap();
    let (conv, linear) = (var(&[4, 1, 3, 3]), var(&[4 * 3 * 3, 5]));
    let mean = Var::new(vector(&[0.0; 4])).unwrap();
    let variance = Var::new(vector(&[1.0; 4])).unwrap();
    let image = Spec::new(DType::F32, ("batch", 1, 6, 6));
    let f = compile(image, |x| {
        let y = x.conv2d_with(
            conv.get(),
            Conv::new().stride([1, 1]).padding([1, 1]).dilation([1, 1]),
        );
        let y = y.batch_norm_with(
            RunningStats::new()
                .running_mean(&mean)
                .running_var(&variance),
        );
        let y = y.relu().max_pool2d(
            Pool::new([2, 2])
                .stride([2, 2])
                .padding([0, 0])
                .dilation([1, 1]),
        );
        y.flatten(1).matmul(linear.get()).softmax(1)
    });
    f.unwrap().to_bytes()
}

/// The inputs that the runtime's test makes for itself: element i of input k.
fn input(k: usize, shape: &[i64]) -> Buffer {
    let count: i64 = shape.iter().product();
    let values: Vec<f32> = (0..count)
        .map(|i| ((i * 37 + k as i64 * 11) % 101) as f32 / 101.0)
        .collect();
    Buffer::from_slice(&values, shape).unwrap()
}

/// With `KILN_UPDATE_FIXTURES=1` writes the files; they must then be committed.
#[test]
fn the_fixture_is_what_the_compiler_makes() {
    let bytes = plan();
    let executable = Executable::new(kiln_plan::Plan::from_bytes(&bytes).unwrap()).unwrap();
    let inputs = executable.plan().inputs.iter().enumerate();
    let mut inputs: Vec<Buffer> = inputs
        .map(|(k, i)| input(k, &i.shape.iter().map(|d| d.eval(&[3])).collect::<Vec<_>>()))
        .collect();
    let donate = vec![false; inputs.len()];
    let result = executable.run(&mut inputs, &donate).unwrap().remove(0);
    let result: Vec<u8> = result.bytes().unwrap().to_vec();
    if std::env::var_os("KILN_UPDATE_FIXTURES").is_some() {
        std::fs::create_dir_all(folder()).unwrap();
        std::fs::write(folder().join("small_cnn.plan"), &bytes).unwrap();
        std::fs::write(folder().join("small_cnn.f32"), &result).unwrap();
    }
    let wanted = std::fs::read(folder().join("small_cnn.plan")).unwrap();
    assert!(
        bytes == wanted,
        "the compiler makes another plan than the fixture; run this test with KILN_UPDATE_FIXTURES=1"
    );
    let wanted = std::fs::read(folder().join("small_cnn.f32")).unwrap();
    for (a, b) in result
        .as_chunks::<4>()
        .0
        .iter()
        .zip(wanted.as_chunks::<4>().0)
    {
        let (a, b) = (f32::from_le_bytes(*a), f32::from_le_bytes(*b));
        assert!((a - b).abs() < 1e-6, "{a} {b}");
    }
}
