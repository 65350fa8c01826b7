//! NumPy's `.npz` files: zip archives of `.npy` files.

use crate::fault::Fault;
use crate::npy::{decode, encode};
use kiln_tensor::memory::Budget;
use kiln_tensor::{Result, Tensor};
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::panic::Location;
use std::path::Path;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// The tensors of a `.npz` file by name. Members whose names don't end in `.npy` are left out.
///
/// # Errors
/// If the file can't be read, is damaged, has two members of one name, or holds an array that [`crate::read_npy`]
/// doesn't read (the message names it); or if the arrays, unpacked, take more memory than the limit leaves.
#[track_caller]
pub fn read_npz(path: impl AsRef<Path>) -> Result<BTreeMap<String, Tensor>> {
    let (path, loc) = (path.as_ref(), Location::caller());
    let file = File::open(path).map_err(Fault::from);
    let tensors = file.and_then(|file| read_members(BufReader::new(file)));
    tensors.map_err(|fault| fault.in_file("read_npz", path, loc))
}

/// Writes tensors to a `.npz` file, as `numpy.savez` does. A reader sees the old file or the whole new
/// one, never a part.
///
/// ```
/// use kiln_formats::{read_npz, write_npz};
/// use kiln_tensor::Tensor;
///
/// let path = std::env::temp_dir().join(format!("kiln-{}.npz", std::process::id()));
/// write_npz(&path, [("x", &Tensor::from([1.0f32, 2.0])), ("y", &Tensor::from([1i64]))])?;
/// assert_eq!(read_npz(&path)?["x"].to_vec::<f32>()?, [1.0, 2.0]);
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`crate::write_npy`], or if a name comes twice.
#[track_caller]
pub fn write_npz<N: AsRef<str>, T: Borrow<Tensor>>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, T)>,
) -> Result<()> {
    let (path, loc) = (path.as_ref(), Location::caller());
    let written = write_members(path, tensors, CompressionMethod::Stored);
    written.map_err(|fault| fault.in_file("write_npz", path, loc))
}

/// [`write_npz`] with compression: `numpy.savez_compressed`.
///
/// # Errors
/// As [`write_npz`].
#[track_caller]
pub fn write_npz_compressed<N: AsRef<str>, T: Borrow<Tensor>>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, T)>,
) -> Result<()> {
    let (path, loc) = (path.as_ref(), Location::caller());
    let written = write_members(path, tensors, CompressionMethod::Deflated);
    written.map_err(|fault| fault.in_file("write_npz_compressed", path, loc))
}

fn read_members(file: impl Read + Seek) -> Result<BTreeMap<String, Tensor>, Fault> {
    let archive = ZipArchive::new(file)?;
    let directory = archive.central_directory_start();
    let mut file = archive.into_inner();
    check_names(&mut file, directory)?;
    let mut archive = ZipArchive::new(file)?;
    let (mut tensors, mut budget) = (BTreeMap::new(), Budget::new());
    for n in 0..archive.len() {
        let member = archive.by_index_data(n)?;
        if member.name()?.ends_with(".npy") {
            budget.spend(member.size(), "the archive's arrays, unpacked,")?;
        }
    }
    for n in 0..archive.len() {
        let mut member = archive.by_index(n)?;
        let file = member.name()?.into_owned();
        let Some(name) = file.strip_suffix(".npy") else {
            continue;
        };
        let bytes = member.size();
        let tensor = decode(&mut member, bytes).map_err(|fault| fault.within(&file))?;
        tensors.insert(name.to_string(), tensor);
    }
    Ok(tensors)
}

/// Checks that no two members in the archive's directory have one name. `ZipArchive` shows only the last of them.
fn check_names(file: &mut (impl Read + Seek), directory: u64) -> Result<(), Fault> {
    /// The first bytes of each record.
    const RECORD: [u8; 4] = *b"PK\x01\x02";
    file.seek(SeekFrom::Start(directory))?;
    let mut names = BTreeSet::new();
    let mut head = [0; 46];
    while file.read_exact(&mut head).is_ok() && head.starts_with(&RECORD) {
        let [name, extra, comment] =
            [28, 30, 32].map(|i| u16::from_le_bytes([head[i], head[i + 1]]));
        let mut text = vec![0; usize::from(name)];
        file.read_exact(&mut text)?;
        file.seek_relative(i64::from(extra) + i64::from(comment))?;
        if let Some(twice) = names.replace(text) {
            let name = String::from_utf8_lossy(&twice).into_owned();
            return Err(format!("two members are called {name:?}").into());
        }
    }
    Ok(())
}

fn write_members<N: AsRef<str>, T: Borrow<Tensor>>(
    path: &Path,
    tensors: impl IntoIterator<Item = (N, T)>,
    compression: CompressionMethod,
) -> Result<(), Fault> {
    kiln_base::file::replace(path, |file| {
        let mut archive = ZipWriter::new(file);
        for (name, tensor) in tensors {
            let tensor = tensor.borrow();
            let file = format!("{}.npy", name.as_ref());
            let within = |fault: Fault| fault.within(&file);
            // True if the zip fields for large files are needed; the margin is for the header.
            let large = tensor.nbytes()? as u64 > u64::from(u32::MAX) - (1 << 20);
            let options = SimpleFileOptions::default().compression_method(compression);
            let options = options.large_file(large);
            archive
                .start_file(&file, options)
                .map_err(Fault::from)
                .map_err(within)?;
            encode(tensor, &mut archive).map_err(within)?;
        }
        archive.finish()?.flush()?;
        Ok(())
    })
}
