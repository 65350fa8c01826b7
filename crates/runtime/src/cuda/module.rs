//! From sources to functions: several kernels a translation unit, compiled in parallel, kept on disk.

use super::cache::{Cache, Key, key};
use super::device::{Device, lock};
use super::driver::{Handle, NO_BINARY_FOR_GPU};
use super::nvrtc::{Code, Nvrtc};
use crate::error::{Error, Result};
use hashbrown::HashMap;
use kiln_base::cuda::{CudaKernel, PRELUDE};
use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// What a device has loaded. It stays loaded: queued work and graphs may use it.
#[derive(Default)]
pub(super) struct Modules {
    /// By entry.
    functions: HashMap<String, Handle>,
    /// Loaded units of the cache.
    units: HashMap<Key, Handle>,
    /// What kind of code the device takes, once known.
    code: Option<Code>,
}

/// The most kernels of a translation unit: each unit costs NVRTC a fixed time, and a long one keeps
/// other threads from helping.
const UNIT: usize = 8;

/// The driver's number of the attribute that allows more shared memory than 48 KiB, of which static memory is a
/// part.
const MAX_DYNAMIC_SHARED: c_int = 8;

/// A kernel that does nothing, by which a device shows what it loads.
const PROBE: &str = "extern \"C\" __global__ void kiln_probe() {}\n";

impl Device {
    /// The functions of these kernels, in order; compiled where neither this process nor the disk
    /// has them.
    ///
    /// # Errors
    /// If a kernel can't be compiled, or NVRTC is needed and missing.
    pub(super) fn functions(&self, kernels: &[&CudaKernel]) -> Result<Vec<Handle>> {
        let mut modules = lock(&self.modules);
        let mut missing: Vec<&CudaKernel> = Vec::new();
        for k in kernels {
            let known = modules.functions.contains_key(&k.entry);
            if !known && missing.iter().all(|m| m.entry != k.entry) {
                missing.push(k);
            }
        }
        if !missing.is_empty() {
            self.activate()?;
            self.load(&mut modules, missing)?;
        }
        let function = |k: &&CudaKernel| modules.functions.get(&k.entry).copied();
        let lost = || Error::Internal("a loaded kernel is gone".into());
        kernels
            .iter()
            .map(|k| function(k).ok_or_else(lost))
            .collect()
    }

    fn load(&self, modules: &mut Modules, missing: Vec<&CudaKernel>) -> Result<()> {
        let cache = Cache::of_user();
        // Without NVRTC, code of any version is welcome.
        let version = cache.compiler_version();
        let code = self.code(modules, &cache, version)?;
        let mut left: Vec<(&CudaKernel, Key)> = Vec::new();
        for kernel in missing {
            let key = key(&format!("{PRELUDE}{}", kernel.source), code);
            let found = self.cached(modules, &cache, key, version);
            match found.and_then(|module| self.function(module, kernel).ok()) {
                Some(function) => {
                    modules.functions.insert(kernel.entry.clone(), function);
                }
                None => left.push((kernel, key)),
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        let nvrtc = Nvrtc::get()?;
        let units: Vec<&[(&CudaKernel, Key)]> = left.chunks(unit_size(left.len())).collect();
        let sources = units
            .iter()
            .map(|unit| unit_source(unit.iter().map(|u| u.0)));
        let sources: Vec<String> = sources.collect();
        let images = compile(nvrtc, &sources, code)?;
        for ((unit, source), image) in units.iter().zip(&sources).zip(images) {
            let module = self.load_image(&image).map_err(|status| {
                let failed = self.driver.check("cuModuleLoadData", status);
                failed
                    .err()
                    .unwrap_or_else(|| Error::Internal("no module".into()))
            })?;
            let keys: Vec<Key> = unit.iter().map(|(_, key)| *key).collect();
            let unit_key = key(source, code);
            cache.keep(unit_key, &keys, &image, nvrtc.version());
            modules.units.insert(unit_key, module);
            for (kernel, _) in *unit {
                let function = self.function(module, kernel)?;
                modules.functions.insert(kernel.entry.clone(), function);
            }
        }
        Ok(())
    }

    /// What kind of code this device takes: machine code, or PTX where it refuses that.
    fn code(
        &self,
        modules: &mut Modules,
        cache: &Cache,
        version: Option<(i32, i32)>,
    ) -> Result<Code> {
        if let Some(code) = modules.code {
            return Ok(code);
        }
        let (major, minor) = self.capability();
        let capability = 10 * major + minor;
        let cubin = Code::Cubin(capability);
        let probe = key(PROBE, cubin);
        let image = match cache.code(probe, version) {
            Some(image) => image,
            None => {
                let nvrtc = Nvrtc::get()?;
                let image = nvrtc.compile(PROBE, cubin)?.image;
                cache.keep(probe, &[], &image, nvrtc.version());
                image
            }
        };
        let code = match self.load_image(&image) {
            Err(NO_BINARY_FOR_GPU) => Code::Ptx(capability),
            Err(status) => {
                self.driver.check("cuModuleLoadData", status)?;
                cubin
            }
            Ok(_) => cubin,
        };
        modules.code = Some(code);
        Ok(code)
    }

    /// The module of the unit that the cache has for a kernel; nothing if anything of it is damaged.
    fn cached(
        &self,
        modules: &mut Modules,
        cache: &Cache,
        kernel: Key,
        version: Option<(i32, i32)>,
    ) -> Option<Handle> {
        let unit = cache.unit_of(kernel, version)?;
        if let Some(module) = modules.units.get(&unit) {
            return Some(*module);
        }
        let module = self.load_image(&cache.code(unit, version)?).ok()?;
        modules.units.insert(unit, module);
        Some(module)
    }

    fn load_image(&self, image: &[u8]) -> std::result::Result<Handle, c_int> {
        let mut module = Handle::NULL;
        // SAFETY: the image is machine code, or PTX that ends in a zero byte.
        let status =
            unsafe { (self.driver.functions.module_load)(&mut module, image.as_ptr().cast()) };
        if status == 0 { Ok(module) } else { Err(status) }
    }

    fn function(&self, module: Handle, kernel: &CudaKernel) -> Result<Handle> {
        let entry = CString::new(kernel.entry.as_str());
        let entry = entry.map_err(|_| Error::Cuda("a kernel's name holds a zero byte".into()))?;
        let mut function = Handle::NULL;
        let f = &self.driver.functions;
        // SAFETY: the module is loaded and the name ends in zero.
        let status = unsafe { (f.module_function)(&mut function, module, entry.as_ptr()) };
        self.driver
            .check(&format!("no kernel {}", kernel.entry), status)?;
        if kernel.shared > 0 {
            let bytes = kernel.shared as c_int;
            // SAFETY: the function is loaded.
            let status = unsafe { (f.function_set)(function, MAX_DYNAMIC_SHARED, bytes) };
            let what = format!("{bytes} bytes of shared memory for {}", kernel.name);
            self.driver.check(&what, status)?;
        }
        Ok(function)
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Kernels a unit, so that every thread has one.
fn unit_size(kernels: usize) -> usize {
    kernels.div_ceil(threads()).clamp(1, UNIT)
}

/// Compiles kernels as a device would that has none of them: several a unit, on all cores. The code of each
/// unit.
///
/// # Errors
/// If NVRTC is missing or a kernel can't be compiled.
pub fn compile_units(kernels: &[&CudaKernel], code: Code) -> Result<Vec<Vec<u8>>> {
    let units = kernels.chunks(unit_size(kernels.len()));
    let sources: Vec<String> = units.map(|u| unit_source(u.iter().copied())).collect();
    compile(Nvrtc::get()?, &sources, code)
}

/// The text of a unit.
fn unit_source<'k>(kernels: impl Iterator<Item = &'k CudaKernel>) -> String {
    let sources = kernels.map(|k| k.source.as_str());
    std::iter::once(PRELUDE).chain(sources).collect()
}

/// Compiles units on all cores, up to the first error.
fn compile(nvrtc: &Nvrtc, sources: &[String], code: Code) -> Result<Vec<Vec<u8>>> {
    let done: Vec<OnceLock<Vec<u8>>> = sources.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    let work = || {
        while lock(&failed).is_none() {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(source) = sources.get(at) else {
                return;
            };
            match nvrtc.compile(source, code) {
                Ok(compiled) => drop(done[at].set(compiled.image)),
                Err(e) => *lock(&failed) = Some(e),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads().min(sources.len()) {
            scope.spawn(work);
        }
        work();
    });
    match lock(&failed).take() {
        Some(e) => Err(e),
        None => Ok(done.into_iter().filter_map(OnceLock::into_inner).collect()),
    }
}
