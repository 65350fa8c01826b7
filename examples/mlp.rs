//! A classifier with dropout, batches in random order, label smoothing and clipped gradients.

use kiln::data::{DataLoader, TensorDataset};
use kiln::nn::optim::{AdamW, Optimizer, clip_grad_norm_};
use kiln::nn::{Dropout, Forward, Linear, Module};
use kiln::{CrossEntropy, DType, Result, Tensor, manual_seed, no_grad};

#[derive(Module)]
struct Mlp {
    fc1: Linear,
    fc2: Linear,
    drop: Dropout,
}

impl Forward for Mlp {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(self.fc2.call(self.drop.call(self.fc1.call(x).relu())))
    }
}

fn main() -> Result<()> {
    manual_seed(0);
    let (x, y) = (
        Tensor::randn([512, 64], DType::F32),
        Tensor::randint(0, 10, [512]),
    );
    let model = Mlp {
        fc1: Linear::new(64, 128)?,
        fc2: Linear::new(128, 10)?,
        drop: Dropout::new(0.1)?,
    };
    let mut opt = Optimizer::new(model.parameters(), AdamW::new())?;
    let data = TensorDataset::new((x.clone(), y.clone()))?;
    let loader = DataLoader::new(data).batch_size(64).shuffle(true).build()?;
    for epoch in 0..3 {
        let (mut total, mut batches) = (0.0, 0);
        for batch in &loader {
            let (xb, yb) = batch?;
            let smooth = CrossEntropy::new().label_smoothing(0.1);
            let loss = model.call(xb).cross_entropy_with(&yb, smooth);
            opt.zero_grad();
            loss.backward()?;
            clip_grad_norm_(model.parameters(), 1.0)?;
            opt.step()?;
            total += loss.item::<f64>()?;
            batches += 1;
        }
        println!("{epoch} {}", total / batches as f64);
    }
    model.eval();
    let right = no_grad(|| model.call(&x).argmax(1).eq(&y));
    println!(
        "accuracy {}",
        right.to_dtype(DType::F32).mean(()).item::<f64>()?
    );
    Ok(())
}
