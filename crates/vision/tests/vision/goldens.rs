//! The functions compared with torchvision's, and printed transforms.

use crate::{image, mode};
use kiln_vision::functional::{self as f, Affine, Rotate};
use kiln_vision::transforms::*;
use kiln_vision::{Image, Interpolation, Mode};
use std::fmt::Display;

pub(crate) fn filter(name: &str) -> Interpolation {
    let all = [
        Interpolation::Nearest,
        Interpolation::Bilinear,
        Interpolation::Bicubic,
        Interpolation::Box,
        Interpolation::Hamming,
        Interpolation::Lanczos,
    ];
    *all.iter().find(|i| i.to_string() == name).unwrap()
}

/// The input image of a case.
fn subject(name: &str) -> Image {
    if name != "cube" {
        return image(mode(name));
    }
    let levels = [0, 1, 2, 63, 100, 127, 128, 200, 254, 255];
    let mut bytes = Vec::new();
    for r in levels {
        for g in levels {
            levels.iter().for_each(|b| bytes.extend([r, g, *b]));
        }
    }
    Image::from_bytes(bytes, 10, 100, Mode::RGB).unwrap()
}

fn transposed(image: &Image) -> Image {
    let (w, h) = image.size();
    let mut bytes = Vec::new();
    for x in 0..w {
        (0..h).for_each(|y| bytes.extend(image.pixel(x, y).unwrap()));
    }
    Image::from_bytes(bytes, h, w, image.mode()).unwrap()
}

fn padding_mode(name: &str) -> PaddingMode {
    let all = [
        PaddingMode::Constant,
        PaddingMode::Edge,
        PaddingMode::Reflect,
        PaddingMode::Symmetric,
    ];
    *all.iter().find(|m| m.to_string() == name).unwrap()
}

/// A colour whose channels count up.
fn fill(image: &Image) -> Fill {
    let levels = (0..image.channels()).map(|c| 5.0 + c as f64);
    Fill::from(levels.collect::<Vec<f64>>())
}

/// The result of a case, given by its words.
fn result(words: &[&str]) -> Image {
    let x = subject(words[1]);
    let int = |n: usize| words[n].parse::<usize>().unwrap();
    let signed = |n: usize| words[n].parse::<i64>().unwrap();
    let real = |n: usize| words[n].parse::<f64>().unwrap();
    let y = match words[0] {
        "resize" => {
            let to = Resize::new((int(3), int(4))).interpolation(filter(words[2]));
            f::resize(&x, to)
        }
        "resized_crop" => {
            let to = Resize::new((int(7), int(8))).interpolation(filter(words[2]));
            f::resized_crop(&x, signed(3), signed(4), int(5), int(6), to)
        }
        "shorter" => f::resize(&x, int(2)),
        "shorter_tall" => f::resize(&transposed(&x), int(2)),
        "max_size" => f::resize(&x, Resize::new(int(2)).max_size(int(3))),
        "hflip" => f::hflip(&x),
        "vflip" => f::vflip(&x),
        "crop" => f::crop(&x, signed(2), signed(3), int(4), int(5)),
        "center_crop" => f::center_crop(&x, (int(2), int(3))),
        "five_crop" => f::five_crop(&x, (int(2), int(3))).map(|all| all[int(4)].clone()),
        "ten_crop" => {
            let crop = TenCrop::new((int(2), int(3))).vertical_flip(true);
            f::ten_crop(&x, crop).map(|all| all[int(4)].clone())
        }
        "pad" => {
            let pad = Pad::new([int(3), int(4), int(5), int(6)]).fill([7u8, 8, 9]);
            f::pad(&x, pad.padding_mode(padding_mode(words[2])))
        }
        "rotate" => {
            let rotate = Rotate::new(real(2)).interpolation(filter(words[3]));
            let colour = if words[1] == "L" {
                5u8.into()
            } else {
                fill(&x)
            };
            f::rotate(&x, rotate.expand(words[4] == "1").fill(colour))
        }
        "rotate_center" => {
            let rotate = Rotate::new(real(2)).center((real(3), real(4)));
            f::rotate(&x, rotate.interpolation(Interpolation::Bilinear))
        }
        "affine" => {
            let affine = Affine::new().interpolation(filter(words[2])).angle(real(3));
            let affine = affine.translate((real(4), real(5))).scale(real(6));
            f::affine(&x, affine.shear((real(7), real(8))).fill([1u8, 2, 3]))
        }
        "brightness" => f::adjust_brightness(&x, real(2)),
        "contrast" => f::adjust_contrast(&x, real(2)),
        "saturation" => f::adjust_saturation(&x, real(2)),
        "sharpness" => f::adjust_sharpness(&x, real(2)),
        "hue" => f::adjust_hue(&x, real(2)),
        "gamma" => f::adjust_gamma(&x, real(2), real(3)),
        "convert" => Ok(x.convert(mode(words[2]))),
        "invert" => Ok(f::invert(&x)),
        "autocontrast" => Ok(f::autocontrast(&x)),
        "equalize" => Ok(f::equalize(&x)),
        "grayscale" => f::rgb_to_grayscale(&x, int(2)),
        "posterize" => f::posterize(&x, int(2)),
        "solarize" => f::solarize(&x, real(2)),
        "blur" => f::gaussian_blur(&x, (int(2), int(3)), (real(4), real(5))),
        other => panic!("{other} is not a case"),
    };
    y.unwrap_or_else(|e| panic!("{words:?}: {e}"))
}

/// The allowed difference in levels: 1 for functions that sum floats in their own order.
fn slack(words: &[&str]) -> u8 {
    match words[0] {
        "blur" | "sharpness" => 1,
        _ => 0,
    }
}

/// The largest difference of two images of one size, and the number of levels that differ.
pub(crate) fn distance(a: &[u8], b: &[u8]) -> (u8, usize) {
    assert_eq!(a.len(), b.len());
    let far = a.iter().zip(b).map(|(a, b)| a.abs_diff(*b));
    far.fold((0, 0), |(most, n), d| (most.max(d), n + usize::from(d > 0)))
}

#[test]
fn functions_give_what_torchvisions_do() {
    let pixels = include_bytes!("goldens/pixels.bin");
    let (mut at, mut wrong) = (0, Vec::new());
    for line in include_str!("goldens/cases.txt").lines() {
        let (case, size) = line.split_once(" = ").unwrap();
        let size: Vec<usize> = size.split(' ').map(|n| n.parse().unwrap()).collect();
        let expected = &pixels[at..at + size.iter().product::<usize>()];
        at += expected.len();
        let words: Vec<&str> = case.split(' ').collect();
        let got = result(&words);
        if [got.width(), got.height(), got.channels()] != size[..] {
            wrong.push(format!("{case}: {got:?}, not {size:?}"));
            continue;
        }
        let (most, count) = distance(got.bytes(), expected);
        if most > slack(&words) {
            wrong.push(format!("{case}: {count} levels differ, by {most} at most"));
        }
    }
    assert_eq!(at, pixels.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn transforms_are_printed_as_torchvisions_are() {
    let ours: [&dyn Display; 31] = [
        &Compose::new((
            Resize::new(256),
            CenterCrop::new(224),
            ToTensor::new(),
            Normalize::new([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        )),
        &Resize::new((20, 30)).interpolation(Interpolation::Bicubic),
        &Resize::new(20).max_size(40).antialias(false),
        &RandomResizedCrop::new(224),
        &RandomCrop::new(32).padding(4),
        &RandomCrop::new((32, 30)),
        &Pad::new([1, 2]).fill(3).padding_mode(PaddingMode::Reflect),
        &RandomHorizontalFlip::new(),
        &RandomVerticalFlip::new().p(0.25),
        &ColorJitter::new()
            .brightness(0.4)
            .contrast((0.5, 1.5))
            .hue(0.1),
        &Grayscale::new(),
        &RandomGrayscale::new(),
        &GaussianBlur::new(3),
        &GaussianBlur::new((5, 7)).sigma(1.5),
        &RandomRotation::new(30.0),
        &RandomRotation::new((10.0, 20.0)).expand(true).fill(3),
        &RandomAffine::new(30.0)
            .translate((0.1, 0.2))
            .scale((0.8, 1.2))
            .shear(Shear::from(10.0)),
        &RandomErasing::new(),
        &RandomErasing::new().value(Erasing::Random),
        &RandomApply::new([Grayscale::new().num_output_channels(3)]).p(0.3),
        &RandomChoice::new((RandomHorizontalFlip::new(), CenterCrop::new(3))),
        &RandomOrder::new((RandomInvert::new(), RandomEqualize::new())),
        &Lambda::new(|x: Image| Ok(x)),
        &PILToTensor::new(),
        &ToPILImage::new(),
        &FiveCrop::new(3),
        &TenCrop::new((3, 4)),
        &RandomPosterize::new(3),
        &RandomSolarize::new(100.0),
        &RandomAdjustSharpness::new(2.0),
        &RandomAutocontrast::new(),
    ];
    let theirs = include_str!("goldens/repr.txt").trim().split("\n\n");
    let theirs: Vec<(&str, &str)> = theirs.map(|t| t.split_once('\n').unwrap()).collect();
    assert_eq!(ours.len(), theirs.len());
    for (ours, (python, theirs)) in ours.iter().zip(theirs) {
        assert_eq!(ours.to_string(), theirs.trim(), "{python}");
    }
}
