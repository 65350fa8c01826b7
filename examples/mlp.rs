//! A classifier with dropout, batches in random order, label smoothing and clipped gradients.

use kiln::prelude::*;

module!(struct Mlp() {
    fc1: Linear = Linear::new(64, 128),
    fc2: Linear = Linear::new(128, 10),
    drop: Dropout = Dropout::new(0.1),
});

impl Forward for Mlp {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(self.fc2.call(self.drop.call(self.fc1.call(x).relu())))
    }
}

fn main() -> Result<()> {
    manual_seed(0);
    let (x, y) = (randn([512, 64]), Tensor::randint(0, 10, [512]));
    let model = Mlp::new()?;
    let mut opt = Optimizer::new(model.parameters(), AdamW::new())?;
    let data = TensorDataset::new((x.clone(), y.clone()))?;
    let loader = DataLoader::new(data).batch_size(64).shuffle(true).build()?;
    for epoch in 0..3 {
        let mut total = zeros(());
        for batch in &loader {
            let (xb, yb) = batch?;
            let smooth = CrossEntropy::new().label_smoothing(0.1);
            let loss = model.call(xb).cross_entropy_with(&yb, smooth);
            opt.zero_grad();
            loss.backward()?;
            clip_grad_norm_(model.parameters(), 1.0)?;
            opt.step()?;
            total += loss.detach();
        }
        println!("{epoch} {}", total.item::<f64>()? / loader.len().unwrap_or(1) as f64);
    }
    model.eval();
    let right = no_grad(|| model.call(&x).argmax(1).eq(&y));
    println!("accuracy {}", right.to_dtype(DType::F32).mean(()));
    Ok(())
}
