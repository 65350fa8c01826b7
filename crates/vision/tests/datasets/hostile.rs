//! Files that lie, end early or are damaged: they give errors, and take no more memory than they have contents.

use super::*;
use kiln_data::Dataset;
use kiln_vision::datasets::{CIFAR10, CocoDetection, MNIST, STL10, SVHN, Stl10Split, SvhnSplit};

fn mnist(root: &TempDir, images: &[u8], labels: &[u8]) -> Result<MNIST> {
    write_file(root, "MNIST/raw/train-images-idx3-ubyte.gz", images);
    write_file(root, "MNIST/raw/train-labels-idx1-ubyte.gz", labels);
    MNIST::new(root, true)
}

#[test]
fn idx_that_lies_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let (images, labels) = (idx(&[2, 3, 3], &pattern(18)), gzip(&idx(&[2], &[1, 2])));
    let wrong = |file: Vec<u8>| message(mnist(&root, &file, &labels));
    let mut more = images.clone();
    more[7] = 200;
    let truncated = gzip(&images);
    let half = truncated[..truncated.len() / 2].to_vec();
    let float = [&[0, 0, 13, 3][..], &images[4..]].concat();
    for (file, wanted) in [
        (
            gzip(&more),
            "the array takes 1800 bytes, but the file ends after 18",
        ),
        (
            gzip(&idx(&[usize::MAX >> 40, 1 << 30, 1 << 30], &[])),
            "MNIST",
        ),
        (
            gzip(&idx(&[1 << 31, 1 << 31, 4], &[])),
            "more than can be counted",
        ),
        (half, "MNIST"),
        (gzip(&images[..30]), "the array takes 18 bytes"),
        (
            gzip(b"PK\x03\x04 a zip archive"),
            "the magic number [50, 4b, 03, 04]",
        ),
        (gzip(&float), "of type 13 and have 3 dims"),
        (gzip(&idx(&[18], &pattern(18))), "of type 8 and have 1 dims"),
        (gzip(&[&images[..], &[0]].concat()), "there are more than"),
        (
            gzip(&idx(&[3, 3, 3], &pattern(27))),
            "3 images for 2 labels",
        ),
        (
            gzip(&idx(&[0, 0, 0], &[])),
            "images of the shape [0, 0, 0] have no pixels",
        ),
        (Vec::new(), "the magic number takes 4 bytes"),
    ] {
        let error = wrong(file);
        assert!(error.contains(wanted), "{error}");
    }
    let error = message(mnist(&root, &gzip(&images), &gzip(&idx(&[2], &[1, 10]))));
    assert!(
        error.contains("image 1 has the label 10, but there are 10 classes"),
        "{error}"
    );
}

#[test]
fn pickles_that_would_run_code_are_refused() {
    let root = tempfile::tempdir().unwrap();
    for (pickle, wanted) in [
        (&b"\x80\x02cos\nsystem\nU\x04true\x85R."[..], "`os.system`"),
        (b"\x80\x02cnumpy\nload\nU\x01x\x85R.", "`numpy.load`"),
        (
            b"\x80\x02c__builtin__\neval\nU\x01x\x85R.",
            "`__builtin__.eval`",
        ),
        (
            b"\x80\x02cnumpy\ndtype\nU\x01OK\x00K\x01\x87R.",
            "dtype \"O\"",
        ),
        (
            b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
            "_rebuild_tensor_v2",
        ),
        (b"\x80\x02}.", "\"data\""),
    ] {
        super::cifar::write_ten(&root);
        write_file(&root, "cifar-10-batches-py/data_batch_3", pickle);
        let error = message(CIFAR10::new(&root, true));
        assert!(
            error.contains(wanted) && error.contains("data_batch_3"),
            "{error}"
        );
    }
    // One large text, encoded to bytes over and over.
    let mut bomb = b"\x80\x02(X\x00\x00\x10\x00".to_vec();
    bomb.extend(vec![b'a'; 1 << 20]);
    bomb.extend(b"q\x00c_codecs\nencode\nq\x01");
    for _ in 0..10_000 {
        bomb.extend(b"h\x01h\x00U\x06latin1\x86R");
    }
    bomb.extend(b"t.");
    write_file(&root, "cifar-10-batches-py/data_batch_1", bomb);
    let error = message(CIFAR10::new(&root, true));
    assert!(error.contains("far more of its contents"), "{error}");
}

#[test]
fn other_files_of_the_wrong_size_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let mut seven = vec![0; 128];
    seven[124..].copy_from_slice(&[0, 2, b'I', b'M']);
    let short = super::others::svhn(true);
    for (file, wanted) in [
        (&b"no MATLAB"[..], "the header"),
        (&vec![7; 200][..], "no MATLAB file of version 5"),
        (&seven, "version 7.3"),
        (&short[..short.len() - 9], "svhn"),
        (&super::others::mat(&[], true), "no array X"),
    ] {
        write_file(&root, "train_32x32.mat", file);
        let error = message(SVHN::new(&root, SvhnSplit::Train));
        assert!(error.contains(wanted) || wanted == "svhn", "{error}");
    }
    write_file(&root, "cifar-10-batches-bin/test_batch.bin", vec![1; 3072]);
    write_file(&root, "cifar-10-batches-bin/batches.meta.txt", "a\n");
    let error = message(CIFAR10::new(&root, false));
    assert!(
        error.contains("3072 bytes are not records of 3073"),
        "{error}"
    );
    // A fold that names one picture again and again.
    write_file(&root, "stl10_binary/train_X.bin", vec![0; 3 * 96 * 96]);
    write_file(&root, "stl10_binary/train_y.bin", [1]);
    write_file(&root, "stl10_binary/fold_indices.txt", "0 0\n");
    let error = message(STL10::new(&root, Stl10Split::Train(Some(0))));
    assert!(error.contains("the fold 0 has 2 pictures of 1"), "{error}");
    write_file(&root, "stl10_binary/unlabeled_X.bin", [0; 100]);
    let error = message(STL10::new(&root, Stl10Split::Unlabeled));
    assert!(error.contains("100 bytes are not pictures"), "{error}");
}

/// Changes, removes and repeats bytes.
fn damage(file: &[u8], rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut file = file.to_vec();
    for _ in 0..rng.usize(1..4) {
        let at = rng.usize(..file.len());
        match rng.u8(..6) {
            0 => file.truncate(at.max(1)),
            1 => drop(file.remove(at)),
            2 => file.insert(at, rng.u8(..)),
            3 => file[at] ^= 1 << rng.u8(..8),
            4 => file[at] = rng.u8(..),
            _ => file[at] = [0, 0x7f, 0x80, 0xff][rng.usize(..4)],
        }
        if file.is_empty() {
            file.push(0);
        }
    }
    file
}

/// A damaged file is an error or gives whole samples.
#[test]
fn damaged_files_never_panic() {
    let root = tempfile::tempdir().unwrap();
    super::cifar::write_ten(&root);
    write_file(
        &root,
        "MNIST/raw/train-labels-idx1-ubyte.gz",
        gzip(&idx(&[2], &[1, 2])),
    );
    let images = root.path().join("MNIST/raw/train-images-idx3-ubyte.gz");
    let ten = root.path().join("cifar-10-batches-py/test_batch");
    let mut rng = fastrand::Rng::with_seed(7);
    let sources: [(&str, Vec<u8>); 7] = [
        ("idx", idx(&[2, 3, 3], &pattern(18))),
        ("gz", gzip(&idx(&[2, 3, 3], &pattern(18)))),
        ("pickle", super::cifar::batch([1, 2])),
        ("mat", super::others::svhn(true)),
        ("plain mat", super::others::svhn(false)),
        ("json", super::coco::INSTANCES.into()),
        (
            "meta",
            super::cifar::Pickle::new()
                .texts("label_names", &super::cifar::NAMES)
                .end(),
        ),
    ];
    let meta = root.path().join("cifar-10-batches-py/batches.meta");
    let names = std::fs::read(&meta).unwrap();
    let mut errors = 0;
    for round in 0..100 {
        for (form, file) in &sources {
            // Headers are where damage matters.
            let near = file
                .len()
                .min(if round % 2 == 0 { 400 } else { usize::MAX });
            let mut damaged = damage(&file[..near], &mut rng);
            damaged.extend(&file[near..]);
            let read: Result<usize> = match *form {
                "idx" | "gz" => {
                    std::fs::write(&images, damaged).unwrap();
                    MNIST::new(&root, true).and_then(whole)
                }
                "pickle" => {
                    std::fs::write(&ten, damaged).unwrap();
                    CIFAR10::new(&root, false).and_then(whole)
                }
                "meta" => {
                    std::fs::write(&ten, super::cifar::batch([1, 2])).unwrap();
                    std::fs::write(&meta, damaged).unwrap();
                    let read = CIFAR10::new(&root, false).and_then(whole);
                    std::fs::write(&meta, &names).unwrap();
                    read
                }
                "json" => {
                    write_file(&root, "instances.json", damaged);
                    let set = CocoDetection::new(&root, root.path().join("instances.json"));
                    set.map(|set| set.len())
                }
                _ => {
                    write_file(&root, "test_32x32.mat", damaged);
                    SVHN::new(&root, SvhnSplit::Test).and_then(whole)
                }
            };
            errors += usize::from(read.is_err());
        }
    }
    assert!(errors > 200, "{errors} errors");
}

/// Reads all samples.
fn whole(set: impl Dataset<Item = (kiln_vision::Image, i64)>) -> Result<usize> {
    for i in 0..set.len() {
        set.get(i)?;
    }
    Ok(set.len())
}
