//! Compilation of kernels ahead of time, for packages.

use super::cache::{Cache, Key, key};
use super::control;
use super::image::{Image, key_of};
use super::module::{MAX_UNIT_KERNELS, Unloaded, compile, cuda_kernels, unit_source};
use super::nvrtc::{Code, Nvrtc};
use hashbrown::HashSet;
use kiln_kernel::error::Result;
use kiln_kernel::memory::Storage;
use kiln_plan::Plan;
use std::sync::Arc;

/// A translation unit that is to be compiled.
struct Unit {
    key: Key,
    kernels: Vec<Key>,
    source: String,
}

/// Compiles every kernel that plans run on a GPU once, except users' operators. Only the plans determine which kernels
/// share an image.
///
/// # Errors
/// If NVRTC is missing or a kernel can't be compiled for the architecture: kernels with warpgroups need sm_90a.
pub fn compile_ahead(plans: &[&Plan], code: Code) -> Result<Vec<Image>> {
    let kernels = plans.iter().flat_map(|plan| cuda_kernels(plan, true));
    kernels.into_iter().try_for_each(|k| k.check(code))?;
    let units = units(plans, code);
    if units.is_empty() {
        return Ok(Vec::new());
    }
    let nvrtc = Nvrtc::get()?;
    let (cache, version) = (Cache::of_user(), nvrtc.version());
    let mut images: Vec<Option<Vec<u8>>> = Vec::new();
    images.extend(units.iter().map(|u| cache.code(u.key, Some(version))));
    let missing: Vec<usize> = (0..units.len()).filter(|i| images[*i].is_none()).collect();
    let sources: Vec<String> = missing.iter().map(|i| units[*i].source.clone()).collect();
    for (i, image) in missing.into_iter().zip(compile(nvrtc, &sources, code)?) {
        cache.store(units[i].key, &units[i].kernels, &image, version);
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

/// The kernels of each plan that no earlier plan has, in small units: a process that runs one plan then loads few
/// kernels of others.
fn units(plans: &[&Plan], code: Code) -> Vec<Unit> {
    let mut known: HashSet<Key> = HashSet::new();
    let mut units = Vec::new();
    for plan in plans {
        let plan_kernels = cuda_kernels(plan, true).into_iter();
        let plan_kernels = plan_kernels.chain(control::control_kernels(plan));
        let keyed = plan_kernels.map(|kernel| (key_of(&kernel, code), kernel));
        let new: Vec<(Key, Unloaded)> = keyed.filter(|(key, _)| known.insert(*key)).collect();
        for unit in new.chunks(MAX_UNIT_KERNELS) {
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
