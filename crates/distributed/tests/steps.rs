//! Training on a share of each batch.

use kiln_nn::optim::{AdamW, Optimizer, clip_grad_norm_};
use kiln_nn::{BatchNorm1d, Forward, Linear, Module, ReLU, Sequential, sequential};
use kiln_tensor::{DType, Device, Result, Tensor, with_seed};

pub fn model(seed: u64, norm: bool) -> Result<Sequential> {
    with_seed(seed, || match norm {
        true => sequential![
            Linear::new(5, 8),
            BatchNorm1d::new(8),
            ReLU::new(),
            Linear::new(8, 3)
        ],
        false => sequential![Linear::new(5, 8), ReLU::new(), Linear::new(8, 3)],
    })
}

fn batch(step: u64) -> (Tensor, Tensor) {
    with_seed(100 + step, || {
        (
            Tensor::randn([12, 5], DType::F64),
            Tensor::randint(0, 3, [12]),
        )
    })
}

pub fn weights(model: &dyn Module) -> Result<Vec<f64>> {
    let cells = [model.parameters(), model.buffers()].concat();
    let values = cells
        .iter()
        .map(|p| p.get().to_dtype(DType::F64).to_vec::<f64>());
    Ok(values.collect::<Result<Vec<_>>>()?.concat())
}

/// Takes some steps, on the rows of one rank of several; returns the losses and the weights.
pub fn train(
    model: &impl Forward,
    rows: (usize, usize),
    device: Device,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let mut opt = Optimizer::new(model.parameters(), AdamW::new().lr(0.05))?;
    let mut losses = Vec::new();
    let (rank, ranks) = rows;
    for step in 0..6 {
        let (x, y) = batch(step);
        let n = 12 / ranks;
        let own = |t: Tensor| t.narrow(0, rank * n, n).to(device);
        let (x, y) = (own(x), own(y));
        let loss = model.call(&x).cross_entropy(&y);
        opt.zero_grad();
        loss.backward()?;
        clip_grad_norm_(model.parameters(), 0.5)?;
        opt.step()?;
        losses.push(loss.item::<f64>()?);
    }
    Ok((losses, weights(model)?))
}

pub fn close(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    let far = a
        .iter()
        .zip(b)
        .find(|(a, b)| (*a - *b).abs() > 1e-9 * (1.0 + b.abs()));
    assert!(far.is_none(), "{far:?}");
}
