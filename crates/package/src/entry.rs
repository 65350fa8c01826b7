//! Running an entry.

use crate::buffers;
use crate::error::{Error, Result, damaged, ensure, failed};
use crate::interface::{Interface, Size};
use crate::manifest::{EntryInfo, ProgramInfo, Requires};
use crate::packed;
use crate::program::{self, Program, sizes_text};
use crate::shared::{Loaded, Shared, Sizes};
use crate::state::RNG_STATE;
use crate::values::{Inputs, Outputs};
use kiln_plan::Symbol;
use kiln_runtime::memory::Lender;
use kiln_runtime::{Buffer, MemoryReport, memory};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// A function of a package that can be run, from any number of threads. Clones share it.
#[derive(Clone)]
pub struct Entry {
    shared: Arc<Shared>,
    id: usize,
    loaded: Arc<Loaded>,
}

/// The memory that runs of an entry need, in bytes.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The states and constants that it uses, which all entries share.
    pub weights: usize,
    /// The memory that a run needs besides the weights.
    pub run: MemoryReport,
}

impl Entry {
    pub(crate) fn new(shared: Arc<Shared>, id: usize) -> Result<Entry> {
        // The lock is held while loading: threads that want the same entry wait for it.
        let mut entries = shared.entries.lock().unwrap_or_else(|e| e.into_inner());
        let loaded = match entries.get(&id) {
            Some(loaded) => loaded.clone(),
            None => {
                let loaded = Arc::new(Loaded::new(&shared, &shared.manifest.entries[id])?);
                entries.insert(id, loaded.clone());
                loaded
            }
        };
        drop(entries);
        Ok(Entry { shared, id, loaded })
    }

    fn info(&self) -> &EntryInfo {
        &self.shared.manifest.entries[self.id]
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.info().name
    }

    /// Its inputs, outputs and states.
    pub fn interface(&self) -> &Interface {
        &self.info().interface
    }

    /// Runs the entry. Runs that only read states are concurrent, and each sees a consistent snapshot. A run that
    /// writes states, or draws random numbers, has exclusive access; if it fails, the states stay as they were.
    ///
    /// ```no_run
    /// # use kiln_package::{Buffer, Package};
    /// # let package = Package::open("model.kiln")?;
    /// let x = Buffer::from_slice(&[0.0f32; 8], &[2, 4])?;
    /// let out = package.entry("forward")?.run([("x", x)])?;
    /// let (name, first) = out.iter().next().expect("an output");
    /// println!("{name}: {:?}", first.to_vec::<f32>()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the inputs are not those of the interface, there is no program for their sizes, their values make an
    /// operation undefined, or memory is short.
    pub fn run(&self, inputs: impl Into<Inputs>) -> Result<Outputs> {
        let args = inputs.into().in_order(self.name(), &self.loaded.inputs)?;
        let gpu = self.shared.gpu();
        let args = args.iter().map(|b| buffers::on_device(b, self.name(), gpu));
        let args: Vec<Buffer> = args.collect::<Result<_>>()?;
        let symbols = self.bind_symbols(&args)?;
        let program = self.program(&symbols)?;
        let interface = self.interface();
        let values = match interface.writes.is_empty() && !interface.random {
            true => self.run_reading(&program, args)?,
            false => self.run_writing(&program, args)?,
        };
        self.release(&program);
        let results = program.signature.results.iter();
        let names = self.loaded.outputs.clone();
        let values = results.map(|r| values[r.at as usize].clone()).collect();
        Ok(Outputs { names, values })
    }

    /// The memory that runs need for these values of the symbols.
    ///
    /// # Errors
    /// If a symbol is missing or unknown, or the entry does not take these sizes.
    pub fn memory(&self, sizes: &[(&str, i64)]) -> Result<Memory> {
        let (program, values) = self.program_for(sizes)?;
        let run = program.executable.memory(&values);
        let run = run.map_err(failed(self.name()))?;
        let names = program.signature.states.iter().map(|s| &s.name);
        let names = names.chain(program.signature.captured.iter().map(|c| &c.name));
        let ranges = names.filter_map(|name| self.shared.tensors.get(name));
        Ok(Memory {
            weights: ranges.map(|p| p.bytes.len()).sum(),
            run,
        })
    }

    /// The compiled program for these values of the symbols, and the values of those symbols that stay open in it.
    /// Tools that print kernels start here.
    ///
    /// # Errors
    /// As [`Entry::memory`].
    pub fn compiled(&self, sizes: &[(&str, i64)]) -> Result<(kiln_plan::Entry, Vec<i64>)> {
        let (program, values) = self.program_for(sizes)?;
        let (signature, plan) = (program.signature.clone(), program.executable.plan().clone());
        Ok((kiln_plan::Entry { signature, plan }, values))
    }

    /// Returns the program for these sizes, and the values of its symbols.
    fn program_for(&self, sizes: &[(&str, i64)]) -> Result<(Arc<Program>, Vec<i64>)> {
        let symbols = &self.interface().symbols;
        let mut unbound: Sizes = sizes.iter().map(|(n, v)| (n.to_string(), *v)).collect();
        let bound = symbols.iter().map(|s| {
            let missing = || Error::Value(format!("size `{}` is not given", s.name));
            Ok((s.name.clone(), unbound.remove(&s.name).ok_or_else(missing)?))
        });
        let bound = bound.collect::<Result<Sizes>>()?;
        if let Some(name) = unbound.into_keys().next() {
            let names = symbols.iter().map(|s| &s.name);
            return Err(Error::missing("size", &name, names));
        }
        let program = self.program(&bound)?;
        let values = program.executable.plan().symbols.iter();
        let values = values.filter_map(|s| bound.get(&s.name).copied()).collect();
        Ok((program, values))
    }

    /// Binds the symbols to values; an error if the inputs do not match the interface.
    fn bind_symbols(&self, args: &[Buffer]) -> Result<Sizes> {
        let interface = self.interface();
        let mut sizes = Sizes::new();
        let mut input_of: BTreeMap<&str, &str> = BTreeMap::new();
        for (info, value) in interface.inputs.iter().zip(args) {
            let is_typed = value.dtype() == info.dtype && value.shape().len() == info.shape.len();
            let mut dims = info.shape.iter().zip(value.shape());
            if !is_typed || dims.any(|(size, n)| matches!(size, Size::Known(known) if known != n)) {
                let (name, dtype, shape) = (&info.name, value.dtype(), value.shape());
                let text = format!("input `{name}` must be {info}, not {dtype}{shape:?}");
                return Err(Error::Value(text));
            }
            for (size, n) in info.shape.iter().zip(value.shape()) {
                let Size::Symbolic(name) = size else { continue };
                match sizes.insert(name.clone(), *n) {
                    Some(other) if other != *n => {
                        let (a, b) = (input_of[&name[..]], &info.name);
                        let text =
                            format!("`{name}` is {other} by input `{a}`, and {n} by input `{b}`");
                        return Err(Error::Value(text));
                    }
                    _ => input_of.entry(name).or_insert(&info.name),
                };
            }
        }
        Ok(sizes)
    }

    /// Returns the program for these values of symbols.
    fn program(&self, symbols: &Sizes) -> Result<Arc<Program>> {
        let general = &self.interface().symbols;
        let small = general.iter().filter_map(|s| {
            let value = *symbols.get(&s.name)?;
            (value < s.min).then(|| (s.name.clone(), value))
        });
        let small: Sizes = small.collect();
        if small.is_empty() {
            return Ok(self.loaded.general.clone());
        }
        let mut cases = self.loaded.cases.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(program) = cases.get(&small) {
            return Ok(program.clone());
        }
        let (shared, info) = (&self.shared, self.info());
        let best = shared.program(info, &small).ok_or_else(|| {
            let minima = general.iter().map(|s| format!("{} >= {}", s.name, s.min));
            let minima = minima.collect::<Vec<_>>().join(", ");
            let (name, text) = (self.name(), sizes_text(&small));
            Error::Value(format!(
                "`{name}` has no program for {text}; it has one for {minima}"
            ))
        })?;
        let program = load(shared, info, best, Some(&self.loaded.general));
        let program = Arc::new(program?);
        cases.insert(small, program.clone());
        Ok(program)
    }

    fn run_reading(&self, program: &Program, args: Vec<Buffer>) -> Result<Vec<Buffer>> {
        let mut inputs = self.known_inputs(program, args)?;
        let now = self.shared.states.read();
        for state in &program.signature.states {
            if let Some(input) = state.input {
                inputs[input as usize] = Some(now[self.shared.states.find(&state.name)?].clone());
            }
        }
        drop(now);
        let inputs = self.complete_inputs(inputs)?;
        let outputs = program.executable.run_shared(&inputs);
        outputs.map_err(failed(self.name()))
    }

    fn run_writing(&self, program: &Program, args: Vec<Buffer>) -> Result<Vec<Buffer>> {
        let states = &self.shared.states;
        let mut now = states.write();
        let keys = self.keys(program, &args, &now)?;
        let mut inputs = self.known_inputs(program, args)?;
        for (draw, key) in program.signature.draws.iter().zip(&keys.values) {
            if let Some(input) = draw.input {
                let key = Buffer::from_slice(key, &[2]);
                inputs[input as usize] = Some(key.map_err(failed(self.name()))?);
            }
        }
        let mut donate = vec![false; inputs.len()];
        let mut bound = Vec::new();
        for state in &program.signature.states {
            let at = states.find(&state.name)?;
            let Some(input) = state.input.map(|i| i as usize) else {
                continue;
            };
            inputs[input] = Some(now[at].clone());
            donate[input] = state.output.is_some();
            bound.push((at, input));
        }
        let mut inputs = self.complete_inputs(inputs)?;
        // The input must hold the only handle, so that the program may take its memory.
        let empty = || Buffer::from_slice::<u8>(&[], &[0]).map_err(failed(self.name()));
        let written = bound.iter().filter(|(_, input)| donate[*input]);
        let vacant: Vec<Buffer> = written.clone().map(|_| empty()).collect::<Result<_>>()?;
        for ((at, _), vacant) in written.zip(vacant) {
            now[*at] = vacant;
        }
        let ran = program.executable.run(&mut inputs, &donate);
        let settled = match &ran {
            Ok(outputs) => outputs.iter().try_for_each(Buffer::settled),
            Err(e) => Err(e.clone()),
        };
        if let Err(e) = settled {
            let outputs = ran.unwrap_or_default();
            for state in &program.signature.states {
                let at = states.find(&state.name)?;
                if let (Some(input), Some(output)) = (state.input, state.output) {
                    // On a GPU, a buffer that a failed run took still has its old contents.
                    let value = &inputs[input as usize];
                    now[at] = match (states.check(at, value), outputs.get(output as usize)) {
                        (Err(_), Some(output)) => output.clone().after_failure(),
                        _ => value.clone(),
                    };
                }
            }
            return Err(failed(self.name())(e));
        }
        let outputs = ran.map_err(failed(self.name()))?;
        for state in &program.signature.states {
            if let Some(output) = state.output {
                now[states.find(&state.name)?] = outputs[output as usize].clone();
            }
        }
        if let Some(next) = keys.next {
            now[states.find(RNG_STATE)?] = next;
        }
        Ok(outputs)
    }

    /// Returns the keys of a run's draws, and the generator's state after it.
    fn keys(&self, program: &Program, args: &[Buffer], states: &[Buffer]) -> Result<Keys> {
        if program.signature.draws.is_empty() {
            return Ok(Keys::default());
        }
        let state = states[self.shared.states.find(RNG_STATE)?].to_vec::<i64>();
        let state = state.map_err(failed(self.name()))?;
        let size = |s: &Symbol| {
            // The position of the argument in the plan, by name.
            let mut arguments = program.signature.arguments.iter();
            let position = arguments.position(|a| a.at == s.input);
            let shape = args.get(position?)?.shape();
            shape.get(s.axis as usize).copied()
        };
        let symbols = program.executable.plan().symbols.iter().map(size);
        let symbols: Option<Vec<i64>> = symbols.collect();
        let mut drawn = 0;
        let keys = symbols.and_then(|symbols| {
            program.signature.keys(&symbols, |count| {
                drawn = count;
                [state[0], state[1]]
            })
        });
        let name = self.name();
        let text = || format!("`{name}` draws more random numbers than an i64 counts");
        let each = keys.filter(|_| drawn >= 0);
        let each = each.ok_or_else(|| Error::Value(text()))?;
        let next = Buffer::from_slice(&[state[0], state[1].wrapping_add(drawn)], &[2]);
        Ok(Keys {
            values: each,
            next: Some(next.map_err(failed(self.name()))?),
        })
    }

    /// Returns the inputs that are not states: arguments and captured tensors.
    fn known_inputs(&self, program: &Program, args: Vec<Buffer>) -> Result<Vec<Option<Buffer>>> {
        let mut inputs = vec![None; program.executable.plan().inputs.len()];
        for (named, value) in program.signature.arguments.iter().zip(args) {
            inputs[named.at as usize] = Some(value);
        }
        for named in &program.signature.captured {
            inputs[named.at as usize] = Some(self.shared.constant(&named.name)?);
        }
        Ok(inputs)
    }

    fn complete_inputs(&self, inputs: Vec<Option<Buffer>>) -> Result<Vec<Buffer>> {
        let complete = inputs.into_iter().collect::<Option<Vec<Buffer>>>();
        complete.ok_or_else(|| damaged!("an input of `{}` is nothing", self.name()))
    }

    /// Gives memory back to the system once weights have been packed: the mapped originals, which are not read again,
    /// and the temporary memory of packing.
    fn release(&self, program: &Program) {
        let packed = program.executable.stats().prepares > 0;
        if packed && !program.packed.swap(true, Ordering::Relaxed) {
            self.shared.map.release(self.shared.weights.clone());
            memory::empty_cache();
        }
    }
}

/// Keys of random numbers.
#[derive(Default)]
struct Keys {
    values: Vec<[i64; 2]>,
    next: Option<Buffer>,
}

impl Loaded {
    fn new(shared: &Arc<Shared>, info: &EntryInfo) -> Result<Loaded> {
        let Some(found) = shared.program(info, &Sizes::new()) else {
            let has = info.programs.iter().map(|p| format!("{:?}", p.requires));
            let has = has.collect::<Vec<_>>().join(", ");
            let (name, requires) = (&info.name, shared.requires());
            let text = format!("`{name}` has no program that runs on {requires:?}, only on {has}");
            return Err(Error::Value(text));
        };
        let interface = &info.interface;
        Ok(Loaded {
            general: Arc::new(load(shared, info, found, None)?),
            cases: Mutex::default(),
            inputs: interface.inputs.iter().map(|i| i.name.clone()).collect(),
            outputs: interface.outputs.iter().map(|o| o.name.clone()).collect(),
        })
    }
}

/// Loads a program, and checks that it is the one that the package describes.
fn load(
    shared: &Shared,
    entry: &EntryInfo,
    info: &ProgramInfo,
    general: Option<&Program>,
) -> Result<Program> {
    let manifest = &shared.manifest;
    if manifest.plan_format != kiln_plan::FORMAT {
        return Err(Error::PlanFormat {
            found: manifest.plan_format,
            by: manifest.written_by.clone(),
        });
    }
    // Checks refuse contradictory programs; a panic would be a bug in the checks.
    let program = catch_unwind(AssertUnwindSafe(|| {
        let decoded = program::decode(shared.file(&info.file), &manifest.written_by)?;
        let is_right = program::is_cuda(&decoded.plan) == (info.requires == Requires::Cuda);
        ensure!(is_right, "`{}` is for another kind of machine", info.file);
        let program = Program::new(decoded, &entry.name, shared.loader.as_ref())?;
        match general {
            None => program.check_described(entry)?,
            Some(general) => program.check_case_of(general, &info.sizes)?,
        }
        let state = |name: &str| {
            let state = &shared.states.infos()[shared.states.find(name).ok()?];
            Some((state.dtype, state.shape.clone()))
        };
        program.check_tensors(state, |name| shared.tensor_type(name))?;
        packed::take(shared, info, &program)?;
        Ok(program)
    }));
    program.unwrap_or_else(|_| Err(damaged!("`{}` can't be read", info.file)))
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("name", &self.name())
            .field("interface", self.interface())
            .finish_non_exhaustive()
    }
}
