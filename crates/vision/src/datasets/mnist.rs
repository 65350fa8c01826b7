//! MNIST and data sets in its format.

use super::files::{self, Files, Named, Origin};
use super::idx;
use super::labelled::{Labelled, Layout, labelled};
use crate::fault::{invalid, io};
use kiln_tensor::Result;
use kiln_tensor::memory::Budget;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// A data set of four files, as MNIST is: their address, their checksums and the classes.
struct MnistLike {
    set: &'static str,
    address: &'static str,
    /// MD5s: training images and labels, test images and labels.
    md5: [&'static str; 4],
    classes: [&'static str; 10],
}

const DIGITS: [&str; 10] = [
    "0 - zero",
    "1 - one",
    "2 - two",
    "3 - three",
    "4 - four",
    "5 - five",
    "6 - six",
    "7 - seven",
    "8 - eight",
    "9 - nine",
];

const NAMES: [&str; 4] = [
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
];

impl MnistLike {
    #[track_caller]
    fn load(&self, root: &Path, train: bool, verify: bool) -> Result<Labelled> {
        let files: [Named; 4] = std::array::from_fn(|i| (NAMES[i], self.md5[i]));
        let part = if train { 0..2 } else { 2..4 };
        let files = Files {
            set: self.set,
            root,
            folder: root.join(self.set).join("raw"),
            // As in torchvision, a download takes both parts.
            files: if verify { &files } else { &files[part.clone()] },
            origin: Origin::Each(self.address),
        };
        files.check(verify)?;
        let classes = self.classes.map(String::from).to_vec();
        load(&files, [NAMES[part.start], NAMES[part.start + 1]], classes)
    }
}

/// Reads images and labels.
#[track_caller]
fn load(files: &Files, [images, labels]: [&str; 2], classes: Vec<String>) -> Result<Labelled> {
    let path = |name| {
        let missing = || invalid(files.set, format!("the file {name} is missing"));
        files.path(name).ok_or_else(missing)
    };
    let (set, images, labels) = (files.set, path(images)?, path(labels)?);
    let mut budget = Budget::new();
    let (shape, pixels) = idx::read(set, &images, &mut budget, |shape: [usize; 3]| {
        match shape[1].checked_mul(shape[2]) {
            Some(1..) => Ok(()),
            _ => Err(format!("images of the shape {shape:?} have no pixels")),
        }
    })?;
    let (_, bytes) = idx::read(set, &labels, &mut budget, |[count]| {
        match count == shape[0] {
            true => Ok(()),
            false => Err(format!("{} images for {count} labels", shape[0])),
        }
    })?;
    let targets = files::labels(&bytes, &mut budget).map_err(|e| io(set, &labels, e))?;
    let set = Labelled {
        set,
        pixels,
        layout: Layout::RowMajor,
        shape: [1, shape[1], shape[2]],
        targets,
        classes,
    };
    set.check()
}

macro_rules! sets {
    ($($(#[$doc:meta])* $set:ident: $address:literal, $md5:expr, $classes:expr;)*) => {$(
        $(#[$doc])*
        pub struct $set(Labelled);

        impl $set {
            const DESCRIPTION: MnistLike = MnistLike {
                set: stringify!($set),
                address: $address,
                md5: $md5,
                classes: $classes,
            };

            #[doc = concat!("The training or the test part, from the files in `root/", stringify!($set), "/raw`, compressed by gzip or not.")]
            ///
            /// # Errors
            /// If files are missing (the message says where to get them) or damaged.
            #[track_caller]
            pub fn new(root: impl AsRef<Path>, train: bool) -> Result<$set> {
                Self::DESCRIPTION.load(root.as_ref(), train, false).map($set)
            }

            /// The same, with the checksums of all compressed files verified first: torchvision's `download=True`.
            ///
            /// # Errors
            /// As `new`, and if a file has another checksum.
            #[track_caller]
            pub fn download(root: impl AsRef<Path>, train: bool) -> Result<$set> {
                Self::DESCRIPTION.load(root.as_ref(), train, true).map($set)
            }
        }

        labelled!($set);
    )*};
}

sets! {
    /// MNIST (LeCun et al., 1998): 60,000 handwritten digits to train with and 10,000 to test with.
    MNIST: "https://ossci-datasets.s3.amazonaws.com/mnist/", [
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ], DIGITS;
    /// FashionMNIST (Xiao et al., 2017): 60,000 training and 10,000 test pictures of clothes.
    FashionMNIST: "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", [
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ], [
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ];
    /// KMNIST (Clanuwat et al., 2018): 60,000 training and 10,000 test pictures of handwritten Japanese characters.
    KMNIST: "http://codh.rois.ac.jp/kmnist/dataset/kmnist/", [
        "bdb82020997e1d708af4cf47b453dcf7",
        "e144d726b3acfaa3e44228e80efcd344",
        "5c965bf0a639b31b8f53240b1b52f4d7",
        "7320c461ea6c1c855c0b718fb2a4b134",
    ], ["o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"];
}

/// EMNIST (Cohen et al., 2017): handwritten letters and digits. The pictures are transposed, as in the files and in
/// torchvision.
pub struct EMNIST(Labelled);

labelled!(EMNIST);

/// The classes of an [`EMNIST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EmnistSplit {
    /// Digits, upper and lower case letters: 62 classes.
    ByClass,
    /// The same, with letters that look alike in both cases as one: 47 classes.
    ByMerge,
    /// The same, with equally many samples of each class.
    Balanced,
    /// Letters without case, from 1; 0 is not a letter.
    Letters,
    /// Digits.
    Digits,
    /// Digits, with the sample counts of MNIST.
    Mnist,
}

impl EmnistSplit {
    const ALL: [(EmnistSplit, &'static str, [Named; 4]); 6] = {
        use EmnistSplit::*;
        macro_rules! named {
            ($name:literal) => {
                [
                    (concat!("emnist-", $name, "-train-images-idx3-ubyte.gz"), ""),
                    (concat!("emnist-", $name, "-train-labels-idx1-ubyte.gz"), ""),
                    (concat!("emnist-", $name, "-test-images-idx3-ubyte.gz"), ""),
                    (concat!("emnist-", $name, "-test-labels-idx1-ubyte.gz"), ""),
                ]
            };
        }
        [
            (ByClass, "byclass", named!("byclass")),
            (ByMerge, "bymerge", named!("bymerge")),
            (Balanced, "balanced", named!("balanced")),
            (Letters, "letters", named!("letters")),
            (Digits, "digits", named!("digits")),
            (Mnist, "mnist", named!("mnist")),
        ]
    };

    fn row(self) -> &'static (EmnistSplit, &'static str, [Named; 4]) {
        // `ALL` is in the order of the variants.
        &Self::ALL[self as usize]
    }

    fn classes(self) -> Vec<String> {
        let merged = "cijklmopsuvwxyz";
        let text = |c: char| c.to_string();
        let (digits, upper, lower) = ('0'..='9', 'A'..='Z', 'a'..='z');
        match self {
            EmnistSplit::ByClass => digits.chain(upper).chain(lower).map(text).collect(),
            EmnistSplit::ByMerge | EmnistSplit::Balanced => {
                let lower = lower.filter(|c| !merged.contains(*c));
                digits.chain(upper).chain(lower).map(text).collect()
            }
            EmnistSplit::Letters => {
                let none = std::iter::once("N/A".to_string());
                none.chain(lower.map(text)).collect()
            }
            EmnistSplit::Digits | EmnistSplit::Mnist => digits.map(text).collect(),
        }
    }
}

impl fmt::Display for EmnistSplit {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.row().1)
    }
}

impl FromStr for EmnistSplit {
    type Err = kiln_tensor::Error;
    #[track_caller]
    fn from_str(name: &str) -> Result<EmnistSplit> {
        let split = Self::ALL.iter().find(|row| row.1 == name);
        split.map(|row| row.0).ok_or_else(|| {
            let names = Self::ALL.map(|row| row.1).join(", ");
            invalid(
                "EMNIST",
                format!("the split {name:?} is not one of {names}"),
            )
        })
    }
}

impl EMNIST {
    /// A part of a split, from the files in `root/EMNIST/raw`, where the contents of the archive's folder `gzip`
    /// belong, compressed or not.
    ///
    /// # Errors
    /// If files are missing (the message says where to get them) or damaged.
    #[track_caller]
    pub fn new(root: impl AsRef<Path>, split: EmnistSplit, train: bool) -> Result<EMNIST> {
        let (root, (_, _, names)) = (root.as_ref(), split.row());
        let names = if train { &names[..2] } else { &names[2..] };
        let files = Files {
            set: "EMNIST",
            root,
            folder: root.join("EMNIST").join("raw"),
            files: names,
            origin: Origin::Archive(ARCHIVE_ADDRESS, ARCHIVE_MD5),
        };
        files.check(false)?;
        load(&files, [names[0].0, names[1].0], split.classes()).map(EMNIST)
    }

    /// The same, with the checksum of the archive verified first if it is there: torchvision's `download=True`.
    ///
    /// # Errors
    /// As `new`, and if the archive has another checksum.
    #[track_caller]
    pub fn download(root: impl AsRef<Path>, split: EmnistSplit, train: bool) -> Result<EMNIST> {
        let archive = root.as_ref().join("EMNIST").join("raw").join("gzip.zip");
        files::check_archive("EMNIST", &archive, ARCHIVE_MD5, ARCHIVE_ADDRESS)?;
        EMNIST::new(root, split, train)
    }
}

const ARCHIVE_ADDRESS: &str = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip";
const ARCHIVE_MD5: &str = "58c8d27c78d21e728a6bc7b3cc06412e";
