//! Functions in place of the reduction of gradients, and the order of buckets.

use crate::every;
use kiln_distributed::{
    DataParallelOptions, DistributedDataParallel, GradBucket, ProcessGroup, ReduceOp,
    allreduce_hook, bf16_compress_hook, fp16_compress_hook, run_in_threads,
};
use kiln_nn::{Forward, Linear, Module, sequential};
use kiln_tensor::{DType, Result, Spec, Tensor, compile};
use std::sync::{Arc, Mutex};

#[test]
fn hooks_send_gradients_as_narrower_floats() {
    let gradient = |hook: fn(&ProcessGroup, &GradBucket) -> Result<Tensor>| {
        let all = every(2, |rank| {
            let ddp = DistributedDataParallel::new(Linear::new(1, 1)?)?;
            ddp.register_comm_hook(hook)?;
            let x = Tensor::full([1, 1], 1.0 + rank as f64 / 1024.0, DType::F32);
            ddp.call(&x).sum(()).backward()?;
            let g = ddp.module().weight.grad().expect("a gradient");
            assert_eq!(g.dtype(), DType::F32);
            let e = ddp.register_comm_hook(hook).unwrap_err().to_string();
            assert!(e.contains("has a hook already"), "{e}");
            g.item::<f32>()
        });
        assert_eq!(all[0], all[1]);
        all[0]
    };
    assert_eq!(gradient(allreduce_hook), 1.0 + 1.0 / 2048.0);
    // The halves 0.5 and 0.5 + 2^-11 have 11 bits of which f16 has all; their sum is rounded to even.
    assert_eq!(gradient(fp16_compress_hook), 1.0);
    assert_eq!(gradient(bf16_compress_hook), 1.0);
}

fn sizes(bucket: &GradBucket) -> Vec<usize> {
    let sizes = bucket.parameters().iter().map(|p| p.detach().numel());
    sizes.collect::<Result<_>>().expect("known sizes")
}

#[test]
fn a_hook_sees_buckets_and_is_part_of_the_step() {
    every(2, |rank| {
        let net = sequential![Linear::new(2, 2), Linear::new(2, 1)]?;
        // The last layer and the first one's bias have 20 bytes, its weight 16.
        let options = DataParallelOptions::new().bucket_cap_mb(24.0 / f64::from(1 << 20));
        let ddp = DistributedDataParallel::with(net, options)?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        ddp.register_comm_hook(move |group, bucket| {
            log.lock().expect("no panic").push((
                bucket.index(),
                bucket.is_last(),
                bucket.divisor(),
                sizes(bucket),
            ));
            Ok(group.all_reduce(bucket.buffer(), ReduceOp::Max))
        })?;
        let step = compile(Spec::new(DType::F32, (1, 2)), |x| {
            ddp.call(x).sum(()).backward()?;
            let last = ddp.module().get_as::<Linear>(1)?;
            Result::Ok(last.weight.grad().expect("a gradient"))
        })?;
        let buckets = vec![(0, false, 2, vec![1, 2, 2]), (1, true, 2, vec![4])];
        assert_eq!(*seen.lock().expect("no panic"), buckets);
        let x = Tensor::full([1, 2], rank as f64, DType::F32);
        let g = step.run(&x)?.to_vec::<f32>()?;
        // Each run computes the largest over all ranks.
        let own = ddp.module().get_as::<Linear>(0)?.call(&x);
        let largest = kiln_distributed::all_reduce(own, ReduceOp::Max);
        assert_eq!(g, largest.to_vec::<f32>()?);
        Ok(())
    });
}

#[test]
fn a_hook_returns_what_it_was_given() {
    let results = run_in_threads(1, |_| {
        let ddp = DistributedDataParallel::new(Linear::new(2, 1)?)?;
        ddp.register_comm_hook(|_, bucket| Ok(bucket.buffer().narrow(0, 0, 1)))?;
        ddp.call(Tensor::ones([1, 2], DType::F32))
            .sum(())
            .backward()
    });
    let e = results
        .into_iter()
        .next()
        .expect("a rank")
        .unwrap_err()
        .to_string();
    assert!(
        e.contains("the hook returned f32[1] for a bucket of f32[3]"),
        "{e}"
    );
}

/// A model whose layers are not in the order in which they run.
#[derive(Module)]
struct Crossed {
    last: Linear,
    first: Linear,
    middle: Linear,
}

impl Forward for Crossed {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        self.last
            .try_call(self.middle.try_call(self.first.try_call(x)?)?)
    }
}

#[test]
fn buckets_follow_the_first_pass() {
    every(2, |_| {
        let net = Crossed {
            last: Linear::new(4, 5)?,
            first: Linear::new(2, 3)?,
            middle: Linear::new(3, 4)?,
        };
        let options = DataParallelOptions::new().bucket_cap_mb(1e-5);
        let ddp = DistributedDataParallel::with(net, options)?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        ddp.register_comm_hook(move |group, bucket| {
            log.lock().expect("no panic").extend(sizes(bucket));
            allreduce_hook(group, bucket)
        })?;
        let mut passes = Vec::new();
        for _ in 0..3 {
            ddp.call(Tensor::ones([1, 2], DType::F32))
                .sum(())
                .backward()?;
            passes.push(std::mem::take(&mut *seen.lock().expect("no panic")));
        }
        // The parameters from the last one to the first, and then as the passes reach them.
        let layers =
            |of: &[usize]| -> Vec<usize> { of.chunks(2).map(|sizes| sizes.iter().sum()).collect() };
        assert_eq!(layers(&passes[0]), [16, 9, 25]);
        assert_eq!(layers(&passes[1]), [25, 16, 9]);
        assert_eq!(passes[1], passes[2]);
        Ok(())
    });
}
