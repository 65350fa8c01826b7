//! Damaged files. `KILN_DAMAGES` sets the number of cases per file.

use crate::image_of;
use kiln_vision::{Format, Image, Limits, Mode};
use std::panic::catch_unwind;

/// An error, or an image of no more pixels than are allowed; never a panic.
#[test]
fn damaged_files_are_errors_or_images() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/vision/goldens");
    let stored = [
        "palette.png",
        "progressive.jpg",
        "420.jpg",
        "palette.gif",
        "rgb.webp",
    ];
    let mut files: Vec<Vec<u8>> = stored
        .iter()
        .map(|name| std::fs::read(format!("{folder}/{name}")).unwrap())
        .collect();
    for mode in [Mode::L, Mode::RGB, Mode::RGBA] {
        for format in [
            Format::Png,
            Format::Jpeg,
            Format::Gif,
            Format::Bmp,
            Format::WebP,
        ] {
            files.extend(image_of(mode, 19, 13).encode(format));
        }
    }
    let mut draw = fastrand::Rng::with_seed(11);
    let limits = Limits::new().max_pixels(1usize << 20);
    let (mut refused, mut read) = (0, 0);
    let rounds = std::env::var("KILN_DAMAGES").map_or(400, |n| n.parse().expect("a number"));
    for round in 0..rounds {
        for (n, file) in files.iter().enumerate() {
            let damaged = damage(file, &mut draw);
            let result = catch_unwind(|| Image::decode_with(&damaged, &limits));
            match result.unwrap_or_else(|_| panic!("round {round} of file {n}: {damaged:?}")) {
                Err(_) => refused += 1,
                Ok(image) => {
                    assert!(image.width() * image.height() <= 1 << 20);
                    assert_eq!(
                        image.bytes().len(),
                        image.width() * image.height() * image.channels()
                    );
                    read += 1;
                }
            }
        }
    }
    assert!(
        refused > 1000 && read > 1000,
        "{refused} refused, {read} read"
    );
}

/// Some bytes changed, taken out, put in, or the end cut off.
fn damage(file: &[u8], draw: &mut fastrand::Rng) -> Vec<u8> {
    let mut out = file.to_vec();
    for _ in 0..draw.usize(1..6) {
        // Damage to headers matters most.
        let reach = if draw.bool() {
            out.len().min(64)
        } else {
            out.len()
        };
        let at = draw.usize(0..reach.max(1)).min(out.len().saturating_sub(1));
        match draw.u8(0..7) {
            _ if out.is_empty() => return out,
            0 | 1 => out[at] = draw.u8(..),
            2 | 3 => out[at] ^= 1 << draw.u8(0..8),
            4 => out[at] = draw.choice([0, 1, 127, 128, 255]).unwrap(),
            5 if draw.bool() => out.truncate(at),
            5 => out.insert(at, draw.u8(..)),
            _ => {
                let end = (at + draw.usize(0..9)).min(out.len());
                out.drain(at..end);
            }
        }
    }
    out
}
