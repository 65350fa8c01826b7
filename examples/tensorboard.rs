//! A training run in TensorBoard: losses, histograms of weights, pictures, the graph, points, precision and recall.
//! `tensorboard --logdir FOLDER` shows it.

use kiln::data::{DataLoader, TensorDataset};
use kiln::prelude::*;
use kiln::tensorboard::{Embedding, HParams, SummaryWriter};
use std::path::Path;

const EPOCHS: usize = 6;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    kiln::manual_seed(0);
    let folder = std::env::args().nth(1).map_or_else(|| std::env::temp_dir().join("kiln-tensorboard"), Into::into);
    let writer = SummaryWriter::new(&folder)?;
    let (pixels, labels) = digits()?;
    let images = Tensor::from_slice(&pixels, [labels.len(), 1, 8, 8]);
    let classes = Tensor::from(labels.clone());
    let model = sequential![
        "conv": Conv2d::new(1, 16, Kernel::new(3).padding(1)),
        "relu": ReLU::new(),
        "pool": AdaptiveAvgPool2d::new(2),
        "flat": Flatten::new(),
        "fc": Linear::new(64, 10),
    ]?;
    writer.add_graph(&model, images.narrow(0, 0, 1))?;
    writer.add_images("digits", images.narrow(0, 0, 16), None)?;
    let lr = 1e-2;
    let mut opt = Optimizer::new(model.parameters(), AdamW::new().lr(lr))?;
    let data = TensorDataset::new((images.clone(), classes.clone()))?;
    let loader = DataLoader::new(data).batch_size(64).shuffle(true).seed(0).build()?;
    let mut step = 0;
    for epoch in 0..EPOCHS {
        for batch in &loader {
            let (x, y) = batch?;
            let loss = model.call(&x).cross_entropy(&y);
            opt.zero_grad();
            loss.backward()?;
            opt.step()?;
            writer.add_scalar("loss", &loss, step)?;
            step += 1;
        }
        for (name, parameter) in model.named_parameters() {
            writer.add_histogram(&format!("weights/{name}"), &parameter, epoch)?;
        }
    }
    let scores = no_grad(|| model.call(&images));
    let accuracy = scores.argmax(1).eq(&classes).to_dtype(DType::F32).mean(()).item::<f64>()?;
    // Of the class 3, against all others.
    let is_three = classes.eq(3).to_dtype(DType::I64);
    writer.add_pr_curve("three", is_three, scores.softmax(1).select(1, 3), step)?;
    let some = images.narrow(0, 0, 200);
    let names = labels[..200].iter().map(|label| vec![label.to_string()]);
    let points = Embedding::new().metadata(names.collect::<Vec<_>>()).label_img(some.expand([-1, 3, -1, -1]));
    writer.add_embedding_with(some.flatten(1), step, points)?;
    writer.add_text("run", &format!("Trained for {EPOCHS} epochs.  \nIts accuracy is {accuracy:.3}."), step)?;
    let hparams = [("lr", lr.into()), ("optimizer", "AdamW".into())];
    writer.add_hparams_with(hparams, [("accuracy", accuracy)], HParams::new().run_name("hparams"))?;
    writer.close()?;
    println!("accuracy {accuracy:.3}; tensorboard --logdir {}", folder.display());
    Ok(())
}

/// The pixels of the shipped digits (UCI, CC BY 4.0) between 0 and 1, and what they are.
fn digits() -> std::result::Result<(Vec<f32>, Vec<i64>), Box<dyn std::error::Error>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/digits.csv");
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for line in std::fs::read_to_string(file)?.lines() {
        let row = line.split(',').map(str::parse).collect::<std::result::Result<Vec<u8>, _>>()?;
        pixels.extend(row[..64].iter().map(|p| f32::from(*p) / 16.0));
        labels.push(i64::from(row[64]));
    }
    Ok((pixels, labels))
}
