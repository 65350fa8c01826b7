//! Omniglot (Lake et al., 2015).

use super::files::check_archive;
use super::folder::{entries, name};
use crate::fault::{invalid, out_of_range};
use crate::{Image, Mode};
use kiln_data::Dataset;
use kiln_tensor::Result;
use std::path::{Path, PathBuf};

/// Omniglot: 1,623 characters of 50 alphabets, each written by 20 people, grey of 105x105.
pub struct Omniglot {
    /// `alphabet/character`, in order.
    characters: Vec<String>,
    samples: Vec<(PathBuf, i64)>,
}

const ADDRESS: &str = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/";

impl Omniglot {
    /// The pictures of the `background` set or of the evaluation set, from the folder `images_background` or
    /// `images_evaluation` in `root/omniglot-py`.
    ///
    /// # Errors
    /// If the folder is missing (the message says where to get it) or has no pictures.
    #[track_caller]
    pub fn new(root: impl AsRef<Path>, background: bool) -> Result<Omniglot> {
        let (root, (set, md5)) = (root.as_ref().join("omniglot-py"), archive_name(background));
        let folder = root.join(set);
        if !folder.is_dir() {
            let message = format!(
                "{} is missing. Kiln downloads nothing: unpack {ADDRESS}{set}.zip (MD5 {md5}) in {}",
                folder.display(),
                root.display()
            );
            return Err(invalid("Omniglot", message));
        }
        let mut characters = Vec::new();
        for alphabet in names(&folder, |path| path.is_dir())? {
            for character in names(&folder.join(&alphabet), |path| path.is_dir())? {
                characters.push(format!("{alphabet}/{character}"));
            }
        }
        let mut samples = Vec::new();
        for (label, character) in characters.iter().enumerate() {
            let folder = folder.join(character);
            let is_png = |path: &Path| path.extension().is_some_and(|end| end == "png");
            let files = names(&folder, |path| path.is_file() && is_png(path))?;
            samples.extend(files.iter().map(|file| (folder.join(file), label as i64)));
        }
        if samples.is_empty() {
            let message = format!("{}: there are no pictures", folder.display());
            return Err(invalid("Omniglot", message));
        }
        Ok(Omniglot {
            characters,
            samples,
        })
    }

    /// The same, with the checksum of the archive verified first if it is there: torchvision's `download=True`.
    ///
    /// # Errors
    /// As `new`, and if the archive has another checksum.
    #[track_caller]
    pub fn download(root: impl AsRef<Path>, background: bool) -> Result<Omniglot> {
        let (set, md5) = archive_name(background);
        let archive = root.as_ref().join("omniglot-py").join(format!("{set}.zip"));
        check_archive("Omniglot", &archive, md5, &format!("{ADDRESS}{set}.zip"))?;
        Omniglot::new(root, background)
    }

    /// The characters, `alphabet/character`, in the order of the labels.
    pub fn characters(&self) -> &[String] {
        &self.characters
    }

    /// The path and the label of each picture.
    pub fn samples(&self) -> &[(PathBuf, i64)] {
        &self.samples
    }
}

fn archive_name(background: bool) -> (&'static str, &'static str) {
    match background {
        true => ("images_background", "68d2efa1b9178cc56df9314c21c6e718"),
        false => ("images_evaluation", "6b91aef0f799c5bb55b94e3f2daec811"),
    }
}

/// The names of the wanted entries of a folder, in order.
#[track_caller]
fn names(folder: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for path in entries("Omniglot", folder)? {
        if wanted(&path) {
            names.push(name("Omniglot", &path)?);
        }
    }
    names.sort();
    Ok(names)
}

impl Dataset for Omniglot {
    type Item = (Image, i64);
    fn len(&self) -> usize {
        self.samples.len()
    }
    #[track_caller]
    fn get(&self, index: usize) -> Result<(Image, i64)> {
        let Some((path, label)) = self.samples.get(index) else {
            return Err(out_of_range("Omniglot", index, self.samples.len()));
        };
        Ok((Image::open(path)?.into_mode(Mode::L), *label))
    }
}
