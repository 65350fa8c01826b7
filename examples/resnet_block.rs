//! A small residual network with a schedule, and everything saved in one file.

use kiln::prelude::*;

module!(struct BasicBlock(cin: usize, cout: usize, stride: i64) {
    conv1: Conv2d = Conv2d::new(cin, cout, Kernel::new(3).stride(stride).padding(1).bias(false)),
    bn1: BatchNorm2d = BatchNorm2d::new(cout),
    conv2: Conv2d = Conv2d::new(cout, cout, Kernel::new(3).padding(1).bias(false)),
    bn2: BatchNorm2d = BatchNorm2d::new(cout),
    down: Option<Sequential> = (stride != 1 || cin != cout).then(|| {
        sequential![Conv2d::new(cin, cout, Kernel::new(1).stride(stride).bias(false)), BatchNorm2d::new(cout)]
    }),
});

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
    let mut opt = Optimizer::new(net.parameters(), SGD::new().lr(0.1).momentum(0.9).nesterov(true).weight_decay(5e-4))?;
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
    let saved = Checkpoint::new().module("model", &net).optimizer("opt", &opt).value("step", &19);
    saved.save(std::env::temp_dir().join("block.ckpt"))
}
