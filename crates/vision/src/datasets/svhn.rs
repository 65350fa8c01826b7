//! Street View House Numbers (Netzer et al., 2011).

use super::files::{self, Files, Named, Origin};
use super::labelled::{Labelled, Layout, labelled};
use super::mat::{self, Array, Numbers};
use crate::fault::{invalid, io};
use kiln_tensor::Result;
use kiln_tensor::memory::Budget;
use std::path::Path;

/// Street View House Numbers, the digits cut out: RGB of 32x32.
pub struct SVHN(Labelled);

labelled!(SVHN);

/// The part of an [`SVHN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SvhnSplit {
    /// 73,257 digits to train with.
    Train,
    /// 26,032 digits to test with.
    Test,
    /// 531,131 that are easier, to train with.
    Extra,
}

impl SvhnSplit {
    fn file(self) -> Named {
        match self {
            SvhnSplit::Train => ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
            SvhnSplit::Test => ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
            SvhnSplit::Extra => ("extra_32x32.mat", "a93ce644f1a588dc4d68dda5feec44a7"),
        }
    }
}

impl SVHN {
    /// A part, from its MATLAB file in `root`. The label of the digit 0, which is 10 there, is 0.
    ///
    /// # Errors
    /// If the file is missing (the message says where to get it) or damaged.
    #[track_caller]
    pub fn new(root: impl AsRef<Path>, split: SvhnSplit) -> Result<SVHN> {
        load(root.as_ref(), split, false)
    }

    /// The same, with the checksum of the file verified first: torchvision's `download=True`.
    ///
    /// # Errors
    /// As `new`, and if the file has another checksum.
    #[track_caller]
    pub fn download(root: impl AsRef<Path>, split: SvhnSplit) -> Result<SVHN> {
        load(root.as_ref(), split, true)
    }
}

#[track_caller]
fn load(root: &Path, split: SvhnSplit, verify: bool) -> Result<SVHN> {
    let file = split.file();
    let files = Files {
        set: "SVHN",
        root,
        folder: root.to_path_buf(),
        files: &[file],
        origin: Origin::Each("http://ufldl.stanford.edu/housenumbers/"),
    };
    files.check(verify)?;
    let path = root.join(file.0);
    let mut budget = Budget::new();
    let mut arrays = mat::read("SVHN", &path, &mut budget)?;
    let mut array = |name: &str| {
        let missing = || {
            invalid(
                "SVHN",
                format!("{}: there is no array {name}", path.display()),
            )
        };
        arrays.remove(name).ok_or_else(missing)
    };
    let (images, labels) = (array("X")?, array("y")?);
    // Column-major: the first dim is the innermost.
    let pixels = match images {
        Array {
            shape,
            numbers: Numbers::Bytes(pixels),
        } if shape.starts_with(&[32, 32, 3]) && shape.len() <= 4 => pixels,
        Array { shape, .. } => {
            let message = format!("{}: images of the sizes {shape:?}", path.display());
            return Err(invalid("SVHN", message));
        }
    };
    let targets = match labels.numbers {
        Numbers::Bytes(all) => files::labels(&all, &mut budget),
        Numbers::Floats(floats) => budget
            .reserve(floats.len(), "the labels")
            .map(|mut targets| {
                let to_integer = |x: f64| if x.fract() == 0.0 { x as i64 } else { -1 };
                targets.extend(floats.into_iter().map(to_integer));
                targets
            }),
    };
    let mut targets: Vec<i64> = targets.map_err(|e| io("SVHN", &path, e))?;
    targets
        .iter_mut()
        .filter(|t| **t == 10)
        .for_each(|t| *t = 0);
    let set = Labelled {
        set: "SVHN",
        pixels,
        layout: Layout::ColumnMajor,
        shape: [3, 32, 32],
        targets,
        classes: (0..10).map(|digit| digit.to_string()).collect(),
    };
    set.check().map(SVHN)
}
