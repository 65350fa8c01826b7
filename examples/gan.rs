//! Two networks that train against each other.

use kiln::nn::optim::{Adam, Optimizer};
use kiln::nn::{BCEWithLogitsLoss, BatchNorm1d, Forward, LeakyReLU, Linear, Module, sequential};
use kiln::{DType, Result, Tensor};

fn main() -> Result<()> {
    let g = sequential![
        Linear::new(16, 64),
        LeakyReLU::new(0.2),
        BatchNorm1d::new(64),
        Linear::new(64, 2),
    ]?;
    let d = sequential![Linear::new(2, 64), LeakyReLU::new(0.2), Linear::new(64, 1)]?;
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
        let fake = g.call(Tensor::randn([64, 16], DType::F32));
        let is_real = bce.call((d.call(&real), &ones));
        let loss_d = is_real + bce.call((d.call(fake.detach()), &zeros));
        od.zero_grad();
        loss_d.backward()?;
        od.step()?;
        let loss_g = bce.call((d.call(&fake), &ones));
        og.zero_grad();
        loss_g.backward()?;
        og.step()?;
        if step % 10 == 0 {
            println!("{step} {} {}", loss_d.item::<f64>()?, loss_g.item::<f64>()?);
        }
    }
    Ok(())
}
