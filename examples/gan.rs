//! Two networks that train against each other.

use kiln::nn::optim::{Adam, Optimizer};
use kiln::nn::{BCEWithLogitsLoss, BatchNorm1d, Forward, LeakyReLU, Linear, Module, Sequential};
use kiln::{DType, Result, Tensor};

fn main() -> Result<()> {
    let g = Sequential::new()
        .add(Linear::new(16, 64)?)
        .add(LeakyReLU::new(0.2))
        .add(BatchNorm1d::new(64)?)
        .add(Linear::new(64, 2)?);
    let d = Sequential::new()
        .add(Linear::new(2, 64)?)
        .add(LeakyReLU::new(0.2))
        .add(Linear::new(64, 1)?);
    let adam = Adam::new().lr(2e-4).betas((0.5, 0.999));
    let mut og = Optimizer::new(g.parameters(), adam.clone())?;
    let mut od = Optimizer::new(d.parameters(), adam)?;
    let bce = BCEWithLogitsLoss::new();
    let (ones, zeros) = (
        Tensor::ones([64, 1], DType::F32),
        Tensor::zeros([64, 1], DType::F32),
    );
    for step in 0..50 {
        let real = Tensor::randn([64, 2], DType::F32) * 0.5 + 2.0;
        let fake = g.forward(&Tensor::randn([64, 16], DType::F32));
        let is_real = bce.forward(&d.forward(&real), &ones);
        let loss_d = is_real + bce.forward(&d.forward(&fake.detach()), &zeros);
        od.zero_grad();
        loss_d.backward()?;
        od.step()?;
        let loss_g = bce.forward(&d.forward(&fake), &ones);
        og.zero_grad();
        loss_g.backward()?;
        og.step()?;
        if step % 10 == 0 {
            println!("{step} {} {}", loss_d.item::<f64>()?, loss_g.item::<f64>()?);
        }
    }
    Ok(())
}
