//! One optimiser and gradient clipping for parameters on the CPU and on a GPU.

use crate::cuda::device;
use crate::matrix;
use kiln::nn::optim::*;
use kiln::nn::{Forward, Linear, Module};
use kiln::{Device, Result, Tensor, Var, with_seed};

/// Two layers, each on a device of its own.
struct Split {
    first: Linear,
    second: Linear,
}

impl Split {
    fn new(devices: [Device; 2]) -> Split {
        let split = with_seed(3, || Split {
            first: Linear::new(5, 7).unwrap(),
            second: Linear::new(7, 3).unwrap(),
        });
        split.first.to(devices[0]).unwrap();
        split.second.to(devices[1]).unwrap();
        split
    }

    fn parameters(&self) -> Vec<Var> {
        [self.first.parameters(), self.second.parameters()].concat()
    }

    fn loss(&self) -> Result<Tensor> {
        let [first, second] = [&self.first, &self.second].map(|l| l.weight.device());
        let hidden = self.first.call(matrix(6, 5).to(first)).tanh();
        let labels = Tensor::from_slice(&[0i64, 1, 2, 0, 1, 2], [6]).to(second);
        let loss = self.second.call(hidden.to(second)).cross_entropy(&labels);
        loss.backward()?;
        Ok(loss)
    }

    fn values(&self) -> Vec<f32> {
        let read = |p: &Var| p.get().to_vec::<f32>().unwrap();
        self.parameters().iter().flat_map(read).collect()
    }
}

/// Parameters and norms after some steps; in the third step one parameter has no gradient.
fn trained<R: Rule>(rule: R, devices: [Device; 2]) -> (Vec<f32>, Vec<f32>) {
    let split = Split::new(devices);
    let parameters = split.parameters();
    let mut optimizer = Optimizer::new(&parameters, rule).unwrap();
    let mut norms = Vec::new();
    for i in 0..5 {
        optimizer.zero_grad();
        split.loss().unwrap();
        if i == 2 {
            parameters[1].zero_grad();
        }
        let norm = clip_grad_norm_(&parameters, 0.3).unwrap();
        assert_eq!(norm.device(), devices[0]);
        clip_grad_value_(&parameters, 0.1).unwrap();
        optimizer.set_lr(0.1 / (i + 1) as f64).unwrap();
        optimizer.step().unwrap();
        norms.push(norm.item::<f32>().unwrap());
    }
    let places: Vec<Device> = parameters.iter().map(Var::device).collect();
    let [a, b] = devices;
    assert_eq!(places, [a, a, b, b]);
    (split.values(), norms)
}

fn check<R: Rule + Clone>(rule: R) {
    let Some(gpu) = device() else { return };
    let (wanted, norms) = trained(rule.clone(), [Device::Cpu, Device::Cpu]);
    for devices in [[Device::Cpu, gpu], [gpu, Device::Cpu]] {
        let found = trained(rule.clone(), devices);
        let close = |found: &[f32], wanted: &[f32]| {
            for (a, b) in found.iter().zip(wanted) {
                assert!((a - b).abs() < 1e-5 * b.abs().max(1.0), "{a} is not {b}");
            }
        };
        close(&found.0, &wanted);
        close(&found.1, &norms);
    }
}

#[test]
fn parameters_on_both_are_trained_by_one_optimizer() {
    check(SGD::new().momentum(0.9).weight_decay(0.1));
    check(AdamW::new());
    // Rules with scalars per parameter, and with reductions.
    check(NAdam::new());
    check(Adafactor::new());
}

#[test]
fn a_search_goes_over_both() {
    let Some(gpu) = device() else { return };
    let run = |devices: [Device; 2]| {
        let split = Split::new(devices);
        let rule = LBFGS::new()
            .max_iter(4)
            .line_search_fn(LineSearch::StrongWolfe);
        let mut optimizer = Optimizer::new(split.parameters(), rule).unwrap();
        optimizer.step_with(|| split.loss()).unwrap();
        split.values()
    };
    let (there, here) = (run([Device::Cpu, gpu]), run([Device::Cpu; 2]));
    for (a, b) in there.iter().zip(&here) {
        assert!((a - b).abs() < 1e-3 * b.abs().max(1.0), "{a} is not {b}");
    }
}

#[test]
fn a_saved_state_goes_on_where_the_parameters_are() {
    let Some(gpu) = device() else { return };
    let step = |split: &Split, optimizer: &mut Optimizer| {
        optimizer.zero_grad();
        split.loss().unwrap();
        optimizer.step().unwrap();
    };
    let make = |split: &Split| Optimizer::new(split.parameters(), AdamW::new().lr(0.1)).unwrap();
    let whole = Split::new([gpu, Device::Cpu]);
    let mut optimizer = make(&whole);
    step(&whole, &mut optimizer);
    let half = Split::new([gpu, Device::Cpu]);
    let mut again = make(&half);
    for (to, from) in half.parameters().iter().zip(whole.parameters()) {
        to.assign(from.get().detach()).unwrap();
    }
    again
        .load_state_dict(&optimizer.state_dict().unwrap())
        .unwrap();
    step(&whole, &mut optimizer);
    step(&half, &mut again);
    assert_eq!(half.values(), whole.values());
}
