//! The description of a package: `manifest.json`.

use crate::error::{Error, Result, damaged, ensure};
use crate::interface::{Interface, StateInfo};
use kiln_runtime::cuda::Code;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The format of packages that this build writes. It reads all formats from 1 on. Format 2 added programs of one
/// machine and packed weights, format 3 compiled GPU kernels.
pub const FORMAT: u64 = 3;

/// Members that are not an entry's or an asset.
pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const WEIGHTS: &str = "weights.safetensors";
/// The prefix of asset members.
pub(crate) const ASSETS: &str = "assets/";

/// The maximum size of a manifest, in bytes.
const MAX_BYTES: usize = 64 << 20;

/// The whole manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub format: u64,
    /// The format of its programs.
    pub plan_format: u32,
    /// The program that wrote it.
    pub written_by: String,
    /// Texts of the exporter about the package.
    pub metadata: BTreeMap<String, String>,
    pub entries: Vec<EntryInfo>,
    /// The states that are kept from run to run. Each is a tensor of the weights.
    pub state: Vec<StateInfo>,
    /// Compiled GPU kernels of all programs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cuda: Vec<CudaInfo>,
    /// All members but the manifest, in the order in which they lie in the archive.
    pub files: Vec<FileInfo>,
}

/// A function that can be run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EntryInfo {
    pub name: String,
    pub interface: Interface,
    /// The member that is the recorded program as text.
    pub graph: String,
    pub programs: Vec<ProgramInfo>,
}

/// A program of an entry, for certain sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProgramInfo {
    /// The requirement on the machine.
    pub requires: Requires,
    /// The machine that it was tuned for, as [`kiln_base::Machine`] is shown; `None` if it is for any machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// The values of symbols that it is for; the others are at least as large as the symbol's `min`.
    pub sizes: BTreeMap<String, i64>,
    /// The member that holds it.
    pub file: String,
    /// Its packed weights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packed: Vec<PackedInfo>,
}

/// GPU kernels that were compiled when the package was written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CudaInfo {
    /// The target that they were compiled for, as [`kiln_runtime::cuda::Code`] is shown.
    pub code: String,
    /// Major and minor version of the NVRTC that compiled them.
    pub compiler: (u32, u32),
    /// The key of each: a hash of its source and of the compiler's flags, 128 bits as 32 hexadecimal digits.
    pub kernels: Vec<String>,
    /// The member that holds them.
    pub file: String,
}

impl CudaInfo {
    /// The target that they were compiled for.
    pub fn code(&self) -> Result<Code> {
        self.code.parse().map_err(|e| damaged!("{e}"))
    }

    /// The keys of the kernels.
    pub fn keys(&self) -> Result<Vec<u128>> {
        let key = |text: &String| {
            let key = u128::from_str_radix(text, 16).ok();
            let key = key.filter(|key| format!("{key:032x}") == *text);
            key.ok_or_else(|| damaged!("no kernel is called {text:?}"))
        };
        self.kernels.iter().map(key).collect()
    }
}

/// Weights of a program as its kernels read them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PackedInfo {
    /// The level that they are for.
    pub level: String,
    /// The layout that they are packed in; see [`kiln_runtime::Packed`].
    pub layout: String,
    /// The checksum of the tensors that they were packed from.
    pub weights: String,
    /// The member that holds them.
    pub file: String,
}

/// The requirement of a program on the machine.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Requires {
    /// A processor of any kind: code is emitted when the program is loaded, for the best instruction set of the
    /// machine.
    Cpu,
    /// An NVIDIA GPU, and NVRTC, unless the package holds kernels that were compiled for that GPU.
    Cuda,
}

/// A member of the archive, with the size and checksum that it must have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileInfo {
    pub name: String,
    pub bytes: u64,
    /// XXH3 of its contents, 128 bits as 32 hexadecimal digits.
    pub xxh3: String,
}

/// The fields that every format has.
#[derive(Deserialize)]
struct Head {
    format: u64,
    #[serde(default)]
    written_by: Option<String>,
}

impl Manifest {
    /// Parses a manifest.
    ///
    /// # Errors
    /// If it is of another format, or contradicts itself.
    pub fn from_bytes(bytes: &[u8]) -> Result<Manifest> {
        let is_small = bytes.len() <= MAX_BYTES;
        ensure!(is_small, "its manifest takes more than {MAX_BYTES} bytes");
        let wrong = |e: serde_json::Error| damaged!("its manifest is not what it should be: {e}");
        let Head { format, written_by } = serde_json::from_slice(bytes).map_err(wrong)?;
        if !(1..=FORMAT).contains(&format) {
            let by = written_by.unwrap_or_else(|| "something unnamed".into());
            return Err(Error::Format { found: format, by });
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(wrong)?;
        manifest.check()?;
        Ok(manifest)
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("names and numbers are JSON");
        text.push(b'\n');
        text
    }

    fn check(&self) -> Result<()> {
        unique("entries", self.entries.iter().map(|e| &e.name))?;
        unique("states", self.state.iter().map(|s| &s.name))?;
        let files = unique("files", self.files.iter().map(|f| &f.name))?;
        let mut members: Vec<&String> = Vec::new();
        for entry in &self.entries {
            let name = &entry.name;
            // The name is a part of file names.
            let is_name = name.len() <= 100 && !name.contains('/') && crate::zip::is_name(name);
            ensure!(is_name, "no entry can be called {name:?}");
            for program in &entry.programs {
                members.push(&program.file);
                members.extend(program.packed.iter().map(|packed| &packed.file));
            }
            members.push(&entry.graph);
            entry.interface.check(&entry.name)?;
        }
        for cuda in &self.cuda {
            cuda.code()?;
            cuda.keys()?;
            members.push(&cuda.file);
        }
        let mut listed = unique("places of files", members.into_iter())?;
        listed.insert(WEIGHTS);
        for member in &listed {
            ensure!(files.contains(member), "`{member}` is not there");
        }
        for file in files {
            let is_known = listed.contains(file) || file.starts_with(ASSETS);
            ensure!(is_known, "nothing says what `{file}` is");
        }
        Ok(())
    }
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> Result<BTreeSet<&'a str>> {
    let mut used = BTreeSet::new();
    for name in names {
        ensure!(used.insert(&name[..]), "two {what} are called `{name}`");
    }
    Ok(used)
}
