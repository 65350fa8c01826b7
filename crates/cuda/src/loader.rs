//! The source of a program's kernels: images compiled ahead of time, or the device, which compiles them.

use super::cache::Key;
use super::device::Device;
use super::image::{Image, key_of};
use super::module::{Function, Module, Unloaded};
use super::nvrtc::Code;
use hashbrown::HashMap;
use kiln_kernel::error::{Error, Result, damaged};
use kiln_kernel::lock::lock;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Weak};

/// Loads kernels to a device. A kernel comes from a compiled image if the device supports the image's code and the
/// source is the same; otherwise the device compiles it, unless it has it already.
///
/// Only programs of one loader use its compiled kernels: the claims of one package about its kernels must not affect
/// other programs.
pub struct Loader {
    device: Arc<Device>,
    images: Vec<Image>,
    /// The kinds of code in the images that the device takes, best first.
    codes: Vec<Code>,
    /// The image that has a kernel as this kind of code.
    kernels: HashMap<(Code, Key), usize>,
    loaded: Mutex<HashMap<usize, Loaded>>,
}

/// The state of an image.
enum Loaded {
    Module(Weak<Module>),
    /// The driver refuses it, for this reason.
    Refused(String),
}

impl Loader {
    /// A loader with these compiled kernels, which are checked before they are loaded.
    pub fn new(device: &Arc<Device>, images: Vec<Image>) -> Loader {
        let (major, minor) = device.capability();
        let capability = 10 * major + minor;
        // Compiled kernels are used only if the driver can return their parameters, which are checked.
        let can_check = device.context.driver.has_parameter_info;
        let runs = |code: &Code| can_check && code.runs_on(capability);
        let mut codes: Vec<Code> = Vec::new();
        for image in &images {
            if runs(&image.code) && !codes.contains(&image.code) {
                codes.push(image.code);
            }
        }
        // Machine code first, then the features of this architecture, then the newest of older ones.
        codes.sort_by_key(|code| match code {
            Code::Cubin(_) => (0, 0),
            Code::Ptx(c) => (1, u32::MAX - c),
            Code::Portable(c) => (2, u32::MAX - c),
        });
        let mut kernels = HashMap::new();
        for (index, image) in images.iter().enumerate().filter(|(_, i)| runs(&i.code)) {
            for kernel in &image.kernels {
                kernels.entry((image.code, *kernel)).or_insert(index);
            }
        }
        Loader {
            device: device.clone(),
            images,
            codes,
            kernels,
            loaded: Mutex::default(),
        }
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The functions of these kernels, in order.
    ///
    /// # Errors
    /// [`Error::Plan`] if compiled kernels do not match their description, [`Error::Cuda`] if there are none for this
    /// device and they can't be compiled.
    pub(super) fn functions(&self, kernels: &[Unloaded]) -> Result<Vec<Function>> {
        self.device.context.limit_retired()?;
        let stored = kernels.iter().map(|k| self.find_stored(k));
        let stored = stored.collect::<Result<Vec<Option<Function>>>>()?;
        let missing = kernels.iter().zip(&stored).filter(|(_, f)| f.is_none());
        let missing: Vec<&Unloaded> = missing.map(|(k, _)| k).collect();
        let compiled = lock(&self.device.modules).functions(&missing);
        let mut compiled = compiled.map_err(|e| self.explain_error(e))?.into_iter();
        let lost = || Error::Internal("fewer functions than kernels".into());
        let functions = stored.into_iter().map(|f| f.or_else(|| compiled.next()));
        functions.map(|f| f.ok_or_else(lost)).collect()
    }

    /// A kernel from the images; `None` if no image that the device takes has it.
    fn find_stored(&self, kernel: &Unloaded) -> Result<Option<Function>> {
        for code in &self.codes {
            let index = self.kernels.get(&(*code, key_of(kernel, *code))).copied();
            let Some(module) = index.map(|index| self.module(index)).transpose()?.flatten() else {
                continue;
            };
            let function = lock(&self.device.modules).function(&module, kernel);
            let name = kernel.name;
            let function =
                function.map_err(|e| damaged!("compiled kernels for {code} lack {name}: {e}"))?;
            let expected = kernel.parameters.sizes();
            let driver = self.device.context.driver;
            if driver.parameters(function.handle.0, expected.len()) != Some(expected) {
                return Err(damaged!(
                    "{name} as compiled for {code} is called in another way"
                ));
            }
            return Ok(Some(function));
        }
        Ok(None)
    }

    /// An image, loaded; `None` if the driver refuses it.
    fn module(&self, image_index: usize) -> Result<Option<Arc<Module>>> {
        let mut loaded = lock(&self.loaded);
        match loaded.get(&image_index) {
            Some(Loaded::Module(module)) => {
                if let Some(module) = module.upgrade() {
                    return Ok(Some(module));
                }
            }
            Some(Loaded::Refused(_)) => return Ok(None),
            None => {}
        }
        let image = &self.images[image_index];
        image.check()?;
        self.device.context.activate()?;
        let module = lock(&self.device.modules).load_image(image.bytes.bytes());
        let (state, module) = match module {
            Ok(module) => (Loaded::Module(Arc::downgrade(&module)), Some(module)),
            Err(failure) => {
                let why = Error::from(failure);
                (Loaded::Refused(format!("{}: {why}", image.code)), None)
            }
        };
        loaded.insert(image_index, state);
        Ok(module)
    }

    /// Adds the state of the compiled images to an error.
    fn explain_error(&self, error: Error) -> Error {
        let Error::Cuda(text) = error else {
            return error;
        };
        if self.images.is_empty() {
            return Error::Cuda(text);
        }
        let codes: BTreeSet<String> = self.images.iter().map(|i| i.code.to_string()).collect();
        let codes: Vec<String> = codes.into_iter().collect();
        let ((major, minor), mut why) = (self.device.capability(), Vec::new());
        if !self.device.context.driver.has_parameter_info {
            why.push("; its driver is older than CUDA 12.4, which they need".to_string());
        }
        let refused = lock(&self.loaded);
        let refused: BTreeSet<&String> = (refused.values())
            .filter_map(|l| match l {
                Loaded::Refused(why) => Some(why),
                Loaded::Module(_) => None,
            })
            .collect();
        why.extend(
            refused
                .into_iter()
                .map(|r| format!("; the driver refuses {r}")),
        );
        Error::Cuda(format!(
            "{} has compute capability {major}.{minor}, there are compiled kernels for {}{}, and others must be compiled: \
             {text}",
            self.device,
            codes.join(", "),
            why.concat()
        ))
    }
}
