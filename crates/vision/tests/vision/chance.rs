//! Frequency and amount of the changes of random transforms.

use crate::image;
use kiln_data::Rng;
use kiln_tensor::{DType, Tensor};
use kiln_vision::transforms::*;
use kiln_vision::{Image, Mode};

/// The fraction of 4,000 seeds that change the image.
fn changed<T: Transform<Image, Output = Image>>(transform: &T, image: &Image) -> f64 {
    let hits = (0..4000).filter(|seed| {
        let out = transform.apply(image.clone(), &mut Rng::new(*seed));
        out.unwrap() != *image
    });
    hits.count() as f64 / 4000.0
}

/// Checks that a frequency is within five standard deviations of `p`, for 4,000 draws.
fn near(found: f64, p: f64) {
    let deviation = (p * (1.0 - p) / 4000.0).sqrt();
    assert!((found - p).abs() <= 5.0 * deviation, "{found}, not {p}");
}

#[test]
fn what_is_done_by_chance_is_done_as_often() {
    let x = image(Mode::RGB);
    near(changed(&RandomHorizontalFlip::new(), &x), 0.5);
    near(changed(&RandomVerticalFlip::new().p(0.2), &x), 0.2);
    near(changed(&RandomGrayscale::new(), &x), 0.1);
    near(changed(&RandomInvert::new(), &x), 0.5);
    near(
        changed(
            &RandomApply::new([Grayscale::new()]).p(0.3),
            &x.convert(Mode::RGB),
        ),
        0.3,
    );
    let choice = RandomChoice::new((CenterCrop::new((19, 23)), RandomInvert::new().p(1.0)));
    near(changed(&choice, &x), 0.5);
    near(changed(&choice.p([3.0, 1.0]), &x), 0.25);
    assert_eq!(changed(&RandomHorizontalFlip::new().p(0.0), &x), 0.0);
    assert_eq!(changed(&RandomHorizontalFlip::new().p(1.0), &x), 1.0);
}

/// An image whose pixels hold their own coordinates.
fn places(width: usize, height: usize) -> Image {
    let bytes = (0..width * height).flat_map(|n| [(n % width) as u8, (n / width) as u8, 0]);
    Image::from_bytes(bytes.collect::<Vec<u8>>(), width, height, Mode::RGB).unwrap()
}

#[test]
fn every_place_of_a_crop_is_as_likely() {
    let (x, crop) = (places(12, 10), RandomCrop::new((8, 9)));
    let mut counts = [[0; 4]; 3];
    for seed in 0..6000 {
        let part = crop.apply(x.clone(), &mut Rng::new(seed)).unwrap();
        assert_eq!(part.size(), (9, 8));
        let [left, top, _] = part.pixel(0, 0).unwrap() else {
            panic!()
        };
        counts[usize::from(*top)][usize::from(*left)] += 1;
    }
    assert!(
        counts.as_flattened().iter().all(|n| (380..620).contains(n)),
        "{counts:?}"
    );
}

/// The areas of the parts are uniform, and so are the logarithms of their aspect ratios.
#[test]
fn areas_and_proportions_of_resized_crops_are_spread_as_they_should_be() {
    let x = places(250, 200);
    let crop = RandomResizedCrop::new(2)
        .scale((0.2, 0.5))
        .ratio((0.5, 2.0));
    let crop = crop.interpolation(kiln_vision::Interpolation::Nearest);
    let (mut areas, mut logs) = (Vec::new(), Vec::new());
    for seed in 0..2000 {
        let y = crop.apply(x.clone(), &mut Rng::new(seed)).unwrap();
        let at = |x, y_| {
            y.pixel(x, y_)
                .map(|p| [f64::from(p[0]), f64::from(p[1])])
                .unwrap()
        };
        // Of two pixels each way, the second is half the part's size behind the first.
        let w = 2.0 * (at(1, 0)[0] - at(0, 0)[0]);
        let h = 2.0 * (at(0, 1)[1] - at(0, 0)[1]);
        areas.push(w * h / 50_000.0);
        logs.push((w / h).ln());
    }
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let spread = |v: &[f64]| {
        let m = mean(v);
        (v.iter().map(|x| (x - m).powi(2)).sum::<f64>() / v.len() as f64).sqrt()
    };
    assert!((mean(&areas) - 0.35).abs() < 0.008, "{}", mean(&areas));
    assert!(
        (spread(&areas) - 0.3 / 12f64.sqrt()).abs() < 0.006,
        "{}",
        spread(&areas)
    );
    assert!(mean(&logs).abs() < 0.05, "{}", mean(&logs));
    assert!(
        (spread(&logs) - 4f64.ln() / 12f64.sqrt()).abs() < 0.02,
        "{}",
        spread(&logs)
    );
}

/// Where no part fits, the middle is taken, as far as the proportions allow.
#[test]
fn long_images_are_cropped_in_the_middle() {
    let x = places(200, 10);
    let crop = RandomResizedCrop::new((1, 1)).scale((0.9, 1.0));
    let crop = crop.interpolation(kiln_vision::Interpolation::Nearest);
    for seed in 0..20 {
        let y = crop.apply(x.clone(), &mut Rng::new(seed)).unwrap();
        assert_eq!(y.pixel(0, 0).unwrap(), [93 + 13 / 2, 5, 0]);
    }
}

#[test]
fn jitter_stays_in_its_range_and_uses_all_of_it() {
    let x = Image::filled(1, 1, Mode::RGB, &[100, 100, 100]).unwrap();
    let jitter = ColorJitter::new().brightness(0.4);
    let levels: Vec<u8> = (0..2000)
        .map(|seed| {
            jitter
                .apply(x.clone(), &mut Rng::new(seed))
                .unwrap()
                .bytes()[0]
        })
        .collect();
    assert_eq!(levels.iter().min(), Some(&60));
    assert!(levels.iter().max().unwrap().abs_diff(139) <= 1);
    let mean = levels.iter().map(|v| f64::from(*v)).sum::<f64>() / 2000.0;
    assert!((mean - 99.5).abs() < 2.6, "{mean}");
}

#[test]
fn the_order_of_several_is_random() {
    // Doubling and then halving the brightness differs from the reverse where levels saturate at 255.
    let x = Image::filled(1, 1, Mode::L, &[200]).unwrap();
    let scale = |by: f64| ColorJitter::new().brightness((by, by));
    let both = RandomOrder::new((scale(2.0), scale(0.5)));
    let first = (0..2000).filter(|seed| {
        let y = both.apply(x.clone(), &mut Rng::new(*seed)).unwrap();
        assert!([127, 200].contains(&y.bytes()[0]), "{:?}", y.bytes());
        y.bytes()[0] == 127
    });
    assert!((880..1120).contains(&first.count()));
}

#[test]
fn erased_rectangles_have_their_areas_and_colours() {
    let x = Tensor::ones([3, 40, 50], DType::F32);
    let erase = RandomErasing::new().p(1.0).scale((0.1, 0.3));
    let mut areas = 0.0;
    for seed in 0..300 {
        let y = erase.apply(x.clone(), &mut Rng::new(seed)).unwrap();
        let y = y.to_vec::<f32>().unwrap();
        let gone = y[..2000].iter().filter(|v| **v == 0.0).count();
        assert_eq!(y.iter().filter(|v| **v == 0.0).count(), 3 * gone);
        assert!((180..=640).contains(&gone), "{gone}");
        areas += gone as f64 / 2000.0;
    }
    assert!((areas / 300.0 - 0.2).abs() < 0.02);
    let coloured = erase.clone().value([0.25, 0.5, 0.75]);
    let y = coloured
        .apply(x.clone(), &mut Rng::new(1))
        .unwrap()
        .to_vec::<f32>()
        .unwrap();
    let some = |n: usize, v: f32| y[n * 2000..][..2000].contains(&v);
    assert!(some(0, 0.25) && some(1, 0.5) && some(2, 0.75) && some(2, 1.0));
    let random = erase
        .value(Erasing::Random)
        .apply(x.clone(), &mut Rng::new(1))
        .unwrap();
    let changed: Vec<f32> = random
        .to_vec::<f32>()
        .unwrap()
        .into_iter()
        .filter(|v| *v != 1.0)
        .collect();
    let mean = changed.iter().sum::<f32>() / changed.len() as f32;
    let square = changed.iter().map(|v| v * v).sum::<f32>() / changed.len() as f32;
    assert!(
        mean.abs() < 0.15 && (square - 1.0).abs() < 0.25,
        "{mean} {square}"
    );
    let never = RandomErasing::new()
        .p(0.0)
        .apply(x.clone(), &mut Rng::new(1))
        .unwrap();
    assert_eq!(never.to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
}
