//! Batch norm in training mode: the running statistics are `Var`s that each run updates.

use kiln::{DType, RunningStats, Spec, Tensor, Var, compile};

fn main() -> kiln::Result<()> {
    let mean = Var::new(Tensor::zeros([3], DType::F32))?;
    let variance = Var::new(Tensor::ones([3], DType::F32))?;
    let images = Spec::new(DType::F32, ("batch", 3, 8, 8));
    let batch_norm = RunningStats::new().running_mean(&mean).running_var(&variance).training(true);
    let step = compile(images, |x| x.batch_norm_with(batch_norm.clone()))?;
    for batch in [4, 16, 9] {
        let x = Tensor::randn([batch, 3, 8, 8], DType::F32) * 2.0 + 5.0;
        step.run(&x)?;
        println!("after a batch of {batch}: mean {} variance {}", mean.get(), variance.get());
    }
    Ok(())
}
