//! Stochastic rounding of parameters of bf16: only to neighbours, right in the mean, and the same from the same seed on
//! every engine.

use kiln_nn::amp::{GradScaler, Scaling};
use kiln_nn::optim::{AdamW, Optimizer, SGD};
use kiln_tensor::{DType, Device, Result, Spec, Tensor, Var, compile, manual_seed, with_seed};

/// The f32 values of parameters of bf16 that a step of plain SGD with rate 1 changes by `-gradient`.
fn stepped(seed: u64, start: &[f32], gradient: &[f32], device: Device) -> Result<Vec<f32>> {
    let bf16 = |values: &[f32]| Tensor::from_slice(values, [values.len()]).to_dtype(DType::BF16);
    let w = Var::parameter(bf16(start).to(device))?;
    let mut optimizer = Optimizer::new(&w, SGD::new().lr(1.0))?;
    optimizer.round_stochastically()?;
    w.set_grad(bf16(gradient).to(device))?;
    with_seed(seed, || optimizer.step())?;
    w.get().to_dtype(DType::F32).to_vec()
}

/// The nearest number of bf16.
fn nearest(x: f32) -> f32 {
    let cast = Tensor::from(x).to_dtype(DType::BF16);
    cast.to_dtype(DType::F32).item().unwrap()
}

/// The neighbours of a number in bf16.
fn neighbours(x: f32) -> [f32; 2] {
    let down = f32::from_bits(x.to_bits() & 0xFFFF_0000);
    if down == x {
        return [x, x];
    }
    [down, f32::from_bits(down.to_bits() + 0x1_0000)]
}

#[test]
fn numbers_go_to_their_neighbours_and_are_right_in_the_mean() -> Result<()> {
    // Within a binade, on both sides of powers of two, and of both signs.
    let cases = [
        (1.0f32, -0.001f32),
        (1.0, 0.0003),
        (2.0, 0.001),
        (-4.0, -0.003),
        (3.7, 0.0101),
        (1e-30, 3e-33),
    ];
    const N: usize = 20_000;
    for (start, change) in cases {
        let [start, change] = [start, change].map(nearest);
        let exact = start - change;
        let [a, b] = neighbours(exact);
        let found = stepped(7, &vec![start; N], &vec![change; N], Device::Cpu)?;
        assert!(
            found.iter().all(|x| *x == a || *x == b),
            "{exact}: {a} {b} {:?}",
            &found[..4]
        );
        let mean = found.iter().map(|x| f64::from(*x)).sum::<f64>() / N as f64;
        // The bound is six standard deviations of the mean of numbers that are 0 or 1 times the gap.
        let [exact, gap] = [f64::from(exact), f64::from((b - a).abs())];
        let part = (exact - f64::from(a)).abs() / gap.max(1e-300);
        let wide = 6.0 * gap * (part * (1.0 - part) / N as f64).sqrt();
        assert!(
            (mean - exact).abs() <= wide,
            "{exact}: the mean is {mean}, within {wide}"
        );
        let both = found.contains(&a) && found.contains(&b);
        assert!(both || a == b, "{exact}: all are alike");
    }
    Ok(())
}

#[test]
fn what_has_no_two_neighbours_is_rounded_to_nearest() -> Result<()> {
    let start = [f32::INFINITY, f32::NAN, 0.0, 3.0, 3.3895314e38, -1e-40];
    let found = stepped(3, &start, &[1.0, 1.0, 0.0, 1.0, -1e36, 0.0], Device::Cpu)?;
    assert_eq!(found[0], f32::INFINITY);
    assert!(found[1].is_nan());
    assert_eq!((found[2], found[3]), (0.0, 2.0));
    assert!(found[4] >= 3.38e38, "{}", found[4]);
    assert!(found[5].abs() <= 2e-40);
    Ok(())
}

#[test]
fn the_seed_decides() -> Result<()> {
    let (start, gradient) = (vec![1.0f32; 300], vec![0.001f32; 300]);
    let a = stepped(1, &start, &gradient, Device::Cpu)?;
    assert_eq!(a, stepped(1, &start, &gradient, Device::Cpu)?);
    assert_ne!(a, stepped(2, &start, &gradient, Device::Cpu)?);
    Ok(())
}

/// Lazy steps and a compiled step draw the same numbers; skipped ones change nothing.
#[test]
fn compiled_and_skipped_steps() -> Result<()> {
    let run = |compiled: bool| -> Result<Vec<Vec<f32>>> {
        manual_seed(11);
        let w = Var::parameter(Tensor::ones([33], DType::BF16))?;
        let mut optimizer = Optimizer::new(&w, AdamW::new().lr(1e-3))?;
        optimizer.round_stochastically()?;
        let mut scaler = GradScaler::with(Scaling::new().init_scale(4.0))?;
        let mut all = Vec::new();
        let mut step = |by: &Tensor| -> Result<()> {
            optimizer.zero_grad();
            let loss = (w.get().to_dtype(DType::F32).square().sum(()) * by).to_dtype(DType::F32);
            scaler.scale(&loss).backward()?;
            scaler.step(&mut optimizer)?;
            scaler.update()
        };
        let inputs = [1.0f32, f32::INFINITY, 2.0].map(Tensor::from);
        if compiled {
            let f = compile(Spec::new(DType::F32, ()), |by| step(&by))?;
            for by in &inputs {
                f.run(by)?;
                all.push(w.get().to_dtype(DType::F32).to_vec()?);
            }
        } else {
            for by in &inputs {
                step(by)?;
                all.push(w.get().to_dtype(DType::F32).to_vec()?);
            }
        }
        Ok(all)
    };
    let lazy = run(false)?;
    assert_eq!(lazy, run(true)?);
    assert_eq!(lazy[0], lazy[1]);
    assert_ne!(lazy[1], lazy[2]);
    Ok(())
}

#[test]
fn it_goes_without_master_weights() -> Result<()> {
    let w = Var::parameter(Tensor::ones([3], DType::BF16))?;
    let mut optimizer = Optimizer::new(&w, SGD::new())?;
    optimizer.keep_master_weights()?;
    let e = optimizer.round_stochastically().unwrap_err().to_string();
    assert!(e.contains("master weights"), "{e}");
    let mut optimizer = Optimizer::new(&w, SGD::new())?;
    optimizer.round_stochastically()?;
    let e = optimizer.keep_master_weights().unwrap_err().to_string();
    assert!(e.contains("stochastic rounding"), "{e}");
    Ok(())
}
