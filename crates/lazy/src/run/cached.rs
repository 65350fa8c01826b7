//! The plans of lazy reads, kept from one read to the next.

use super::errors::{compile_error, forbid_while_compiling};
use super::gather::Gather;
use crate::{Device, Handle, Result};
use kiln_compiler::{Cache, CacheStats, Explain, Options};
use kiln_runtime::lock::lock;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard};

/// The plans of lazy reads, by device and by the options of compilation; the most recently used last.
static CACHES: Mutex<Vec<(Options, Arc<Cache>)>> = Mutex::new(Vec::new());
/// The number of caches that are kept; programs use few devices and settings.
const CACHES_KEPT: usize = 16;

fn caches() -> MutexGuard<'static, Vec<(Options, Arc<Cache>)>> {
    lock(&CACHES)
}

/// Returns the cache of plans for a device.
pub fn cache(device: Device) -> Arc<Cache> {
    let options = Options {
        gpu: device.ordinal(),
        ..Options::default()
    };
    let mut caches = caches();
    let index = caches.iter().rposition(|(o, _)| *o == options);
    let entry = match index {
        Some(index) => caches.remove(index),
        None => {
            let cache = Cache::new(options.clone(), 64 << 20);
            (options, Arc::new(cache))
        }
    };
    let cache = entry.1.clone();
    caches.push(entry);
    if caches.len() > CACHES_KEPT {
        caches.remove(0);
    }
    cache
}

/// The counters of the plan caches of all devices and settings in this process.
pub fn cache_stats() -> CacheStats {
    let mut sum = CacheStats::default();
    for stats in caches().iter().map(|(_, cache)| cache.stats()) {
        sum.hits += stats.hits;
        sum.compiled += stats.compiled;
        sum.evicted += stats.evicted;
        sum.bytes += stats.bytes;
        sum.new += stats.new;
        sum.numbers += stats.numbers;
        sum.sizes += stats.sizes;
        sum.symbolic += stats.symbolic;
    }
    sum
}

/// Explains the compilation of these tensors, which it does if necessary: passes, groups, kernels, memory, and the
/// reasons for the plans of the program.
///
/// # Errors
/// The first invalid operation, or one that the engine can't run.
pub fn explain<T: AsRef<Handle>>(values: &[T], loc: &'static Location<'static>) -> Result<Explain> {
    forbid_while_compiling(loc)?;
    let (gather, outputs) = Gather::of(values)?;
    let cache = cache(gather.device());
    let recording = gather.recording(outputs);
    let fit = cache.get(&recording);
    let fit = fit.map_err(|e| compile_error(e, &gather, loc))?;
    Ok(Explain {
        reasons: cache.reasons(&recording).into(),
        ..fit.plan.explain.clone()
    })
}
