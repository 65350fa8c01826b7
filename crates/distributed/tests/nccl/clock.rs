//! The time of a step on the virtual clock of the emulated driver, in which kernels and operations do nothing but take
//! time.

use crate::{every, own};
use kiln_distributed::{DistributedDataParallel, world};
use kiln_fake_cuda::{Span, timeline};
use kiln_nn::optim::{Optimizer, SGD};
use kiln_nn::{Forward, Linear, Module, Sequential};
use kiln_tensor::{DType, Result, Spec, Tensor, compile};
use std::sync::{Barrier, Mutex};

/// The variables for a network on which a byte takes these nanoseconds, where a kernel takes 10 µs.
macro_rules! variables {
    ($byte:literal $(, $more:expr)*) => {
        &[
            ("KILN_FAKE_CUDA_CLOCK", concat!("10000,", $byte)),
            ("KILN_FAKE_CUDA_EXECUTE", "0"),
            ("KILN_FAKE_CUDA_DEVICES", "8"),
            $($more,)*
        ]
    };
}

/// Kernels take longer than operations.
pub const FAST: &[(&str, &str)] = variables!("0.004");
/// The same, launched call by call.
pub const LAUNCHES: &[(&str, &str)] = variables!("0.004", ("KILN_CUDA_GRAPHS", "0"));
/// Operations take longer than kernels.
pub const SLOW: &[(&str, &str)] = variables!("0.1");

/// Layers with 4 MiB of parameters each.
const LAYERS: usize = 24;
/// Buckets of one layer, and of 6 or fewer.
const BUCKETS: usize = 5;

/// Takes steps with these numbers of ranks.
pub fn all(ranks: &[usize]) -> Result<()> {
    ranks.iter().try_for_each(|ranks| step(*ranks))
}

fn step(ranks: usize) -> Result<()> {
    let (barrier, spans) = (Barrier::new(ranks), Mutex::new(Vec::new()));
    every(ranks, |_| {
        let device = world()?.device();
        let mut net = Sequential::new();
        for _ in 0..LAYERS {
            net = net.add(Linear::new(1024, 1024)?);
        }
        net.to(device)?;
        let ddp = DistributedDataParallel::new(net)?;
        let mut opt = Optimizer::new(ddp.parameters(), SGD::new().lr(0.1))?;
        let step = compile(Spec::new(DType::F32, (96, 1024)).on(device), |x| {
            let loss = ddp.call(x).square().mean(());
            loss.backward()?;
            opt.step()?;
            opt.zero_grad();
            Result::Ok(loss)
        })?;
        let x = own(Tensor::zeros([96, 1024], DType::F32))?;
        for _ in 0..3 {
            step.run(&x)?.item::<f32>()?;
        }
        // No rank has work left.
        if barrier.wait().is_leader() {
            timeline();
        }
        barrier.wait();
        step.run(&x)?.item::<f32>()?;
        if barrier.wait().is_leader() {
            *spans.lock().expect("no panic") = timeline();
        }
        barrier.wait();
        Ok(())
    })?;
    let spans = spans.into_inner().expect("no panic");
    (0..ranks).for_each(|rank| check(ranks, rank, &spans));
    Ok(())
}

/// Checks that a rank's communication is hidden behind its computation, or the other way round.
fn check(ranks: usize, rank: usize, all: &[Span]) {
    let own = all.iter().filter(|s| s.device == rank);
    let (network, kernels): (Vec<&Span>, Vec<&Span>) =
        own.partition(|s| s.name.starts_with("nccl"));
    let total = |spans: &[&Span]| spans.iter().map(|s| s.end - s.start).sum::<f64>();
    let (communication, computation) = (total(&network), total(&kernels));
    let spans = || kernels.iter().chain(&network);
    let start = spans().map(|s| s.start).fold(f64::INFINITY, f64::min);
    let took = spans().map(|s| s.end).fold(0.0, f64::max) - start;
    let text = format!(
        "rank {rank} of {ranks}: {:.0} µs, {:.0} of kernels, {:.0} of operations",
        took / 1e3,
        computation / 1e3,
        communication / 1e3
    );
    println!("{text}");
    assert_eq!(network.len(), BUCKETS, "{text}");
    assert!(took <= 1.15 * computation.max(communication), "{text}");
    let products = kernels.iter().filter(|s| s.name.contains("matmul"));
    let last = products.map(|s| s.start).fold(0.0, f64::max);
    let first = network.iter().map(|s| s.start);
    let first = first.fold(f64::INFINITY, f64::min);
    assert!(
        first < last,
        "{text}: the first bucket is reduced from {first} on, the last gradient made at {last}"
    );
}
