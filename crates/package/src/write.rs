//! Writing packages.

use crate::error::{Error, Result};
use crate::interface::{Interface, StateInfo};
use crate::manifest::{
    ASSETS, EntryInfo, FileInfo, MANIFEST, Manifest, ProgramInfo, Requires, WEIGHTS,
};
use crate::map::Map;
use crate::state::RNG_STATE;
use crate::tensors::{self, TensorFile};
use crate::zip::{self, Member};
use crate::{FORMAT, compiled, packed, program};
use kiln_plan::Entry as PlanEntry;
use kiln_runtime::cuda::Code;
use kiln_runtime::memory::{Lender, Storage};
use kiln_runtime::{Buffer, Features};
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// The contents of a new package.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// The program that writes it, such as `kiln 0.1.0`.
    pub written_by: String,
    /// Any texts about the package.
    pub metadata: BTreeMap<String, String>,
    /// The functions that can be run.
    pub entries: Vec<NewEntry>,
    /// The states that are kept from run to run: the name, and the names of the elements, if each is a
    /// separate number.
    pub state: Vec<(String, Vec<String>)>,
    /// The values of the states, and the captured tensors of programs, on the host.
    pub tensors: Vec<(String, Buffer)>,
    /// Files of any kind, by names such as `classes.txt`.
    pub assets: Vec<(String, Vec<u8>)>,
    /// The levels of this machine for which packed weights are stored too.
    pub packed: Vec<Features>,
    /// The targets that kernels of programs for CUDA are compiled for, in addition to their sources.
    pub cuda: Vec<Code>,
}

/// A function that can be run.
#[derive(Clone, Debug)]
pub struct NewEntry {
    /// Its name.
    pub name: String,
    /// The recorded program as text.
    pub graph: String,
    /// The programs of the entry. States and captured tensors have their names in the package.
    pub programs: Vec<NewProgram>,
}

/// A program of an entry.
#[derive(Clone, Debug)]
pub struct NewProgram {
    /// The machine that it was tuned for, as [`kiln_base::Machine`] is shown. Runs on it take this program rather
    /// than the one for any machine.
    pub machine: Option<String>,
    /// The values of symbols that it is for. Among the programs for any machine, one must have no values.
    pub sizes: BTreeMap<String, i64>,
    /// The program with its signature.
    pub program: PlanEntry,
}

/// A file by name, in parts.
pub(crate) type File = (String, Vec<Piece>);

/// A part of a file.
pub(crate) enum Piece {
    Bytes(Vec<u8>),
    Tensor(Buffer),
    Stored(Arc<Storage>),
    Mapped(Arc<Map>, Range<usize>),
}

impl Piece {
    /// The parts of a file of tensors.
    pub fn of(tensors: &TensorFile) -> Vec<Piece> {
        let values = tensors.values.iter().cloned().map(Piece::Tensor);
        let header = Piece::Bytes(tensors.header.clone());
        [header].into_iter().chain(values).collect()
    }

    fn bytes(&self) -> Result<&[u8]> {
        match self {
            Piece::Bytes(bytes) => Ok(bytes),
            Piece::Tensor(tensor) => tensors::bytes(tensor),
            Piece::Stored(stored) => Ok(stored.bytes()),
            Piece::Mapped(map, range) => Ok(&map.bytes()[range.clone()]),
        }
    }
}

impl Contents {
    /// Writes the package, which atomically replaces an older file.
    ///
    /// # Errors
    /// If the parts do not make a package, or the file can't be written; an older one then stays.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        save(path.as_ref(), self.build())
    }

    /// The package as bytes.
    ///
    /// # Errors
    /// If the parts do not make a package.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let (manifest, files) = self.build()?;
        let mut bytes = Vec::new();
        archive(&mut bytes, manifest, files)?;
        Ok(bytes)
    }

    fn build(&self) -> Result<(Manifest, Vec<File>)> {
        let mut files = Vec::new();
        let entries = self.entries.iter().map(|e| e.file(&mut files));
        let mut entries = entries.collect::<Result<Vec<EntryInfo>>>()?;
        for (name, bytes) in &self.assets {
            files.push((format!("{ASSETS}{name}"), vec![Piece::Bytes(bytes.clone())]));
        }
        let weights = tensors::tensor_file(self.tensors.clone())?;
        if !self.packed.is_empty() {
            let sum = checksum(&Piece::of(&weights))?;
            packed::add(self, &sum, &mut entries, &mut files)?;
        }
        let cuda = compiled::add(self, &mut files)?;
        files.push((WEIGHTS.into(), Piece::of(&weights)));
        let manifest = Manifest {
            format: FORMAT,
            plan_format: kiln_plan::FORMAT,
            written_by: self.written_by.clone(),
            metadata: self.metadata.clone(),
            entries,
            state: self.states()?,
            cuda,
            files: Vec::new(),
        };
        let random = manifest.entries.iter().any(|e| e.interface.random);
        if random && !manifest.state.iter().any(|s| s.name == RNG_STATE) {
            let text = format!("an entry draws random numbers, and there is no `{RNG_STATE}`");
            return Err(Error::Contents(text));
        }
        Ok((manifest, files))
    }

    fn states(&self) -> Result<Vec<StateInfo>> {
        let tensors: BTreeMap<&String, &Buffer> =
            self.tensors.iter().map(|(n, b)| (n, b)).collect();
        let info = |(name, elements): &(String, Vec<String>)| {
            let nothing = || Error::Contents(format!("state `{name}` holds nothing"));
            let value = tensors.get(name).ok_or_else(nothing)?;
            Ok(StateInfo {
                name: name.clone(),
                dtype: value.dtype(),
                shape: value.shape().to_vec(),
                elements: elements.clone(),
            })
        };
        self.state.iter().map(info).collect()
    }
}

impl NewEntry {
    /// Adds the files of the entry, and returns its description.
    fn file(&self, files: &mut Vec<File>) -> Result<EntryInfo> {
        let name = &self.name;
        let graph = format!("entries/{name}/graph.txt");
        let text = self.graph.clone().into_bytes();
        files.push((graph.clone(), vec![Piece::Bytes(text)]));
        let mut programs = Vec::new();
        for new in &self.programs {
            let (requires, kind) = match program::is_cuda(&new.program.plan) {
                true => (Requires::Cuda, "cuda"),
                false => (Requires::Cpu, "cpu"),
            };
            let suffix: String = new.sizes.values().map(|v| format!("-{v}")).collect();
            let number = programs.len();
            let file = format!("entries/{name}/{kind}-{number}{suffix}.plan");
            files.push((file.clone(), vec![Piece::Bytes(new.program.to_bytes())]));
            programs.push(ProgramInfo {
                requires,
                machine: new.machine.clone(),
                sizes: new.sizes.clone(),
                file,
                packed: Vec::new(),
            });
        }
        let is_general = |p: &&NewProgram| p.sizes.is_empty() && p.machine.is_none();
        let missing = || Error::Contents(format!("`{name}` has no program"));
        let general = self.programs.iter().find(is_general).ok_or_else(missing)?;
        Ok(EntryInfo {
            name: name.clone(),
            interface: Interface::of(&general.program.signature, &general.program.plan),
            graph,
            programs,
        })
    }
}

/// The checksum of a file.
fn checksum(pieces: &[Piece]) -> Result<String> {
    let mut xxh3 = Xxh3::new();
    for piece in pieces {
        xxh3.update(piece.bytes()?);
    }
    Ok(format!("{:032x}", xxh3.digest128()))
}

/// Writes a package, which atomically replaces an older file.
pub(crate) fn save(path: &Path, parts: Result<(Manifest, Vec<File>)>) -> Result<()> {
    let written = parts.and_then(|(manifest, files)| {
        kiln_base::file::replace(path, |file| archive(file, manifest, files))
    });
    written.map_err(|e| e.in_file(path))
}

/// Writes a package of these files, and puts their checksums and sizes into the manifest.
pub(crate) fn archive(to: &mut impl Write, mut manifest: Manifest, files: Vec<File>) -> Result<()> {
    let mut checksums = Vec::new();
    manifest.files.clear();
    for (name, pieces) in &files {
        let (mut xxh3, mut crc, mut size) = (Xxh3::new(), crc32fast::Hasher::new(), 0);
        for piece in pieces {
            let bytes = piece.bytes()?;
            xxh3.update(bytes);
            crc.update(bytes);
            size += bytes.len() as u64;
        }
        manifest.files.push(FileInfo {
            name: name.clone(),
            bytes: size,
            xxh3: format!("{:032x}", xxh3.digest128()),
        });
        checksums.push((size, crc.finalize()));
    }
    let text = manifest.to_bytes();
    // Refuse to write a manifest that can't be read again.
    Manifest::from_bytes(&text).map_err(|e| Error::Contents(e.to_string()))?;
    let manifest_sums = (text.len() as u64, crc32fast::hash(&text));
    let files = [(MANIFEST.to_string(), vec![Piece::Bytes(text)])]
        .into_iter()
        .chain(files);
    let (mut members, mut offset) = (Vec::new(), 0);
    for ((name, pieces), (size, crc)) in files.zip([manifest_sums].into_iter().chain(checksums)) {
        if !zip::is_name(&name) {
            return Err(Error::Contents(format!("no file can be called {name:?}")));
        }
        let member = Member {
            name,
            at: offset,
            size,
            crc,
        };
        to.write_all(&zip::local_header(&member))?;
        for piece in &pieces {
            to.write_all(piece.bytes()?)?;
        }
        offset = member.contents().end;
        members.push(member);
    }
    if members.len() > zip::MAX_MEMBERS {
        return Err(Error::Contents("there are too many files".into()));
    }
    to.write_all(&zip::central_and_end(&members, offset))?;
    Ok(())
}
