//! Data parallel training. Alone it is one process; `kiln launch --nproc-per-node 4 data_parallel` runs four, which
//! come to the same weights.

use kiln::data::{DataLoader, DistributedSampler, TensorDataset};
use kiln::distributed::{
    DistributedDataParallel, ReduceOp, all_reduce, destroy_process_group, init_process_group, is_main, rank, world_size,
};
use kiln::nn::optim::{AdamW, Optimizer};
use kiln::nn::{Forward, Linear, Module, ReLU, sequential};
use kiln::{DType, Result, Tensor, keep, manual_seed};

fn main() -> Result<()> {
    init_process_group("mpi")?;
    // Every process draws the same data and reads its share.
    manual_seed(0);
    let x = Tensor::randn([240, 8], DType::F32);
    let y = x.square().sum(keep(1));
    let data = TensorDataset::new((x, y))?;
    let sampler = DistributedSampler::new(240, world_size()?, rank()?)?;
    let batch = 48 / world_size()?;
    let loader = DataLoader::new(data).batch_size(batch).sampler(sampler).build()?;

    let net = sequential![Linear::new(8, 64), ReLU::new(), Linear::new(64, 1)]?;
    let model = DistributedDataParallel::new(net)?;
    let mut opt = Optimizer::new(model.parameters(), AdamW::new().lr(0.01))?;
    let mut losses = Vec::new();
    for epoch in 0..5 {
        let mut sum = Tensor::zeros((), DType::F32);
        for rows in loader.iter() {
            let (x, y) = rows?;
            let loss = model.call(&x).mse_loss(&y);
            opt.zero_grad();
            loss.backward()?;
            opt.step()?;
            sum += loss.detach();
        }
        // On every rank, although only one prints.
        let mean = all_reduce(sum, ReduceOp::Mean).item::<f32>()? / 5.0;
        if is_main()? {
            println!("epoch {epoch}: loss {mean:.3}");
        }
        losses.push(mean);
    }
    assert!(losses[4] < losses[0]);
    destroy_process_group()
}
