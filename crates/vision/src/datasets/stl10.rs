//! STL-10 (Coates et al., 2011).

use super::files::{Files, Named, Origin, read, read_text};
use super::labelled::{Labelled, Layout, labelled};
use crate::fault::invalid;
use kiln_tensor::Result;
use std::path::Path;

/// STL-10: RGB images of 96x96 pixels, a few with labels and many without.
pub struct STL10(Labelled);

labelled!(STL10);

/// The part of an [`STL10`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stl10Split {
    /// 5,000 pictures to train with, or one fold of these, of ten: 1,000.
    Train(Option<usize>),
    /// 100,000 pictures without labels: theirs are -1.
    Unlabeled,
    /// Both.
    TrainUnlabeled(Option<usize>),
    /// 8,000 pictures to test with.
    Test,
}

const AREA: usize = 3 * 96 * 96;

const FILES: [Named; 5] = [
    ("train_X.bin", "918c2871b30a85fa023e0c44e0bee87f"),
    ("train_y.bin", "5a34089d4802c674881badbb80307741"),
    ("unlabeled_X.bin", "5242ba1fed5e4be9e1e742405eb56ca4"),
    ("test_X.bin", "7f263ba9f9e0b06b93213547f721ac82"),
    ("test_y.bin", "36f9794fa4beb8a2c72628de14fa638e"),
];

impl STL10 {
    /// A part, from the files in `root/stl10_binary`.
    ///
    /// # Errors
    /// If files are missing (the message says where to get them) or damaged, or there is no such fold.
    #[track_caller]
    pub fn new(root: impl AsRef<Path>, split: Stl10Split) -> Result<STL10> {
        load(root.as_ref(), split, false).map(STL10)
    }

    /// The same, with the checksums of all files verified first: torchvision's `download=True`.
    ///
    /// # Errors
    /// As `new`, and if a file has another checksum.
    #[track_caller]
    pub fn download(root: impl AsRef<Path>, split: Stl10Split) -> Result<STL10> {
        load(root.as_ref(), split, true).map(STL10)
    }
}

#[track_caller]
fn load(root: &Path, split: Stl10Split, verify: bool) -> Result<Labelled> {
    let needed_files = match (verify, split) {
        (true, _) => 0..5,
        (_, Stl10Split::Train(_)) => 0..2,
        (_, Stl10Split::Unlabeled) => 2..3,
        (_, Stl10Split::TrainUnlabeled(_)) => 0..3,
        (_, Stl10Split::Test) => 3..5,
    };
    let files = Files {
        set: "STL10",
        root,
        folder: root.join("stl10_binary"),
        files: &FILES[needed_files],
        origin: Origin::Archive(
            "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
            "91f7769df0f17e558f3565bffb0c7dfb",
        ),
    };
    files.check(verify)?;
    let mut set = Labelled {
        set: "STL10",
        pixels: Vec::new(),
        layout: Layout::ColumnMajor,
        shape: [3, 96, 96],
        targets: Vec::new(),
        classes: classes(&files.folder)?,
    };
    match split {
        Stl10Split::Train(fold) => add_labelled(&mut set, &files.folder, "train", fold)?,
        Stl10Split::Unlabeled => add_unlabelled(&mut set, &files.folder)?,
        Stl10Split::TrainUnlabeled(fold) => {
            add_labelled(&mut set, &files.folder, "train", fold)?;
            add_unlabelled(&mut set, &files.folder)?;
        }
        Stl10Split::Test => add_labelled(&mut set, &files.folder, "test", None)?,
    }
    set.check_from(-1)
}

/// The names of the classes in `class_names.txt`, or their numbers without that file.
#[track_caller]
fn classes(folder: &Path) -> Result<Vec<String>> {
    let path = folder.join("class_names.txt");
    Ok(match path.is_file() {
        true => {
            let names = read_text("STL10", &path)?;
            names.lines().map(String::from).collect()
        }
        false => (0..10).map(|class| class.to_string()).collect(),
    })
}

#[track_caller]
fn read_pictures(folder: &Path, name: &str) -> Result<Vec<u8>> {
    let path = folder.join(name);
    let bytes = read("STL10", &path)?;
    match bytes.len() % AREA {
        0 => Ok(bytes),
        _ => {
            let (path, len) = (path.display(), bytes.len());
            let message = format!("{path}: {len} bytes are not pictures of {AREA}");
            Err(invalid("STL10", message))
        }
    }
}

/// Adds pictures with their labels, all or those of a fold.
#[track_caller]
fn add_labelled(set: &mut Labelled, folder: &Path, part: &str, fold: Option<usize>) -> Result<()> {
    let pixels = read_pictures(folder, &format!("{part}_X.bin"))?;
    // Labels in the file count from 1.
    let labels = read("STL10", &folder.join(format!("{part}_y.bin")))?;
    if labels.len().checked_mul(AREA) != Some(pixels.len()) || labels.contains(&0) {
        let message = format!(
            "{}: {} bytes of pictures and {} labels, which begin with 1",
            folder.display(),
            pixels.len(),
            labels.len()
        );
        return Err(invalid("STL10", message));
    }
    let labels: Vec<i64> = labels.iter().map(|label| i64::from(*label) - 1).collect();
    let Some(fold) = fold else {
        (set.pixels, set.targets) = (pixels, labels);
        return Ok(());
    };
    let path = folder.join("fold_indices.txt");
    let text = read_text("STL10", &path)?;
    let wrong = |message: String| invalid("STL10", format!("{}: {message}", path.display()));
    let line = text.lines().nth(fold).filter(|_| fold < 10);
    let line = line.ok_or_else(|| wrong(format!("there is no fold {fold}")))?;
    // A line may name a picture again and again.
    let count = line.split_whitespace().count();
    if count > labels.len() {
        let message = format!("the fold {fold} has {count} pictures of {}", labels.len());
        return Err(wrong(message));
    }
    for word in line.split_whitespace() {
        let n = word.parse().ok().filter(|n: &usize| *n < labels.len());
        let n = n.ok_or_else(|| wrong(format!("{word:?} is not a picture of {}", labels.len())))?;
        set.pixels.extend_from_slice(&pixels[n * AREA..][..AREA]);
        set.targets.push(labels[n]);
    }
    Ok(())
}

#[track_caller]
fn add_unlabelled(set: &mut Labelled, folder: &Path) -> Result<()> {
    let pixels = read_pictures(folder, "unlabeled_X.bin")?;
    set.targets.extend(vec![-1; pixels.len() / AREA]);
    match set.pixels.is_empty() {
        true => set.pixels = pixels,
        false => set.pixels.extend(pixels),
    }
    Ok(())
}
