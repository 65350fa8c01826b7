//! Training with several ranks beside training alone.

use crate::every;
use kiln_distributed::{
    DataParallelOptions, DistributedDataParallel, ReduceOp, SyncBatchNorm, all_reduce, barrier,
};
use kiln_nn::amp::{self, GradScaler, Initialize, LossScale, OptLevel};
use kiln_nn::optim::{Optimizer, SGD, clip_grad_norm_};
use kiln_nn::{Forward, Linear, Module, sequential};
use kiln_tensor::{DType, Device, Result, Spec, Tensor, compile, with_seed};
use steps::{close, model, train, weights};

#[path = "../steps.rs"]
mod steps;

#[test]
fn ranks_with_parts_of_a_batch_are_one_process_with_all_of_it() -> Result<()> {
    for norm in [false, true] {
        let alone = model(1, norm)?;
        alone.to_dtype(DType::F64)?;
        let (losses, trained) = train(&alone, (0, 1), Device::Cpu)?;
        for ranks in [1, 2, 3] {
            for bucket in [25.0, 1e-4] {
                let each = every(ranks, |rank| {
                    // Each rank begins with weights of its own.
                    let net = model(1 + rank as u64, norm)?;
                    net.to_dtype(DType::F64)?;
                    SyncBatchNorm::convert_sync_batchnorm(&net)?;
                    let options = DataParallelOptions::new().bucket_cap_mb(bucket);
                    let ddp = DistributedDataParallel::with(net, options)?;
                    train(&ddp, (rank, ranks), Device::Cpu)
                });
                for step in 0..losses.len() {
                    let sum: f64 = each.iter().map(|(l, _)| l[step]).sum();
                    close(&[sum / ranks as f64], &losses[step..=step]);
                }
                each.iter().for_each(|(_, w)| close(w, &trained));
            }
        }
    }
    Ok(())
}

#[test]
fn a_step_is_one_plan() {
    every(2, |rank| {
        let ddp = DistributedDataParallel::new(model(1, false)?)?;
        let mut opt = Optimizer::new(ddp.parameters(), SGD::new().lr(0.1))?;
        let step = |opt: &mut Optimizer| {
            let x = Tensor::full([4, 5], rank as f64, DType::F32);
            ddp.call(&x).square().mean(()).backward()?;
            clip_grad_norm_(ddp.parameters(), 1.0)?;
            opt.step()?;
            opt.zero_grad();
            Ok::<_, kiln_tensor::Error>(())
        };
        step(&mut opt)?;
        step(&mut opt)?;
        // Compiled as a function, the same.
        let f = compile(Spec::new(DType::F32, (4, 5)), |x| {
            let loss = ddp.call(x).square().mean(());
            loss.backward()?;
            opt.step()?;
            opt.zero_grad();
            Result::Ok(loss)
        })?;
        let before = weights(&ddp)?;
        f.run(Tensor::full([4, 5], rank as f64, DType::F32))?
            .realize()?;
        let after = weights(&ddp)?;
        assert_ne!(before, after);
        let text = f.explain().to_string();
        assert!(text.contains("all_reduce"), "{text}");
        assert_eq!(
            all_reduce(Tensor::from(after.clone()), ReduceOp::Max).to_vec::<f64>()?,
            after
        );
        barrier()
    });
}

#[test]
fn accumulated_gradients_are_reduced_once() {
    let gradients = every(2, |rank| {
        let ddp = DistributedDataParallel::new(Linear::new(2, 1)?)?;
        let x = |step: usize| Tensor::full([1, 2], (step + 10 * rank) as f64, DType::F32);
        ddp.no_sync(|| (0..2).try_for_each(|s| ddp.call(x(s)).sum(()).backward()))?;
        let own = ddp
            .module()
            .weight
            .grad()
            .map(|g| g.to_vec::<f32>())
            .transpose()?;
        assert_eq!(own, Some(vec![1.0 + 20.0 * rank as f32; 2]));
        // Asking for a gradient is no backward pass.
        let loss = ddp.call(x(2)).sum(());
        kiln_tensor::grad(ddp.call(x(2)).sum(()), &ddp.module().weight)?.realize()?;
        loss.backward()?;
        let mean = ddp
            .module()
            .weight
            .grad()
            .map(|g| g.to_vec::<f32>())
            .transpose()?;
        Ok(mean.unwrap_or_default())
    });
    // 0 + 1 + 2 and 10 + 11 + 12, halved.
    assert_eq!(gradients, [[18.0, 18.0], [18.0, 18.0]]);
}

#[test]
fn parameters_without_a_gradient_are_named_or_count_as_zero() {
    every(2, |rank| {
        let net = sequential![Linear::new(2, 2), Linear::new(2, 1)]?;
        let ddp = DistributedDataParallel::new(net)?;
        let first = || ddp.module().get_as::<Linear>(0);
        let e = first()?
            .call(Tensor::ones([1, 2], DType::F32))
            .sum(())
            .backward()
            .unwrap_err();
        let e = e.to_string();
        assert!(e.contains("1.bias, 1.weight"), "{e}");
        let net = sequential![Linear::new(2, 2), Linear::new(2, 1)]?;
        let options = DataParallelOptions::new().find_unused_parameters(true);
        let ddp = DistributedDataParallel::with(net, options)?;
        let x = Tensor::ones([1, 2], DType::F32);
        match rank {
            0 => ddp.call(&x).sum(()).backward()?,
            _ => ddp
                .module()
                .get_as::<Linear>(0)?
                .call(&x)
                .sum(())
                .backward()?,
        }
        let last = &ddp.module().get_as::<Linear>(1)?.bias;
        let g = last
            .as_ref()
            .and_then(|b| b.grad())
            .map(|g| g.to_vec::<f32>())
            .transpose()?;
        assert_eq!(g, Some(vec![0.5]));
        Ok(())
    });
}

#[test]
fn an_infinity_on_one_rank_skips_the_step_on_all() {
    let scales = every(2, |rank| {
        let ddp = DistributedDataParallel::new(Linear::new(2, 1)?)?;
        let mut opt = Optimizer::new(ddp.parameters(), SGD::new().lr(0.1))?;
        let mut scaler = GradScaler::new();
        let before = weights(&ddp)?;
        let x = match rank {
            0 => Tensor::ones([1, 2], DType::F32),
            _ => Tensor::full([1, 2], f64::INFINITY, DType::F32),
        };
        let loss = ddp.call(&x).sum(());
        scaler.scale(&loss).backward()?;
        scaler.step(&mut opt)?;
        scaler.update()?;
        assert_eq!(weights(&ddp)?, before);
        scaler.get_scale()
    });
    assert_eq!(scales[0], scales[1]);
}

#[test]
fn a_model_is_cast_before_it_is_wrapped() {
    every(2, |rank| {
        let ddp = DistributedDataParallel::new(Linear::new(2, 1)?)?;
        let mut opt = Optimizer::new(ddp.parameters(), SGD::new().lr(0.1))?;
        let initialized = amp::initialize(&ddp, &mut [&mut opt], OptLevel::O1).map(drop);
        for (done, call) in [
            (ddp.half(), "cast it first"),
            (initialized, "call amp::initialize first"),
        ] {
            let e = done.unwrap_err().to_string();
            let order = format!("the model is in a DistributedDataParallel: {call}");
            assert!(e.contains(&order) && e.contains("training.rs"), "{e}");
        }
        let net = with_seed(1, || Linear::new(2, 1))?;
        let fixed = Initialize::new(OptLevel::O2).loss_scale(LossScale::Fixed(64.0));
        let mut opt = Optimizer::new(net.parameters(), SGD::new().lr(0.1))?;
        let mut amp = amp::initialize(&net, &mut [&mut opt], fixed)?;
        let ddp = DistributedDataParallel::new(net)?;
        let before = weights(&ddp)?;
        let x = Tensor::full([4, 2], rank as f64, DType::F32);
        let loss = amp.forward(&x, |x| ddp.call(x)).mean(());
        amp.scale_loss(&loss, &mut [&mut opt], |scaled| scaled.backward())?;
        opt.step()?;
        // The mean of the gradients 0 and 1, and of 1 and 1.
        let after = weights(&ddp)?;
        let moved = before.iter().zip(&after).map(|(a, b)| a - b);
        for (moved, wanted) in moved.zip([0.05, 0.05, 0.1]) {
            assert!((moved - wanted).abs() < 1e-3, "{moved}");
        }
        Ok(())
    });
}

#[test]
fn one_value_a_channel_has_no_variance_in_a_world_of_one() {
    for ranks in [1, 2] {
        every(ranks, |_| {
            let norm = SyncBatchNorm::new(3)?;
            let y = norm.call(Tensor::ones([1, 3], DType::F32));
            match ranks {
                1 => {
                    let e = y.realize().unwrap_err().to_string();
                    let text = "expected more than 1 value per channel when training, got input size [1, 3]";
                    assert!(e.contains(text), "{e}");
                    norm.eval();
                    assert!(
                        norm.call(Tensor::ones([1, 3], DType::F32))
                            .realize()
                            .is_ok()
                    );
                }
                _ => drop(y.realize()?),
            }
            // 0.9 of 1, and a tenth of the batch's 0.
            let right = if ranks == 1 { 1.0 } else { 0.9 };
            let found = norm.running_var.as_ref().map(|v| v.to_vec::<f32>());
            assert_eq!(found.transpose()?, Some(vec![right; 3]));
            Ok(())
        });
    }
}
