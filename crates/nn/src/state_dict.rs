//! Values by name.

use crate::hooks::Registered;
use crate::{Hooks, Module, tree};
use kiln_tensor::{AsTensor, Error, Result, Tensor, Var};
use std::collections::{BTreeMap, BTreeSet};

/// The values of a module's parameters and buffers by name, in order. Making one out of another is how
/// parts of a model are loaded:
///
/// ```
/// use kiln_nn::{Linear, Module, sequential};
/// let trained = sequential!["body": Linear::new(4, 8), "head": Linear::new(8, 2)]?;
/// let state = trained.state_dict();
///
/// // Another head on the same body.
/// let model = sequential!["body": Linear::new(4, 8), "head": Linear::new(8, 5)]?;
/// let report = model.load_state_dict(&state.filter(|name| name.starts_with("body.")), false)?;
/// assert_eq!(report.missing, ["head.weight", "head.bias"]);
///
/// // The body alone.
/// let body = Linear::new(4, 8)?;
/// body.load_state_dict(&state.part("body."), true)?;
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct StateDict(Vec<(String, Tensor)>);

/// The names that were on one side only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Parameters and buffers of the module that no value was given for; they keep theirs.
    pub missing: Vec<String>,
    /// Values that the module has no place for.
    pub unexpected: Vec<String>,
}

impl StateDict {
    /// No values.
    pub fn new() -> StateDict {
        StateDict::default()
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, t)| t)
    }

    /// Sets the value of a name, in its place if it has one, else at the end.
    pub fn insert(&mut self, name: impl Into<String>, value: impl AsTensor) {
        let (name, value) = (name.into(), value.as_tensor().into_owned());
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// Takes a value out.
    pub fn remove(&mut self, name: &str) -> Option<Tensor> {
        let at = self.0.iter().position(|(n, _)| n == name)?;
        Some(self.0.remove(at).1)
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The values whose names `f` accepts.
    pub fn filter(&self, f: impl Fn(&str) -> bool) -> StateDict {
        self.rename(|name| f(name).then(|| name.to_string()))
    }

    /// The values under the names that `f` gives them, without those it gives none.
    pub fn rename(&self, f: impl Fn(&str) -> Option<String>) -> StateDict {
        let renamed = self.iter().filter_map(|(n, t)| Some((f(n)?, t.clone())));
        renamed.collect()
    }

    /// All values, with `prefix` taken off the names that start with it: `module.` is what wrappers for
    /// data parallelism add.
    pub fn strip_prefix(&self, prefix: &str) -> StateDict {
        self.rename(|name| Some(name.strip_prefix(prefix).unwrap_or(name).to_string()))
    }

    /// The values whose names start with `prefix`, without it: those of a submodule.
    pub fn part(&self, prefix: &str) -> StateDict {
        self.rename(|name| name.strip_prefix(prefix).map(str::to_string))
    }
}

impl FromIterator<(String, Tensor)> for StateDict {
    fn from_iter<I: IntoIterator<Item = (String, Tensor)>>(values: I) -> StateDict {
        // The last value of a name counts, in the place of the first.
        let mut first = BTreeMap::new();
        let mut kept: Vec<(String, Tensor)> = Vec::new();
        for (name, value) in values {
            match first.get(&name) {
                Some(&at) => kept[at] = (name, value),
                None => {
                    first.insert(name.clone(), kept.len());
                    kept.push((name, value));
                }
            }
        }
        StateDict(kept)
    }
}

impl IntoIterator for StateDict {
    type Item = (String, Tensor);
    type IntoIter = std::vec::IntoIter<(String, Tensor)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// A state that was compared with a module.
pub(crate) struct Plan<'a> {
    module: &'a dyn Module,
    report: LoadReport,
    /// Why it can't be loaded, one line each.
    pub(crate) problems: Vec<String>,
    assignments: Vec<(&'a Var, Tensor)>,
}

/// Calls `f` with all modules within one that have hooks, and the prefixes of their names.
fn hooked(module: &dyn Module, mut f: impl FnMut(&dyn Module, &Registered, &str)) {
    for (path, m) in module.named_modules() {
        if let Some(hooks) = m.hooks().and_then(Hooks::registered) {
            let prefix = if path.is_empty() { path } else { path + "." };
            f(m, &hooks, &prefix);
        }
    }
}

/// The values of a module's parameters and buffers.
pub(crate) fn of(module: &dyn Module) -> StateDict {
    hooked(module, |m, hooks, prefix| {
        hooks.before_state_dict(m, prefix)
    });
    let vars = tree::vars(module).into_iter();
    vars.map(|v| (v.name, v.var.get().detach())).collect()
}

/// What loading assigns; nothing is assigned yet.
pub(crate) fn plan<'a>(
    module: &'a dyn Module,
    state: &StateDict,
    strict: bool,
) -> Result<Plan<'a>> {
    let mut state = state.clone();
    hooked(module, |m, hooks, prefix| {
        hooks.before_loading(m, &mut state, prefix)
    });
    let given: BTreeMap<&str, &Tensor> = state.iter().collect();
    let places = tree::vars(module);
    let mut report = LoadReport::default();
    let mut problems = Vec::new();
    let mut assignments = Vec::new();
    for place in &places {
        let Some(value) = given.get(place.name.as_str()) else {
            report.missing.push(place.name.clone());
            continue;
        };
        let (here, there) = (place.var.shape(), value.shape()?);
        if here == there {
            let value = value.detach().to_dtype(place.var.dtype());
            assignments.push((place.var, value.to(place.var.device())));
        } else {
            let name = &place.name;
            problems.push(match place.var.get().error() {
                Some(e) => format!("{name}: {}", e.message()),
                None => format!("{name}: the module's shape is {here:?}, the given one {there:?}"),
            });
        }
    }
    let known: BTreeSet<&str> = places.iter().map(|p| p.name.as_str()).collect();
    let unexpected = state.names().filter(|name| !known.contains(name));
    report.unexpected = unexpected.map(str::to_string).collect();
    if strict {
        problems.extend(report.missing.iter().map(|n| format!("{n}: missing")));
        problems.extend(report.unexpected.iter().map(|n| format!("{n}: unexpected")));
    }
    // Whatever can fail does so before the first assignment.
    for (_, value) in &assignments {
        value.realize()?;
    }
    Ok(Plan {
        module,
        report,
        problems,
        assignments,
    })
}

impl Plan<'_> {
    pub(crate) fn apply(mut self) -> Result<LoadReport> {
        for (var, value) in &self.assignments {
            var.assign(value)?;
        }
        hooked(self.module, |m, hooks, _| {
            hooks.after_loading(m, &mut self.report)
        });
        Ok(self.report)
    }
}

#[track_caller]
pub(crate) fn load(module: &dyn Module, state: &StateDict, strict: bool) -> Result<LoadReport> {
    let plan = plan(module, state, strict)?;
    if !plan.problems.is_empty() {
        let title = format!("the values do not fit {}", module.name());
        let error = Error::invalid("load_state_dict", title);
        return Err(plan.problems.into_iter().fold(error, Error::with_note));
    }
    plan.apply()
}
