//! Time of a 1-layer LSTM (batch 16, 128 inputs, hidden 128): the first run, which compiles, and warm runs
//! of the forward pass and of a training step.
//!
//! `cargo bench --bench recurrent`

use kiln::nn::{Forward, LSTM, Module};
use kiln::{DType, Tensor, no_grad};
use std::time::Instant;

fn median(mut f: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < 11 || start.elapsed().as_secs_f64() < 2.0 && times.len() < 1000 {
        let t = Instant::now();
        f();
        times.push(t.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> kiln::Result<()> {
    println!("length  what     first run [ms]  warm run [ms]");
    for length in [16, 64, 256] {
        let lstm = LSTM::new(128, 128)?;
        let x = Tensor::randn([length, 16, 128], DType::F32);
        x.realize()?;
        let forward = || {
            let y = no_grad(|| lstm.call(&x).0.sum(()));
            y.item::<f32>().unwrap();
        };
        let train = || {
            let loss = lstm.call(&x).0.square().mean(());
            loss.backward().unwrap();
            for (_, p) in lstm.named_parameters() {
                let g = p.grad().unwrap();
                p.assign(&(p.get().detach() - g * 0.01)).unwrap();
                p.zero_grad();
            }
            kiln::realize_all().unwrap();
        };
        let rows: [(&str, &dyn Fn()); 2] = [("forward", &forward), ("train", &train)];
        for (what, run) in rows {
            let start = Instant::now();
            run();
            let first = start.elapsed().as_secs_f64();
            run();
            let warm = median(run);
            println!(
                "{length:6}  {what:7}  {:14.1}  {:13.2}",
                first * 1e3,
                warm * 1e3
            );
        }
    }
    Ok(())
}
