//! A trained body with a new head: frozen at first, with a learning rate of its own.

use kiln::prelude::*;

fn main() -> Result<()> {
    let backbone = sequential![
        Conv2d::new(3, 16, Kernel::new(3).padding(1)),
        BatchNorm2d::new(16),
        ReLU::new(),
        AdaptiveAvgPool2d::new(1),
        Flatten::new(),
    ]?;
    let mut model = sequential!["backbone": backbone, "fc": Linear::new(16, 1000)]?;
    model.replace("fc", Linear::new(16, 5)?)?;
    let (backbone, fc) = (model.get_submodule("backbone")?, model.get_submodule("fc")?);
    backbone.requires_grad_(false)?;
    for (name, p) in model.named_parameters() {
        println!("{name} {:?} {}", p.shape()?, p.requires_grad());
    }
    let mut opt = Optimizer::new(backbone.parameters(), Adam::new().lr(1e-5))?;
    opt.add_group(fc.parameters(), Adam::new().lr(1e-3))?;
    for epoch in 0..4 {
        model.train();
        backbone.eval();
        if epoch == 2 {
            backbone.requires_grad_(true)?;
        }
        let (x, y) = (randn([16, 3, 32, 32]), Tensor::randint(0, 5, [16]));
        let weight = Tensor::from([1.0f32, 1.0, 2.0, 1.0, 1.0]);
        let loss = (model.call(x)).cross_entropy_with(y, CrossEntropy::new().weight(&weight));
        opt.zero_grad();
        loss.backward()?;
        opt.step()?;
        println!("{epoch} {loss}");
    }
    Ok(())
}
