//! A small residual network with a schedule, and everything saved in one file.

use kiln::prelude::*;

#[derive(Module)]
struct BasicBlock {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    down: Option<Sequential>,
}

impl BasicBlock {
    fn new(cin: usize, cout: usize, stride: i64) -> Result<BasicBlock> {
        let kernel = |size: i64| Kernel::new(size).padding(size / 2).bias(false);
        let down = (stride != 1 || cin != cout).then(|| {
            sequential![
                Conv2d::new(cin, cout, kernel(1).stride(stride)),
                BatchNorm2d::new(cout)
            ]
        });
        Ok(BasicBlock {
            conv1: Conv2d::new(cin, cout, kernel(3).stride(stride))?,
            bn1: BatchNorm2d::new(cout)?,
            conv2: Conv2d::new(cout, cout, kernel(3))?,
            bn2: BatchNorm2d::new(cout)?,
            down: down.transpose()?,
        })
    }
}

impl Forward for BasicBlock {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let skip = self.down.as_ref().map_or(x.clone(), |down| down.call(&x));
        let y = self.bn1.call(self.conv1.call(x)).relu();
        Ok((self.bn2.call(self.conv2.call(y)) + skip).relu())
    }
}

fn main() -> Result<()> {
    let net = sequential![
        Conv2d::new(3, 16, Kernel::new(3).padding(1)),
        BasicBlock::new(16, 16, 1),
        BasicBlock::new(16, 32, 2),
        AdaptiveAvgPool2d::new(1),
        Flatten::new(),
        Linear::new(32, 10),
    ]?;
    let sgd = SGD::new()
        .lr(0.1)
        .momentum(0.9)
        .nesterov(true)
        .weight_decay(5e-4);
    let mut opt = Optimizer::new(net.parameters(), sgd)?;
    let mut sched = Scheduler::new(&mut opt, CosineAnnealingLR::new(20))?;
    for step in 0..20 {
        let (x, y) = (randn([8, 3, 32, 32]), Tensor::randint(0, 10, [8]));
        opt.zero_grad();
        let loss = net.call(x).cross_entropy(y);
        loss.backward()?;
        opt.step()?;
        sched.step(&mut opt)?;
        println!("{step} {loss} {}", sched.last_lr()[0]);
    }
    let saved = Checkpoint::new()
        .module("model", &net)
        .optimizer("opt", &opt);
    saved.save(std::env::temp_dir().join("block.ckpt"))
}
