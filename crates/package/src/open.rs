//! Opening a package: everything is checked before anything of it is used.

use crate::buffers::{all_on_device, tensor};
use crate::compiled;
use crate::error::{Error, Result, damaged, ensure, failed};
use crate::interface::StateInfo;
use crate::manifest::{FileInfo, MANIFEST, Manifest, WEIGHTS};
use crate::map::Map;
use crate::package::Package;
use crate::shared::Shared;
use crate::state::{RNG_STATE, States};
use crate::tensors::{self, TensorRange};
use crate::zip;
use kiln_runtime::memory::Lender;
use kiln_runtime::{Buffer, cuda};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};
use xxhash_rust::xxh3::xxh3_128;

/// Options for opening a package.
///
/// ```no_run
/// use kiln_package::Options;
/// let package = Options::new().trusted(true).open("model.kiln")?;
/// # Ok::<(), kiln_package::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Options {
    trusted: bool,
    gpu: Option<u32>,
}

impl Options {
    /// As [`Package::open`] opens one.
    pub fn new() -> Options {
        Options::default()
    }

    /// If true, checksums are not verified: the file is then not read from end to end. The contents are still checked
    /// before they are used, so a damaged file gives errors or wrong numbers, and nothing worse.
    pub fn trusted(mut self, trusted: bool) -> Options {
        self.trusted = trusted;
        self
    }

    /// Runs the package's programs for CUDA, on the NVIDIA GPU of this number.
    pub fn gpu(mut self, ordinal: u32) -> Options {
        self.gpu = Some(ordinal);
        self
    }

    /// Opens a file; see [`Package::open`].
    ///
    /// # Errors
    /// As [`Package::open`], or if there is no such GPU.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Package> {
        let path = path.as_ref();
        let opened = Map::file(path).and_then(|map| self.open_map(map));
        opened.map_err(|e| e.in_file(path))
    }

    /// Opens a package in memory, by copying it.
    ///
    /// # Errors
    /// As [`Options::open`].
    pub fn open_bytes(&self, bytes: &[u8]) -> Result<Package> {
        self.open_map(Map::memory(bytes)?)
    }

    fn open_map(&self, map: Map) -> Result<Package> {
        let bytes = map.bytes();
        let members = zip::directory(bytes)?;
        let Some((first, rest)) = members.split_first().filter(|(f, _)| f.name == MANIFEST) else {
            return Err(Error::SomethingElse("it has no manifest".into()));
        };
        let text = &bytes[contents(first)];
        let is_same = crc32fast::hash(text) == first.crc;
        ensure!(is_same, "its manifest has another checksum than it should");
        let manifest = Manifest::from_bytes(text)?;
        let files = self.files(bytes, &manifest.files, rest)?;
        let weights = files.get(WEIGHTS).cloned().unwrap_or(0..0);
        let mut tensors = tensors::read(&bytes[weights.clone()])?;
        for range in tensors.values_mut() {
            range.bytes.start += weights.start;
            range.bytes.end += weights.start;
        }
        let gpu = self.gpu.map(cuda::Device::get).transpose();
        let gpu = gpu.map_err(failed("the GPU"))?;
        let machine = kiln_runtime::machine(gpu.as_deref());
        let map = Arc::new(map);
        let states = states(&map, &manifest, &tensors, gpu.as_ref())?;
        let loader = |gpu| compiled::loader(gpu, &map, &manifest, &files).map(Arc::new);
        let loader = gpu.as_ref().map(loader).transpose()?;
        Ok(Package {
            shared: Arc::new(Shared {
                map,
                manifest,
                files,
                weights,
                tensors,
                states,
                loader,
                machine: machine.ok().map(|m| m.to_string()),
                constants: Mutex::default(),
                entries: Mutex::default(),
            }),
        })
    }

    /// The ranges of the files that the manifest lists; an error if the files do not match the manifest.
    fn files(
        &self,
        bytes: &[u8],
        infos: &[FileInfo],
        members: &[zip::Member],
    ) -> Result<BTreeMap<String, Range<usize>>> {
        let are_as_many = infos.len() == members.len();
        ensure!(are_as_many, "its manifest lists other files than there are");
        let mut files = BTreeMap::new();
        for (infos, member) in infos.iter().zip(members) {
            let name = &member.name;
            let is_listed = (&infos.name, infos.bytes) == (name, member.size);
            ensure!(is_listed, "its manifest lists another file than `{name}`");
            let range = contents(member);
            let sum = || format!("{:032x}", xxh3_128(&bytes[range.clone()]));
            let is_same = self.trusted || sum() == infos.xxh3;
            ensure!(is_same, "`{name}` has another checksum than it should");
            files.insert(name.clone(), range);
        }
        Ok(files)
    }
}

/// The range of a member's contents, which are within the file.
fn contents(member: &zip::Member) -> Range<usize> {
    let Range { start, end } = member.contents();
    start as usize..end as usize
}

fn states(
    map: &Arc<Map>,
    manifest: &Manifest,
    tensors: &BTreeMap<String, TensorRange>,
    gpu: Option<&Arc<cuda::Device>>,
) -> Result<States> {
    let infos = manifest.state.clone();
    let random = manifest.entries.iter().any(|e| e.interface.random);
    let has_state = infos.iter().any(|s| s.name == RNG_STATE);
    ensure!(
        !random || has_state,
        "an entry draws random numbers, and there is no `{RNG_STATE}`"
    );
    let value = |s: &StateInfo| {
        let range = tensors.get(&s.name);
        let range = range.ok_or_else(|| damaged!("state `{}` is not among the weights", s.name))?;
        tensor(map, &s.name, range)
    };
    let initial: Vec<Buffer> = infos.iter().map(value).collect::<Result<_>>()?;
    let current = all_on_device(&initial, &infos, gpu)?;
    States::new(infos, initial, current)
}
