//! Tests of data sets, on small files in the true formats and on real digits in each of them.

mod cifar;
mod coco;
mod digits;
mod folder;
mod hostile;
mod mnist;
mod others;

use kiln_tensor::Result;
use tempfile::TempDir;

/// Writes a file and the folders that it lies in.
fn write_file(root: &TempDir, name: &str, bytes: impl AsRef<[u8]>) {
    let path = root.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// The message of an expected error.
fn message<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("this must be an error"),
        Err(e) => e.to_string(),
    }
}

/// The bytes of an IDX file of bytes.
fn idx(shape: &[usize], elements: &[u8]) -> Vec<u8> {
    let mut file = vec![0, 0, 8, shape.len() as u8];
    for size in shape {
        file.extend((*size as u32).to_be_bytes());
    }
    file.extend(elements);
    file
}

/// The bytes of a file compressed by gzip.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// Bytes of a fixed pattern.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}
