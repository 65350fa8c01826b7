//! The builder of packages.

use crate::exported::Exported;
use crate::names::Names;
use kiln_lazy::run::read;
use kiln_nn::Module;
use kiln_nn::amp::GradScaler;
use kiln_nn::optim::Optimizer;
use kiln_package::{Code, Contents, Features, NewEntry, NewProgram, RNG_STATE, RuntimeError};
use kiln_runtime::Buffer;
use kiln_runtime::cuda::Nvrtc;
use kiln_tensor::{Compiled, Error, ErrorKind, Result, Tensor, Var, get_rng_state};
use std::collections::BTreeMap;
use std::panic::Location;
use std::path::Path;

/// A builder of a package: compiled functions, with the values that they read and assign, in one file that only needs
/// the runtime to run.
///
/// State that functions keep from run to run becomes the package's state. Its names are those in modules and optimisers
/// that are added, else those of the [`Var`]s; two functions that use one `Var` share it. Values are those at the time
/// of writing.
///
/// ```
/// use kiln_export::Builder;
/// use kiln_nn::optim::{Adam, Optimizer};
/// use kiln_nn::{Forward, Linear, Module};
/// use kiln_package::{Buffer, Package};
/// use kiln_tensor::{DType, Spec, compile};
///
/// let model = Linear::new(4, 2)?;
/// let mut optimizer = Optimizer::new(model.parameters(), Adam::new())?;
/// let rows = Spec::new(DType::F32, ("batch", 4));
/// let forward = compile(rows.clone(), |x| model.call(&x))?;
/// let step = compile((rows, Spec::new(DType::I64, "batch")), |(x, y)| {
///     optimizer.zero_grad();
///     let loss = model.call(&x).cross_entropy(&y);
///     loss.backward()?;
///     optimizer.step()?;
///     kiln_tensor::Result::Ok(loss)
/// })?;
/// let bytes = Builder::new()
///     .module("", &model)
///     .optimizer("optimizer", &optimizer)
///     .entry("forward", &forward)
///     .inputs(["x"])
///     .outputs(["scores"])
///     .entry("train_step", &step)
///     .inputs(["x", "y"])
///     .outputs(["loss"])
///     .metadata("task", "an example")
///     .asset("classes.txt", "cat\ndog\n")
///     .to_bytes()?;
///
/// // Elsewhere, with `kiln_package` alone:
/// let package = Package::from_bytes(&bytes).unwrap();
/// let x = Buffer::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 4]).unwrap();
/// let before = package.entry("forward").unwrap().run([("x", x.clone())]).unwrap();
/// let y = Buffer::from_slice(&[1i64], &[1]).unwrap();
/// package.entry("train_step").unwrap().run([("x", x.clone()), ("y", y)]).unwrap();
/// let after = package.entry("forward").unwrap().run([("x", x)]).unwrap();
/// let scores = |out: &kiln_package::Outputs| out.get("scores").unwrap().to_vec::<f32>().unwrap();
/// assert_ne!(scores(&before), scores(&after));
/// assert!(package.get("optimizer.exp_avg.weight").is_ok());
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Default)]
pub struct Builder {
    names: Names,
    entries: Vec<Exported>,
    metadata: BTreeMap<String, String>,
    assets: Vec<(String, Vec<u8>)>,
    packed: Vec<Features>,
    cuda: Vec<Code>,
    /// The first error.
    error: Option<Error>,
}

impl Builder {
    /// Makes the builder of an empty package.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Names a module's parameters and buffers as its state dict does, with the prefix `prefix.` unless that is empty,
    /// and keeps all of them, used or not.
    #[track_caller]
    pub fn module(mut self, prefix: &str, module: &dyn Module) -> Builder {
        let parameters = module.named_parameters().into_iter();
        for (name, var) in parameters.chain(module.named_buffers()) {
            self.add(prefix, &name, &var, Vec::new());
        }
        self
    }

    /// Gives an optimiser's state its [names](Optimizer::named_state), with the prefix `prefix.` unless that is empty,
    /// and keeps all of it, used or not.
    #[track_caller]
    pub fn optimizer(mut self, prefix: &str, optimizer: &Optimizer) -> Builder {
        for state in optimizer.named_state() {
            self.add(prefix, &state.name, &state.var, state.elements);
        }
        self
    }

    /// Gives a scaler's state its [names](GradScaler::named_state), with the prefix `prefix.` unless that is empty, and
    /// keeps all of it, used or not.
    #[track_caller]
    pub fn scaler(mut self, prefix: &str, scaler: &GradScaler) -> Builder {
        for state in scaler.named_state() {
            self.add(prefix, &state.name, &state.var, state.elements);
        }
        self
    }

    /// Names a `Var` and keeps it, used or not.
    #[track_caller]
    pub fn var(mut self, name: &str, var: &Var) -> Builder {
        self.add("", name, var, Vec::new());
        self
    }

    #[track_caller]
    fn add(&mut self, prefix: &str, name: &str, var: &Var, elements: Vec<String>) {
        let name = match prefix {
            "" => name.to_string(),
            prefix => format!("{prefix}.{name}"),
        };
        if let Some(copy) = var.narrow_copy() {
            let name = format!("{name}.{}", copy.dtype());
            let added = self.names.add(name, &copy, Vec::new());
            self.keep_error(added);
        }
        let added = self.names.add(name, var, elements);
        self.keep_error(added);
    }

    /// Adds a compiled function under a name. The names of its inputs and outputs are their positions in its argument
    /// and result, such as `0.rows`; a single one is `input` or `output`.
    ///
    /// A symbol of its sizes is at least 2 in its program. Further programs are added for sizes in which some of the
    /// first three symbols are 1, or the first is 0, if the function can be compiled for them.
    #[track_caller]
    pub fn entry<I, O>(mut self, name: &str, function: &Compiled<I, O>) -> Builder {
        match Exported::new(name, function, Location::caller()) {
            Ok(entry) => self.entries.push(entry),
            Err(e) => self.error = self.error.or(Some(e)),
        }
        self
    }

    /// Names all inputs of the entry that was added last.
    #[track_caller]
    pub fn inputs<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Builder {
        let renamed = self.last().and_then(|entry| entry.name_inputs(names));
        self.keep_error(renamed);
        self
    }

    /// Names all outputs of the entry that was added last.
    #[track_caller]
    pub fn outputs<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Builder {
        let renamed = self.last().and_then(|entry| entry.name_outputs(names));
        self.keep_error(renamed);
        self
    }

    fn last(&mut self) -> Result<&mut Exported, String> {
        let last = self.entries.last_mut();
        last.ok_or_else(|| "there is no entry yet: add one before naming inputs and outputs".into())
    }

    /// Adds a key and a value to the package's metadata.
    pub fn metadata(mut self, key: &str, value: impl Into<String>) -> Builder {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// Adds a file of any kind, such as the names of classes.
    pub fn asset(mut self, name: &str, contents: impl Into<Vec<u8>>) -> Builder {
        self.assets.push((name.into(), contents.into()));
        self
    }

    /// Also stores weights as a level's kernels read them, which takes about as much space again. A process at that
    /// level maps these weights, so it packs nothing at its first run, and several processes share one copy. The
    /// machine that writes the package must support the level.
    #[track_caller]
    pub fn packed_weights(mut self, level: Features) -> Builder {
        if !level.is_supported() {
            let name = level.name();
            self.keep_error(Err(format!(
                "this machine does not support level {name}, so it can't pack weights for it; pack on one that does"
            )));
        } else if !self.packed.contains(&level) {
            self.packed.push(level);
        }
        self
    }

    /// Also compiles the GPU kernels of functions for this architecture. By default, a package has their sources, and
    /// PTX for the GPU that they were compiled on if this machine has NVRTC. A GPU that accepts the code
    /// ([`Code::runs_on`]) then needs no NVRTC.
    ///
    /// Kernels are emitted for the GPU that functions were compiled on. So kernels that use its specific features can't
    /// be compiled for others; writing the package then fails.
    pub fn compiled_kernels(mut self, code: Code) -> Builder {
        if !self.cuda.contains(&code) {
            self.cuda.push(code);
        }
        self
    }

    #[track_caller]
    fn keep_error(&mut self, result: Result<(), String>) {
        if let Err(message) = result {
            let error = Error::invalid("package", message);
            self.error.get_or_insert(error);
        }
    }

    /// Writes the file, replacing an older one.
    ///
    /// # Errors
    /// If a name is used twice or is invalid, a value can't be computed, or the file can't be written; an older file
    /// then stays.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let loc = Location::caller();
        let saved = self.contents(loc)?.save(path);
        saved.map_err(|e| Error::new(ErrorKind::Io, "package", e.to_string(), loc))
    }

    /// The package as bytes.
    ///
    /// # Errors
    /// As [`Builder::save`].
    #[track_caller]
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let loc = Location::caller();
        let bytes = self.contents(loc)?.to_bytes();
        bytes.map_err(|e| Error::new(ErrorKind::Value, "package", e.to_string(), loc))
    }

    /// Returns the codes for which GPU kernels are compiled.
    fn codes(&self) -> Vec<Code> {
        let mut codes = self.cuda.clone();
        let has_nvrtc = |_: &Code| Nvrtc::get().is_ok();
        for code in self.entries.iter().filter_map(|e| e.cuda).filter(has_nvrtc) {
            if !codes.contains(&code) {
                codes.push(code);
            }
        }
        codes
    }

    fn contents(&self, loc: &'static Location<'static>) -> Result<Contents> {
        if let Some(e) = &self.error {
            return Err(e.clone());
        }
        let mut names = self.names.clone();
        let (mut entries, mut tensors, mut captured) = (Vec::new(), Vec::new(), BTreeMap::new());
        for entry in &self.entries {
            let states = entry.states.iter().zip(&entry.state_names);
            let states = states.map(|(var, name)| names.resolve(var, name, &entry.name));
            let states: Vec<String> = states.collect();
            let mut constants = Vec::new();
            for (name, tensor) in &entry.captured {
                let value = value(tensor, loc)?;
                // A tensor that several functions have captured is stored once.
                let known = captured.entry(value.storage().id());
                let name = known.or_insert_with(|| {
                    let name = names.reserve(format!("{}.{name}", entry.name));
                    tensors.push((name.clone(), value));
                    name
                });
                constants.push(name.clone());
            }
            entries.push(new_entry(entry, &states, &constants));
        }
        let mut state = Vec::new();
        for (name, var, elements) in names.entries() {
            tensors.push((name.clone(), value(&var.get().detach(), loc)?));
            state.push((name.clone(), elements.clone()));
        }
        let mut programs = entries.iter().flat_map(|e| &e.programs);
        if programs.any(|p| !p.program.signature.draws.is_empty()) {
            let value = Buffer::from_slice(&get_rng_state().map(|word| word as i64), &[2]);
            let failed =
                |e: RuntimeError| Error::new(ErrorKind::Memory, "package", e.to_string(), loc);
            tensors.push((RNG_STATE.into(), value.map_err(failed)?));
            state.push((RNG_STATE.into(), Vec::new()));
        }
        Ok(Contents {
            written_by: concat!("kiln ", env!("CARGO_PKG_VERSION")).into(),
            metadata: self.metadata.clone(),
            entries,
            state,
            tensors,
            assets: self.assets.clone(),
            packed: self.packed.clone(),
            cuda: self.codes(),
        })
    }
}

/// Returns an entry with the package's names of its states and captured tensors.
fn new_entry(entry: &Exported, states: &[String], constants: &[String]) -> NewEntry {
    let programs = entry.programs.iter().map(|(sizes, program)| {
        let mut program = program.clone();
        let signature = &mut program.signature;
        let states = signature.states.iter_mut().zip(states);
        states.for_each(|(state, name)| state.name.clone_from(name));
        for (list, names) in [
            (&mut signature.captured, constants),
            (&mut signature.arguments, &entry.inputs),
            (&mut signature.results, &entry.outputs),
        ] {
            let named = list.iter_mut().zip(names);
            named.for_each(|(named, name)| named.name.clone_from(name));
        }
        NewProgram {
            machine: None,
            sizes: sizes.clone(),
            program,
        }
    });
    NewEntry {
        name: entry.name.clone(),
        graph: entry.graph.clone(),
        programs: programs.collect(),
    }
}

/// Returns a computed value, on the host.
fn value(tensor: &Tensor, loc: &'static Location<'static>) -> Result<Buffer> {
    let value = read::value(tensor.as_ref(), loc)?.to_host();
    value.map_err(|e| Error::new(ErrorKind::Device, "package", e.to_string(), loc))
}
