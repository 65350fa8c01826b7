//! Views into a network, compared with PyTorch's (`reference.py`) and with formulas.

use kiln_nn::{Conv2d, Forward, Kernel, Linear, Module, ReLU, module};
use kiln_tensor::{DType, Result, Tensor};
use kiln_vision::inspect::*;
use kiln_vision::{Image, Mode};
use serde_json::Value;

module!(
    /// Two convolutions, a mean and a linear layer.
    struct Small() {
        conv1: Conv2d = Conv2d::new(2, 4, Kernel::new(3).padding(1)),
        relu1: ReLU = ReLU::new(),
        conv2: Conv2d = Conv2d::new(4, 6, Kernel::new(3).stride(2)),
        relu2: ReLU = ReLU::new(),
        fc: Linear = Linear::new(6, 5),
    }
);

impl Forward for Small {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let x = self.relu1.call(self.conv1.call(x));
        let x = self.relu2.call(self.conv2.call(x));
        Ok(self.fc.call(x.mean([2, 3])))
    }
}

/// `sin(0.7 i + 0.03 i² + seed) / 2`.
fn numbers(shape: &[usize], seed: f64) -> Tensor {
    let count: usize = shape.iter().product();
    let value = |i: usize| {
        let i = i as f64;
        (0.7 * i + 0.03 * i * i + seed).sin() * 0.5
    };
    let values: Vec<f64> = (0..count).map(value).collect();
    Tensor::from_slice(&values, shape)
}

/// The network, in f64.
fn network() -> Result<Small> {
    let model = Small::new()?.deep_copy_as(DType::F64)?;
    for (name, parameter) in model.named_parameters() {
        let seeds = [
            "conv1.weight",
            "conv1.bias",
            "conv2.weight",
            "conv2.bias",
            "fc.weight",
            "fc.bias",
        ];
        let seed = seeds.iter().position(|s| *s == name).unwrap() + 1;
        let shape = parameter.get().shape()?;
        parameter.copy_(numbers(&shape, seed as f64))?;
    }
    Ok(model)
}

fn images() -> Tensor {
    numbers(&[3, 2, 7, 6], 7.0)
}

#[track_caller]
fn near(found: &Tensor, wanted: &Value, what: &str) {
    let found = found.to_vec::<f64>().unwrap();
    let wanted: Vec<f64> = wanted
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_f64().unwrap())
        .collect();
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (f, w) in found.iter().zip(&wanted) {
        // The reference is rounded to 12 digits.
        assert!((f - w).abs() < 1e-10, "{what}: {f} and {w}");
    }
    assert!(
        wanted.iter().any(|w| w.abs() > 1e-3),
        "{what}: nothing is seen"
    );
}

#[test]
fn as_pytorch() -> Result<()> {
    let (model, x) = (network()?, images());
    let all: Value = serde_json::from_str(include_str!("reference.json")).unwrap();
    for case in all.as_array().unwrap() {
        let classes: Vec<i64> = case["classes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c.as_i64().unwrap())
            .collect();
        near(&model.call(&x), &case["scores"], "scores");
        for round in 0..2 {
            let what = |name: &str| format!("{name}, {classes:?}, {round}");
            let each = || classes.clone();
            near(
                &grad_cam(&model, "relu2", &x, each())?,
                &case["grad_cam"],
                &what("grad_cam"),
            );
            let first = grad_cam(&model, "relu1", &x, each())?;
            near(&first, &case["grad_cam_first"], &what("grad_cam_first"));
            near(
                &cam(&model, "relu2", "fc", &x, each())?,
                &case["cam"],
                &what("cam"),
            );
            near(
                &saliency(&model, &x, each())?,
                &case["saliency"],
                &what("saliency"),
            );
            let gradient = input_gradient(&model, &x, each())?;
            near(&gradient, &case["input_gradient"], &what("input_gradient"));
            // The call leaves nothing behind in the model.
            let guided = guided_backprop(&model, &x, each())?;
            near(&guided, &case["guided_backprop"], &what("guided_backprop"));
        }
    }
    Ok(())
}

#[test]
fn images_of_a_batch_are_seen_by_themselves() -> Result<()> {
    let (model, x) = (network()?, images());
    let predicted = model.call(&x).argmax(1).to_vec::<i64>()?;
    let all = grad_cam(&model, "relu1", &x, None)?;
    assert_eq!(all.shape()?, [3, 7, 6]);
    for (n, class) in predicted.iter().enumerate() {
        let one = x.narrow(0, n as i64, 1);
        for (alone, of_all) in [
            (grad_cam(&model, "relu1", &one, *class)?, all.clone()),
            (saliency(&model, &one, *class)?, saliency(&model, &x, None)?),
        ] {
            let (alone, of_all) = (alone.to_vec::<f64>()?, of_all.i(n as i64).to_vec::<f64>()?);
            assert!(alone.iter().zip(of_all).all(|(a, b)| (a - b).abs() < 1e-12));
        }
    }
    // Frozen weights change nothing, and get no gradients.
    model.requires_grad_(false)?;
    let frozen = grad_cam(&model, "relu1", &x, None)?.to_vec::<f64>()?;
    assert_eq!(frozen, all.to_vec::<f64>()?);
    assert!(model.parameters().iter().all(|p| p.grad().is_none()));
    Ok(())
}

#[test]
fn what_can_not_be_seen_is_an_error() -> Result<()> {
    let (model, x) = (network()?, images());
    let message = |r: Result<Tensor>| r.unwrap_err().to_string();
    for (found, wanted) in [
        (grad_cam(&model, "relu3", &x, 0), "relu3"),
        (grad_cam(&model, "fc", &x, 0), "not maps [n, k, h, w]"),
        (grad_cam(&model, "relu1", &x, 5), "no class 5 of 5"),
        (grad_cam(&model, "relu1", &x, -1), "no class -1 of 5"),
        (saliency(&model, &x, [1, 2]), "2 classes for 3 images"),
        (saliency(&model, &x.i(0), 1), "[n, c, h, w]"),
        (cam(&model, "relu1", "fc", &x, 1), "of 4 channels of relu1"),
        (cam(&model, "relu1", "conv1", &x, 1), "[4, 2, 3, 3]"),
        (guided_backprop(&model.fc, &x, 1), "no layers ReLU"),
        (feature_maps(&model, "fc", &x), "not maps"),
        (filters(&model, "fc"), "not [out, in, h, w]"),
        (normalise(&Tensor::from([1.0f32])), "[.., h, w]"),
    ] {
        let found = message(found);
        assert!(found.contains(wanted), "{found}");
    }
    Ok(())
}

#[test]
fn maps_and_filters_are_pictures() -> Result<()> {
    let (model, x) = (network()?, images());
    let maps = feature_maps(&model, "conv2", &x)?;
    assert_eq!(
        (maps.shape()?, maps.dtype()),
        (vec![18, 1, 3, 2], DType::F32)
    );
    for map in maps.to_vec::<f32>()?.chunks(6) {
        let least = map.iter().copied().fold(f32::INFINITY, f32::min);
        let most = map.iter().copied().fold(0.0, f32::max);
        assert_eq!((least, most), (0.0, 1.0));
    }
    assert_eq!(filters(&model, "conv1")?.shape()?, [8, 1, 3, 3]);
    let rgb = kiln_nn::sequential![Conv2d::new(3, 5, 3)]?;
    let pictures = filters(&rgb, "0")?;
    assert_eq!(pictures.shape()?, [5, 3, 3, 3]);
    let numbers = pictures.to_vec::<f32>()?;
    assert!(
        numbers
            .chunks(27)
            .all(|f| f.contains(&0.0) && f.contains(&1.0))
    );
    let flat = Tensor::from([[[2.0f32, 2.0], [2.0, 2.0]], [[0.0, 1.0], [2.0, 4.0]]]);
    let wanted = [0.0, 0.0, 0.0, 0.0, 0.0, 0.25, 0.5, 1.0];
    assert_eq!(normalise(&flat)?.to_vec::<f32>()?, wanted);
    Ok(())
}

#[test]
fn colours_follow_their_maps() -> Result<()> {
    for (map, ends) in [
        (
            ColourMap::Grey,
            [[0, 0, 0], [128, 128, 128], [255, 255, 255]],
        ),
        (ColourMap::Jet, [[0, 0, 128], [128, 255, 128], [128, 0, 0]]),
        (
            ColourMap::Viridis,
            [[0x44, 0x01, 0x54], [0x21, 0x91, 0x8c], [0xfd, 0xe7, 0x25]],
        ),
        (
            ColourMap::Turbo,
            [[0x30, 0x12, 0x3b], [0xa4, 0xfc, 0x3b], [0x7a, 0x04, 0x02]],
        ),
    ] {
        assert_eq!([0.0, 0.5, 1.0].map(|x| map.colour(x)), ends, "{map:?}");
        assert_eq!(
            [-1.0, f32::NAN, 7.0].map(|x| map.colour(x)),
            [ends[0], ends[0], ends[2]]
        );
        // No step is large.
        for i in 0..1000 {
            let [a, b] = [i, i + 1].map(|i| map.colour(i as f32 / 1000.0));
            assert!(
                a.iter().zip(b).all(|(a, b)| a.abs_diff(b) <= 2),
                "{map:?}, {i}"
            );
        }
    }
    let map = Tensor::from([[0.0f32, 1.0]]);
    let image = ColourMap::Jet.image(&map)?;
    assert_eq!(
        (image.size(), image.bytes()),
        ((2, 1), &[0u8, 0, 128, 128, 0, 0][..])
    );
    Ok(())
}

#[test]
fn maps_lie_over_images() -> Result<()> {
    let image = Image::filled(4, 2, Mode::L, &[100])?;
    let map = Tensor::from([[0.0f32, 1.0]]);
    let over = overlay(&image, &map, ColourMap::Grey, 0.25)?;
    // Bilinear, half of a pixel beside the centres: 0, 0.25, 0.75, 1.
    let row = [75u8, 91, 123, 139];
    let wanted: Vec<u8> = row.iter().chain(&row).flat_map(|v| [*v; 3]).collect();
    assert_eq!((over.mode(), over.bytes()), (Mode::RGB, &wanted[..]));
    assert_eq!(
        overlay(&image, &map, ColourMap::Jet, 0.0)?,
        image.convert(Mode::RGB)
    );
    let message = |alpha, map: &Tensor| {
        overlay(&image, map, ColourMap::Jet, alpha)
            .unwrap_err()
            .to_string()
    };
    assert!(message(1.5, &map).contains("alpha is between 0 and 1"));
    assert!(message(0.5, &Tensor::from([1.0f32])).contains("a map is [h, w], not [1]"));
    Ok(())
}
