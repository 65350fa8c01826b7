//! Errors say what is wrong, by name and size.

use crate::image;
use kiln_data::Rng;
use kiln_tensor::{DType, Tensor};
use kiln_vision::functional as f;
use kiln_vision::transforms::*;
use kiln_vision::{Image, Interpolation, Mode};

fn refused<X, T: Transform<X>>(transform: T, x: X, words: &[&str]) {
    let e = match transform.apply(x, &mut Rng::new(1)) {
        Ok(_) => panic!("{transform} was fine with it"),
        Err(e) => e.to_string(),
    };
    assert!(
        words.iter().all(|w| e.contains(w)),
        "{words:?} are not in:\n{e}"
    );
}

#[test]
fn transforms_name_themselves_and_the_sizes() {
    let x = image(Mode::RGB);
    let on = || x.clone();
    refused(
        RandomCrop::new(20),
        on(),
        &["RandomCrop", "(20, 20)", "(19, 23)"],
    );
    refused(
        FiveCrop::new((4, 24)),
        on(),
        &["FiveCrop", "(4, 24)", "(19, 23)"],
    );
    refused(TenCrop::new(30), on(), &["TenCrop", "(30, 30)"]);
    refused(Resize::new(0), on(), &["Resize", "no pixels"]);
    refused(
        Resize::new((1 << 30, 1 << 30)),
        on(),
        &["Resize", "too large"],
    );
    refused(Resize::new(20).max_size(20), on(), &["Resize", "max_size"]);
    refused(
        Resize::new((4, 4)).max_size(20),
        on(),
        &["Resize", "max_size"],
    );
    refused(CenterCrop::new(1 << 40), on(), &["CenterCrop"]);
    refused(
        Pad::new(23).padding_mode(PaddingMode::Reflect),
        on(),
        &["Pad", "23", "reflect"],
    );
    refused(
        Pad::new(2).fill([1, 2]),
        on(),
        &["Pad", "2 numbers", "3 channels"],
    );
    refused(Pad::new(2).fill(256.0), on(), &["Pad", "256"]);
    refused(
        RandomHorizontalFlip::new().p(1.5),
        on(),
        &["RandomHorizontalFlip", "1.5"],
    );
    refused(RandomHorizontalFlip::new().p(f64::NAN), on(), &["NaN"]);
    refused(
        RandomResizedCrop::new(4).scale((0.5, 0.1)),
        on(),
        &["RandomResizedCrop", "scale"],
    );
    refused(
        RandomResizedCrop::new(4).ratio((0.0, 1.0)),
        on(),
        &["RandomResizedCrop", "ratio"],
    );
    refused(
        RandomResizedCrop::new(4).scale((f64::NAN, 1.0)),
        on(),
        &["RandomResizedCrop"],
    );
    refused(
        ColorJitter::new().brightness(-0.5),
        on(),
        &["ColorJitter", "brightness", "-0.5"],
    );
    refused(
        ColorJitter::new().contrast(f64::NAN),
        on(),
        &["ColorJitter", "contrast", "NaN"],
    );
    refused(
        ColorJitter::new().hue(0.6),
        on(),
        &["ColorJitter", "hue", "0.6"],
    );
    refused(
        ColorJitter::new().saturation((2.0, 1.0)),
        on(),
        &["ColorJitter", "saturation"],
    );
    refused(
        Grayscale::new().num_output_channels(2),
        on(),
        &["Grayscale", "2"],
    );
    refused(GaussianBlur::new(4), on(), &["GaussianBlur", "odd", "4"]);
    refused(
        GaussianBlur::new(3).sigma(0.0),
        on(),
        &["GaussianBlur", "sigma"],
    );
    refused(GaussianBlur::new(39), on(), &["GaussianBlur"]);
    refused(
        RandomRotation::new(f64::NAN),
        on(),
        &["RandomRotation", "NaN"],
    );
    let lanczos = RandomRotation::new(3.0).interpolation(Interpolation::Lanczos);
    refused(lanczos, on(), &["RandomRotation", "lanczos"]);
    refused(
        RandomAffine::new(3.0).scale((0.0, 1.0)),
        on(),
        &["RandomAffine", "scale"],
    );
    refused(
        RandomAffine::new(3.0).translate((2.0, 0.0)),
        on(),
        &["RandomAffine", "translate"],
    );
    refused(RandomPosterize::new(9).p(1.0), on(), &["posterize", "9"]);
    refused(
        RandomChoice::new([CenterCrop::new(3)]).p([-1.0]),
        on(),
        &["RandomChoice", "-1"],
    );
    refused(
        RandomChoice::new(Vec::<CenterCrop>::new()),
        on(),
        &["RandomChoice"],
    );
    refused(
        RandomApply::new([CenterCrop::new(3)]).p(2.0),
        on(),
        &["RandomApply", "2"],
    );
    let none = Image::filled(0, 5, Mode::RGB, &[0; 3]).unwrap();
    refused(
        RandomResizedCrop::new(4),
        none.clone(),
        &["RandomResizedCrop", "5 × 0"],
    );
    refused(Resize::new((4, 4)), none, &["Resize", "5 rows and 0"]);
}

#[test]
fn tensors_that_dont_fit_are_refused() {
    let floats = || Tensor::rand([3, 5, 4], DType::F32);
    let norm = |mean: Vec<f64>, std: Vec<f64>| Normalize::new(mean, std);
    refused(
        norm(vec![0.5; 3], vec![0.5, 0.0, 0.5]),
        floats(),
        &["Normalize", "std", "zero"],
    );
    refused(
        norm(vec![0.5; 3], vec![1e-60; 3]),
        floats(),
        &["Normalize", "zero"],
    );
    refused(
        norm(vec![0.5; 2], vec![0.5; 3]),
        floats(),
        &["Normalize", "mean has 2", "3 channels"],
    );
    refused(
        norm(vec![f64::NAN], vec![0.5]),
        floats(),
        &["Normalize", "NaN"],
    );
    let levels = Tensor::zeros([3, 5, 4], DType::U8);
    refused(
        norm(vec![0.5], vec![0.5]),
        levels,
        &["Normalize", "u8[3, 5, 4]"],
    );
    let flat = Tensor::zeros([5, 4], DType::F32);
    refused(
        norm(vec![0.5], vec![0.5]),
        flat.clone(),
        &["Normalize", "[5, 4]"],
    );
    refused(RandomErasing::new(), flat, &["RandomErasing", "[5, 4]"]);
    refused(
        RandomErasing::new().scale((0.5, 1.5)),
        floats(),
        &["RandomErasing", "scale"],
    );
    let two = RandomErasing::new().p(1.0).value([1, 2]);
    refused(two, floats(), &["RandomErasing", "2 numbers"]);
    refused(
        CenterCrop::new(2),
        Tensor::zeros([4], DType::F32),
        &["CenterCrop", "[4]"],
    );
    let box_ = Resize::new((2, 2))
        .interpolation(Interpolation::Box)
        .antialias(false);
    refused(box_, floats(), &["Resize", "box"]);
    refused(
        ConvertImageDtype::new(DType::I64),
        floats(),
        &["ConvertImageDtype", "f32", "i64"],
    );
    refused(
        ToPILImage::new(),
        Tensor::zeros([5, 2, 2], DType::U8),
        &["[5, 2, 2]"],
    );
    refused(ToPILImage::new(), floats() * 300.0, &["[0, 1]"]);
    refused(ToPILImage::new(), floats() * f64::NAN, &["NaN"]);
}

#[test]
fn functions_refuse_factors_that_are_none() {
    let x = image(Mode::RGB);
    for bad in [f64::NAN, f64::INFINITY, -0.1] {
        assert!(f::adjust_brightness(&x, bad).is_err());
        assert!(f::adjust_contrast(&x, bad).is_err());
        assert!(f::adjust_saturation(&x, bad).is_err());
        assert!(f::adjust_sharpness(&x, bad).is_err());
        assert!(f::adjust_gamma(&x, bad, 1.0).is_err());
    }
    assert!(f::adjust_hue(&x, 0.51).is_err() && f::adjust_hue(&x, f64::NAN).is_err());
    assert!(f::solarize(&x, f64::NAN).is_err());
    assert!(f::rotate(&x, f64::INFINITY).is_err());
    assert!(f::crop(&x, i64::MIN, i64::MAX, usize::MAX, 3).is_err());
    let tensor = Tensor::zeros([3, 4, 4], DType::F32);
    assert!(f::erase(&tensor, 2, 2, 3, 1, 0).is_err());
    assert!(Image::from_bytes([1, 2, 3], 2, 2, Mode::L).is_err());
    assert!(Image::filled(2, 2, Mode::L, &[1, 2]).is_err());
}

/// The error shows the line that called the transform, through a box and a list of transforms.
#[test]
fn the_users_line_is_shown() {
    let inner: Box<dyn Transform<Image, Output = Image>> = Box::new(RandomCrop::new(99));
    let all = Compose::new((RandomHorizontalFlip::new(), inner));
    let (e, line) = (all.call(image(Mode::L)).unwrap_err().to_string(), line!());
    assert!(e.contains(&format!("errors.rs:{line}")), "{e}");
}

#[test]
fn absurd_numbers_are_refused_with_the_limit() {
    use kiln_vision::utils::{Grid, make_grid};
    let x = image(Mode::RGB);
    let images = Tensor::zeros([4, 3, 4, 4], DType::F32);
    for n in [(1 << 40) + 1, usize::MAX] {
        for e in [
            f::gaussian_blur(&x, n, (1.0, 1.0)).err(),
            f::gaussian_blur(&x, (1, n), (1.0, 1.0)).err(),
            f::pad(&x, n).err(),
            make_grid(&images, Grid::new().padding(n)).err(),
        ] {
            let e = e.unwrap().to_string();
            assert!(e.contains("at most"), "{e}");
        }
    }
    let grid = make_grid(&images, Grid::new().nrow(usize::MAX).padding(1)).unwrap();
    assert_eq!(grid.shape().unwrap(), [3, 6, 21]);
}
