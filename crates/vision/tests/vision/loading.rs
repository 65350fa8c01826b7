//! Transforms in a loader.

use crate::image_of;
use kiln_data::{DataLoader, Dataset, FnDataset, Rng};
use kiln_tensor::Tensor;
use kiln_vision::transforms::*;
use kiln_vision::{Image, Mode};

fn everything() -> impl Transform<Image, Output = Tensor> {
    Compose::new((
        RandomRotation::new(20.0),
        RandomResizedCrop::new((12, 15)),
        RandomHorizontalFlip::new(),
        RandomApply::new([RandomCrop::new((12, 15)).padding(2)]),
        ColorJitter::new()
            .brightness(0.3)
            .contrast(0.3)
            .saturation(0.3)
            .hue(0.2),
        RandomChoice::new((
            GaussianBlur::new(3),
            RandomInvert::new(),
            RandomGrayscale::new(),
        )),
        RandomOrder::new((RandomAutocontrast::new(), RandomSolarize::new(128.0))),
        ToTensor::new(),
        Normalize::new([0.4, 0.5, 0.6], [0.2, 0.3, 0.2]),
        RandomErasing::new().value(Erasing::Random),
    ))
}

#[test]
fn batches_are_the_same_for_any_number_of_workers() {
    let pass = |workers: usize, batch: usize| {
        let transform = everything();
        let images = FnDataset::new(40, |n| Ok(image_of(Mode::RGB, 20 + n % 5, 17 + n % 3)));
        let data = images.map(move |image| transform.call(image));
        let loader = DataLoader::new(data)
            .batch_size(batch)
            .shuffle(true)
            .seed(3)
            .workers(workers)
            .build()
            .unwrap();
        let batches = loader.iter().map(|b| b.unwrap().to_vec::<f32>().unwrap());
        batches.flatten().collect::<Vec<f32>>()
    };
    let alone = pass(0, 8);
    assert_eq!(alone.len(), 40 * 3 * 12 * 15);
    for workers in [1, 2, 5] {
        assert_eq!(pass(workers, 8), alone, "{workers} workers");
    }
    assert_eq!(pass(2, 3), alone, "batches of another size");
}

#[test]
fn a_seed_decides_everything() {
    let (x, transform) = (image_of(Mode::RGB, 24, 20), everything());
    let pixels = |seed| {
        let y = transform.apply(x.clone(), &mut Rng::new(seed)).unwrap();
        y.to_vec::<f32>().unwrap()
    };
    let distinct: std::collections::HashSet<Vec<u32>> = (0..50)
        .map(|seed| {
            assert_eq!(pixels(seed), pixels(seed));
            pixels(seed).iter().map(|v| v.to_bits()).collect()
        })
        .collect();
    assert_eq!(distinct.len(), 50);
}

#[test]
fn an_error_of_a_sample_names_the_transform_and_the_sample() {
    let data = FnDataset::new(3, |n| Ok(image_of(Mode::L, 4 + n, 4)));
    let data = data.map(|image| RandomCrop::new((4, 5)).call(image)?.to_tensor());
    let loader = DataLoader::new(data).build().unwrap();
    let e = loader.iter().next().unwrap().unwrap_err().to_string();
    assert!(
        e.contains("RandomCrop") && e.contains("loading sample 0"),
        "{e}"
    );
    assert_eq!(
        loader.iter().filter(|b| b.is_err()).count(),
        1,
        "two are large enough"
    );
}
