//! Ranks with different numbers of inputs, and passes that leave out parameters.

use crate::every;
use kiln_distributed::{
    DataParallelOptions, DistributedDataParallel, Join, barrier, run_in_threads_with,
};
use kiln_nn::optim::{Optimizer, SGD};
use kiln_nn::{BatchNorm1d, Forward, Linear, Module, Sequential, sequential};
use kiln_tensor::{DType, Result, Tensor, Var, with_seed};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn model() -> Result<Sequential> {
    let model = with_seed(3, || sequential![Linear::new(3, 4), Linear::new(4, 2)])?;
    model.to_dtype(DType::F64)?;
    Ok(model)
}

/// The batch of a step of a rank.
fn batch(rank: usize, step: usize) -> Tensor {
    with_seed((10 * rank + step) as u64, || {
        Tensor::randn([5, 3], DType::F64)
    })
}

fn weights(model: &dyn Module) -> Result<Vec<f64>> {
    let cells = [model.parameters(), model.buffers()].concat();
    let values = cells
        .iter()
        .map(|c| c.get().to_dtype(DType::F64).to_vec::<f64>());
    Ok(values.collect::<Result<Vec<_>>>()?.concat())
}

fn close(a: &[f64], b: &[f64]) {
    let far = a.iter().zip(b).find(|(a, b)| (*a - *b).abs() > 1e-12);
    assert!(far.is_none() && a.len() == b.len(), "{far:?}");
}

/// One process that takes the steps of ranks with so many batches.
fn alone(steps: &[usize], by_all: bool) -> Result<Vec<f64>> {
    let model = model()?;
    let mut opt = Optimizer::new(model.parameters(), SGD::new().lr(0.1).momentum(0.9))?;
    for step in 0..*steps.iter().max().unwrap_or(&0) {
        let active: Vec<usize> = (0..steps.len()).filter(|r| step < steps[*r]).collect();
        let divisor = if by_all { steps.len() } else { active.len() };
        opt.zero_grad();
        for rank in active {
            let loss = model.call(batch(rank, step)).square().mean(());
            (loss / divisor as f64).backward()?;
        }
        opt.step()?;
    }
    weights(&model)
}

#[test]
fn ranks_without_inputs_count_as_zero() -> Result<()> {
    for steps in [&[1, 3][..], &[3, 0], &[0, 2], &[0, 0], &[2, 4, 1]] {
        for by_all in [true, false] {
            let right = alone(steps, by_all)?;
            for bucket in [25.0, 1e-5] {
                let found = every(steps.len(), |rank| {
                    let options = DataParallelOptions::new().bucket_cap_mb(bucket);
                    let ddp = DistributedDataParallel::with(model()?, options)?;
                    let sgd = SGD::new().lr(0.1).momentum(0.9);
                    let mut opt = Optimizer::new(ddp.parameters(), sgd)?;
                    let how = Join::new().divide_by_initial_world_size(by_all);
                    ddp.join_with(how, || {
                        (0..steps[rank]).try_for_each(|step| {
                            opt.zero_grad();
                            ddp.call(batch(rank, step)).square().mean(()).backward()?;
                            opt.step()
                        })
                    })?;
                    barrier()?;
                    weights(&ddp)
                });
                found.iter().for_each(|found| close(found, &right));
            }
        }
    }
    Ok(())
}

#[test]
fn buffers_and_accumulation_go_on_without_rank_0() {
    let found = every(2, |rank| {
        let net = sequential![BatchNorm1d::new(3), Linear::new(3, 1)]?;
        net.to_dtype(DType::F64)?;
        let ddp = DistributedDataParallel::new(net)?;
        let mut opt = Optimizer::new(ddp.parameters(), SGD::new().lr(0.1))?;
        ddp.join(|| {
            for step in 0..1 + 2 * rank {
                opt.zero_grad();
                let pass = |x: Tensor| ddp.call(x).square().mean(()).backward();
                ddp.no_sync(|| pass(batch(rank, step)))?;
                pass(batch(rank, step + 10))?;
                opt.step()?;
            }
            Ok(())
        })?;
        weights(&ddp)
    });
    assert_eq!(found[0], found[1]);
    // Rank 1's batches: 6 of them.
    assert_eq!(found[0].last(), Some(&6.0));
}

#[test]
fn the_first_rank_without_inputs_can_end_all() {
    let results = run_in_threads_with(2, Duration::from_secs(60), |rank| {
        let ddp = DistributedDataParallel::new(model()?)?;
        ddp.join_with(Join::new().throw_on_early_termination(true), || {
            (0..2 - rank).try_for_each(|step| ddp.call(batch(rank, step)).sum(()).backward())
        })
    });
    for result in results {
        let e = result.unwrap_err().to_string();
        assert!(e.contains("rank 1 has no more inputs"), "{e}");
    }
}

/// A model that uses one of its layers.
#[derive(Module)]
struct Choice {
    layers: Sequential,
    #[skip]
    chosen: AtomicUsize,
}

impl Forward for Choice {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let layer = self.chosen.load(Ordering::Relaxed);
        self.layers.get_as::<Linear>(layer)?.try_call(x)
    }
}

fn gradient(of: &Var) -> Result<Option<f64>> {
    of.grad().map(|g| g.sum(()).item::<f64>()).transpose()
}

#[test]
fn parameters_that_no_rank_uses_keep_their_gradients() {
    for bucket in [25.0, 1e-5] {
        every(2, |rank| {
            let layer = || Linear::new(1, 1);
            let net = Choice {
                layers: sequential![layer(), layer(), layer()]?,
                chosen: AtomicUsize::new(2 * rank),
            };
            net.to_dtype(DType::F64)?;
            let options = DataParallelOptions::new()
                .find_unused_parameters(true)
                .bucket_cap_mb(bucket);
            let ddp = DistributedDataParallel::with(net, options)?;
            let x = Tensor::full([1, 1], 2.0 + rank as f64, DType::F64);
            let gradients = || -> Result<Vec<Option<f64>>> {
                let layers = &ddp.module().layers;
                let gradient = |i| gradient(&layers.get_as::<Linear>(i)?.weight);
                (0..3).map(gradient).collect()
            };
            // Rank 0 uses the first layer, rank 1 the last.
            ddp.call(&x).sum(()).backward()?;
            assert_eq!(gradients()?, [Some(1.0), None, Some(1.5)]);
            ddp.module().chosen.store(1, Ordering::Relaxed);
            ddp.call(&x).sum(()).backward()?;
            assert_eq!(gradients()?, [Some(1.0), Some(2.5), Some(1.5)]);
            // Gradients that were accumulated before are reduced, though the last pass leaves them out.
            ddp.zero_grad();
            ddp.no_sync(|| ddp.call(&x).sum(()).backward())?;
            ddp.module().chosen.store(0, Ordering::Relaxed);
            ddp.call(&x).sum(()).backward()?;
            assert_eq!(gradients()?, [Some(2.5), Some(2.5), None]);
            Ok(())
        });
    }
}
