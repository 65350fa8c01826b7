//! Training in mixed precision compared with PyTorch's: the distance of its losses from those in f32. See `mixed.py`.

use kiln_nn::amp::{GradScaler, Scaling};
use kiln_nn::optim::{AdamW, Optimizer, SGD};
use kiln_tensor::{Attention, Conv, DType, Result, Tensor, Var, autocast, no_autocast};
use serde_json::Value;

const STEPS: u64 = 200;

/// Numbers in [-1, 1).
fn uniform(seed: u64, shape: &[usize]) -> Tensor {
    let number = |i: u64| {
        let mut z = ((seed << 32) + i).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        ((z >> 11) as f64 / (1u64 << 52) as f64 - 1.0) as f32
    };
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n as u64).map(number).collect();
    Tensor::from_slice(&values, shape)
}

fn integers(seed: u64, n: usize, below: i64) -> Vec<i64> {
    let all = uniform(seed, &[n]).to_vec::<f32>().unwrap();
    let scaled = all
        .into_iter()
        .map(|u| (f64::from(u) + 1.0) / 2.0 * below as f64);
    scaled.map(|x| x as i64).collect()
}

fn weights(seed: u64, shapes: &[&[usize]]) -> Vec<Var> {
    let made = |(i, shape): (usize, &&[usize])| {
        let inputs: usize = shape[1..].iter().product();
        let scale = (inputs as f64).powf(-0.5) as f32;
        Var::parameter(uniform(seed * 100 + i as u64, shape) * scale).unwrap()
    };
    shapes.iter().enumerate().map(made).collect()
}

trait Task {
    fn shapes() -> Vec<&'static [usize]>;
    fn optimizer(w: &[Var]) -> Optimizer;
    /// Inputs and labels.
    fn batch(step: u64) -> (Tensor, Tensor);
    fn loss(w: &[Var], x: &Tensor, labels: &Tensor) -> Tensor;
}

struct Convolutions;

impl Task for Convolutions {
    fn shapes() -> Vec<&'static [usize]> {
        vec![&[8, 1, 3, 3], &[16, 8, 3, 3], &[10, 256]]
    }

    fn optimizer(w: &[Var]) -> Optimizer {
        Optimizer::new(w, SGD::new().lr(0.02).momentum(0.9)).unwrap()
    }

    fn batch(step: u64) -> (Tensor, Tensor) {
        let labels = Tensor::from_slice(&integers(7000 + step, 32, 10), [32]);
        let patterns = uniform(77, &[10, 64]).index_select(0, &labels);
        let x = patterns * 0.5 + uniform(8000 + step, &[32, 64]);
        (x.reshape([32, 1, 8, 8]), labels)
    }

    fn loss(w: &[Var], x: &Tensor, labels: &Tensor) -> Tensor {
        let x = x.conv2d_with(&w[0], Conv::new().padding(1)).relu();
        let x = x
            .conv2d_with(&w[1], Conv::new().padding(1).stride(2))
            .relu();
        x.flatten(1).linear(&w[2]).cross_entropy(labels)
    }
}

struct Text;

impl Task for Text {
    fn shapes() -> Vec<&'static [usize]> {
        vec![
            &[17, 32],
            &[12, 32],
            &[96, 32],
            &[32, 32],
            &[64, 32],
            &[32, 64],
            &[17, 32],
        ]
    }

    fn optimizer(w: &[Var]) -> Optimizer {
        Optimizer::new(w, AdamW::new().lr(3e-3)).unwrap()
    }

    fn batch(step: u64) -> (Tensor, Tensor) {
        let (factor, first) = (integers(9000 + step, 16, 2), integers(9500 + step, 16, 17));
        let (mut tokens, mut following) = (Vec::new(), Vec::new());
        for (factor, mut token) in factor.into_iter().zip(first) {
            for _ in 0..12 {
                tokens.push(token);
                token = (token * (factor + 2) + 1) % 17;
                following.push(token);
            }
        }
        (
            Tensor::from_slice(&tokens, [16, 12]),
            Tensor::from_slice(&following, [192]),
        )
    }

    fn loss(w: &[Var], x: &Tensor, labels: &Tensor) -> Tensor {
        let x = w[0].embedding(x) + &w[1];
        let all = x
            .layer_norm(32)
            .linear(&w[2])
            .reshape([16, 12, 3, 4, 8])
            .permute([2, 0, 3, 1, 4]);
        let [q, k, v] = [0, 1, 2].map(|i| all.select(0, i));
        let y = q.scaled_dot_product_attention_with(&k, &v, Attention::new().is_causal(true));
        let x = x + y.transpose(1, 2).reshape([16, 12, 32]).linear(&w[3]);
        let x = &x + x.layer_norm(32).linear(&w[4]).gelu().linear(&w[5]);
        let scores = x.layer_norm(32).linear(&w[6]);
        scores.reshape([-1, 17]).cross_entropy(labels)
    }
}

/// The losses of a training, and the number of its skipped steps.
fn run<T: Task>(batches: &[(Tensor, Tensor)], seed: u64, dtype: DType) -> Result<(Vec<f64>, i64)> {
    let w = weights(seed, &T::shapes());
    let mut optimizer = T::optimizer(&w);
    let mut scaler = GradScaler::with(Scaling::new().enabled(dtype == DType::F16))?;
    let mut losses = Vec::new();
    for (x, labels) in batches {
        optimizer.zero_grad();
        let loss = match dtype {
            DType::F32 => no_autocast(|| T::loss(&w, x, labels)),
            dtype => autocast(dtype, || T::loss(&w, x, labels)),
        };
        scaler.scale(&loss).backward()?;
        scaler.step(&mut optimizer)?;
        scaler.update()?;
        losses.push(f64::from(loss.item::<f32>()?));
    }
    Ok((losses, scaler.skipped()?[1]))
}

/// Means of 20 consecutive losses.
fn smoothed(losses: &[f64]) -> Vec<f64> {
    losses
        .windows(20)
        .map(|w| w.iter().sum::<f64>() / 20.0)
        .collect()
}

/// The mean distance of two smoothed curves.
fn gap(a: &[f64], b: &[f64]) -> f64 {
    let (a, b) = (smoothed(a), smoothed(b));
    let sum: f64 = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).sum();
    sum / a.len() as f64
}

fn stays_as_close_as_pytorch<T: Task>(kind: &str) {
    let reference: Value = serde_json::from_str(include_str!("mixed.json")).unwrap();
    let theirs = |dtype: &str, seed: usize| -> Vec<f64> {
        let losses = reference[kind][dtype][seed].as_array().unwrap().iter();
        losses.map(|x| x.as_f64().unwrap()).collect()
    };
    let batches: Vec<(Tensor, Tensor)> = (0..STEPS).map(T::batch).collect();
    let is_full = std::env::var_os("KILN_FULL_SWEEP").is_some();
    let seeds = 0..if is_full { 5 } else { 2 };
    let plain: Vec<Vec<f64>> = seeds
        .clone()
        .map(|seed| run::<T>(&batches, seed, DType::F32).unwrap().0)
        .collect();
    for (seed, ours) in plain.iter().enumerate() {
        let off = gap(ours, &theirs("f32", seed));
        assert!(off < 1e-3, "{kind} in f32, seed {seed}: {off}");
        assert!(smoothed(ours).last().unwrap() < &0.3);
    }
    for dtype in [DType::BF16, DType::F16] {
        let (mut ours, mut torch) = (0.0, 0.0);
        for seed in seeds.clone() {
            let at = seed as usize;
            let (losses, skipped) = run::<T>(&batches, seed, dtype).unwrap();
            assert!(skipped < 10, "{skipped} steps were skipped");
            ours += gap(&losses, &plain[at]);
            torch += gap(&theirs(dtype.name(), at), &theirs("f32", at));
        }
        println!(
            "{kind} in {dtype}: {ours:e} from f32, PyTorch {torch:e}, over the seeds {seeds:?}"
        );
        assert!(
            ours <= 1.5 * torch,
            "{kind} in {dtype}: {ours} is not within 1.5 times {torch}"
        );
    }
}

#[test]
fn convolutions_stay_as_close_to_f32_as_pytorch_does() {
    stays_as_close_as_pytorch::<Convolutions>("conv");
}

#[test]
fn a_language_model_stays_as_close_to_f32_as_pytorch_does() {
    stays_as_close_as_pytorch::<Text>("text");
}
