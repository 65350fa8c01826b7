//! Kernels that are compiled before they are loaded, to be carried elsewhere.

use super::cache::{Cache, Key, key};
use super::control;
use super::elf;
use super::launch::cuda_kernels;
use super::module::{UNIT, Unloaded, compile, unit_source};
use super::nvrtc::{Code, Nvrtc};
use hashbrown::HashSet;
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::memory::Storage;
use kiln_plan::Plan;
use kiln_plan::cuda::PRELUDE;
use std::sync::Arc;

/// Compiled kernels of some sources.
#[derive(Clone)]
pub struct Image {
    /// What they were compiled for.
    pub code: Code,
    /// The version of the NVRTC that compiled them.
    pub compiler: (u32, u32),
    /// For each kernel what names its source and the flags that it was compiled with.
    pub kernels: Vec<u128>,
    /// PTX (ending in a zero byte) or machine code.
    pub bytes: Arc<Storage>,
}

impl Image {
    /// Errs unless the driver may read it: it is told no length.
    pub(super) fn check(&self) -> Result<()> {
        let (code, bytes) = (self.code, self.bytes.bytes());
        match code {
            Code::Cubin(capability) => elf::check(bytes, capability),
            Code::Ptx(_) | Code::Portable(_) => {
                let text = bytes.strip_suffix(&[0]).filter(|text| !text.contains(&0));
                let text = text.and_then(|text| std::str::from_utf8(text).ok());
                let text =
                    text.ok_or_else(|| damaged!("compiled kernels for {code} are no text"))?;
                let mut targets = text
                    .lines()
                    .filter_map(|l| l.trim().strip_prefix(".target "));
                let first = targets.next().map(str::trim);
                match first == Some(&code.target()[..]) && targets.next().is_none() {
                    true => Ok(()),
                    false => Err(damaged!(
                        "compiled kernels for {code} are for {}",
                        first.unwrap_or("nothing")
                    )),
                }
            }
        }
    }
}

/// What names a kernel's source and the flags that it is compiled with.
pub(super) fn key_of(kernel: &Unloaded, code: Code) -> Key {
    key(&format!("{PRELUDE}{}", kernel.source), code)
}

/// A translation unit that is to be compiled.
struct Unit {
    key: Key,
    kernels: Vec<Key>,
    source: String,
}

/// Compiles all that plans run on a GPU, but for operators of users', each kernel once. Which kernels share an image
/// follows from the plans alone.
///
/// # Errors
/// If NVRTC is missing or a kernel can't be compiled for that architecture.
pub fn compile_ahead(plans: &[&Plan], code: Code) -> Result<Vec<Image>> {
    let units = units(plans, code);
    if units.is_empty() {
        return Ok(Vec::new());
    }
    let nvrtc = Nvrtc::get()?;
    let (cache, version) = (Cache::of_user(), nvrtc.version());
    let mut images: Vec<Option<Vec<u8>>> = Vec::new();
    images.extend(units.iter().map(|u| cache.code(u.key, Some(version))));
    let left: Vec<usize> = (0..units.len()).filter(|i| images[*i].is_none()).collect();
    let sources: Vec<String> = left.iter().map(|i| units[*i].source.clone()).collect();
    for (i, image) in left.into_iter().zip(compile(nvrtc, &sources, code)?) {
        cache.keep(units[i].key, &units[i].kernels, &image, version);
        images[i] = Some(image);
    }
    cache.shrink();
    let image = |(unit, bytes): (Unit, Option<Vec<u8>>)| {
        Ok(Image {
            code,
            compiler: (version.0 as u32, version.1 as u32),
            kernels: unit.kernels,
            bytes: Arc::new(Storage::from_bytes(&bytes.unwrap_or_default())?),
        })
    };
    units.into_iter().zip(images).map(image).collect()
}

/// The kernels of each plan that none before it has, some at a time: so whoever runs one plan loads little of others.
fn units(plans: &[&Plan], code: Code) -> Vec<Unit> {
    let mut known: HashSet<Key> = HashSet::new();
    let mut units = Vec::new();
    for plan in plans {
        let all = cuda_kernels(plan, true).into_iter();
        let all = all.chain(control::of_plan(plan));
        let keyed = all.map(|kernel| (key_of(&kernel, code), kernel));
        let new: Vec<(Key, Unloaded)> = keyed.filter(|(key, _)| known.insert(*key)).collect();
        for unit in new.chunks(UNIT) {
            let source = unit_source(unit.iter().map(|(_, k)| k.source.as_ref()));
            units.push(Unit {
                key: key(&source, code),
                kernels: unit.iter().map(|(key, _)| *key).collect(),
                source,
            });
        }
    }
    units
}
