//! The zip form: `data.pkl` describes the object, `data/0`, `data/1`, … are storages, all in one folder.

use super::build::Storages;
use super::fill::Container;
use super::{Contents, pickle};
use crate::fault::Fault;
use crate::read::max_bytes;
use std::fs::File;
use std::io::{BufReader, Read};
use zip::ZipArchive;
use zip::read::{ZipFile, ZipReadOptions};

/// Reads the pickle of an archive.
pub(crate) fn open(file: File) -> Result<Contents, Fault> {
    let file_bytes = file.metadata()?.len();
    let mut archive = ZipArchive::new(BufReader::new(file))?;
    let name = pickle_name(&archive)?;
    let folder = name
        .strip_suffix("/data.pkl")
        .unwrap_or_default()
        .to_string();
    let big_endian = is_big_endian(&mut archive, &folder)?;
    let (mut graph, mut storages) = (pickle::Graph::default(), Storages::default());
    let root = entry(&mut archive, &name).and_then(|entry| {
        let bytes = entry.size();
        if bytes > max_bytes(file_bytes, 64 << 20) {
            return Err(Fault::unsupported(format!(
                "it is {bytes} bytes uncompressed, too many for a file of {file_bytes}"
            )));
        }
        // Read at most the declared size; one more byte reaches EOF, where the zip reader verifies the CRC.
        let mut entry = BufReader::new(entry.take(bytes + 1));
        let root = pickle::read(&mut entry, &mut graph, &mut storages)?;
        std::io::copy(&mut entry, &mut std::io::sink())?;
        match entry.get_ref().limit() {
            0 => Err("it is longer than the archive says".into()),
            _ => Ok(root),
        }
    });
    let root = root.map_err(|e| e.within(&name))?;
    let container = Container::Zip {
        archive,
        folder,
        big_endian,
        file_bytes,
    };
    Ok(Contents {
        graph,
        root,
        storages,
        container,
    })
}

/// The name of the pickle in the archive.
fn pickle_name(archive: &ZipArchive<BufReader<File>>) -> Result<String, Fault> {
    let mut names = Vec::new();
    for name in archive.file_names() {
        names.push(name?.into_owned());
    }
    let has = |part: &str| names.iter().any(|name| name.contains(part));
    if has("/code/") || has("/constants.pkl") {
        let message = "this is a TorchScript program, whose code Kiln does not run; in PyTorch, save \
            torch.jit.load(f).state_dict() with torch.save";
        return Err(Fault::unsupported(message));
    }
    if names.iter().any(|name| name.ends_with(".npy")) {
        return Err(Fault::unsupported(
            "these are NumPy's arrays; read them with read_npz",
        ));
    }
    let name = names
        .iter()
        .find(|name| name.split_once('/').is_some_and(|(_, n)| n == "data.pkl"));
    let missing =
        || "this zip archive holds no `data.pkl`, and is not a checkpoint of PyTorch's".to_string();
    Ok(name.ok_or_else(missing)?.clone())
}

/// True if the storages are big-endian, unlike Kiln's tensors.
fn is_big_endian(archive: &mut ZipArchive<BufReader<File>>, folder: &str) -> Result<bool, Fault> {
    let name = format!("{folder}/byteorder");
    if archive.index_for_name(&name).is_none() {
        return Ok(false); // files of PyTorch before 2.1
    }
    let order = entry(archive, &name).and_then(|mut entry| {
        let mut order = Vec::new();
        // Read to EOF, where the zip reader verifies the CRC; the limit bounds a longer file.
        Read::take(&mut entry, 16).read_to_end(&mut order)?;
        match &order[..] {
            b"little" => Ok(false),
            b"big" => Ok(true),
            other => Err(format!("`{}` is not a byte order", other.escape_ascii()).into()),
        }
    });
    order.map_err(|e| e.within(name))
}

/// A file of the archive. Its checksum is compared if there is one: PyTorch may write 0 for none.
pub(super) fn entry<'a>(
    archive: &'a mut ZipArchive<BufReader<File>>,
    name: &str,
) -> Result<ZipFile<'a, BufReader<File>>, Fault> {
    let missing = || format!("there is no `{name}` in the archive");
    let index = archive.index_for_name(name).ok_or_else(missing)?;
    let has_no_crc = archive.by_index_data(index)?.crc32() == 0;
    let options = ZipReadOptions::new().ignore_crc32(has_no_crc);
    Ok(archive.by_index_with_options(index, options)?)
}
