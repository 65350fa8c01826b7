//! CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), in the version for Python, pickles, and in the binary one.

use super::files::{Files, Named, Origin, read, read_text};
use super::labelled::{Labelled, Layout, labelled};
use crate::fault::invalid;
use kiln_formats::{Value, read_pickle};
use kiln_tensor::{DType, Result};
use std::path::Path;

/// The bytes of a picture: a plane of 32x32 for each of red, green and blue.
const AREA: usize = 3 * 32 * 32;

/// One of the two data sets.
struct Cifar {
    set: &'static str,
    /// Folder, address and MD5 of the archive; training files, test file and file of class names.
    python: (
        &'static str,
        &'static str,
        &'static str,
        &'static [Named],
        Named,
        Named,
    ),
    /// The keys of the labels and of the class names in the pickles.
    keys: (&'static str, &'static str),
    /// Folder and file of class names. The other files have the names of `python` with the suffix `.bin`.
    binary: (&'static str, &'static str),
    /// The number of label bytes before a picture, of which the last is its label.
    labels: usize,
}

const TEN: Cifar = Cifar {
    set: "CIFAR10",
    python: (
        "cifar-10-batches-py",
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        &[
            ("data_batch_1", "c99cafc152244af753f735de768cd75f"),
            ("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
            ("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
            ("data_batch_4", "634d18415352ddfa80567beed471001a"),
            ("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
        ],
        ("test_batch", "40351d587109b95175f43aff81a1287e"),
        ("batches.meta", "5ff9c542aee3614f3951f8cda6e48888"),
    ),
    keys: ("labels", "label_names"),
    binary: ("cifar-10-batches-bin", "batches.meta.txt"),
    labels: 1,
};

const HUNDRED: Cifar = Cifar {
    set: "CIFAR100",
    python: (
        "cifar-100-python",
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        &[("train", "16019d7e3df5f24257cddd939b257f8d")],
        ("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),
        ("meta", "7973b15100ade9c7d40fb424638fde48"),
    ),
    keys: ("fine_labels", "fine_label_names"),
    binary: ("cifar-100-binary", "fine_label_names.txt"),
    // The coarse one comes first.
    labels: 2,
};

impl Cifar {
    #[track_caller]
    fn load(&self, root: &Path, train: bool, verify: bool) -> Result<Labelled> {
        let (folder, address, md5, batches, test, meta) = self.python;
        let binary = root.join(self.binary.0);
        if !root.join(folder).is_dir() && binary.is_dir() {
            return self.load_binary(&binary, train);
        }
        let mut names = match (train, verify) {
            (_, true) => batches.iter().copied().chain([test]).collect(),
            (true, false) => batches.to_vec(),
            (false, false) => vec![test],
        };
        names.push(meta);
        let files = Files {
            set: self.set,
            root,
            folder: root.join(folder),
            files: &names,
            origin: Origin::Archive(address, md5),
        };
        files.check(verify)?;
        let (mut pixels, mut targets) = (Vec::new(), Vec::new());
        let test = [test];
        for (name, _) in if train { batches } else { &test[..] } {
            let path = files.folder.join(name);
            let batch = self.batch(&read_pickle(&path)?);
            let (images, labels) = batch.map_err(|e| e.with_note(path.display().to_string()))?;
            pixels.extend(images);
            targets.extend(labels);
        }
        let names = read_pickle(files.folder.join(meta.0))?;
        let names = names.get(self.keys.1)?.list()?;
        let classes = names.iter().map(|name| Ok(name.str()?.to_string()));
        self.set_of(pixels, targets, classes.collect::<Result<_>>()?)
    }

    /// The pixels and the labels of a pickle.
    #[track_caller]
    fn batch(&self, batch: &Value) -> Result<(Vec<u8>, Vec<i64>)> {
        let data = batch.get("data")?.tensor()?;
        let shape = data.shape()?;
        let labels = batch.get(self.keys.0)?.list()?;
        if data.dtype() != DType::U8 || shape != [labels.len(), AREA] {
            let message = format!(
                "the data of {} labels is {}{shape:?} and not u8[{}, {AREA}]",
                labels.len(),
                data.dtype(),
                labels.len()
            );
            return Err(invalid(self.set, message));
        }
        let labels: Result<Vec<i64>> = labels.iter().map(Value::int).collect();
        Ok((data.to_vec::<u8>()?, labels?))
    }

    #[track_caller]
    fn load_binary(&self, folder: &Path, train: bool) -> Result<Labelled> {
        let (_, _, _, batches, test, _) = self.python;
        let record = self.labels + AREA;
        let (mut pixels, mut targets, test) = (Vec::new(), Vec::new(), [test]);
        for (name, _) in if train { batches } else { &test[..] } {
            let path = folder.join(format!("{name}.bin"));
            let bytes = read(self.set, &path)?;
            if bytes.is_empty() || bytes.len() % record != 0 {
                let (path, len) = (path.display(), bytes.len());
                let message = format!("{path}: {len} bytes are not records of {record}");
                return Err(invalid(self.set, message));
            }
            for record in bytes.chunks_exact(record) {
                let (labels, picture) = record.split_at(self.labels);
                targets.push(i64::from(labels[self.labels - 1]));
                pixels.extend_from_slice(picture);
            }
        }
        let names = read_text(self.set, &folder.join(self.binary.1))?;
        let names = names.lines().map(str::trim).filter(|name| !name.is_empty());
        self.set_of(pixels, targets, names.map(String::from).collect())
    }

    #[track_caller]
    fn set_of(&self, pixels: Vec<u8>, targets: Vec<i64>, classes: Vec<String>) -> Result<Labelled> {
        let set = Labelled {
            set: self.set,
            pixels,
            layout: Layout::RowMajor,
            shape: [3, 32, 32],
            targets,
            classes,
        };
        set.check()
    }
}

macro_rules! sets {
    ($($(#[$doc:meta])* $set:ident = $cifar:ident, $python:literal, $binary:literal;)*) => {$(
        $(#[$doc])*
        pub struct $set(Labelled);

        impl $set {
            #[doc = concat!("The part to train with or the one to test with, from the pickles in `root/", $python, "`, or from the binary version in `root/", $binary, "` if only that is there. The pickles are read without running anything.")]
            ///
            /// # Errors
            /// If files are missing (the message says where to get them) or damaged.
            #[track_caller]
            pub fn new(root: impl AsRef<Path>, train: bool) -> Result<$set> {
                $cifar.load(root.as_ref(), train, false).map($set)
            }

            /// The same, with the checksums of all pickles verified first: torchvision's `download=True`.
            ///
            /// # Errors
            /// As `new`, and if a file has another checksum.
            #[track_caller]
            pub fn download(root: impl AsRef<Path>, train: bool) -> Result<$set> {
                $cifar.load(root.as_ref(), train, true).map($set)
            }
        }

        labelled!($set);
    )*};
}

sets! {
    /// CIFAR-10: 50,000 training and 10,000 test pictures of ten classes.
    CIFAR10 = TEN, "cifar-10-batches-py", "cifar-10-batches-bin";
    /// CIFAR-100: 50,000 training and 10,000 test pictures of a hundred classes.
    CIFAR100 = HUNDRED, "cifar-100-python", "cifar-100-binary";
}
