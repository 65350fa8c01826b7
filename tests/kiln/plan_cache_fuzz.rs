//! Random programs that run repeatedly, with other sizes, offsets and numbers in between. Every run agrees with the
//! reference, and a repeated run has the same bits as the first.

use crate::cuda::test_device;
use kiln::{DType, Device, PadMode, Tensor, TopK, Var, cat, keep};
use kiln_ir::fuzz::Rng;

/// The parameters that differ between the runs of a program.
#[derive(Copy, Clone, Debug)]
struct CallParameters {
    batch: usize,
    length: usize,
    at: usize,
    count: i64,
    scale: f64,
}

fn given(rng: &mut Rng) -> CallParameters {
    CallParameters {
        batch: 1 + rng.below(5),
        length: 2 + rng.below(8),
        at: rng.below(9),
        count: 1 + rng.below(4) as i64,
        scale: rng.one([0.5, 1.0, -0.75, 2.0]),
    }
}

fn data(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| (i as f32 * 0.7 + 0.1).sin()).collect();
    Tensor::from_slice(&values, shape).to(test_device())
}

/// Applies the `kind`-th operation to a `[batch, length, 4]` tensor; the result has that form too.
fn apply(kind: usize, x: &Tensor, w: &Tensor, g: CallParameters) -> Tensor {
    let shape = x.shape().unwrap();
    let (batch, length) = (shape[0], shape[1]);
    let at = g.at % length;
    match kind {
        0 => x * g.scale + 0.25,
        1 => x.sin(),
        2 => x.softmax(1),
        3 => x.narrow(1, (at % 2) as i64, length as i64 - 1),
        4 => x.roll([at as i64], [1]),
        5 => cat(&[x, &x.narrow(1, at as i64, 1)], 1),
        6 => x
            .reshape([-1, 4])
            .matmul(w)
            .reshape([batch as i64, length as i64, 4])
            .tanh(),
        7 => x - x.mean(keep([1])),
        8 => x.set((.., at), g.scale),
        9 => x + data(&[16, 4]).i(g.at..g.at + 1),
        10 => x.matmul(x.transpose(1, 2)).softmax(-1).matmul(x),
        11 => x.cumsum(1).tanh(),
        12 => x.flip([1]),
        13 => x.topk(TopK::new(g.count.min(length as i64)).dim(1)).0,
        14 => x.pad([0, 0, at as i64 % 3, 1], PadMode::Constant(0.5.into())),
        15 => x.i((.., at.., ..)),
        16 => x
            .permute([1, 0, 2])
            .reshape([batch as i64, length as i64, 4]),
        17 => x + Tensor::arange(0, length as i64, 1).unsqueeze(1) * 0.125,
        18 => x.select(1, at as i64).unsqueeze(1) * x,
        _ => x.select_scatter(x.select(1, 0).neg(), 1, at as i64),
    }
}

fn program(seed: u64, g: CallParameters) -> Vec<Tensor> {
    let mut rng = Rng::new(seed);
    let x = Var::parameter(data(&[g.batch, g.length, 4])).unwrap();
    let w = Var::parameter(data(&[4, 4])).unwrap();
    let mut y = x.get();
    for _ in 0..3 + rng.below(6) {
        // A short result is concatenated with its operand, so that later operations can take parts of it.
        let kind = rng.below(20);
        let next = apply(kind, &y, &w.get(), g);
        y = match next.shape().unwrap()[1] {
            0 | 1 => cat(&[&next, &y], 1),
            _ => next,
        };
    }
    let mut outputs = vec![y.sum([1]), y.clone()];
    if rng.chance(0.5) {
        let loss = (&y * &y * 0.5).mean(());
        loss.backward().unwrap();
        outputs.extend(x.grad());
        outputs.extend(w.grad());
    }
    outputs
}

/// The values, after checking that they are those of the reference.
fn run(seed: u64, g: CallParameters) -> Result<Vec<Vec<u32>>, String> {
    let outputs = program(seed, g);
    let outputs: Vec<&Tensor> = outputs.iter().collect();
    let wanted = kiln::evaluate_reference(&outputs).map_err(|e| e.to_string())?;
    let mut bits = Vec::new();
    for (i, (t, wanted)) in outputs.iter().zip(wanted).enumerate() {
        assert_eq!(t.dtype(), DType::F32);
        let values = t.to_vec::<f32>().map_err(|e| e.to_string())?;
        let wanted = wanted.to_vec::<f32>().unwrap();
        let most = wanted.iter().fold(1.0f32, |m, w| m.max(w.abs()));
        for (at, (v, w)) in values.iter().zip(&wanted).enumerate() {
            let near = (v - w).abs() <= 2e-4 * most;
            if !near {
                return Err(format!("output {i}, element {at} is {v}, not {w}"));
            }
        }
        bits.push(values.iter().map(|v| v.to_bits()).collect());
    }
    Ok(bits)
}

#[test]
fn other_sizes_in_between_change_nothing() {
    let seeds = crate::seeds(match test_device() {
        Device::Cpu => 40,
        _ => 4,
    });
    let mut wrong = Vec::new();
    for seed in seeds {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let first = given(&mut rng);
        let mut runs: Vec<CallParameters> = (0..9).map(|_| given(&mut rng)).collect();
        runs.insert(0, first);
        let tell = |g: CallParameters, e: String| format!("seed {seed}, {g:?}: {e}");
        let mut found = Vec::new();
        for g in &runs {
            match run(seed, *g) {
                Ok(bits) => found.push(bits),
                Err(e) => wrong.push(tell(*g, e)),
            }
        }
        match run(seed, first) {
            Ok(bits) if found.first() == Some(&bits) => {}
            Ok(_) => wrong.push(tell(first, "other bits than the first time".to_string())),
            Err(e) => wrong.push(tell(first, e)),
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
