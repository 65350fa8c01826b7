//! Operations in CUDA graphs. The stand-in for NCCL checks that all ranks launch an operation from graphs of one
//! capture, or none does, and that no graph outlives its communicator.

use crate::{errors, every, own, steps};
use kiln_distributed::{
    DataParallelOptions, DistributedDataParallel, ReduceOp, all_gather, all_reduce, barrier,
    destroy_process_group, world,
};
use kiln_nn::optim::{Optimizer, SGD};
use kiln_nn::{Forward, Linear, Module, ReLU, sequential};
use kiln_runtime::cuda::Device as Gpu;
use kiln_tensor::{
    CompileOptions, DType, Device, Result, Spec, Tensor, compile, compile_with, with_seed,
};

/// The graphs that were launched by a function.
fn launched<T>(f: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    let before = kiln_fake_cuda::counters().graphs;
    let result = f()?;
    Ok((result, kiln_fake_cuda::counters().graphs - before))
}

/// Training with graphs, or without if a rank can't capture.
pub fn trained() -> Result<()> {
    [2, 3].into_iter().try_for_each(training)
}

pub fn all() -> Result<()> {
    trained()?;
    different_ranks()?;
    different_runs()?;
    ended()
}

/// A world of one has graphs too.
pub fn alone() -> Result<()> {
    let f = compile(Spec::new(DType::F32, 4).on(world()?.device()), |x| {
        all_gather(all_reduce(&x + 1.0, ReduceOp::Sum) * 2.0) - 1.0
    })?;
    let ((), graphs) = launched(|| {
        for i in 0..5 {
            let x = own(Tensor::full([4], i as f64, DType::F32))?;
            assert_eq!(f.run(&x)?.to_vec::<f32>()?, [2.0 * i as f32 + 1.0; 4]);
        }
        Ok(())
    })?;
    assert_eq!(graphs, 4);
    Ok(())
}

/// The steps of a test of training.
const STEPS: usize = 7;

/// The rows of a batch for a rank.
fn rows(step: usize, (rank, ranks): (usize, usize)) -> Tensor {
    let all = with_seed(step as u64, || Tensor::randn([12, 5], DType::F64));
    let n = 12 / ranks;
    all.narrow(0, (rank * n) as i64, n as i64)
}

/// Takes steps of a compiled program; returns losses and weights.
fn train(place: (usize, usize), device: Device, seed: u64) -> Result<(Vec<f64>, Vec<f64>)> {
    let net = with_seed(seed, || {
        sequential![Linear::new(5, 9), ReLU::new(), Linear::new(9, 3)]
    })?;
    net.to_dtype(DType::F64)?;
    net.to(device)?;
    let options = CompileOptions {
        fuse: place.0 != 1,
        memory_budget: (place.0 == 2).then_some(1 << 12),
        ..CompileOptions::default()
    };
    let data = DataParallelOptions::new().bucket_cap_mb(2e-4);
    // One process on the CPU has no group.
    let ddp = (place.1 > 1).then(|| DistributedDataParallel::with(net.clone(), data));
    let ddp = ddp.transpose()?;
    let mut opt = Optimizer::new(net.parameters(), SGD::new().lr(0.1).momentum(0.9))?;
    let input = Spec::new(DType::F64, (12 / place.1 as i64, 5)).on(device);
    let step = compile_with(input, &options, |x| {
        let y = match &ddp {
            Some(ddp) => ddp.call(x),
            None => net.call(x),
        };
        let loss = y.square().mean(());
        loss.backward()?;
        opt.step()?;
        opt.zero_grad();
        Result::Ok(loss)
    })?;
    let mut losses = Vec::new();
    for i in 0..STEPS {
        // Losses that are kept have new addresses each time, and runs that are not waited for have other memory.
        losses.push(step.run(&rows(i, place).to(device))?);
        if i % 3 == place.0 {
            losses[i].realize()?;
        }
    }
    let losses = losses.iter().map(|l| l.item::<f64>());
    let result = (losses.collect::<Result<Vec<_>>>()?, steps::weights(&net)?);
    if place.1 > 1 {
        // The program and its graphs are still there.
        destroy_process_group()?;
    }
    drop(step);
    Ok(result)
}

fn training(ranks: usize) -> Result<()> {
    let (losses, weights) = train((0, 1), Device::Cpu, 1)?;
    let (each, graphs) = launched(|| {
        every(ranks, |rank| {
            train((rank, ranks), world()?.device(), 1 + rank as u64)
        })
    })?;
    for step in 0..STEPS {
        let sum: f64 = each.iter().map(|(l, _)| l[step]).sum();
        steps::close(&[sum / ranks as f64], &losses[step..=step]);
    }
    each.iter().for_each(|(_, w)| steps::close(w, &weights));
    // All but the first run, and those in front of which the memory of ranks had different addresses.
    let expected = match std::env::var_os("KILN_FAKE_CUDA_NO_CAPTURE") {
        None => ranks * (STEPS - 3)..ranks * STEPS,
        Some(_) => 0..1,
    };
    assert!(expected.contains(&(graphs as usize)), "{graphs} graphs");
    Ok(())
}

/// Ranks that launch operations in different ways get the same results.
fn different_ranks() -> Result<()> {
    let sums = every(3, |rank| {
        let device = world()?.device();
        Gpu::get(rank as u32)?.set_graphs(rank != 1);
        let f = compile(Spec::new(DType::F32, 6).on(device), |x| {
            let y = all_reduce(&x * 2.0, ReduceOp::Sum);
            all_gather(y.sum(0).reshape([1]) + rank as f64)
        })?;
        let mut found = Vec::new();
        for i in 0..12 {
            let x = own(Tensor::full([6], i as f64, DType::F32))?;
            found.push(f.run(&x)?.to_vec::<f32>()?);
        }
        Gpu::get(rank as u32)?.set_graphs(true);
        barrier()?;
        Ok(found)
    })?;
    for found in sums {
        for (i, y) in found.iter().enumerate() {
            let sum = 36.0 * i as f32;
            assert_eq!(y, &[sum, sum + 1.0, sum + 2.0]);
        }
    }
    Ok(())
}

/// Ranks that divide the same operations into different runs get the same results.
fn different_runs() -> Result<()> {
    every(2, |rank| {
        for i in 0..12 {
            let x = own(Tensor::full([3], (i + rank) as f64, DType::F32))?;
            let y = all_reduce(&x, ReduceOp::Sum);
            // In some passes, one rank looks at the first sum.
            if rank == 0 && i % 3 == 1 {
                assert_eq!(y.to_vec::<f32>()?, [2.0 * i as f32 + 1.0; 3]);
            }
            let z = all_reduce(y * 0.5, ReduceOp::Max);
            assert_eq!(z.to_vec::<f32>()?, [i as f32 + 0.5; 3]);
        }
        barrier()
    })
    .map(drop)
}

/// Takes four steps of a program with an operation. Returns the error of the next one, which some ranks take.
fn failing(takes: impl Fn(usize) -> bool + Sync) -> Result<Vec<String>> {
    errors(2, |rank| {
        let device = world()?.device();
        let layer = Linear::new(3, 2)?;
        layer.to(device)?;
        let bias = layer.bias.clone().expect("a bias");
        let step = compile(Spec::new(DType::F32, (4, 3)).on(device), |x| {
            let mean = layer.call(x).mean(0);
            bias.assign(all_reduce(&mean, ReduceOp::Mean))?;
            Result::Ok(mean)
        })?;
        let x = own(Tensor::ones([4, 3], DType::F32))?;
        let run = || step.run(&x).and_then(|_| bias.to_vec::<f32>());
        let mut last = Vec::new();
        for _ in 0..4 {
            last = run()?;
        }
        if !takes(rank) {
            return Ok(());
        }
        let e = run().expect_err("a fault");
        // A failed step changes no parameter, and later ones say why.
        assert_eq!(bias.to_vec::<f32>()?, last);
        let again = run().expect_err("a second error").to_string();
        assert!(again.contains("communication failed before"), "{again}");
        Err(e)
    })
}

/// A rank that ends is found when the others would launch a graph.
fn ended() -> Result<()> {
    let found = failing(|rank| rank == 0)?;
    assert!(found[0].contains("rank 1 of 2 has ended"), "{}", found[0]);
    assert!(found[1].is_empty(), "{}", found[1]);
    Ok(())
}

/// An operation of a graph that does not end is aborted.
pub fn hanging() -> Result<()> {
    let (found, graphs) = launched(|| failing(|_| true))?;
    for e in &found {
        let text = "all_reduce(Mean) of 2 elements of f32: a rank was lost";
        assert!(e.contains(text), "{e}");
    }
    // Each rank has launched all steps but the first as graphs.
    assert_eq!(graphs, 8);
    Ok(())
}
