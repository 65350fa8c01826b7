//! Open packages.

use crate::buffers;
use crate::entry::Entry;
use crate::error::{Error, Result, damaged, failed};
use crate::interface::StateInfo;
use crate::manifest::{ASSETS, FORMAT, Manifest, ProgramInfo, WEIGHTS};
use crate::open::Options;
use crate::shared::Shared;
use crate::tensors::{self, read_safetensors, write_safetensors};
use crate::write::{self, File, Piece};
use kiln_runtime::Buffer;
use kiln_runtime::memory::Lender;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// A file of compiled programs with their weights and state. Cloning gives another handle to the same package.
///
/// ```no_run
/// use kiln_package::{Buffer, Package};
/// let package = Package::open("model.kiln")?;
/// let forward = package.entry("forward")?;
/// let images = Buffer::from_slice(&[0.5f32; 64], &[1, 1, 8, 8])?;
/// let out = forward.run([("images", images)])?;
/// println!("{:?}", out.get("scores")?.to_vec::<f32>()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Package {
    pub(crate) shared: Arc<Shared>,
}

impl Package {
    /// Opens a file. All of it is checked against its checksums. Weights are mapped, not read: they take memory only
    /// while they are used.
    ///
    /// The file must stay unchanged for as long as the package, or a tensor of it, exists. Replacing the file by a
    /// new one (as saving a package does) is safe; writing into it or truncating it is not.
    ///
    /// # Errors
    /// If the file can't be read, is not a package, is of a format that this build does not read, does not match its
    /// checksums, or contradicts itself.
    pub fn open(path: impl AsRef<Path>) -> Result<Package> {
        Options::new().open(path)
    }

    /// Opens a package that is in memory.
    ///
    /// # Errors
    /// As [`Package::open`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Package> {
        Options::new().open_bytes(bytes)
    }

    /// The program that wrote it.
    pub fn written_by(&self) -> &str {
        &self.shared.manifest.written_by
    }

    /// The machines that programs were tuned for, in order.
    pub fn machines(&self) -> BTreeSet<&str> {
        self.programs()
            .filter_map(|p| p.machine.as_deref())
            .collect()
    }

    /// The name of the machine that it runs on, as in tuned programs; `None` if it is unknown.
    pub fn machine(&self) -> Option<&str> {
        self.shared.machine.as_deref()
    }

    /// The levels for which there are packed weights.
    pub fn packed_levels(&self) -> BTreeSet<&str> {
        let packed = self.programs().flat_map(|p| &p.packed);
        packed.map(|p| &p.level[..]).collect()
    }

    /// The targets that GPU kernels were compiled for, such as `compute_90a`.
    pub fn compiled_for(&self) -> BTreeSet<&str> {
        let compiled = self.shared.manifest.cuda.iter();
        compiled.map(|c| &c.code[..]).collect()
    }

    fn programs(&self) -> impl Iterator<Item = &ProgramInfo> {
        let entries = self.shared.manifest.entries.iter();
        entries.flat_map(|e| &e.programs)
    }

    /// The manifest of the package as JSON: all that the other functions return, and the sizes and checksums of its
    /// files.
    pub fn manifest(&self) -> String {
        String::from_utf8(self.shared.manifest.to_bytes()).unwrap_or_default()
    }

    /// The format of its programs. They run if it is this build's, [`kiln_plan::FORMAT`].
    pub fn plan_format(&self) -> u32 {
        self.shared.manifest.plan_format
    }

    /// The keys and values that the exporter stored about the package.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.shared.manifest.metadata
    }

    /// The names of its entries.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        self.shared.manifest.entries.iter().map(|e| &e.name[..])
    }

    /// The inputs, outputs and states of an entry; no program is read for it.
    ///
    /// # Errors
    /// If there is no entry of this name.
    pub fn interface(&self, entry: &str) -> Result<&crate::Interface> {
        Ok(&self.shared.manifest.entries[self.find(entry)?].interface)
    }

    /// The program that an entry was compiled from, as text.
    ///
    /// # Errors
    /// If there is no entry of this name, or the file is not text.
    pub fn graph(&self, entry: &str) -> Result<&str> {
        let info = &self.shared.manifest.entries[self.find(entry)?];
        let text = std::str::from_utf8(self.shared.file(&info.graph));
        text.map_err(|_| damaged!("`{}` is not text", info.graph))
    }

    /// Returns an entry, ready to run. Its programs are read on first use.
    ///
    /// # Errors
    /// If there is none of this name, none of its programs is for this machine, its programs are of another format,
    /// contradict themselves or do not fit the weights, or memory is short.
    pub fn entry(&self, name: &str) -> Result<Entry> {
        Entry::new(self.shared.clone(), self.find(name)?)
    }

    fn find(&self, name: &str) -> Result<usize> {
        let mut names = self.entries();
        let index = names.position(|n| n == name);
        index.ok_or_else(|| Error::missing("entry", name, self.entries()))
    }

    /// The names of its assets, such as `classes.txt`.
    pub fn assets(&self) -> impl Iterator<Item = &str> {
        let files = self.shared.files.keys();
        files.filter_map(|name| name.strip_prefix(ASSETS))
    }

    /// An asset.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn asset(&self, name: &str) -> Result<&[u8]> {
        let found = self.shared.files.get(&format!("{ASSETS}{name}"));
        let found = found.map(|bytes| &self.shared.map.bytes()[bytes.clone()]);
        found.ok_or_else(|| Error::missing("asset", name, self.assets()))
    }

    /// The tensors that are kept from run to run.
    pub fn states(&self) -> &[StateInfo] {
        self.shared.states.infos()
    }

    /// The value of a state now. Later runs do not change the tensor.
    ///
    /// # Errors
    /// If there is no state of this name.
    pub fn get(&self, name: &str) -> Result<Buffer> {
        let index = self.shared.states.find(name)?;
        Ok(self.shared.states.read()[index].clone())
    }

    /// A tensor that entries have captured, which never changes ([`Interface::constants`](crate::Interface)).
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn constant(&self, name: &str) -> Result<Buffer> {
        self.shared.constant(name)
    }

    /// Sets the value of a state.
    ///
    /// # Errors
    /// If there is no state of this name, or the value has another dtype or shape.
    pub fn set(&self, name: &str, value: Buffer) -> Result<()> {
        self.set_all([(name, value)])
    }

    /// Sets the values of several states, all or none. The narrow copy of a state, which mixed precision training
    /// keeps as `NAME.bf16` or `NAME.f16`, is rounded from it unless it is given too.
    ///
    /// # Errors
    /// As [`Package::set`], for any of them.
    pub fn set_all<'a>(&self, values: impl IntoIterator<Item = (&'a str, Buffer)>) -> Result<()> {
        let states = &self.shared.states;
        let mut new_values = Vec::new();
        for (name, value) in values {
            let index = states.find(name)?;
            states.check(index, &value)?;
            new_values.push((index, buffers::on_device(&value, name, self.shared.gpu())?));
        }
        let indices: Vec<usize> = new_values.iter().map(|(index, _)| *index).collect();
        for &index in &indices {
            for copy in states.copies(index).filter(|copy| !indices.contains(copy)) {
                let (name, dtype) = (&states.infos()[copy].name, states.infos()[copy].dtype);
                let value = new_values.iter().find(|(i, _)| *i == index).map(|(_, v)| v);
                let Some(value) = value else { continue };
                let bytes = value.to_bytes().map_err(failed(name))?;
                let narrow = dtype.float_bytes(&value.dtype().floats(&bytes));
                let narrow = Buffer::from_bytes(dtype, value.shape(), &narrow);
                let narrow = narrow.map_err(failed(name))?;
                new_values.push((copy, buffers::on_device(&narrow, name, self.shared.gpu())?));
            }
        }
        let mut current = states.write();
        for (index, value) in new_values {
            current[index] = value;
        }
        Ok(())
    }

    /// The value of a named element of a state, such as `lr` of `optimizer.numbers`.
    ///
    /// # Errors
    /// If there is no such state or element, or the device that it is on fails.
    pub fn number(&self, state: &str, element: &str) -> Result<f64> {
        let (index, i) = self.shared.states.element(state, element)?;
        let values = self.shared.states.read()[index].to_vec::<f64>();
        Ok(values.map_err(failed(state))?[i])
    }

    /// Changes a named element of a state.
    ///
    /// # Errors
    /// As [`Package::number`].
    pub fn set_number(&self, state: &str, element: &str, value: f64) -> Result<()> {
        let (index, i) = self.shared.states.element(state, element)?;
        let mut current = self.shared.states.write();
        let mut values = current[index].to_vec::<f64>().map_err(failed(state))?;
        values[i] = value;
        let shape = [values.len() as i64];
        let changed = Buffer::from_slice(&values, &shape).map_err(failed(state))?;
        current[index] = buffers::on_device(&changed, state, self.shared.gpu())?;
        Ok(())
    }

    /// Resets all states to their values in the file.
    ///
    /// # Errors
    /// If memory of a GPU is short.
    pub fn reset(&self) -> Result<()> {
        let states = &self.shared.states;
        let values = buffers::all_on_device(states.initial(), states.infos(), self.shared.gpu())?;
        *states.write() = values;
        Ok(())
    }

    /// Writes the states as a safetensors file, which atomically replaces an older one.
    ///
    /// # Errors
    /// If the file can't be written; the older one then stays.
    pub fn save_state(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let tensors = self.state_tensors().map_err(|e| e.in_file(path))?;
        write_safetensors(path, tensors)
    }

    /// Sets the states from a safetensors file, which must hold all of them and nothing else.
    ///
    /// # Errors
    /// If the file can't be read, or its tensors are not these states. Nothing is changed then.
    pub fn load_state(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.load_states(path).map_err(|e| e.in_file(path))
    }

    fn load_states(&self, path: &Path) -> Result<()> {
        let values = read_safetensors(path)?;
        if let Some(missing) = self.states().iter().find(|s| !values.contains_key(&s.name)) {
            return Err(Error::Value(format!("state `{}` is missing", missing.name)));
        }
        self.set_all(
            values
                .iter()
                .map(|(name, value)| (&name[..], value.clone())),
        )
    }

    /// Writes the package with its current states, atomically replacing an older file. Packed weights are left out
    /// once a state has changed.
    ///
    /// # Errors
    /// If the file can't be written; the older one then stays.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        write::save(path.as_ref(), self.current_files())
    }

    /// The manifest and the files of the package with its current states.
    fn current_files(&self) -> Result<(Manifest, Vec<File>)> {
        let weights = tensors::tensor_file(self.tensors()?)?;
        let mut manifest = self.shared.manifest.clone();
        manifest.format = FORMAT;
        let mut stale: BTreeSet<String> = BTreeSet::new();
        if !self.is_as_opened() {
            // They were packed from other weights.
            let programs = manifest.entries.iter_mut().flat_map(|e| &mut e.programs);
            let packed = programs.flat_map(|p| std::mem::take(&mut p.packed));
            stale.extend(packed.map(|p| p.file));
        }
        let kept = manifest.files.iter().filter(|f| !stale.contains(&f.name));
        let files = kept.map(|file| {
            let name = file.name.clone();
            let pieces = match self.shared.files.get(&name) {
                Some(range) if name != WEIGHTS => {
                    vec![Piece::Mapped(self.shared.map.clone(), range.clone())]
                }
                _ => Piece::of(&weights),
            };
            (name, pieces)
        });
        let files = files.collect();
        Ok((manifest, files))
    }

    /// True if no state has changed since the package was opened.
    fn is_as_opened(&self) -> bool {
        let current = self.shared.states.read();
        let mut values = current.iter().zip(self.shared.states.initial());
        values.all(|(a, b)| Arc::ptr_eq(a.storage(), b.storage()))
    }

    /// All tensors, with the states as they are now, on the host.
    pub(crate) fn tensors(&self) -> Result<Vec<(String, Buffer)>> {
        let mut tensors = self.state_tensors()?;
        for (name, range) in &self.shared.tensors {
            if self.shared.states.find(name).is_err() {
                let tensor = buffers::tensor(&self.shared.map, name, range)?;
                tensors.push((name.clone(), tensor));
            }
        }
        Ok(tensors)
    }

    /// The current states, all of one moment, on the host.
    fn state_tensors(&self) -> Result<Vec<(String, Buffer)>> {
        let now = self.shared.states.read().clone();
        let named = self.states().iter().zip(now);
        let host = named.map(|(info, value)| {
            let value = value.to_host().map_err(failed(&info.name))?;
            Ok((info.name.clone(), value))
        });
        host.collect()
    }
}

impl std::fmt::Debug for Package {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let entries: Vec<&str> = self.entries().collect();
        f.debug_struct("Package")
            .field("entries", &entries)
            .field("states", &self.states().len())
            .finish_non_exhaustive()
    }
}
