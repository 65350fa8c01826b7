//! Sets of other forms.

use super::*;
use kiln_data::Dataset;
use kiln_vision::datasets::{
    FakeData, LSUN, PhotoTour, SEMEION, STL10, SVHN, Stl10Split, SvhnSplit,
};
use kiln_vision::{Image, Mode};
use std::io::Write;

/// A MATLAB element.
fn element(kind: u32, contents: &[u8]) -> Vec<u8> {
    let mut all = [kind.to_le_bytes(), (contents.len() as u32).to_le_bytes()].concat();
    all.extend(contents);
    all.resize(all.len().next_multiple_of(8), 0);
    all
}

/// An array of numbers that are stored as bytes or floats.
fn array(name: &str, class: u8, kind: u32, shape: &[i32], numbers: &[u8]) -> Vec<u8> {
    let sizes: Vec<u8> = shape.iter().flat_map(|n| n.to_le_bytes()).collect();
    // A short name stands in its tag.
    let mut name_part = (1u32 | (name.len() as u32) << 16).to_le_bytes().to_vec();
    name_part.extend(name.as_bytes());
    name_part.resize(8, 0);
    let parts = [
        element(6, &[class, 0, 0, 0, 0, 0, 0, 0]),
        element(5, &sizes),
        name_part,
        element(kind, numbers),
    ];
    element(14, &parts.concat())
}

/// A MATLAB file, with each array packed or not.
pub fn mat(arrays: &[Vec<u8>], packed: bool) -> Vec<u8> {
    let mut file = b"MATLAB 5.0 MAT-file".to_vec();
    file.resize(124, b' ');
    file.extend([0, 1, b'I', b'M']);
    for array in arrays {
        if !packed {
            file.extend(array);
            continue;
        }
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), Default::default());
        zlib.write_all(array).unwrap();
        let contents = zlib.finish().unwrap();
        file.extend(15u32.to_le_bytes());
        file.extend((contents.len() as u32).to_le_bytes());
        file.extend(contents);
    }
    file
}

/// Three house numbers.
pub fn svhn(packed: bool) -> Vec<u8> {
    let labels: Vec<u8> = [1.0f64, 10.0, 9.0]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let labels = match packed {
        true => array("y", 9, 2, &[3, 1], &[1, 10, 9]),
        false => array("y", 6, 9, &[3, 1], &labels),
    };
    let images = array("X", 9, 2, &[32, 32, 3, 3], &pattern(3 * 3072));
    // Text arrays are skipped.
    let text = array("note", 4, 4, &[1, 2], b"h\0i\0");
    mat(&[text, images, labels], packed)
}

#[test]
fn house_numbers_of_matlab() -> Result<()> {
    for packed in [true, false] {
        let root = tempfile::tempdir().unwrap();
        write_file(&root, "train_32x32.mat", svhn(packed));
        let set = SVHN::new(&root, SvhnSplit::Train)?;
        assert_eq!(set.targets(), [1, 0, 9]);
        let (numbers, (image, _)) = (pattern(3 * 3072), set.get(1)?);
        // The first index is the innermost: rows, columns, colours, pictures.
        for (y, x, c) in [(0, 0, 0), (3, 17, 2), (31, 30, 1)] {
            let wanted = numbers[y + 32 * (x + 32 * (c + 3))];
            assert_eq!(image.pixel(x, y).unwrap()[c], wanted);
        }
        let all = set.data()?;
        assert_eq!(all.shape()?, [3, 3, 32, 32]);
        let planes = all.to_vec::<u8>()?;
        assert_eq!(
            planes[((3 + 2) * 32 + 3) * 32 + 17],
            image.pixel(17, 3).unwrap()[2]
        );
        let error = message(SVHN::download(&root, SvhnSplit::Train));
        assert!(
            error.contains("e26dedcc434d2e4c54c9b2d4a06d8373"),
            "{error}"
        );
        let error = message(SVHN::new(&root, SvhnSplit::Extra));
        assert!(
            error.contains("http://ufldl.stanford.edu/housenumbers/extra_32x32.mat"),
            "{error}"
        );
    }
    Ok(())
}

#[test]
fn stl_has_folds_and_pictures_without_labels() -> Result<()> {
    let root = tempfile::tempdir().unwrap();
    let area = 3 * 96 * 96;
    let pixels = pattern(3 * area);
    write_file(&root, "stl10_binary/train_X.bin", &pixels);
    write_file(&root, "stl10_binary/train_y.bin", [1, 10, 5]);
    write_file(&root, "stl10_binary/unlabeled_X.bin", &pixels[area..]);
    write_file(&root, "stl10_binary/test_X.bin", &pixels[..area]);
    write_file(&root, "stl10_binary/test_y.bin", [2]);
    write_file(&root, "stl10_binary/fold_indices.txt", "0 1 \n2 0 \n");
    let names = "airplane\nbird\ncar\ncat\ndeer\ndog\nhorse\nmonkey\nship\ntruck\n";
    write_file(&root, "stl10_binary/class_names.txt", names);
    let set = STL10::new(&root, Stl10Split::Train(None))?;
    assert_eq!(
        (set.targets(), &set.classes()[9][..]),
        (&[0i64, 9, 4][..], "truck")
    );
    let (image, _) = set.get(2)?;
    assert_eq!(image.size(), (96, 96));
    for (y, x, c) in [(0, 0, 0), (95, 3, 1), (20, 70, 2)] {
        // Columns one after the other.
        assert_eq!(
            image.pixel(x, y).unwrap()[c],
            pixels[2 * area + (c * 96 + x) * 96 + y]
        );
    }
    let fold = STL10::new(&root, Stl10Split::Train(Some(1)))?;
    assert_eq!(
        (fold.targets(), fold.get(0)?.0 == image),
        (&[4i64, 0][..], true)
    );
    let both = STL10::new(&root, Stl10Split::TrainUnlabeled(Some(0)))?;
    assert_eq!(both.targets(), [0, 9, -1, -1]);
    assert!(both.get(3)?.0 == image);
    assert_eq!(
        STL10::new(&root, Stl10Split::Unlabeled)?.targets(),
        [-1, -1]
    );
    assert_eq!(STL10::new(&root, Stl10Split::Test)?.targets(), [1]);
    assert!(message(STL10::new(&root, Stl10Split::Train(Some(2)))).contains("no fold 2"));
    write_file(&root, "stl10_binary/fold_indices.txt", "0 3");
    assert!(
        message(STL10::new(&root, Stl10Split::Train(Some(0)))).contains("\"3\" is not a picture")
    );
    write_file(&root, "stl10_binary/test_y.bin", [0]);
    assert!(message(STL10::new(&root, Stl10Split::Test)).contains("which begin with 1"));
    Ok(())
}

#[test]
fn semeion_is_a_table() -> Result<()> {
    let root = tempfile::tempdir().unwrap();
    let line = |digit: usize| {
        let pixels = (0..256).map(|i| {
            if i % (digit + 2) == 0 {
                "1.0000 "
            } else {
                "0.0000 "
            }
        });
        let marks = (0..10).map(|i| if i == digit { "1 " } else { "0 " });
        pixels.chain(marks).collect::<String>()
    };
    write_file(&root, "semeion.data", format!("{}\n{}\n", line(7), line(0)));
    let set = SEMEION::new(&root)?;
    assert_eq!(set.targets(), [7, 0]);
    let (image, _) = set.get(0)?;
    let wanted: Vec<u8> = (0..256).map(|i| if i % 9 == 0 { 255 } else { 0 }).collect();
    assert_eq!((image.size(), image.bytes()), ((16, 16), &wanted[..]));
    for (wrong, wanted) in [
        (
            line(3).replacen("1.0000", "2", 1),
            "\"2\" is not a number between 0 and 1",
        ),
        (line(3).replacen("1.0000 ", "", 1), "265 numbers"),
        (line(3).replacen("0 1 0", "1 1 0", 1), "line 1"),
        (line(10), "0 digits are marked"),
    ] {
        write_file(&root, "semeion.data", wrong);
        let error = message(SEMEION::new(&root));
        assert!(error.contains(wanted), "{error}");
    }
    assert!(message(SEMEION::download(&root)).contains("cb545d371d2ce14ec121470795a77432"));
    Ok(())
}

#[test]
fn patches_come_alone_and_in_pairs() -> Result<()> {
    let root = tempfile::tempdir().unwrap();
    assert!(message(PhotoTour::new(&root, "liberty")).contains("fdd9152f138ea5ef2091746689176414"));
    assert!(message(PhotoTour::new(&root, "london")).contains("is not one of notredame_harris"));
    write_file(&root, "liberty/info.txt", "5 0\n5 0\n8 0\n");
    write_file(
        &root,
        "liberty/m50_100000_100000_0.txt",
        "0 5 0 1 5 0 0\n2 8 0 0 5 0 0\n",
    );
    // Two files of 2 and 2 patches, of which the last is not used.
    for (name, sizes) in [
        ("patches0000.bmp", (128, 64)),
        ("patches0001.bmp", (64, 128)),
    ] {
        let (w, h) = sizes;
        let seed = name.as_bytes()[10];
        let pixels: Vec<u8> = (0..w * h).map(|i| (i % 255) as u8 ^ seed).collect();
        Image::from_bytes(pixels, w, h, Mode::L)?.save(root.path().join("liberty").join(name))?;
    }
    let set = PhotoTour::new(&root, "liberty")?;
    assert_eq!(
        (set.len(), set.labels(), set.mean()),
        (3, &[5i64, 5, 8][..], 0.4437)
    );
    let patch = set.get(1)?;
    for (x, y) in [(0, 0), (63, 5)] {
        assert_eq!(
            patch.pixel(x, y).unwrap(),
            [((y * 128 + 64 + x) % 255) as u8 ^ b'0']
        );
    }
    let (first, third) = (set.get(0)?, set.get(2)?);
    let pairs = set.pairs();
    assert_eq!(pairs.len(), 2);
    assert_eq!(pairs.get(0)?, (first.clone(), patch, 1));
    assert_eq!(pairs.get(1)?, (third, first, 0));
    write_file(&root, "liberty/m50_100000_100000_0.txt", "0 5 0 3 5 0 0\n");
    assert!(message(PhotoTour::new(&root, "liberty")).contains("no pair 0 and 3 of 3"));
    Ok(())
}

#[test]
fn noise_is_always_the_same() -> Result<()> {
    let set = FakeData::new()
        .size(20usize)
        .image_size([3, 5, 7])
        .num_classes(4usize);
    assert_eq!(set.len(), 20);
    let (image, label) = set.get(3)?;
    assert_eq!((image.size(), (0..4).contains(&label)), ((7, 5), true));
    assert_eq!(set.get(3)?, (image.clone(), label));
    assert_ne!(set.get(4)?.0, image);
    let shifted = set.clone().random_offset(1u64);
    assert_eq!(shifted.get(2)?, (image, label));
    assert!(message(set.get(20)).contains("no sample 20 of 20"));
    assert!(message(set.image_size([5, 1, 1]).get(0)).contains("[5, 1, 1]"));
    Ok(())
}

#[test]
fn a_database_is_refused_by_name() {
    let error = message(LSUN::new("data/lsun", "bedroom_train"));
    assert!(
        error.contains("LSUN's bedroom_train") && error.contains("ImageFolder"),
        "{error}"
    );
}
