//! Images as tensors, and tensors as images.

use crate::goldens::distance;
use crate::{image, image_of};
use kiln_data::Rng;
use kiln_tensor::{DType, Tensor, compile, stack};
use kiln_vision::functional as f;
use kiln_vision::transforms::*;
use kiln_vision::utils::{Grid, grid_image, make_grid, make_grid_of, save_image};
use kiln_vision::{Image, Interpolation, Mode, Picture};

const MODES: [Mode; 4] = [Mode::L, Mode::LA, Mode::RGB, Mode::RGBA];

#[test]
fn images_become_tensors_and_images_again() {
    for mode in MODES {
        let x = image(mode);
        let (levels, floats) = (f::pil_to_tensor(&x).unwrap(), f::to_tensor(&x).unwrap());
        let c = mode.channels();
        assert_eq!(levels.shape().unwrap(), [c, 19, 23]);
        assert_eq!(floats.shape().unwrap(), [c, 19, 23]);
        let (levels_, floats_) = (
            levels.to_vec::<u8>().unwrap(),
            floats.to_vec::<f32>().unwrap(),
        );
        for (n, (l, v)) in levels_.iter().zip(&floats_).enumerate() {
            let (channel, y, column) = (n / (19 * 23), n / 23 % 19, n % 23);
            assert_eq!(*l, x.pixel(column, y).unwrap()[channel]);
            assert_eq!(*v, f32::from(*l) / 255.0);
        }
        assert_eq!(f::to_pil_image(&levels).unwrap(), x);
        let array = x.to_array().unwrap();
        assert_eq!(array.shape().unwrap(), [19, 23, c]);
        let planes = array.permute([2, 0, 1]).to_vec::<u8>().unwrap();
        assert_eq!(planes, levels_);
        assert_eq!(Image::from_array(&array).unwrap(), x);
        let e = Image::from_array(&floats).unwrap_err().to_string();
        assert!(e.contains("f32"), "{e}");
        assert_eq!(f::to_pil_image(&floats).unwrap(), x);
    }
    let grey = Tensor::from_slice(&[0u8, 7, 255, 3, 4, 5], [2, 3]);
    assert_eq!(
        f::to_pil_image(&grey).unwrap().bytes(),
        [0, 7, 255, 3, 4, 5]
    );
    let none = Image::filled(0, 3, Mode::RGB, &[0; 3]).unwrap();
    assert_eq!(f::to_tensor(&none).unwrap().shape().unwrap(), [3, 3, 0]);
}

/// Expected values of PyTorch's `convert_image_dtype`.
#[test]
fn dtypes_are_scaled() {
    let u8s = Tensor::from_slice(&[0u8, 1, 127, 128, 254, 255], [1, 2, 3]);
    let to = |x: &Tensor, dtype| f::convert_image_dtype(x, dtype).unwrap();
    let floats = to(&u8s, DType::F32);
    let expected = [0.0, 1.0, 127.0, 128.0, 254.0, 255.0].map(|v: f32| v / 255.0);
    assert_eq!(floats.to_vec::<f32>().unwrap(), expected);
    assert_eq!(
        to(&floats, DType::U8).to_vec::<u8>().unwrap(),
        [0, 1, 127, 128, 254, 255]
    );
    assert_eq!(
        to(&u8s, DType::I16).to_vec::<i16>().unwrap(),
        [0, 128, 16256, 16384, 32512, 32640]
    );
    assert_eq!(
        to(&to(&u8s, DType::I16), DType::U8).to_vec::<u8>().unwrap(),
        [0, 1, 127, 128, 254, 255]
    );
    assert_eq!(to(&u8s, DType::I64).to_vec::<i64>().unwrap()[1], 1 << 55);
    assert_eq!(
        to(&to(&u8s, DType::I64), DType::U8).to_vec::<u8>().unwrap(),
        [0, 1, 127, 128, 254, 255]
    );
    assert_eq!(
        to(&u8s, DType::F64).to_vec::<f64>().unwrap()[1],
        1.0 / 255.0
    );
    let plain = ToDtype::new(DType::F32).call(u8s.clone()).unwrap();
    assert_eq!(plain.to_vec::<f32>().unwrap()[1], 1.0);
    let scaled = ToDtype::new(DType::F32).scale(true).call(u8s).unwrap();
    assert_eq!(scaled.to_vec::<f32>().unwrap(), expected);
}

#[test]
fn channels_are_normalised() {
    let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    let x = Tensor::rand([2, 3, 5, 7], DType::F32);
    let values = x.to_vec::<f32>().unwrap();
    let y = f::normalize(&x, &mean, &std)
        .unwrap()
        .to_vec::<f32>()
        .unwrap();
    for (n, (y, x)) in y.iter().zip(&values).enumerate() {
        let c = n / 35 % 3;
        assert_eq!(*y, (x - mean[c] as f32) / std[c] as f32);
    }
    // Recorded tensors and other dtypes give the same.
    let lazy = f::normalize(&(&x + 0.0), &mean, &std)
        .unwrap()
        .to_vec::<f32>()
        .unwrap();
    let compiled = compile(&x, |x| f::normalize(&x, &mean, &std)).unwrap();
    let compiled = compiled.run(&x).unwrap().to_vec::<f32>().unwrap();
    let double = f::normalize(&x.to_dtype(DType::F64), &mean, &std).unwrap();
    let double = double.to_vec::<f64>().unwrap();
    for n in 0..y.len() {
        assert!((y[n] - lazy[n]).abs() <= 4e-7 * y[n].abs().max(1.0));
        assert!((y[n] - compiled[n]).abs() <= 4e-7 * y[n].abs().max(1.0));
        assert!((f64::from(y[n]) - double[n]).abs() <= 2e-6);
    }
    let x = Tensor::from_slice(&[f32::NAN, f32::INFINITY, 1.0, 2.0], [1, 2, 2]);
    let y = f::normalize(&x, &[1.0], &[2.0])
        .unwrap()
        .to_vec::<f32>()
        .unwrap();
    assert!(y[0].is_nan() && y[1] == f32::INFINITY && y[2..] == [0.0, 0.5]);
}

/// Geometry changes a tensor as it changes the image.
#[test]
fn geometry_is_the_same_on_tensors() {
    fn same(name: &str, slack: u8, on: impl Fn(Kind) -> Kind) {
        for mode in MODES.into_iter().filter(|m| !m.has_alpha()) {
            // Few levels, so that nothing saturates at 0 or 255.
            let mut x = image(mode);
            x.bytes_mut().iter_mut().for_each(|v| *v = *v / 4 + 96);
            let Kind::Image(by_image) = on(Kind::Image(x.clone())) else {
                panic!()
            };
            let Kind::Tensor(by_tensor) = on(Kind::Tensor(x.to_tensor().unwrap())) else {
                panic!()
            };
            let by_tensor = Image::from_tensor(&by_tensor).unwrap();
            assert_eq!(by_tensor.size(), by_image.size(), "{name}");
            let (most, count) = distance(by_tensor.bytes(), by_image.bytes());
            assert!(most <= slack, "{name} {mode}: {count} differ, by {most}");
        }
    }
    enum Kind {
        Image(Image),
        Tensor(Tensor),
    }
    fn each<T>(t: T) -> impl Fn(Kind) -> Kind
    where
        T: Transform<Image, Output = Image> + Transform<Tensor, Output = Tensor>,
    {
        move |x| match x {
            Kind::Image(x) => Kind::Image(t.apply(x, &mut Rng::new(5)).unwrap()),
            Kind::Tensor(x) => Kind::Tensor(t.apply(x, &mut Rng::new(5)).unwrap()),
        }
    }
    same("hflip", 0, each(RandomHorizontalFlip::new().p(1.0)));
    same("vflip", 0, each(RandomVerticalFlip::new().p(1.0)));
    same("center_crop", 0, each(CenterCrop::new((12, 30))));
    same(
        "random_crop",
        0,
        each(RandomCrop::new((12, 11)).padding([1, 2, 3, 4]).fill(9)),
    );
    for mode in [
        PaddingMode::Constant,
        PaddingMode::Edge,
        PaddingMode::Reflect,
        PaddingMode::Symmetric,
    ] {
        same(
            "pad",
            0,
            each(Pad::new([1, 2, 3, 4]).fill(17).padding_mode(mode)),
        );
    }
    for filter in [
        Interpolation::Bilinear,
        Interpolation::Bicubic,
        Interpolation::Lanczos,
    ] {
        for size in [(9, 31), (40, 12), (19, 23), (50, 60)] {
            // Between the passes images are rounded, and tensors aren't.
            same("resize", 2, each(Resize::new(size).interpolation(filter)));
        }
    }
    same(
        "nearest",
        0,
        each(Resize::new((38, 46)).interpolation(Interpolation::NearestExact)),
    );
    same("resized crop", 2, each(RandomResizedCrop::new(16)));
}

#[test]
fn batches_of_tensors_are_resized_and_padded_whole() {
    let x = Tensor::rand([2, 3, 9, 8], DType::F32);
    let y = f::resize(&x, (5, 6)).unwrap();
    let first = f::resize(&x.select(0, 0), (5, 6))
        .unwrap()
        .to_vec::<f32>()
        .unwrap();
    assert_eq!(y.shape().unwrap(), [2, 3, 5, 6]);
    let y = y.to_vec::<f32>().unwrap();
    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-6;
    assert!(y[..90].iter().zip(&first).all(near));
    let coloured = f::pad(&x, Pad::new(1).fill([0.1, 0.2, 0.3])).unwrap();
    assert_eq!(coloured.shape().unwrap(), [2, 3, 11, 10]);
    let corner = coloured.to_vec::<f32>().unwrap();
    assert_eq!([corner[0], corner[110], corner[220]], [0.1, 0.2, 0.3]);
    assert_eq!(f::get_dimensions(&x).unwrap(), [3, 9, 8]);
    let rough = f::resize(&x, Resize::new((4, 4)).antialias(false)).unwrap();
    assert_eq!(rough.shape().unwrap(), [2, 3, 4, 4]);
}

fn naive(images: &[Vec<f32>], [c, h, w]: [usize; 3], grid: &Grid) -> (Vec<usize>, Vec<f32>) {
    let columns = grid.nrow.0.min(images.len());
    let (rows, p) = (images.len().div_ceil(columns), grid.padding.0);
    let (height, width) = (rows * (h + p) + p, columns * (w + p) + p);
    let mut out = vec![grid.pad_value as f32; c * height * width];
    for (n, image) in images.iter().enumerate() {
        let (top, left) = (n / columns * (h + p) + p, n % columns * (w + p) + p);
        for (at, v) in image.iter().enumerate() {
            let (channel, y, x) = (at / (h * w), at / w % h, at % w);
            out[(channel * height + top + y) * width + left + x] = *v;
        }
    }
    (vec![c, height, width], out)
}

#[test]
fn images_are_laid_out_in_a_grid() {
    for (count, nrow, padding) in [(7, 3, 2), (4, 8, 0), (2, 1, 1), (9, 3, 3)] {
        let x = Tensor::rand([count, 3, 4, 5], DType::F32);
        let grid = Grid::new().nrow(nrow).padding(padding).pad_value(0.25);
        let images: Vec<Vec<f32>> = x
            .to_vec()
            .unwrap()
            .chunks(60)
            .map(<[f32]>::to_vec)
            .collect();
        let y = make_grid(&x, grid.clone()).unwrap();
        let expected = naive(&images, [3, 4, 5], &grid);
        assert_eq!((y.shape().unwrap(), y.to_vec::<f32>().unwrap()), expected);
        let apart: Vec<Tensor> = (0..count).map(|n| x.select(0, n)).collect();
        let again = make_grid_of(&apart, grid).unwrap();
        assert_eq!(again.to_vec::<f32>().unwrap(), expected.1);
    }
    let grey = Tensor::rand([5, 1, 3, 3], DType::F32);
    assert_eq!(
        make_grid(&grey, Grid::new()).unwrap().shape().unwrap(),
        [3, 7, 27]
    );
    let one = Tensor::rand([1, 3, 6, 4], DType::F32);
    assert_eq!(
        make_grid(&one, Grid::new()).unwrap().shape().unwrap(),
        [3, 6, 4]
    );
    let flat = Tensor::rand([6, 4], DType::F32);
    assert_eq!(
        make_grid(&flat, Grid::new()).unwrap().shape().unwrap(),
        [3, 6, 4]
    );
    assert!(make_grid(&flat, Grid::new().nrow(0)).is_err());
    assert!(make_grid(&Tensor::zeros([0, 3, 2, 2], DType::F32), Grid::new()).is_err());
    assert!(make_grid_of(&[], Grid::new()).is_err());
}

#[test]
fn grids_are_brought_into_a_range() {
    let x = Tensor::from_slice(
        &[-1.0f32, 0.0, 1.0, 3.0, 10.0, 20.0, 30.0, 40.0],
        [2, 1, 2, 2],
    );
    let x = stack(&[&x, &x, &x], 2).reshape([2, 3, 2, 2]);
    let values = |grid: Grid| {
        let y = make_grid(&x, grid.padding(0)).unwrap();
        y.to_vec::<f32>().unwrap()[..4].to_vec()
    };
    let near = |found: Vec<f32>, wanted: [f32; 4]| {
        assert!(
            found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6),
            "{found:?}"
        );
    };
    let on = Grid::new().normalize(true);
    near(
        values(on.clone()),
        [0.0, 1.0 / 41.0, 11.0 / 41.0, 21.0 / 41.0],
    );
    near(
        values(on.clone().scale_each(true)),
        [0.0, 0.25, 0.0, 1.0 / 3.0],
    );
    near(
        values(on.clone().value_range((0.0, 2.0))),
        [0.0, 0.0, 1.0, 1.0],
    );
    assert!(make_grid(&x, on.value_range((1.0, f64::NAN))).is_err());
}

#[test]
fn a_grid_is_saved() {
    let x = Tensor::from_slice(&[0.0f32, 0.5, 1.0, 2.0, -1.0, 0.25], [2, 1, 1, 3]);
    let expected = [
        0, 0, 0, 128, 128, 128, 255, 255, 255, 255, 255, 255, 0, 0, 0, 64, 64, 64,
    ];
    let grid = Grid::new().padding(0);
    assert_eq!(grid_image(&x, grid.clone()).unwrap().bytes(), expected);
    let path = std::env::temp_dir().join(format!("kiln-grid-{}.png", std::process::id()));
    save_image(&x, &path, grid).unwrap();
    assert_eq!(Image::open(&path).unwrap().bytes(), expected);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn an_image_says_what_it_is() {
    let x = image_of(Mode::RGBA, 3, 2);
    assert_eq!(format!("{x:?}"), "<Image mode=RGBA size=3x2>");
    assert_eq!((x.size(), x.channels(), x.mode()), ((3, 2), 4, Mode::RGBA));
    let red = Image::filled(5, 3, Mode::RGB, &[255, 1, 2]).unwrap();
    assert!(red.bytes().chunks(3).all(|p| p == [255, 1, 2]) && red.bytes().len() == 45);
    assert!(
        Image::filled(0, 3, Mode::RGB, &[255, 1, 2])
            .unwrap()
            .bytes()
            .is_empty()
    );
    assert!(x.pixel(3, 0).is_none() && x.pixel(2, 1).is_some());
    fn takes(_: &impl Picture) {}
    takes(&x);
    takes(&Tensor::zeros([1, 1, 1], DType::F32));
}
