//! Tests of images and transforms.

mod chance;
mod damage;
mod errors;
mod files;
mod goldens;
mod loading;
mod ops;
mod resampling;
mod tensors;

use kiln_vision::{Image, Mode};

/// The image of `goldens.py`: bytes of a linear congruential generator, less wild towards the right.
fn noise(width: usize, height: usize, mode: Mode, seed: u64) -> Image {
    let mut state = seed;
    let mut bytes = Vec::new();
    for y in 0..height {
        for x in 0..width {
            for c in 0..mode.channels() {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let byte = (state >> 56) as usize;
                let calm = byte % 64 + x * 3 + y * 2 + c * 20;
                bytes.push(if x * 2 < width { byte } else { calm } as u8);
            }
        }
    }
    Image::from_bytes(bytes, width, height, mode).unwrap()
}

fn image_of(mode: Mode, width: usize, height: usize) -> Image {
    noise(width, height, mode, 1234 + mode.channels() as u64)
}

fn image(mode: Mode) -> Image {
    image_of(mode, 23, 19)
}

fn mode(name: &str) -> Mode {
    let all = [Mode::L, Mode::LA, Mode::RGB, Mode::RGBA];
    *all.iter().find(|m| m.to_string() == name).unwrap()
}
