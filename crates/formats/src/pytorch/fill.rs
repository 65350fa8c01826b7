//! Reading the bytes of tensors.

use super::arrays::View;
use super::build::Storage;
use super::pickle::Id;
use super::tree::Walk;
use crate::fault::Fault;
use crate::read::{fill, max_bytes};
use kiln_tensor::memory::Budget;
use kiln_tensor::{Device, Tensor};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;
use zip::ZipArchive;

/// The location of the bytes of storages.
pub(super) enum Container {
    /// In entries of an archive, under this folder, in the byte order of the machine that wrote them.
    Zip {
        archive: ZipArchive<BufReader<File>>,
        folder: String,
        big_endian: bool,
        file_bytes: u64,
    },
    /// In a file, at these offsets.
    Flat {
        file: BufReader<File>,
        offsets: HashMap<String, u64>,
        file_bytes: u64,
    },
}

impl Container {
    /// Calls `read` with a reader of a storage's bytes, which it must read completely. Then checksums are compared.
    fn with_reader(
        &mut self,
        storage: &Storage,
        read: &mut dyn FnMut(&mut dyn Read) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        match self {
            Container::Zip {
                archive, folder, ..
            } => {
                let name = format!("{folder}/data/{}", storage.key);
                let entry = super::zip::entry(archive, &name);
                let entry = entry.and_then(|mut entry| {
                    if entry.size() != storage.bytes {
                        let (size, declared) = (entry.size(), storage.bytes);
                        return Err(
                            format!("it has {size} bytes, and the pickle says {declared}").into(),
                        );
                    }
                    read(&mut entry)?;
                    // This read at the end makes the archive compare the checksum.
                    match entry.read(&mut [0])? {
                        0 => Ok(()),
                        _ => Err("it is longer than the archive says".into()),
                    }
                });
                entry.map_err(|e| e.within(name))
            }
            Container::Flat { file, offsets, .. } => {
                let offset = offsets.get(&storage.key);
                let offset = offset
                    .ok_or_else(|| format!("there are no bytes of storage {}", storage.key))?;
                file.seek(SeekFrom::Start(*offset))?;
                read(file).map_err(|e| e.within(format!("storage {}", storage.key)))
            }
        }
    }

    fn big_endian(&self) -> bool {
        matches!(
            self,
            Container::Zip {
                big_endian: true,
                ..
            }
        )
    }

    fn file_bytes(&self) -> u64 {
        let (Container::Zip { file_bytes, .. } | Container::Flat { file_bytes, .. }) = self;
        *file_bytes
    }
}

/// Builds the tensors of these views; equal views become one tensor. At most one storage is in memory besides the
/// tensors, and none for a tensor that is its whole storage.
pub(super) fn tensors(
    container: &mut Container,
    storages: &[Storage],
    walk: &Walk,
    device: Device,
) -> Result<HashMap<Arc<View>, Tensor>, Fault> {
    check_size(container, storages, walk)?;
    let mut by_storage: BTreeMap<usize, Vec<(&Arc<View>, Id)>> = BTreeMap::new();
    let mut visited = HashSet::new();
    for (view, id) in &walk.views {
        if visited.insert(view) {
            let list = by_storage.entry(view.storage).or_default();
            list.push((view, *id));
        }
    }
    let mut tensors = HashMap::new();
    for (index, views) in by_storage {
        let storage = &storages[index];
        let swapped = match container.big_endian() {
            // The element size for swapping is that of the storage, or for storages of bytes that of the tensors.
            true => storage.dtype.unwrap_or(views[0].0.dtype).size(),
            false => 1,
        };
        let is_whole =
            |v: &View| v.is_contiguous() && (v.len() * v.dtype.size()) as u64 == storage.bytes;
        let name = |e: Fault| e.within(walk.path(views[0].1));
        if let [(view, _)] = &views[..]
            && is_whole(view)
        {
            let tensor = Tensor::filled(view.dtype, &view.shape[..], |bytes| {
                container.with_reader(storage, &mut |file| fill(file, bytes))?;
                swap(bytes, swapped);
                Ok(())
            });
            tensors.insert((*view).clone(), tensor.map_err(name)?.to(device));
            continue;
        }
        let mut bytes = Vec::new();
        container
            .with_reader(storage, &mut |file| {
                bytes = Budget::new().read_exact(file, storage.bytes, "the storage")?;
                Ok(())
            })
            .map_err(name)?;
        swap(&mut bytes, swapped);
        for (view, id) in views {
            let tensor = Tensor::filled(view.dtype, &view.shape[..], |to| {
                gather(view, &bytes, to);
                Ok::<(), Fault>(())
            });
            let tensor = tensor.map_err(|e| e.within(walk.path(id)))?;
            tensors.insert(view.clone(), tensor.to(device));
        }
    }
    Ok(tensors)
}

/// Checks that the tensors take no more memory than a file of this size can account for. Compressed storages, and
/// tensors that repeat the elements of small ones, could otherwise take any amount.
fn check_size(container: &Container, storages: &[Storage], walk: &Walk) -> Result<(), Fault> {
    let limit = max_bytes(container.file_bytes(), 256 << 20).saturating_mul(2);
    let views = walk.views.iter();
    let distinct: HashMap<&View, Id> = views.map(|(view, id)| (&**view, *id)).collect();
    let mut largest = (0, 0);
    let mut total = storages.iter().fold(0u64, |n, s| n.saturating_add(s.bytes));
    for (view, id) in distinct {
        let bytes = (view.len() * view.dtype.size()) as u64;
        total = total.saturating_add(bytes);
        largest = largest.max((bytes, id));
    }
    match total <= limit {
        true => Ok(()),
        false => Err(Fault::unsupported(format!(
            "the tensors and their storages take {total} bytes, of which the file has {}; the largest is {}, of {} \
             bytes. Tensors that repeat elements, as expand() makes them, are saved small: clone them first",
            container.file_bytes(),
            walk.path(largest.1),
            largest.0
        ))),
    }
}

/// Reverses the bytes of each element.
fn swap(bytes: &mut [u8], size: usize) {
    if size > 1 {
        bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
}

/// Copies the elements of a view, which lies within the bytes, in row-major order.
fn gather(view: &View, from: &[u8], to: &mut [u8]) {
    let size = view.dtype.size();
    if to.is_empty() {
        return;
    }
    if view.is_contiguous() {
        let start = view.offset * size;
        to.copy_from_slice(&from[start..start + to.len()]);
        return;
    }
    let mut index = vec![0; view.shape.len()];
    let mut offset = view.offset;
    for element in to.chunks_exact_mut(size) {
        element.copy_from_slice(&from[offset * size..(offset + 1) * size]);
        for (d, i) in index.iter_mut().enumerate().rev() {
            *i += 1;
            offset += view.strides[d];
            if *i < view.shape[d] {
                break;
            }
            offset -= *i * view.strides[d];
            *i = 0;
        }
    }
}
