//! Writing the zip form.

use super::names::{DTYPES, UNTYPED};
use crate::Value;
use crate::fault::Fault;
use kiln_tensor::{DType, Result, Tensor, ViewWithin};
use std::collections::{HashMap, HashSet};
use std::io::{Seek, Write};
use std::panic::Location;
use std::path::Path;
use std::sync::Arc;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Writes a checkpoint that PyTorch opens with `torch.load(path, weights_only=True)`: a tensor, a number, a text, or
/// dicts and lists of these. Tensors that share their values, as tied weights do, are written once, and share them
/// again in PyTorch. So do a tensor and its slices that are not computed yet. The file is
/// replaced atomically.
///
/// ```no_run
/// use kiln_formats::{StateDict, Value};
/// # let (state, moments) = (StateDict::new(), Value::None);
/// kiln_formats::save(&state, "model.pt")?; // of Module::state_dict
/// let parts = [("model", Value::from(&state)), ("optimizer", moments), ("epoch", 7.into())];
/// kiln_formats::save(Value::dict(parts), "last.pt")?;
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If a value can't be computed or the file can't be written.
#[track_caller]
pub fn save(value: impl Into<Value>, path: impl AsRef<Path>) -> Result<()> {
    let (path, loc) = (path.as_ref(), Location::caller());
    let value = value.into();
    let written = write(&value, path);
    written.map_err(|fault| fault.in_file("save", path, loc))
}

/// [`save`] in the form that PyTorch wrote before 1.6, and writes with `_use_new_zipfile_serialization=False`.
///
/// # Errors
/// As [`save`].
#[track_caller]
pub fn save_legacy(value: impl Into<Value>, path: impl AsRef<Path>) -> Result<()> {
    let (path, loc) = (path.as_ref(), Location::caller());
    let value = value.into();
    let written = write_legacy(&value, path);
    written.map_err(|fault| fault.in_file("save_legacy", path, loc))
}

/// Writes pickles of a magic number, a version, facts of the machine, the value and the keys of the storages; then the
/// storages, each behind its number of elements.
fn write_legacy(value: &Value, path: &Path) -> Result<(), Fault> {
    const BEGIN: &[u8] = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.";
    let sizes = [("short", 2), ("int", 4), ("long", 4)];
    let machine = Value::dict([
        ("protocol_version", Value::from(1001)),
        ("little_endian", true.into()),
        ("type_sizes", Value::dict(sizes)),
    ]);
    let pickle = Pickle::of(value, true)?;
    let mut keys: Vec<String> = (0..pickle.tensors.len()).map(|i| i.to_string()).collect();
    keys.sort();
    let list: Vec<Value> = keys.iter().map(|key| key.as_str().into()).collect();
    kiln_base::file::replace(path, |file| {
        file.write_all(BEGIN)?;
        file.write_all(&Pickle::of(&machine, true)?.bytes)?;
        file.write_all(&pickle.bytes)?;
        file.write_all(&Pickle::of(&list.into(), true)?.bytes)?;
        for key in &keys {
            let tensor = &pickle.tensors[key.parse::<usize>().map_err(|e| e.to_string())?];
            let elements = storage_of(tensor)?.elements;
            file.write_all(&(elements as u64).to_le_bytes())?;
            tensor.with_bytes(|bytes| file.write_all(bytes))??;
        }
        Ok(())
    })
}

fn write(value: &Value, path: &Path) -> Result<(), Fault> {
    let pickle = Pickle::of(value, false)?;
    // PyTorch names the folder after the file.
    let folder = path
        .file_stem()
        .and_then(|s| s.to_str())
        .unwrap_or("archive");
    kiln_base::file::replace(path, |file| {
        let mut archive = Archive {
            zip: ZipWriter::new(file),
            folder,
        };
        archive.file("data.pkl", pickle.bytes.len(), |w| {
            Ok(w.write_all(&pickle.bytes)?)
        })?;
        archive.file("byteorder", 6, |w| Ok(w.write_all(b"little")?))?;
        for (i, tensor) in pickle.tensors.iter().enumerate() {
            let name = format!("data/{i}");
            let write = |w: &mut dyn Write| Ok(tensor.with_bytes(|bytes| w.write_all(bytes))??);
            archive.file(&name, tensor.nbytes()?, write)?;
        }
        archive.file("version", 2, |w| Ok(w.write_all(b"3\n")?))?;
        archive.zip.finish()?.flush()?;
        Ok(())
    })
}

struct Archive<'a, W: Write + Seek> {
    zip: ZipWriter<W>,
    folder: &'a str,
}

impl<W: Write + Seek> Archive<'_, W> {
    /// Writes an uncompressed file of about `bytes` bytes, aligned so that PyTorch can map it into memory.
    fn file(
        &mut self,
        name: &str,
        bytes: usize,
        write: impl FnOnce(&mut dyn Write) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        const ALIGNMENT: u16 = 64;
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .with_alignment(ALIGNMENT)
            .large_file(bytes as u64 > u64::from(u32::MAX));
        self.zip
            .start_file(format!("{}/{name}", self.folder), options)?;
        write(&mut self.zip)
    }
}

/// A pickle of protocol 2 that is being written.
struct Pickle {
    bytes: Vec<u8>,
    /// The tensors, each with a storage, numbered in this order.
    tensors: Vec<Tensor>,
    /// The storage number of each value: several tensors may share one, such as tied weights.
    numbers: HashMap<Identity, usize>,
    /// The values of all tensors that are written.
    wholes: HashSet<Identity>,
    /// The bytes of the tensors that are written as parts of each of these.
    shared_bytes: HashMap<Identity, usize>,
    /// True for the form before 1.6, whose storages also name what they are views of.
    legacy: bool,
}

/// The identity of a value: a node and one of its outputs.
type Identity = (usize, u32);

fn identity(tensor: &Tensor) -> Identity {
    let handle = tensor.as_ref();
    (Arc::as_ptr(&handle.node) as usize, handle.output)
}

/// Collects the values of all tensors within a value.
fn collect(value: &Value, tensors: &mut HashSet<Identity>) {
    match value {
        Value::Tensor(tensor) => drop(tensors.insert(identity(tensor))),
        Value::List(parts) | Value::Tuple(parts) => parts.iter().for_each(|v| collect(v, tensors)),
        Value::Dict(entries) => entries.iter().for_each(|(_, v)| collect(v, tensors)),
        _ => {}
    }
}

/// The storage of a tensor.
struct Storage {
    /// The name of the tensor's dtype, and of the class of its storage.
    names: [&'static str; 2],
    /// True if it holds bytes, and its dtype is written separately.
    untyped: bool,
    elements: usize,
}

fn storage_of(tensor: &Tensor) -> Result<Storage, Fault> {
    let dtype = tensor.dtype();
    let row = DTYPES.iter().find(|(d, ..)| *d == dtype);
    let (_, name, class) = row.ok_or_else(|| format!("PyTorch has no {dtype}"))?;
    let untyped = *class == UNTYPED;
    Ok(Storage {
        names: [name, class],
        untyped,
        elements: tensor.nbytes()? / if untyped { 1 } else { DType::size(dtype) },
    })
}

impl Pickle {
    /// Returns the pickle of a value, whose tensors are computed.
    fn of(value: &Value, legacy: bool) -> Result<Pickle, Fault> {
        let mut pickle = Pickle {
            bytes: vec![0x80, 2],
            tensors: Vec::new(),
            numbers: HashMap::new(),
            wholes: HashSet::new(),
            shared_bytes: HashMap::new(),
            legacy,
        };
        collect(value, &mut pickle.wholes);
        pickle.value(value)?;
        pickle.bytes.push(b'.');
        for t in &pickle.tensors {
            t.realize()?;
        }
        Ok(pickle)
    }

    fn value(&mut self, value: &Value) -> Result<(), Fault> {
        match value {
            Value::None => self.op(b"N"),
            Value::Bool(b) => self.op(if *b { b"\x88" } else { b"\x89" }),
            Value::Int(i) => self.int(*i),
            Value::Float(x) => {
                self.op(b"G");
                self.op(&x.to_be_bytes());
            }
            Value::Str(text) => self.text(text)?,
            Value::Bytes(bytes) => {
                // Python writes bytes in this protocol as a text of their characters.
                self.op(b"c_codecs\nencode\n(");
                let text: String = bytes.iter().map(|b| char::from(*b)).collect();
                self.text(&text)?;
                self.text("latin1")?;
                self.op(b"tR");
            }
            Value::List(all) => {
                self.op(b"](");
                all.iter().try_for_each(|v| self.value(v))?;
                self.op(b"e");
            }
            Value::Tuple(all) => {
                self.op(b"(");
                all.iter().try_for_each(|v| self.value(v))?;
                self.op(b"t");
            }
            Value::Dict(entries) => {
                self.op(b"}(");
                for (key, value) in entries.iter() {
                    self.value(key)?;
                    self.value(value)?;
                }
                self.op(b"u");
            }
            Value::Tensor(tensor) => self.tensor(tensor)?,
        }
        Ok(())
    }

    fn op(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn int(&mut self, i: i128) {
        match i32::try_from(i) {
            Ok(i) => {
                self.op(b"J");
                self.op(&i.to_le_bytes());
            }
            Err(_) => {
                self.op(b"\x8a\x10");
                self.op(&i.to_le_bytes());
            }
        }
    }

    fn text(&mut self, text: &str) -> Result<(), Fault> {
        let len = u32::try_from(text.len());
        let len = len.map_err(|_| "a text of 4 GiB or more can't be written".to_string())?;
        self.op(b"X");
        self.op(&len.to_le_bytes());
        self.op(text.as_bytes());
        Ok(())
    }

    /// Writes `_rebuild_tensor_v2(('storage', class, key, 'cpu', elements), offset, sizes, strides, False, {})`, or
    /// for storages of bytes the third version, which has a dtype at the end.
    fn tensor(&mut self, tensor: &Tensor) -> Result<(), Fault> {
        let shape = tensor.shape()?;
        let ViewWithin {
            whole,
            offset,
            strides,
        } = self.view(tensor, &shape)?;
        let storage = storage_of(&whole)?;
        let [name, class] = storage.names;
        let (version, module) = match storage.untyped {
            true => ("3", "torch.storage"),
            false => ("2", "torch"),
        };
        self.op(format!("ctorch._utils\n_rebuild_tensor_v{version}\n((").as_bytes());
        self.text("storage")?;
        self.op(format!("c{module}\n{class}\n").as_bytes());
        let number = self.storage(&whole);
        self.text(&number.to_string())?;
        self.text("cpu")?;
        self.int(storage.elements as i128);
        self.op(if self.legacy { b"NtQ" } else { b"tQ" });
        self.int(offset as i128);
        for sizes in [&shape, &strides] {
            self.op(b"(");
            sizes.iter().for_each(|n| self.int(*n as i128));
            self.op(b"t");
        }
        self.op(b"\x89ccollections\nOrderedDict\n)R");
        if storage.untyped {
            self.op(format!("ctorch\n{name}\n").as_bytes());
        }
        self.op(b"tR");
        Ok(())
    }

    /// The tensor as a view of another one that is written, or of itself.
    fn view(&mut self, tensor: &Tensor, shape: &[usize]) -> Result<ViewWithin, Fault> {
        /// Readers refuse files whose views hold many times the elements of their storages.
        const TIMES: usize = 8;
        let view = tensor.view_within(|whole| self.wholes.contains(&identity(whole)));
        if let Some(view) = view {
            let shared_bytes = self.shared_bytes.entry(identity(&view.whole)).or_default();
            let bytes = shared_bytes.saturating_add(tensor.nbytes()?);
            if bytes / TIMES <= view.whole.nbytes()? {
                *shared_bytes = bytes;
                return Ok(view);
            }
        }
        let mut strides = vec![1; shape.len()];
        for d in (1..shape.len()).rev() {
            strides[d - 1] = strides[d] * shape[d].max(1);
        }
        Ok(ViewWithin {
            whole: tensor.clone(),
            offset: 0,
            strides,
        })
    }

    /// The number of the storage that holds a tensor's values.
    fn storage(&mut self, tensor: &Tensor) -> usize {
        let next = self.tensors.len();
        let number = *self.numbers.entry(identity(tensor)).or_insert(next);
        if number == next {
            self.tensors.push(tensor.clone());
        }
        number
    }
}
