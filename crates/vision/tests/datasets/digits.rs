//! The shipped digits, written in every form and read again.

use super::*;
use kiln_data::{DataLoader, Dataset};
use kiln_vision::datasets::{CIFAR10, ImageFolder, MNIST, Pairs};
use kiln_vision::{Image, Mode};

/// The pixels of each digit, 64 between 0 and 255, and its class.
pub fn digits() -> Vec<(Vec<u8>, u8)> {
    let digit = |line: &str| {
        let row: Vec<u8> = line.split(',').map(|n| n.parse().unwrap()).collect();
        let pixels = row[..64].iter().map(|p| (u32::from(*p) * 255 / 16) as u8);
        (pixels.collect(), row[64])
    };
    let table = include_str!("../../../../data/digits.csv");
    table.lines().map(digit).collect()
}

/// A digit as planes of 32x32 for red, green and blue.
fn colours(pixels: &[u8]) -> Vec<u8> {
    let at = |y: usize, x: usize, c: usize| pixels[y / 4 * 8 + x / 4] ^ [0, 0xff, 0x55][c];
    let planes = (0..3 * 32 * 32).map(|i| at(i / 32 % 32, i % 32, i / 1024));
    planes.collect()
}

#[test]
fn as_idx_packed_by_gzip() -> Result<()> {
    let (root, digits) = (tempfile::tempdir().unwrap(), digits());
    for (part, digits) in [("train", &digits[..1500]), ("t10k", &digits[1500..])] {
        let pixels: Vec<u8> = digits.iter().flat_map(|d| d.0.clone()).collect();
        let labels: Vec<u8> = digits.iter().map(|d| d.1).collect();
        let images = gzip(&idx(&[digits.len(), 8, 8], &pixels));
        write_file(
            &root,
            &format!("MNIST/raw/{part}-images-idx3-ubyte.gz"),
            images,
        );
        let labels = gzip(&idx(&[digits.len()], &labels));
        write_file(
            &root,
            &format!("MNIST/raw/{part}-labels-idx1-ubyte.gz"),
            labels,
        );
    }
    let (train, test) = (MNIST::new(&root, true)?, MNIST::new(&root, false)?);
    assert_eq!((train.len(), test.len()), (1500, 297));
    for (i, (pixels, label)) in digits.iter().enumerate() {
        let (set, at) = if i < 1500 {
            (&train, i)
        } else {
            (&test, i - 1500)
        };
        let (image, target) = set.get(at)?;
        assert_eq!((image.bytes(), image.size()), (&pixels[..], (8, 8)));
        assert_eq!(target, i64::from(*label));
    }
    let all = test.data()?;
    assert_eq!(all.shape()?, [297, 8, 8]);
    assert_eq!(all.to_vec::<u8>()?[64..128], digits[1501].0);
    Ok(())
}

#[test]
fn as_binary_batches() -> Result<()> {
    let (root, digits) = (tempfile::tempdir().unwrap(), digits());
    let record = |(pixels, label): &(Vec<u8>, u8)| [vec![*label], colours(pixels)].concat();
    for (n, batch) in digits.chunks(360).enumerate() {
        let records: Vec<u8> = batch.iter().flat_map(record).collect();
        write_file(
            &root,
            &format!("cifar-10-batches-bin/data_batch_{}.bin", n + 1),
            records,
        );
    }
    let names: String = (0..10).map(|digit| format!("{digit}\n")).collect();
    write_file(&root, "cifar-10-batches-bin/batches.meta.txt", names + "\n");
    let set = CIFAR10::new(&root, true)?;
    assert_eq!((set.len(), set.classes().len()), (1797, 10));
    for (i, (pixels, label)) in digits.iter().enumerate() {
        let (image, target) = set.get(i)?;
        assert_eq!((image.mode(), target), (Mode::RGB, i64::from(*label)));
        for (at, pixel) in image.bytes().chunks(3).enumerate() {
            let grey = pixels[at / 32 / 4 * 8 + at % 32 / 4];
            assert_eq!(pixel, [grey, grey ^ 0xff, grey ^ 0x55]);
        }
    }
    Ok(())
}

#[test]
fn as_a_folder_of_pictures() -> Result<()> {
    let (root, digits) = (tempfile::tempdir().unwrap(), digits());
    for (i, (pixels, label)) in digits.iter().enumerate() {
        let image = Image::from_bytes(pixels.clone(), 8, 8, Mode::L)?;
        let folder = root.path().join(label.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        image.save(folder.join(format!("{i:04}.png")))?;
    }
    let set = ImageFolder::new(&root)?;
    assert_eq!(set.classes().len(), 10);
    assert_eq!(set.class_to_idx()["7"], 7);
    let mut sorted: Vec<usize> = (0..digits.len()).collect();
    sorted.sort_by_key(|i| (digits[*i].1, *i));
    // The loader's threads decode.
    let pairs = set.map(|(image, label)| Ok((image.convert(Mode::L).to_tensor()?, label)));
    let pairs = pairs.target_transform(|label| Ok(label as f32));
    let loader = DataLoader::new(pairs).batch_size(100).workers(2).build()?;
    let mut seen = 0;
    for batch in &loader {
        let (images, labels) = batch?;
        let (images, labels) = (images.to_vec::<u8>()?, labels.to_vec::<f32>()?);
        for (image, label) in images.chunks(64).zip(labels) {
            let (pixels, wanted) = &digits[sorted[seen]];
            assert_eq!((image, label), (&pixels[..], f32::from(*wanted)));
            seen += 1;
        }
    }
    assert_eq!(seen, 1797);
    Ok(())
}
