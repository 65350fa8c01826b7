//! Optimisers, clipping and schedules.

mod apex;
mod clip;
mod formulas;
mod masters;
mod mixed;
mod own;
mod ranges;
mod reference;
mod repeats;
mod scaler;
mod schedules;
mod state;
mod steps;
mod stochastic;

use kiln_nn::optim::Optimizer;
use kiln_tensor::{Result, Tensor, Var};

/// Numbers in (-1, 1) from a seed.
fn numbers(seed: u64, n: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// An f32 tensor of such numbers.
fn random(seed: u64, shape: &[usize]) -> Tensor {
    let n = shape.iter().product();
    let values: Vec<f32> = numbers(seed, n).into_iter().map(|x| x as f32).collect();
    Tensor::from_slice(&values, shape)
}

fn parameter(seed: u64, shape: &[usize]) -> Var {
    Var::parameter(random(seed, shape)).unwrap()
}

/// Two layers, `[n, 7]` to the mean of squares.
struct Net {
    all: Vec<Var>,
}

impl Net {
    fn new(seed: u64) -> Net {
        let shapes: [&[usize]; 4] = [&[13, 7], &[13], &[5, 13], &[5]];
        let make = |(i, shape): (usize, &&[usize])| parameter(seed + i as u64, shape);
        Net {
            all: shapes.iter().enumerate().map(make).collect(),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let w = |i: usize| self.all[i].get();
        x.linear_with(w(0), w(1)).tanh().linear_with(w(2), w(3))
    }

    fn loss(&self, x: &Tensor) -> Tensor {
        self.forward(x).square().mean(())
    }

    fn values(&self) -> Vec<f32> {
        let read = |v: &Var| v.get().to_vec::<f32>();
        let all: Result<Vec<_>> = self.all.iter().map(read).collect();
        all.unwrap().concat()
    }
}

/// Asserts that both agree within `tolerance`, relative to the larger of 1 and the expected value.
#[track_caller]
fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!(
            (a - b).abs() <= tolerance * b.abs().max(1.0),
            "element {i}: {a} is not {b}"
        );
    }
}

fn train(net: &Net, optimizer: &mut Optimizer, steps: std::ops::Range<u64>) {
    for i in steps {
        optimizer.zero_grad();
        net.loss(&random(100 + i, &[6, 7])).backward().unwrap();
        optimizer.step().unwrap();
    }
}
