//! MNIST and related sets.

use super::*;
use kiln_data::Dataset;
use kiln_vision::Mode;
use kiln_vision::datasets::{EMNIST, EmnistSplit, FashionMNIST, KMNIST, MNIST};

/// Writes the parts of a set of a few pictures of 3x5.
fn write(root: &TempDir, set: &str, names: [&str; 2], packed: bool, labels: &[u8]) -> Vec<u8> {
    let pixels = pattern(labels.len() * 15);
    let files = [
        idx(&[labels.len(), 3, 5], &pixels),
        idx(&[labels.len()], labels),
    ];
    for (name, file) in names.iter().zip(files) {
        match packed {
            true => write_file(root, &format!("{set}/raw/{name}.gz"), gzip(&file)),
            false => write_file(root, &format!("{set}/raw/{name}"), file),
        }
    }
    pixels
}

#[test]
fn files_are_read_packed_and_unpacked() -> Result<()> {
    let root = tempfile::tempdir().unwrap();
    let names = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"];
    for set in ["MNIST", "FashionMNIST", "KMNIST"] {
        for packed in [true, false] {
            let _ = std::fs::remove_dir_all(root.path().join(set));
            let pixels = write(&root, set, names, packed, &[9, 0, 3]);
            let (image, label, classes) = match set {
                "MNIST" => first(&MNIST::new(&root, true)?, MNIST::classes)?,
                "FashionMNIST" => first(&FashionMNIST::new(&root, true)?, FashionMNIST::classes)?,
                _ => first(&KMNIST::new(&root, true)?, KMNIST::classes)?,
            };
            assert_eq!((image.size(), image.mode(), label), ((5, 3), Mode::L, 9));
            assert_eq!(image.bytes(), &pixels[..15]);
            assert_eq!(classes.len(), 10);
        }
    }
    let error = message(MNIST::new(&root, false));
    let wanted = "t10k-images-idx3-ubyte.gz from https://ossci-datasets.s3.amazonaws.com/mnist/t10k-images-idx3-ubyte.gz (MD5 9fb629c4189551a2d022fa330f9573f3)";
    assert!(
        error.contains(wanted) && !error.contains("train-"),
        "{error}"
    );
    Ok(())
}

fn first<D: Dataset<Item = (kiln_vision::Image, i64)>>(
    set: &D,
    classes: fn(&D) -> &[String],
) -> Result<(kiln_vision::Image, i64, Vec<String>)> {
    let (image, label) = set.get(0)?;
    assert_eq!(set.len(), 3);
    assert!(message(set.get(3)).contains("the index 3 is out of range for 3 samples"));
    Ok((image, label, classes(set).to_vec()))
}

#[test]
fn splits_of_letters_have_their_classes() -> Result<()> {
    let root = tempfile::tempdir().unwrap();
    let names = [
        "emnist-letters-test-images-idx3-ubyte",
        "emnist-letters-test-labels-idx1-ubyte",
    ];
    write(&root, "EMNIST", names, true, &[1, 26]);
    let set = EMNIST::new(&root, "letters".parse()?, false)?;
    assert_eq!(set.targets(), [1, 26]);
    assert_eq!(
        (&set.classes()[0][..], &set.classes()[26][..]),
        ("N/A", "z")
    );
    for (split, count, last) in [
        (EmnistSplit::ByClass, 62, "z"),
        (EmnistSplit::ByMerge, 47, "t"),
        (EmnistSplit::Balanced, 47, "t"),
        (EmnistSplit::Letters, 27, "z"),
        (EmnistSplit::Digits, 10, "9"),
        (EmnistSplit::Mnist, 10, "9"),
    ] {
        let name = split.to_string();
        assert_eq!(name.parse::<EmnistSplit>()?, split);
        let names = ["images-idx3-ubyte", "labels-idx1-ubyte"];
        let names = names.map(|end| format!("emnist-{name}-train-{end}"));
        write(&root, "EMNIST", [&names[0], &names[1]], true, &[0]);
        let set = EMNIST::new(&root, split, true)?;
        assert_eq!(set.classes().len(), count);
        assert_eq!(set.classes().last().unwrap(), last);
    }
    assert!(message("upper".parse::<EmnistSplit>()).contains("is not one of byclass, bymerge"));
    let error = message(EMNIST::new(&root, EmnistSplit::ByClass, false));
    assert!(
        error.contains("58c8d27c78d21e728a6bc7b3cc06412e"),
        "{error}"
    );
    Ok(())
}

#[test]
fn checksums_are_verified_where_asked() {
    let root = tempfile::tempdir().unwrap();
    let names = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"];
    write(&root, "MNIST", names, true, &[1]);
    let error = message(MNIST::download(&root, true));
    let (missing, damaged) = error.split_once("damaged").unwrap();
    assert!(
        missing.contains("t10k-labels-idx1-ubyte.gz from https"),
        "{error}"
    );
    assert!(
        damaged.contains("f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        "{error}"
    );
    assert!(
        damaged.contains("d53e105ee54ea40749a09fcbcd1e9432"),
        "{error}"
    );
}
