//! Files that Pillow wrote, and those that are written here.

use crate::goldens::distance;
use crate::{image, image_of};
use kiln_vision::{Encoding, Format, Image, Limits, Mode};
use std::path::Path;

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/vision/goldens"))
}

#[test]
fn files_hold_what_pillow_reads_in_them() {
    let pixels = include_bytes!("goldens/files.bin");
    let mut at = 0;
    for line in include_str!("goldens/files.txt").lines() {
        let (name, size) = line["file ".len()..].split_once(" = ").unwrap();
        let size: Vec<usize> = size.split(' ').map(|n| n.parse().unwrap()).collect();
        let expected = &pixels[at..at + size.iter().product::<usize>()];
        at += expected.len();
        let got = Image::open(folder().join(name)).unwrap();
        assert_eq!((got.width(), got.height()), (size[0], size[1]), "{name}");
        let got = got.convert(Mode::of_channels(size[2]).unwrap());
        let (most, count) = distance(got.bytes(), expected);
        // JPEG decoders round their transforms and upsample colours in different ways.
        let slack = if name.ends_with("jpg") { 6 } else { 0 };
        assert!(
            most <= slack,
            "{name}: {count} of {} differ, by {most}",
            expected.len()
        );
    }
    assert_eq!(at, pixels.len());
}

#[test]
fn what_is_saved_is_opened_again() {
    let folder = std::env::temp_dir().join(format!("kiln-vision-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for mode in [Mode::L, Mode::LA, Mode::RGB, Mode::RGBA] {
        let x = image(mode);
        for end in ["png", "bmp", "webp", "gif", "jpg"] {
            let path = folder.join(format!("{mode}.{end}"));
            let saved = x.save(&path);
            if end == "jpg" && mode.has_alpha() {
                let e = saved.unwrap_err().to_string();
                assert!(e.contains("a JPEG holds no alpha"), "{e}");
                continue;
            }
            saved.unwrap();
            let y = Image::open(&path).unwrap();
            assert_eq!(y.size(), x.size());
            match end {
                // Palettes and JPEGs are lossy; see below.
                "gif" | "jpg" => {}
                "png" => assert_eq!(y, x),
                _ => assert_eq!(y.convert(mode), x, "{mode} {end}"),
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_smooth_image_survives_jpeg_and_few_colours_survive_gif() {
    let bytes = (0..60 * 40 * 3).map(|n| (n / 3 % 60 * 3 + n / 180) as u8);
    let smooth = Image::from_bytes(bytes.collect::<Vec<u8>>(), 60, 40, Mode::RGB).unwrap();
    let again = Image::decode(&smooth.encode(Format::Jpeg).unwrap()).unwrap();
    assert!(distance(again.bytes(), smooth.bytes()).0 <= 12);
    let (low, high) = (Encoding::new().quality(20), Encoding::new().quality(97));
    let low = smooth.encode_with(Format::Jpeg, &low).unwrap();
    let high = smooth.encode_with(Format::Jpeg, &high).unwrap();
    assert!(low.len() < high.len());
    assert!(distance(Image::decode(&high).unwrap().bytes(), smooth.bytes()).0 <= 4);
    let none = smooth.encode_with(Format::Jpeg, &Encoding::new().quality(0));
    assert!(none.unwrap_err().to_string().contains("from 1 to 100"));
    let few = kiln_vision::functional::posterize(&image(Mode::RGB), 2).unwrap();
    let again = Image::decode(&few.encode(Format::Gif).unwrap()).unwrap();
    assert_eq!(again, few);
}

#[test]
fn what_is_no_image_is_an_error() {
    let error = |bytes: &[u8]| Image::decode(bytes).unwrap_err().to_string();
    assert!(error(b"").contains("not an image of a known format"));
    assert!(error(b"hello, world").contains("not an image of a known format"));
    let png = image(Mode::RGB).encode(Format::Png).unwrap();
    error(&png[..png.len() / 2]);
    let jpeg = image(Mode::RGB).encode(Format::Jpeg).unwrap();
    error(&jpeg[..jpeg.len() / 3]);
    let missing = Image::open(folder().join("missing.png")).unwrap_err();
    assert!(missing.to_string().contains("missing.png"));
    let e = Image::open(folder().join("cases.txt"))
        .unwrap_err()
        .to_string();
    assert!(e.contains("cases.txt") && e.contains("not an image"), "{e}");
    let e = image(Mode::L).save("picture.tga").unwrap_err().to_string();
    assert!(e.contains("picture.tga"), "{e}");
}

/// A reader of the old file goes on with it.
#[test]
fn a_saved_image_replaces_the_old_file_whole() {
    let folder = std::env::temp_dir().join(format!("kiln-image-save-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (path, old) = (folder.join("x.png"), folder.join("old.png"));
    image(Mode::L).save(&path).unwrap();
    std::fs::hard_link(&path, &old).unwrap();
    image(Mode::RGB).save(&path).unwrap();
    assert_eq!(Image::open(&old).unwrap(), image(Mode::L));
    assert_eq!(Image::open(&path).unwrap(), image(Mode::RGB));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn limits_hold() {
    let x = image_of(Mode::RGB, 300, 200);
    for format in [
        Format::Png,
        Format::Jpeg,
        Format::Bmp,
        Format::Gif,
        Format::WebP,
    ] {
        let bytes = x.encode(format).unwrap();
        let limits = Limits::new().max_pixels(300usize * 200);
        assert_eq!(
            Image::decode_with(&bytes, &limits).unwrap().size(),
            (300, 200)
        );
        let limits = Limits::new().max_pixels(300usize * 200 - 1);
        let e = Image::decode_with(&bytes, &limits).unwrap_err().to_string();
        assert!(e.contains("300") && e.contains("200"), "{format:?}: {e}");
    }
}

/// A header that claims a huge image, with next to nothing after it.
#[test]
fn a_bomb_is_refused() {
    let mut png = image(Mode::L).encode(Format::Png).unwrap();
    png[16..20].copy_from_slice(&60_000u32.to_be_bytes());
    png[20..24].copy_from_slice(&60_000u32.to_be_bytes());
    let crc = crc32(&png[12..29]);
    png[29..33].copy_from_slice(&crc.to_be_bytes());
    let e = Image::decode(&png).unwrap_err().to_string();
    assert!(e.contains("60000"), "{e}");
    // No more pixels than are allowed, and more than the bytes can hold.
    for (format, at) in [(Format::Png, 16), (Format::Bmp, 18), (Format::Gif, 6)] {
        let mut bytes = image(Mode::RGB).encode(format).unwrap();
        let sides = match format {
            Format::Png => [13_000u32.to_be_bytes(); 2].concat(),
            Format::Gif => [13_000u16.to_le_bytes(); 2].concat(),
            _ => [13_000u32.to_le_bytes(); 2].concat(),
        };
        bytes[at..at + sides.len()].copy_from_slice(&sides);
        if format == Format::Png {
            let crc = crc32(&bytes[12..29]);
            bytes[29..33].copy_from_slice(&crc.to_be_bytes());
        }
        let e = Image::decode(&bytes).unwrap_err().to_string();
        let wanted = format!(
            "claims 13000x13000 pixels, more than {} bytes hold",
            bytes.len()
        );
        assert!(e.contains(&wanted), "{e}");
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |mut crc, b| {
        crc ^= u32::from(*b);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & 0u32.wrapping_sub(crc & 1));
        }
        crc
    })
}
