//! Resizing.

use crate::goldens::filter;
use crate::{image, image_of};
use kiln_base::Features;
use kiln_vision::functional::{resize, resized_crop};
use kiln_vision::transforms::Resize;
use kiln_vision::{Interpolation, Mode};

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |h, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01B3)
    })
}

#[test]
fn images_of_many_sizes_are_those_of_pillow() {
    let x = image_of(Mode::RGB, 190, 140);
    for line in include_str!("goldens/hashes.txt").lines() {
        let (case, hash) = line.split_once(" = ").unwrap();
        let words: Vec<&str> = case.split(' ').collect();
        let size = (words[1].parse().unwrap(), words[2].parse().unwrap());
        let y = resize(&x, Resize::new(size).interpolation(filter(words[0]))).unwrap();
        assert_eq!(fnv(y.bytes()), hash.parse::<u64>().unwrap(), "{case}");
    }
}

/// Windows of odd widths at the end of an image, where reads go past the last pixel.
#[test]
fn a_window_is_resized_as_the_cut_window_is() {
    let mut draw = fastrand::Rng::with_seed(3);
    for _ in 0..300 {
        let mode = draw
            .choice([Mode::L, Mode::LA, Mode::RGB, Mode::RGBA])
            .unwrap();
        let x = image_of(mode, draw.usize(1..40), draw.usize(1..30));
        let (w, h) = (draw.usize(1..=x.width()), draw.usize(1..=x.height()));
        let (left, top) = (
            draw.usize(0..=x.width() - w) as i64,
            draw.usize(0..=x.height() - h) as i64,
        );
        let to = Resize::new((draw.usize(1..50), draw.usize(1..50)));
        let to = to.interpolation(
            draw.choice([Interpolation::Bilinear, Interpolation::Lanczos])
                .unwrap(),
        );
        let part = kiln_vision::functional::crop(&x, top, left, h, w).unwrap();
        let expected = resize(&part, to.clone()).unwrap();
        assert_eq!(resized_crop(&x, top, left, h, w, to).unwrap(), expected);
    }
}

#[test]
fn every_level_of_the_processor_gives_the_same() {
    let all = || {
        let mut results = Vec::new();
        for mode in [Mode::L, Mode::LA, Mode::RGB, Mode::RGBA] {
            let x = image(mode);
            for size in [(31, 44), (7, 9), (50, 5), (6, 70), (19, 8), (5, 23)] {
                results.push(resize(&x, size).unwrap());
            }
            let y = kiln_vision::functional::adjust_contrast(&x, 1.3).unwrap();
            results.push(kiln_vision::functional::gaussian_blur(&y, 5, (1.0, 2.0)).unwrap());
        }
        results
    };
    let best = all();
    for level in Features::LEVELS.into_iter().filter(|l| l.is_supported()) {
        Features::force(Some(level)).unwrap();
        assert_eq!(all(), best, "{level:?}");
    }
    Features::force(None).unwrap();
}

#[test]
fn a_constant_image_stays_constant() {
    for filter in ["bilinear", "bicubic", "box", "hamming", "lanczos"] {
        let x = kiln_vision::Image::filled(17, 11, Mode::RGBA, &[255, 3, 128, 255]).unwrap();
        let to = Resize::new((23, 5)).interpolation(crate::goldens::filter(filter));
        let y = resize(&x, to).unwrap();
        assert!(
            y.bytes().chunks(4).all(|p| p == [255, 3, 128, 255]),
            "{filter}"
        );
    }
}
