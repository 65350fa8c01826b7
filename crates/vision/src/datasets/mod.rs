//! Data sets of images, under torchvision's names.
//!
//! A set is constructed from a folder of files, `root`, and the split that is wanted; its samples are `(image,
//! target)`. torchvision's `transform` and `target_transform` are methods of every set of pairs ([`Pairs`]):
//!
//! ```no_run
//! use kiln_data::{DataLoader, Dataset};
//! use kiln_vision::datasets::{MNIST, Pairs};
//! use kiln_vision::Image;
//!
//! let digits = MNIST::new("data", true)?; // MNIST("data", train=True)
//! println!("{} of {:?}", digits.len(), digits.classes());
//! let even = digits.target_transform(|label| Ok(label % 2));
//! let loader = DataLoader::new(even.map(|(image, label)| Ok((image.to_tensor()?, label))))
//!     .batch_size(64)
//!     .shuffle(true)
//!     .build()?;
//! # Ok::<(), kiln_tensor::Error>(())
//! ```
//!
//! Kiln downloads nothing. `new` reads the files that are there; where some are missing, the error says which, where
//! their makers offer them, and their checksums. `download` is what `download=True` is in torchvision: it also
//! verifies the checksums of all files first.
//!
//! | set | torchvision | samples |
//! |---|---|---|
//! | [`MNIST`], [`FashionMNIST`], [`KMNIST`], [`EMNIST`] | the same | grey 28x28, digit or letter |
//! | [`CIFAR10`], [`CIFAR100`] | the same; the binary version as well | RGB 32x32, class |
//! | [`SVHN`] | the same | RGB 32x32, digit |
//! | [`STL10`] | the same | RGB 96x96, class, or -1 |
//! | [`SEMEION`] | the same | grey 16x16, digit |
//! | [`Omniglot`] | the same, of unpacked files | grey 105x105, character |
//! | [`ImageFolder`], [`DatasetFolder`] | the same | any file, its folder |
//! | [`CocoDetection`], [`CocoCaptions`] | the same | RGB, annotations or captions |
//! | [`PhotoTour`] | the same | grey 64x64 patches, alone or in pairs |
//! | [`FakeData`] | the same | random RGB, random class |
//! | [`LSUN`] | refused: it is a database of LMDB | |

mod cifar;
mod coco;
mod fake;
mod files;
mod folder;
mod idx;
mod labelled;
mod mat;
mod mnist;
mod omniglot;
mod pairs;
mod phototour;
mod semeion;
mod stl10;
mod svhn;

pub use cifar::{CIFAR10, CIFAR100};
pub use coco::{Annotation, CocoCaptions, CocoDetection, Counts, Segmentation};
pub use fake::FakeData;
pub use folder::{DatasetFolder, FolderOptions, IMG_EXTENSIONS, ImageFolder};
pub use mnist::{EMNIST, EmnistSplit, FashionMNIST, KMNIST, MNIST};
pub use omniglot::Omniglot;
pub use pairs::{Pairs, TargetTransformed, Transformed};
pub use phototour::{PhotoTour, PhotoTourPairs};
pub use semeion::SEMEION;
pub use stl10::{STL10, Stl10Split};
pub use svhn::{SVHN, SvhnSplit};

use crate::fault;
use kiln_tensor::Result;
use std::path::Path;

/// LSUN, which Kiln refuses.
pub struct LSUN;

impl LSUN {
    /// Always an error: the set is a database of LMDB, which Kiln does not read.
    ///
    /// # Errors
    /// Always.
    // There is no value to return.
    #[allow(clippy::new_ret_no_self)]
    #[track_caller]
    pub fn new(root: impl AsRef<Path>, classes: &str) -> Result<()> {
        let message = format!(
            "{}: LSUN's {classes} are a database of LMDB, which Kiln does not read; export the pictures into a folder for each class and take ImageFolder",
            root.as_ref().display()
        );
        Err(fault::unsupported("LSUN", message))
    }
}
