//! The files of data sets.

use crate::fault::{invalid, io};
use flate2::bufread::MultiGzDecoder;
use kiln_data::check_integrity;
use kiln_tensor::Result;
use kiln_tensor::memory::{Budget, read_file};
use std::fmt::Write;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// A file by its name below a folder, and its MD5.
pub(super) type Named = (&'static str, &'static str);

/// The place where the makers of a set offer its files.
#[derive(Clone, Copy)]
pub(super) enum Origin {
    /// Each under its name after this address.
    Each(&'static str),
    /// All in one archive, at an address and with an MD5, which is unpacked in the root.
    Archive(&'static str, &'static str),
}

/// The files of a set.
pub(super) struct Files<'a> {
    /// The name of the set.
    pub set: &'static str,
    /// The folder that an archive is unpacked in.
    pub root: &'a Path,
    /// The folder of the files.
    pub folder: PathBuf,
    pub files: &'a [Named],
    pub origin: Origin,
}

impl Files<'_> {
    /// The path of a file, or of the same without `.gz`, whichever is there.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        let path = self.folder.join(name);
        let unpacked = name.strip_suffix(".gz").map(|name| self.folder.join(name));
        let mut candidates = [Some(path), unpacked].into_iter().flatten();
        candidates.find(|path| path.is_file())
    }

    /// Checks that all files are there, with their checksums if these are to be verified.
    #[track_caller]
    pub(super) fn check(&self, verify: bool) -> Result<()> {
        let (mut missing, mut damaged) = (Vec::new(), Vec::new());
        for (name, md5) in self.files {
            match self.path(name) {
                None => missing.push((name, md5)),
                // The checksum of an unpacked file is not known.
                Some(path) if verify && !md5.is_empty() && path.ends_with(name) => {
                    if !check_integrity(path, md5)? {
                        damaged.push((name, md5));
                    }
                }
                Some(_) => {}
            }
        }
        let mut text = String::new();
        for (title, files) in [("missing", missing), ("damaged", damaged)] {
            if !files.is_empty() {
                self.list(&mut text, title, &files);
            }
        }
        match text.is_empty() {
            true => Ok(()),
            false => Err(invalid(self.set, text)),
        }
    }

    /// Appends a list of missing or damaged files, and where to get them.
    fn list(&self, text: &mut String, title: &str, files: &[(&&str, &&str)]) {
        let gap = if text.is_empty() { "" } else { "\n" };
        // Writing into a text can't fail.
        let _ = write!(text, "{gap}{}: files are {title}:", self.folder.display());
        for (name, md5) in files {
            let _ = match self.origin {
                Origin::Each(address) => {
                    write!(text, "\n  {name} from {address}{name} (MD5 {md5})")
                }
                Origin::Archive(..) if md5.is_empty() => write!(text, "\n  {name}"),
                Origin::Archive(..) => write!(text, "\n  {name} (MD5 {md5})"),
            };
        }
        let _ = match self.origin {
            Origin::Each(_) => write!(text, "\nKiln downloads nothing: put them there"),
            Origin::Archive(address, md5) => write!(
                text,
                "\nKiln downloads nothing: unpack {address} (MD5 {md5}) in {}",
                self.root.display()
            ),
        };
    }
}

/// Compares the checksum of an archive, if it is there.
#[track_caller]
pub(super) fn check_archive(set: &str, path: &Path, md5: &str, address: &str) -> Result<()> {
    if path.is_file() && !check_integrity(path, md5)? {
        let path = path.display();
        let message = format!("{path} is damaged: its MD5 is not {md5}; get it from {address}");
        return Err(invalid(set, message));
    }
    Ok(())
}

/// All bytes of a file.
#[track_caller]
pub(super) fn read(op: &str, path: &Path) -> Result<Vec<u8>> {
    read_file(path).map_err(|e| io(op, path, e))
}

/// The text of a file.
#[track_caller]
pub(super) fn read_text(op: &str, path: &Path) -> Result<String> {
    let bytes = read(op, path)?;
    String::from_utf8(bytes).map_err(|_| {
        let message = format!("{}: this is not valid UTF-8", path.display());
        invalid(op, message)
    })
}

/// Opens a file for reading, decompressed if it is compressed by gzip.
pub(super) fn open_unpacked(path: &Path) -> io::Result<Box<dyn Read>> {
    let mut file = BufReader::new(File::open(path)?);
    Ok(match file.fill_buf()? {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(file)),
        _ => Box::new(file),
    })
}

/// Labels that are bytes in a file, as integers.
pub(super) fn labels(bytes: &[u8], budget: &mut Budget) -> io::Result<Vec<i64>> {
    let mut labels = budget.reserve(bytes.len(), "the labels")?;
    labels.extend(bytes.iter().map(|label| i64::from(*label)));
    Ok(labels)
}
