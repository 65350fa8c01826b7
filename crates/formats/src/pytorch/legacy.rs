//! The forms older than the zip archive.
//!
//! The first form is a sequence of pickles: a magic number, the protocol's version, facts about the system, the
//! object, the keys of the storages; then for each key the number of elements and their bytes. The tar archive has
//! three members. `storages` holds each storage after a pickle `(key, location, class)`, `tensors` holds each
//! tensor's sizes after a pickle `(key, storage, class)`, and `pickle` holds the object. All numbers and elements are
//! little-endian on every machine.

use super::Contents;
use super::arrays::View;
use super::build::{MAX_DIMS, Storage, Storages, key, size};
use super::fill::Container;
use super::names::Global;
use super::pickle::{self, Graph, Id, Node, kind};
use crate::fault::Fault;
use kiln_tensor::DType;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};

/// The magic number of PyTorch's files of pickles.
const MAGIC: i128 = 0x1950_a86a_20f9_469c_fc6c;

const VERSION: i128 = 1001;

/// Reads the pickles of a file, and finds its storages.
pub(crate) fn open(file: File) -> Result<Contents, Fault> {
    let file_bytes = file.metadata()?.len();
    let mut file = BufReader::new(file);
    let (mut graph, mut storages) = (Graph::default(), Storages::default());
    let mut next = |what: &str, graph: &mut Graph, storages: &mut Storages| {
        let id = pickle::read(&mut file, graph, storages);
        id.map_err(|e| e.within(what))
    };
    let id = next("the magic number", &mut graph, &mut storages)?;
    if !matches!(graph.node(id), Node::Int(MAGIC)) {
        let message = "this is a pickle, but not one of torch.save's; save it with torch.save";
        return Err(Fault::unsupported(message));
    }
    let id = next("the version", &mut graph, &mut storages)?;
    if !matches!(graph.node(id), Node::Int(VERSION)) {
        return Err(Fault::unsupported(format!(
            "version {:?} of the format",
            graph.node(id)
        )));
    }
    next("the facts about the system", &mut graph, &mut storages)?;
    let root = next("the pickle", &mut graph, &mut storages)?;
    let keys = next("the keys of the storages", &mut graph, &mut storages)?;
    let Node::List(keys) = graph.node(keys) else {
        return Err(format!("the keys of the storages are {}", kind(graph.node(keys))).into());
    };
    let mut offsets = HashMap::new();
    for id in keys {
        let key = key(&graph, *id)?;
        let elements = number(&mut file)?;
        let Some(index) = storages.find(&key) else {
            return Err(format!("there is a storage {key} that no tensor lies in").into());
        };
        let storage = &storages.list[index];
        skip(&mut file, storage, elements, file_bytes, &mut offsets)?;
    }
    let container = Container::Flat {
        file,
        offsets,
        file_bytes,
    };
    Ok(Contents {
        graph,
        root,
        storages,
        container,
    })
}

/// Reads the pickles of a tar archive, and finds its storages.
pub(crate) fn open_tar(mut file: File) -> Result<Contents, Fault> {
    let file_bytes = file.metadata()?.len();
    let mut members = HashMap::new();
    for entry in tar::Archive::new(&mut file).entries_with_seek()? {
        let entry = entry?;
        let name = entry.path()?.to_string_lossy().into_owned();
        members.insert(name, entry.raw_file_position());
    }
    let mut tar = Tar {
        file: BufReader::new(file),
        graph: Graph::default(),
        storages: Storages::default(),
        roots: HashMap::new(),
    };
    let mut offsets = HashMap::new();
    let mut root = None;
    for name in ["storages", "tensors", "pickle"] {
        let Some(offset) = members.get(name) else {
            let message =
                format!("this tar archive holds no `{name}`, and is not a checkpoint of PyTorch's");
            return Err(message.into());
        };
        tar.file.seek(SeekFrom::Start(*offset))?;
        let result = match name {
            "storages" => tar.storages(file_bytes, &mut offsets),
            "tensors" => tar.tensors(),
            _ => tar.pickle().map(|id| root = Some(id)),
        };
        result.map_err(|e| e.within(name))?;
    }
    let Tar {
        file,
        graph,
        storages,
        ..
    } = tar;
    let root = root.ok_or_else(|| "there is no object".to_string())?;
    let container = Container::Flat {
        file,
        offsets,
        file_bytes,
    };
    Ok(Contents {
        graph,
        root,
        storages,
        container,
    })
}

/// A tar archive that is being read.
struct Tar {
    file: BufReader<File>,
    graph: Graph,
    storages: Storages,
    /// Storages by key: the number of the storage, and the first element, for those that are parts of others.
    roots: HashMap<String, (usize, usize)>,
}

impl Tar {
    fn pickle(&mut self) -> Result<Id, Fault> {
        pickle::read(&mut self.file, &mut self.graph, &mut self.storages)
    }

    /// Reads the next pickle, a number.
    fn count(&mut self) -> Result<usize, Fault> {
        let id = self.pickle()?;
        Ok(size(&self.graph, id)?)
    }

    /// The elements of a list or tuple of length `len`.
    fn row(&self, id: Id, len: usize) -> Result<Vec<Id>, String> {
        match self.graph.node(id) {
            Node::Tuple(all) | Node::List(all) if all.len() == len => Ok(all.clone()),
            other => Err(format!("{} in place of {len} values", kind(other))),
        }
    }

    fn storages(
        &mut self,
        file_bytes: u64,
        offsets: &mut HashMap<String, u64>,
    ) -> Result<(), Fault> {
        for _ in 0..self.count()? {
            let id = self.pickle()?;
            let row = self.row(id, 3)?;
            let key = key(&self.graph, row[0])?;
            let dtype = match self.graph.node(row[2]) {
                Node::Global(class) => match &**class {
                    Global::StorageOf(dtype) => *dtype,
                    Global::Refused(why) => return Err(Fault::unsupported(&**why).within(key)),
                    other => return Err(format!("storage {key} is of {other:?}").into()),
                },
                other => return Err(format!("storage {key} is of {}", kind(other)).into()),
            };
            let elements = number(&mut self.file)?;
            let bytes = elements.saturating_mul(dtype.map_or(1, DType::size) as u64);
            let storage = Storage {
                key: key.clone(),
                dtype,
                bytes,
            };
            skip(&mut self.file, &storage, elements, file_bytes, offsets)?;
            let index = self.storages.storage(storage)?;
            self.roots.insert(key, (index, 0));
        }
        let id = self.pickle()?;
        let Node::List(views) = self.graph.node(id).clone() else {
            return Err("there is no list of parts of storages".into());
        };
        for view in views {
            let row = self.row(view, 4)?;
            let (index, start) = self.root(row[1])?;
            let start = start.saturating_add(size(&self.graph, row[2])?);
            self.roots.insert(key(&self.graph, row[0])?, (index, start));
        }
        Ok(())
    }

    fn root(&self, id: Id) -> Result<(usize, usize), String> {
        let key = key(&self.graph, id)?;
        let root = self.roots.get(&key).copied();
        root.ok_or_else(|| format!("there is no storage {key}"))
    }

    fn tensors(&mut self) -> Result<(), Fault> {
        for _ in 0..self.count()? {
            let id = self.pickle()?;
            let row = self.row(id, 3)?;
            let name = key(&self.graph, row[0])?;
            let (storage, start) = self.root(row[1])?;
            let dtype = self.storages.list[storage].dtype;
            let dtype = dtype.ok_or_else(|| format!("tensor {name} has no dtype"))?;
            // Of these eight bytes only four are significant.
            let dims = number(&mut self.file)? as u32;
            if dims as usize > MAX_DIMS {
                return Err(format!("tensor {name} has {dims} dims").into());
            }
            let mut sizes = || {
                let sizes = (0..dims).map(|_| index(&mut self.file));
                sizes.collect::<Result<Vec<usize>, Fault>>()
            };
            let (shape, strides) = (sizes()?, sizes()?);
            let offset = index(&mut self.file)?.saturating_add(start);
            let view = self.storages.view(View {
                storage,
                dtype,
                offset,
                shape,
                strides,
            });
            let tensor = view.map_err(|e| format!("tensor {name}: {e}"))?;
            self.storages.tensors.insert(name, tensor);
        }
        Ok(())
    }
}

/// Reads a number of eight bytes.
fn number(file: &mut BufReader<File>) -> Result<u64, Fault> {
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes)
        .map_err(|e| Fault::from(e).within("a number"))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Reads a size, a stride or an offset.
fn index(file: &mut BufReader<File>) -> Result<usize, Fault> {
    let number = number(file)?;
    let index = usize::try_from(number)
        .ok()
        .filter(|n| *n <= isize::MAX as usize);
    Ok(index.ok_or_else(|| format!("{} is not a size", number as i64))?)
}

/// Records the offset of a storage's bytes, which begin here, and skips them.
fn skip(
    file: &mut BufReader<File>,
    storage: &Storage,
    elements: u64,
    file_bytes: u64,
    offsets: &mut HashMap<String, u64>,
) -> Result<(), Fault> {
    let offset = file.stream_position()?;
    let size = storage.dtype.map_or(1, DType::size) as u64;
    if elements.checked_mul(size) != Some(storage.bytes) {
        let message = format!(
            "storage {} has {elements} elements of {size} bytes, and the pickle says {} bytes",
            storage.key, storage.bytes
        );
        return Err(message.into());
    }
    if storage.bytes > file_bytes.saturating_sub(offset) {
        let message = format!(
            "the file ends within storage {}, of {} bytes",
            storage.key, storage.bytes
        );
        return Err(message.into());
    }
    offsets.insert(storage.key.clone(), offset);
    file.seek_relative(storage.bytes as i64)?;
    Ok(())
}
