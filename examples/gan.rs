//! Two networks that train against each other.

use kiln::prelude::*;

fn main() -> Result<()> {
    let g = sequential![Linear::new(16, 64), LeakyReLU::new(0.2), BatchNorm1d::new(64), Linear::new(64, 2),]?;
    let d = sequential![Linear::new(2, 64), LeakyReLU::new(0.2), Linear::new(64, 1)]?;
    let adam = Adam::new().lr(2e-4).betas((0.5, 0.999));
    let mut og = Optimizer::new(g.parameters(), adam.clone())?;
    let mut od = Optimizer::new(d.parameters(), adam)?;
    let bce = BCEWithLogitsLoss::new();
    for step in 0..50 {
        let real = randn([64, 2]) * 0.5 + 2.0;
        let fake = g.call(randn([64, 16]));
        let loss_d = bce.call((d.call(real), ones([64, 1]))) + bce.call((d.call(fake.detach()), zeros([64, 1])));
        od.zero_grad();
        loss_d.backward()?;
        od.step()?;
        let loss_g = bce.call((d.call(fake), ones([64, 1])));
        og.zero_grad();
        loss_g.backward()?;
        og.step()?;
        if step % 10 == 0 {
            println!("{step} {loss_d} {loss_g}");
        }
    }
    Ok(())
}
