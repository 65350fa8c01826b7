//! Loading of kernels from source: several per translation unit, compiled in parallel, cached on disk.

use super::cache::{Cache, Compiler, Key, key};
use super::context::Context;
use super::driver::{Failure, Object, call, sys};
use super::nvrtc::{Code, Nvrtc};
use hashbrown::HashMap;
use kiln_kernel::error::{Error, Result};
use kiln_kernel::lock::lock;
use kiln_plan::cuda::{CudaKernel, PRELUDE};
use kiln_plan::{Kernel, Plan};
use std::borrow::Cow;
use std::ffi::{CString, c_int};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use xxhash_rust::xxh3::Xxh3Default;

/// The loaded modules of a device that are in use.
pub(super) struct Modules {
    context: Context,
    /// The device's compute capability.
    capability: (u32, u32),
    /// Functions, by the key of their source.
    functions: HashMap<SourceHash, (Weak<Module>, Object<sys::CUfunc_st>)>,
    /// Loaded units of the cache.
    units: HashMap<Key, Weak<Module>>,
    /// The kind of code for the device, once known.
    code: Option<Code>,
}

/// A loaded unit, which is retired when it is dropped.
pub struct Module {
    context: Context,
    handle: Object<sys::CUmod_st>,
}

impl Drop for Module {
    fn drop(&mut self) {
        self.context.retire(self.handle);
    }
}

/// A kernel's function, which its module keeps loaded.
#[derive(Clone)]
pub struct Function {
    pub(super) handle: Object<sys::CUfunc_st>,
    module: Arc<Module>,
}

/// A kernel to be loaded.
#[derive(Clone)]
pub(super) struct Unloaded<'a> {
    /// The name in messages.
    pub(super) name: &'a str,
    /// The name of its function.
    pub(super) entry: &'a str,
    /// The source after the prelude.
    pub(super) source: Cow<'a, str>,
    /// Bytes of dynamic shared memory of a block.
    pub(super) shared: u32,
    pub(super) parameters: Parameters,
}

/// The numbers of a kernel's parameters: pointers, integers, sites and tensor maps, in this order. The error record and
/// a flag, which is set if the kernel is guarded, precede the maps.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Parameters {
    pub(super) pointers: usize,
    pub(super) numbers: usize,
    pub(super) sites: usize,
    pub(super) maps: usize,
}

impl Parameters {
    /// The bytes of each parameter.
    pub(super) fn sizes(self) -> Vec<usize> {
        let mut sizes = vec![8; self.pointers + self.numbers];
        sizes.extend(std::iter::repeat_n(4, self.sites));
        sizes.extend([8, 4]);
        sizes.extend(std::iter::repeat_n(128, self.maps));
        sizes
    }
}

impl<'a> From<&'a CudaKernel> for Unloaded<'a> {
    fn from(kernel: &'a CudaKernel) -> Unloaded<'a> {
        Unloaded {
            name: &kernel.name,
            entry: &kernel.entry,
            source: kernel.source().into(),
            shared: kernel.shared,
            parameters: Parameters {
                pointers: kernel.args.len(),
                numbers: kernel.scalars.len(),
                sites: kernel.sites as usize,
                maps: kernel.maps.len(),
            },
        }
    }
}

/// A hash of a kernel's name and source, without the prelude, which is constant.
type SourceHash = u128;

/// The CUDA kernels of a plan, and with `bodies` those of the plans in its bodies.
pub(super) fn cuda_kernels(plan: &Plan, bodies: bool) -> Vec<Unloaded<'_>> {
    let mut kernels = Vec::new();
    for kernel in &plan.kernels {
        if let Kernel::Cuda(k) = &**kernel {
            kernels.push(k.into());
        }
        let inner = kernel.bodies().iter().filter(|_| bodies);
        kernels.extend(inner.flat_map(|body| cuda_kernels(body, true)));
    }
    kernels
}

impl Unloaded<'_> {
    /// Checks that the kernel can be compiled to this kind of code.
    ///
    /// # Errors
    /// [`Error::Cuda`] if it needs features of another architecture.
    pub(super) fn check(&self, code: Code) -> Result<()> {
        match self.parameters.maps == 0 || code.has_warpgroups() {
            true => Ok(()),
            false => Err(Error::Cuda(format!(
                "{} was written for sm_90a and can't be compiled for {code}: compile the program on a GPU of that \
                 architecture",
                self.name
            ))),
        }
    }

    fn source_hash(&self) -> SourceHash {
        let mut hash = Xxh3Default::new();
        hash.update(&(self.entry.len() as u64).to_le_bytes());
        hash.update(self.entry.as_bytes());
        hash.update(self.source.as_bytes());
        hash.digest128()
    }
}

impl Modules {
    pub(super) fn new(context: Context, capability: (u32, u32)) -> Modules {
        Modules {
            context,
            capability,
            functions: HashMap::new(),
            units: HashMap::new(),
            code: None,
        }
    }

    fn find_loaded(&self, hash: SourceHash) -> Option<Function> {
        let (module, handle) = self.functions.get(&hash)?;
        Some(Function {
            handle: *handle,
            module: module.upgrade()?,
        })
    }

    fn insert(&mut self, hash: SourceHash, function: &Function) {
        let module = Arc::downgrade(&function.module);
        self.functions.insert(hash, (module, function.handle));
    }

    /// Drops entries that are no longer loaded.
    fn drop_unloaded(&mut self) {
        self.functions
            .retain(|_, (module, _)| module.strong_count() > 0);
        self.units.retain(|_, module| module.strong_count() > 0);
    }
}

/// The maximum number of kernels of a translation unit. Each unit has a fixed cost, but threads can't share one.
pub(super) const MAX_UNIT_KERNELS: usize = 8;

/// A kernel that does nothing, to test the kinds of code that a device loads.
const PROBE: &str = "extern \"C\" __global__ void kiln_probe() {}\n";

impl Modules {
    /// The functions of these kernels, in order. Kernels that are neither loaded nor cached are compiled.
    ///
    /// # Errors
    /// If a kernel can't be compiled, or NVRTC is needed and missing.
    pub(super) fn functions(&mut self, kernels: &[&Unloaded]) -> Result<Vec<Function>> {
        let mut functions: HashMap<SourceHash, Function> = HashMap::new();
        let mut missing: Vec<(&Unloaded, SourceHash)> = Vec::new();
        let hashes: Vec<SourceHash> = kernels.iter().map(|k| k.source_hash()).collect();
        for (k, hash) in kernels.iter().zip(&hashes) {
            match self.find_loaded(*hash) {
                Some(function) => drop(functions.insert(*hash, function)),
                None if missing.iter().any(|m| m.1 == *hash) => {}
                None => missing.push((k, *hash)),
            }
        }
        if !missing.is_empty() {
            self.context.activate()?;
            self.drop_unloaded();
            self.load(missing, &mut functions)?;
        }
        let lost = || Error::Internal("a loaded kernel is gone".into());
        let function = |hash: &SourceHash| functions.get(hash).cloned().ok_or_else(lost);
        hashes.iter().map(function).collect()
    }

    fn load(
        &mut self,
        missing: Vec<(&Unloaded, SourceHash)>,
        functions: &mut HashMap<SourceHash, Function>,
    ) -> Result<()> {
        let cache = Cache::of_user();
        // Without NVRTC, code of any compiler version is accepted.
        let compiler = cache.compiler();
        let version = compiler.as_ref().map(|c| c.version);
        let code = self.code(&cache, compiler.as_ref())?;
        missing.iter().try_for_each(|(k, _)| k.check(code))?;
        let mut uncached: Vec<(&Unloaded, SourceHash, Key)> = Vec::new();
        for (kernel, hash) in missing {
            let key = key(&format!("{PRELUDE}{}", kernel.source), code);
            let module = self.find_cached(&cache, key, version);
            match module.and_then(|module| self.function(&module, kernel).ok()) {
                Some(function) => {
                    self.insert(hash, &function);
                    functions.insert(hash, function);
                }
                None => uncached.push((kernel, hash, key)),
            }
        }
        if uncached.is_empty() {
            return Ok(());
        }
        let nvrtc = Nvrtc::get()?;
        let units: Vec<&[(&Unloaded, SourceHash, Key)]> =
            uncached.chunks(unit_size(uncached.len())).collect();
        let sources = units
            .iter()
            .map(|unit| unit_source(unit.iter().map(|u| u.0.source.as_ref())));
        let sources: Vec<String> = sources.collect();
        let images = compile(nvrtc, &sources, code)?;
        for ((unit, source), image) in units.iter().zip(&sources).zip(images) {
            let module = self.load_image(&image)?;
            let keys: Vec<Key> = unit.iter().map(|u| u.2).collect();
            let unit_key = key(source, code);
            cache.store(unit_key, &keys, &image, nvrtc.version());
            self.units.insert(unit_key, Arc::downgrade(&module));
            for (kernel, hash, _) in *unit {
                let function = self.function(&module, kernel)?;
                self.insert(*hash, &function);
                functions.insert(*hash, function);
            }
        }
        cache.shrink();
        Ok(())
    }

    /// The kind of code for this device: machine code, or PTX if the driver rejects that.
    fn code(&mut self, cache: &Cache, compiler: Option<&Compiler>) -> Result<Code> {
        if let Some(code) = self.code {
            return Ok(code);
        }
        let (major, minor) = self.capability;
        let capability = 10 * major + minor;
        let architectures = compiler.map_or(&[][..], |c| &c.architectures);
        let version = compiler.map(|c| c.version);
        let code = match Code::best(capability, architectures) {
            code @ Code::Cubin(_) if !self.loads(cache, version, code)? => Code::Ptx(capability),
            code => code,
        };
        self.code = Some(code);
        Ok(code)
    }

    /// True if this device loads machine code.
    fn loads(&self, cache: &Cache, version: Option<(i32, i32)>, code: Code) -> Result<bool> {
        let probe = key(PROBE, code);
        let image = match cache.code(probe, version) {
            Some(image) => image,
            None => {
                let nvrtc = Nvrtc::get()?;
                let image = nvrtc.compile(PROBE, code)?.image;
                cache.store(probe, &[], &image, nvrtc.version());
                image
            }
        };
        use sys::CUresult::{CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_NO_BINARY_FOR_GPU};
        match self.load_image(&image) {
            Ok(_) => Ok(true),
            // The code is of another architecture, or of a form that this driver does not know.
            Err(Failure {
                status: CUDA_ERROR_NO_BINARY_FOR_GPU | CUDA_ERROR_INVALID_IMAGE,
                ..
            }) => Ok(false),
            Err(failure) => Err(failure.into()),
        }
    }

    /// The module of the unit that the cache has for a kernel; `None` if any of its files is damaged.
    fn find_cached(
        &mut self,
        cache: &Cache,
        kernel: Key,
        version: Option<(i32, i32)>,
    ) -> Option<Arc<Module>> {
        let unit = cache.unit_of(kernel, version)?;
        if let Some(module) = self.units.get(&unit).and_then(Weak::upgrade) {
            return Some(module);
        }
        let module = self.load_image(&cache.code(unit, version)?).ok()?;
        self.units.insert(unit, Arc::downgrade(&module));
        Some(module)
    }

    pub(super) fn load_image(&self, image: &[u8]) -> std::result::Result<Arc<Module>, Failure> {
        let mut handle = Object(null_mut());
        // SAFETY: the image is machine code, or PTX that ends in a zero byte.
        unsafe { call!(cuModuleLoadData(&mut handle.0, image.as_ptr().cast())) }?;
        let context = self.context;
        Ok(Arc::new(Module { context, handle }))
    }

    pub(super) fn function(&self, module: &Arc<Module>, kernel: &Unloaded) -> Result<Function> {
        let entry = CString::new(kernel.entry);
        let entry = entry.map_err(|_| Error::Cuda("a kernel's name holds a zero byte".into()))?;
        let mut handle = Object(null_mut());
        // SAFETY: the module is loaded and the name ends in zero.
        let status = unsafe {
            call!(cuModuleGetFunction(
                &mut handle.0,
                module.handle.0,
                entry.as_ptr()
            ))
        };
        status.map_err(|failure| failure.of(&format!("no kernel {}", kernel.entry)))?;
        if kernel.shared > 0 {
            let bytes = kernel.shared as c_int;
            // SAFETY: the function is loaded.
            let status = unsafe {
                call!(cuFuncSetAttribute(
                    handle.0,
                    // Allows more than 48 KiB, of which static memory is a part.
                    sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    bytes
                ))
            };
            let description = || format!("{bytes} bytes of shared memory for {}", kernel.name);
            status.map_err(|failure| failure.of(&description()))?;
        }
        let module = module.clone();
        Ok(Function { handle, module })
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// The number of kernels per unit that gives every thread a unit.
fn unit_size(kernels: usize) -> usize {
    kernels.div_ceil(threads()).clamp(1, MAX_UNIT_KERNELS)
}

/// Compiles kernels on all cores, several per unit as for a device, and returns the code of each unit.
///
/// # Errors
/// If NVRTC is missing or a kernel can't be compiled.
pub fn compile_units(kernels: &[&CudaKernel], code: Code) -> Result<Vec<Vec<u8>>> {
    let units = kernels.chunks(unit_size(kernels.len()));
    let source = |unit: &[&CudaKernel]| {
        let sources: Vec<String> = unit.iter().map(|k| k.source()).collect();
        unit_source(sources.iter().map(String::as_str))
    };
    let sources: Vec<String> = units.map(source).collect();
    compile(Nvrtc::get()?, &sources, code)
}

/// The source of a unit.
pub(super) fn unit_source<'k>(sources: impl Iterator<Item = &'k str>) -> String {
    std::iter::once(PRELUDE).chain(sources).collect()
}

/// Compiles units on all cores, up to the first error.
pub(super) fn compile(nvrtc: &Nvrtc, sources: &[String], code: Code) -> Result<Vec<Vec<u8>>> {
    let units: Vec<OnceLock<Vec<u8>>> = sources.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let error: Mutex<Option<Error>> = Mutex::new(None);
    let work = || {
        while lock(&error).is_none() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(source) = sources.get(index) else {
                return;
            };
            match nvrtc.compile(source, code) {
                Ok(compiled) => drop(units[index].set(compiled.image)),
                Err(e) => *lock(&error) = Some(e),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads().min(sources.len()) {
            scope.spawn(work);
        }
        work();
    });
    match lock(&error).take() {
        Some(e) => Err(e),
        None => Ok(units.into_iter().filter_map(OnceLock::into_inner).collect()),
    }
}
