//! CIFAR-10 and CIFAR-100 as pickles and binary.

use super::*;
use kiln_data::Dataset;
use kiln_vision::datasets::{CIFAR10, CIFAR100};

/// Writes pickles as Python 2 does with protocol 2, the form of the published sets.
#[derive(Default)]
pub struct Pickle(Vec<u8>);

impl Pickle {
    pub fn new() -> Pickle {
        Pickle(b"\x80\x02}(".to_vec())
    }

    fn text(&mut self, text: &str) {
        self.0.extend([b'U', text.len() as u8]);
        self.0.extend(text.as_bytes());
    }

    pub fn texts(mut self, key: &str, texts: &[&str]) -> Pickle {
        self.text(key);
        self.0.extend(b"](");
        texts.iter().for_each(|text| self.text(text));
        self.0.push(b'e');
        self
    }

    pub fn numbers(mut self, key: &str, numbers: &[u8]) -> Pickle {
        self.text(key);
        self.0.extend(b"](");
        numbers.iter().for_each(|n| self.0.extend([b'K', *n]));
        self.0.push(b'e');
        self
    }

    /// Appends a NumPy array of bytes.
    pub fn array(mut self, key: &str, shape: [u16; 2], bytes: &[u8]) -> Pickle {
        self.text(key);
        self.0.extend(
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01",
        );
        for size in shape {
            self.0.push(b'M');
            self.0.extend(size.to_le_bytes());
        }
        self.0.extend(b"\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T");
        self.0.extend((bytes.len() as u32).to_le_bytes());
        self.0.extend(bytes);
        self.0.extend(b"tb");
        self
    }

    pub fn end(mut self) -> Vec<u8> {
        self.0.extend(b"u.");
        self.0
    }
}

pub const NAMES: [&str; 10] = [
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
];

/// Two pictures of two classes.
pub fn batch(labels: [u8; 2]) -> Vec<u8> {
    Pickle::new()
        .texts("filenames", &["a.png", "b.png"])
        .numbers("labels", &labels)
        .array("data", [2, 3072], &pattern(2 * 3072))
        .end()
}

pub fn write_ten(root: &TempDir) {
    for n in 1..=5 {
        write_file(
            root,
            &format!("cifar-10-batches-py/data_batch_{n}"),
            batch([n, 9]),
        );
    }
    write_file(root, "cifar-10-batches-py/test_batch", batch([3, 4]));
    let meta = Pickle::new().texts("label_names", &NAMES).end();
    write_file(root, "cifar-10-batches-py/batches.meta", meta);
}

#[test]
fn pickles_of_python_2() -> Result<()> {
    let root = tempfile::tempdir().unwrap();
    write_ten(&root);
    let (train, test) = (CIFAR10::new(&root, true)?, CIFAR10::new(&root, false)?);
    assert_eq!((train.len(), test.targets()), (10, &[3i64, 4][..]));
    assert_eq!(train.targets(), [1, 9, 2, 9, 3, 9, 4, 9, 5, 9]);
    assert_eq!(train.class_to_idx()["truck"], 9);
    let planes = pattern(2 * 3072);
    let (image, _) = train.get(3)?;
    for (at, pixel) in image.bytes().chunks(3).enumerate() {
        let wanted = [0, 1024, 2048].map(|plane| planes[3072 + plane + at]);
        assert_eq!(pixel, wanted);
    }
    let error = message(CIFAR10::download(&root, true));
    assert!(
        error.contains("data_batch_1 (MD5 c99cafc152244af753f735de768cd75f)"),
        "{error}"
    );
    assert!(
        error.contains("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"),
        "{error}"
    );
    Ok(())
}

#[test]
fn a_hundred_classes_have_fine_labels() -> Result<()> {
    let root = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..100).map(|n| format!("class {n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for part in ["train", "test"] {
        let batch = Pickle::new()
            .numbers("coarse_labels", &[1, 2])
            .numbers("fine_labels", &[99, 42])
            .array("data", [2, 3072], &pattern(2 * 3072));
        write_file(&root, &format!("cifar-100-python/{part}"), batch.end());
    }
    let meta = Pickle::new().texts("fine_label_names", &names).end();
    write_file(&root, "cifar-100-python/meta", meta);
    let set = CIFAR100::new(&root, true)?;
    assert_eq!(
        (set.targets(), set.classes().len()),
        (&[99i64, 42][..], 100)
    );
    // The binary version, of the same pictures.
    let other = tempfile::tempdir().unwrap();
    let pixels = pattern(2 * 3072);
    let (one, two) = pixels.split_at(3072);
    let records = [&[1, 99][..], one, &[2, 42], two].concat();
    write_file(&other, "cifar-100-binary/train.bin", records);
    write_file(
        &other,
        "cifar-100-binary/fine_label_names.txt",
        names.join("\n"),
    );
    let binary = CIFAR100::new(&other, true)?;
    assert_eq!(binary.targets(), set.targets());
    assert_eq!(binary.data()?.to_vec::<u8>()?, set.data()?.to_vec::<u8>()?);
    assert_eq!(set.data()?.shape()?, [2, 3, 32, 32]);
    Ok(())
}
