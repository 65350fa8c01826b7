//! The regions that a small network looks at: trains it on handwritten digits for a moment and writes pictures.

use kiln::data::{DataLoader, TensorDataset, tqdm};
use kiln::prelude::*;
use kiln::vision::inspect::{
    ColourMap, feature_maps, filters, grad_cam, guided_backprop, normalise, overlay, saliency,
};
use kiln::vision::utils::{Grid, make_grid};
use kiln::vision::{Image, Mode};
use std::path::Path;

const EPOCHS: usize = 12;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    kiln::manual_seed(0);
    let (pixels, labels) = digits()?;
    let n = labels.len();
    let images = Tensor::from_slice(&pixels, [n, 1, 8, 8]);
    let model = sequential![
        "conv1": Conv2d::new(1, 16, Kernel::new(3).padding(1)),
        "relu1": ReLU::new(),
        "conv2": Conv2d::new(16, 32, Kernel::new(3).padding(1)),
        "relu2": ReLU::new(),
        "pool": AdaptiveAvgPool2d::new(1),
        "flat": Flatten::new(),
        "fc": Linear::new(32, 10),
    ]?;
    let mut opt = Optimizer::new(model.parameters(), AdamW::new().lr(1e-2))?;
    let data = TensorDataset::new((images.clone(), Tensor::from(labels.clone())))?;
    let loader = DataLoader::new(data).batch_size(64).shuffle(true).drop_last(true).seed(0).build()?;
    for epoch in 0..EPOCHS {
        let mut last = 0.0;
        for batch in tqdm(&loader) {
            let (x, y) = batch?;
            let loss = model.call(&x).cross_entropy(&y);
            opt.zero_grad();
            loss.backward()?;
            opt.step()?;
            last = loss.item::<f32>()?;
        }
        println!("epoch {}: loss {last:.3}", epoch + 1);
    }
    model.eval();
    let out = std::env::temp_dir().join("kiln-inspect");
    std::fs::create_dir_all(&out)?;
    let some = images.narrow(0, 0, 10);
    pictures(&model, &some, &out)?;
    println!("the pictures are in {}", out.display());
    Ok(())
}

/// Writes the regions that the network looks at in ten digits.
fn pictures(model: &Sequential, digits: &Tensor, out: &Path) -> Result<()> {
    // Of the class that each digit is taken for, brought to pictures of 64x64.
    let cams = normalise(&grad_cam(model, "relu2", digits, None)?)?;
    let guided = normalise(&guided_backprop(model, digits, None)?.squeeze(1))?;
    let salient = normalise(&saliency(model, digits, None)?)?;
    let ten = |maps: &Tensor, colours: ColourMap, alpha: f32| -> Result<Tensor> {
        let mut over = Vec::new();
        for n in 0..10 {
            let grey = normalise(&digits.i((n, 0)))?;
            let digit = overlay(&Image::filled(64, 64, Mode::L, &[0])?, &grey, ColourMap::Grey, 1.0)?;
            over.push(overlay(&digit, &maps.i(n), colours, alpha)?.to_tensor()?);
        }
        Ok(stack(&over, 0))
    };
    for (name, images) in [
        ("grad_cam", ten(&cams, ColourMap::Jet, 0.5)?),
        ("saliency", ten(&salient, ColourMap::Viridis, 1.0)?),
        ("guided_backprop", ten(&guided, ColourMap::Turbo, 1.0)?),
        ("filters", filters(model, "conv1")?),
        ("features", feature_maps(model, "relu1", &digits.narrow(0, 0, 1))?),
    ] {
        let grid = make_grid(&images, Grid::new().nrow(5usize))?;
        Image::from_tensor(&grid)?.save(out.join(format!("{name}.png")))?;
    }
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
