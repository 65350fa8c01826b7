//! Checkpoints, from which training resumes.

use crate::optim::{GroupDict, Optimizer, OptimizerState, Scheduler, SchedulerState};
use crate::state_dict::plan;
use crate::{LoadReport, Module};
use kiln_formats::{StateDict, read_safetensors, write_safetensors};
use kiln_tensor::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// All the state that training needs to resume, in one file: models, optimisers, schedules, and values of the user's
/// own, each under a name.
///
/// The file is a safetensors file. Its tensors have names such as `model.conv.weight`, and the rest is JSON in its
/// header. Saving replaces the file atomically: whatever happens meanwhile, the file is the last complete checkpoint.
///
/// ```
/// use kiln_nn::optim::{AdamW, Optimizer, Scheduler, StepLR};
/// use kiln_nn::{Checkpoint, Linear, Module};
///
/// # let folder = std::env::temp_dir().join(format!("kiln-checkpoint-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let path = folder.join("last.safetensors");
/// let model = Linear::new(3, 2)?;
/// let mut optimizer = Optimizer::new(model.parameters(), AdamW::new())?;
/// let mut schedule = Scheduler::new(&mut optimizer, StepLR::new(30).gamma(0.1))?;
/// Checkpoint::new()
///     .module("model", &model)
///     .optimizer("optimizer", &optimizer)
///     .scheduler("schedule", &schedule)
///     .value("epoch", &7)
///     .save(&path)?;
///
/// let checkpoint = Checkpoint::load(&path)?;
/// checkpoint
///     .restore()
///     .module("model", &model)
///     .optimizer("optimizer", &mut optimizer)
///     .scheduler("schedule", &mut schedule)
///     .finish()?;
/// let epoch: u64 = checkpoint.get("epoch")?;
/// assert_eq!(epoch, 7);
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Default)]
pub struct Checkpoint {
    tensors: StateDict,
    header: Header,
    /// The first error.
    error: Option<Error>,
}

/// The part of a checkpoint that is not tensors.
#[derive(Default, Serialize, Deserialize)]
struct Header {
    parts: BTreeMap<String, SavedPart>,
}

/// A part that was saved under a name.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SavedPart {
    Module,
    Optimizer(Vec<GroupDict>),
    Scheduler(SchedulerState),
    Value(Value),
}

impl SavedPart {
    fn kind(&self) -> &'static str {
        match self {
            SavedPart::Module => "a module",
            SavedPart::Optimizer(_) => "an optimiser",
            SavedPart::Scheduler(_) => "a schedule",
            SavedPart::Value(_) => "a value",
        }
    }
}

/// The key of the header's JSON in the file.
const KEY: &str = "kiln_checkpoint";

impl Checkpoint {
    /// Makes an empty checkpoint.
    pub fn new() -> Checkpoint {
        Checkpoint::default()
    }

    /// Adds a model's parameters and buffers as they are now.
    #[track_caller]
    pub fn module(self, name: &str, module: &dyn Module) -> Checkpoint {
        self.tensors(name, &module.state_dict())
    }

    /// Adds a state dict, such as averaged weights. It is restored into a module, or read by
    /// [`Checkpoint::state_dict`].
    #[track_caller]
    pub fn tensors(mut self, name: &str, state: &StateDict) -> Checkpoint {
        for (key, value) in state.iter() {
            self.tensors.insert(format!("{name}.{key}"), value);
        }
        self.add(name, SavedPart::Module)
    }

    /// Adds an optimiser's moments, counts and numbers as they are now.
    #[track_caller]
    pub fn optimizer(mut self, name: &str, optimizer: &Optimizer) -> Checkpoint {
        match optimizer.state_dict() {
            Ok(state) => {
                for (id, moments) in &state.state {
                    for (key, value) in moments {
                        self.tensors.insert(format!("{name}.{id}.{key}"), value);
                    }
                }
                self.add(name, SavedPart::Optimizer(state.param_groups))
            }
            Err(e) => self.with_error(e),
        }
    }

    /// Adds the state of a schedule as it is now.
    #[track_caller]
    pub fn scheduler(self, name: &str, scheduler: &Scheduler) -> Checkpoint {
        self.add(name, SavedPart::Scheduler(scheduler.state_dict()))
    }

    /// Adds a value that can be written as JSON and read back. NaN and infinities can't.
    #[track_caller]
    pub fn value<T: Serialize + DeserializeOwned>(self, name: &str, value: &T) -> Checkpoint {
        // A value that can't be read back is refused here, not when it is loaded.
        let json = serde_json::to_value(value).and_then(|json| {
            T::deserialize(&json)?;
            Ok(json)
        });
        match json {
            Ok(json) => self.add(name, SavedPart::Value(json)),
            Err(e) => {
                let message = format!("`{name}` can't be written as JSON and read back: {e}");
                self.with_error(Error::invalid("Checkpoint", message))
            }
        }
    }

    #[track_caller]
    fn add(mut self, name: &str, part: SavedPart) -> Checkpoint {
        let problem = match name {
            "" => "a part needs a name".to_string(),
            _ if name.contains('.') => format!("`{name}`: the name of a part has no dots"),
            _ => match self.header.parts.insert(name.to_string(), part) {
                None => return self,
                Some(_) => format!("there are two parts called `{name}`"),
            },
        };
        self.with_error(Error::invalid("Checkpoint", problem))
    }

    fn with_error(mut self, error: Error) -> Checkpoint {
        self.error.get_or_insert(error);
        self
    }

    /// Writes the file, replacing an older one.
    ///
    /// # Errors
    /// If a value can't be computed, a name is used twice, or the file can't be written. The older file then stays.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        if let Some(e) = &self.error {
            return Err(e.clone());
        }
        let path = path.as_ref();
        let json = name_file("save", path, serde_json::to_string(&self.header))?;
        let metadata = HashMap::from([(KEY.to_string(), json)]);
        write_safetensors(path, &self.tensors, Some(metadata))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it can't be read, is damaged or is not a checkpoint.
    #[track_caller]
    pub fn load(path: impl AsRef<Path>) -> Result<Checkpoint> {
        let path = path.as_ref();
        let (tensors, metadata) = read_safetensors(path)?;
        let json = metadata.as_ref().and_then(|m| m.get(KEY));
        let problem = "holds tensors but no checkpoint; read it with StateDict::load";
        let json = name_file("load", path, json.ok_or(problem))?;
        Ok(Checkpoint {
            tensors,
            header: name_file("load", path, serde_json::from_str(json))?,
            error: None,
        })
    }

    /// Returns the names of the saved parts.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.header.parts.keys().map(String::as_str)
    }

    /// Returns a state dict, or the parameters and buffers of a model, to load some of them.
    pub fn state_dict(&self, name: &str) -> StateDict {
        self.tensors.part(&format!("{name}."))
    }

    /// Returns a value.
    ///
    /// # Errors
    /// If there is none of this name, or it is of another type.
    #[track_caller]
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let value = self.find_part(name, "a value").and_then(|part| match part {
            SavedPart::Value(json) => T::deserialize(json).map_err(|e| format!("`{name}`: {e}")),
            other => Err(wrong_part(name, other, "a value")),
        });
        match value {
            Ok(value) => Ok(value),
            Err(text) => Err(Error::invalid("Checkpoint", text)),
        }
    }

    /// Starts to load the saved state back into its owners, all of it or nothing.
    pub fn restore(&self) -> Restore<'_> {
        Restore {
            checkpoint: self,
            problems: Vec::new(),
            error: None,
            apply: Vec::new(),
        }
    }

    fn find_part(&self, name: &str, kind: &str) -> Result<&SavedPart, String> {
        let names: Vec<&str> = self.names().collect();
        let missing = || format!("there is no `{name}`, {kind}, among {names:?}");
        self.header.parts.get(name).ok_or_else(missing)
    }
}

/// A result whose error names the file and the user's line.
#[track_caller]
fn name_file<T, E: std::fmt::Display>(op: &str, path: &Path, result: Result<T, E>) -> Result<T> {
    match result {
        Ok(value) => Ok(value),
        Err(e) => {
            let message = format!("{}: {e}", path.display());
            Err(Error::at_caller(ErrorKind::Io, op, message))
        }
    }
}

fn wrong_part(name: &str, part: &SavedPart, wanted: &str) -> String {
    format!("`{name}` is {}, not {wanted}", part.kind())
}

/// The changes that [`Checkpoint::restore`] makes once everything is known to fit.
#[must_use = "nothing is restored before `finish`"]
pub struct Restore<'a> {
    checkpoint: &'a Checkpoint,
    problems: Vec<String>,
    /// The first error that is not a mismatch.
    error: Option<Error>,
    apply: Vec<Box<dyn FnOnce() -> Result<()> + 'a>>,
}

impl<'a> Restore<'a> {
    /// Restores a model, whose parameters and buffers must be those that were saved.
    pub fn module(mut self, name: &str, module: &'a dyn Module) -> Restore<'a> {
        match self.checkpoint.find_part(name, "a module") {
            Ok(SavedPart::Module) => match plan(module, &self.checkpoint.state_dict(name)) {
                Ok(plan) if plan.problems(true).is_empty() => {
                    let apply = || plan.apply().map(|_: LoadReport| ());
                    self.apply.push(Box::new(apply));
                }
                Ok(plan) => {
                    let lines = plan
                        .problems(true)
                        .into_iter()
                        .map(|p| format!("{name}.{p}"));
                    self.problems.extend(lines);
                }
                Err(e) => self.error = self.error.or(Some(e)),
            },
            Ok(other) => self.problems.push(wrong_part(name, other, "a module")),
            Err(problem) => self.problems.push(problem),
        }
        self
    }

    /// Restores an optimiser, whose groups must be those that were saved.
    pub fn optimizer(mut self, name: &str, optimizer: &'a mut Optimizer) -> Restore<'a> {
        let groups = match self.checkpoint.find_part(name, "an optimiser") {
            Ok(SavedPart::Optimizer(groups)) => Ok(groups.clone()),
            Ok(other) => Err(wrong_part(name, other, "an optimiser")),
            Err(problem) => Err(problem),
        };
        let loads = groups.and_then(|param_groups| {
            let mut state = OptimizerState {
                param_groups,
                ..OptimizerState::default()
            };
            for (key, value) in self.checkpoint.state_dict(name) {
                if let Some((id, moment)) = key.split_once('.')
                    && let Ok(id) = id.parse()
                {
                    let moments = state.state.entry(id).or_default();
                    moments.insert(moment.to_string(), value);
                }
            }
            let loads = optimizer.plan_load(&state);
            loads.map_err(|problem| format!("{name}: {problem}"))
        });
        match loads {
            Ok(loads) => self
                .apply
                .push(Box::new(move || optimizer.apply_load(loads))),
            Err(problem) => self.problems.push(problem),
        }
        self
    }

    /// Restores a schedule of an optimiser with the same number of groups.
    pub fn scheduler(mut self, name: &str, scheduler: &'a mut Scheduler) -> Restore<'a> {
        match self.checkpoint.find_part(name, "a schedule") {
            Ok(SavedPart::Scheduler(state)) => {
                let (saved, current) = (state.base_lrs.len(), scheduler.last_lr().len());
                if saved != current {
                    let problem = format!("{name}: a schedule of {saved} groups, not {current}");
                    self.problems.push(problem);
                }
                self.apply.push(Box::new(|| {
                    scheduler.load_state_dict(state);
                    Ok(())
                }));
            }
            Ok(other) => self.problems.push(wrong_part(name, other, "a schedule")),
            Err(problem) => self.problems.push(problem),
        }
        self
    }

    /// Restores everything.
    ///
    /// # Errors
    /// Lists everything that is missing or does not fit. Nothing is then changed.
    #[track_caller]
    pub fn finish(self) -> Result<()> {
        if let Some(e) = self.error {
            return Err(e);
        }
        if !self.problems.is_empty() {
            let title = "the checkpoint does not fit; nothing was changed";
            let error = Error::invalid("Checkpoint::restore", title);
            return Err(self.problems.into_iter().fold(error, Error::with_note));
        }
        self.apply.into_iter().try_for_each(|apply| apply())
    }
}
