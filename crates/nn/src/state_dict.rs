//! Values by name.

use crate::members::{Hook, Hooks, Registered};
use crate::parametrized::Parametrized;
use crate::{LoadReport, Module, tree};
use kiln_formats::StateDict;
use kiln_tensor::{Error, Result, Tensor, Var};
use std::collections::{BTreeMap, BTreeSet};

/// A comparison of a state with a module.
pub(crate) struct Plan<'a> {
    module: &'a dyn Module,
    report: LoadReport,
    /// The errors of the shapes, one line each.
    shapes: Vec<String>,
    assignments: Vec<(Var, Tensor)>,
}

/// Calls `f` with the hooks of all modules within one, in order, and with the prefixes of the modules' names.
fn for_each_hook(module: &dyn Module, mut f: impl FnMut(&dyn Module, &Hook, &str)) {
    for (path, m) in module.named_modules() {
        if let Some(Registered(hooks)) = m.hooks().and_then(Hooks::registered) {
            let prefix = if path.is_empty() { path } else { path + "." };
            hooks.iter().for_each(|hook| f(m, hook, &prefix));
        }
    }
}

/// Gives the originals of computed parameters the names that they have here.
fn rename_older(module: &dyn Module, state: &mut StateDict) {
    for (path, m) in module.named_modules() {
        for (name, var) in m.computed() {
            let computed = Parametrized::of_cell(&var);
            for (older, new_name) in computed.map_or(&[][..], |p| p.older_names()) {
                let older = tree::join_path(&path, &format!("{name}_{older}"));
                if let Some(value) = state.remove(&older) {
                    let new_name = format!("parametrizations.{name}.{new_name}");
                    state.insert(tree::join_path(&path, &new_name), value);
                }
            }
        }
    }
}

/// Prepares the assignments of a load; nothing is assigned yet.
pub(crate) fn plan<'a>(module: &'a dyn Module, state: &StateDict) -> Result<Plan<'a>> {
    let mut state = state.clone();
    for_each_hook(module, |m, hook, prefix| {
        if let Hook::LoadStateDict(f) = hook {
            f(m, &mut state, prefix);
        }
    });
    rename_older(module, &mut state);
    let values: BTreeMap<&str, &Tensor> = state.iter().collect();
    let vars = module.vars();
    let mut report = LoadReport::default();
    let mut shapes = Vec::new();
    let mut assignments = Vec::new();
    for var in &vars {
        let Some(value) = values.get(var.name.as_str()) else {
            report.missing.push(var.name.clone());
            continue;
        };
        let (own, saved) = (var.var.shape()?, value.shape()?);
        if own == saved {
            let value = value.detach().to_dtype(var.var.dtype());
            assignments.push((var.var.clone(), value.to(var.var.device())));
        } else {
            let name = &var.name;
            report.mismatched.push(name.clone());
            shapes.push(match var.var.get().error() {
                Some(e) => format!("{name}: {}", e.message()),
                None => format!("{name}: the module's shape is {own:?}, the given one {saved:?}"),
            });
        }
    }
    let known: BTreeSet<&str> = vars.iter().map(|p| p.name.as_str()).collect();
    let unexpected = state.names().filter(|name| !known.contains(name));
    report.unexpected = unexpected.map(str::to_string).collect();
    // Everything that can fail runs before the first assignment.
    for (_, value) in &assignments {
        value.realize()?;
    }
    Ok(Plan {
        module,
        report,
        shapes,
        assignments,
    })
}

impl Plan<'_> {
    /// Returns the reasons why it can't be loaded, one line each.
    pub(crate) fn problems(&self, strict: bool) -> Vec<String> {
        let mut problems = self.shapes.clone();
        if strict {
            let LoadReport {
                missing,
                unexpected,
                ..
            } = &self.report;
            problems.extend(missing.iter().map(|n| format!("{n}: missing")));
            problems.extend(unexpected.iter().map(|n| format!("{n}: unexpected")));
        }
        problems
    }

    /// Returns a wrapper's prefix of all names, if that is why none fits.
    fn wrapper_prefix(&self) -> Option<&'static str> {
        let LoadReport {
            missing,
            unexpected,
            ..
        } = &self.report;
        let common = |prefix: &&str| unexpected.iter().all(|name| name.starts_with(*prefix));
        let nothing_fits =
            !missing.is_empty() && !unexpected.is_empty() && self.assignments.is_empty();
        WRAPPERS.into_iter().find(common).filter(|_| nothing_fits)
    }

    pub(crate) fn apply(mut self) -> Result<LoadReport> {
        for (var, value) in &self.assignments {
            var.assign(value)?;
        }
        for_each_hook(self.module, |m, hook, _| {
            if let Hook::Loaded(f) = hook {
                f(m, &mut self.report);
            }
        });
        Ok(self.report)
    }
}

/// The prefixes that `DataParallel` and `torch.compile` add to names.
const WRAPPERS: [&str; 2] = ["module.", "_orig_mod."];

impl dyn Module {
    /// [`Module::state_dict`].
    pub(crate) fn collect_state(&self) -> StateDict {
        for_each_hook(self, |m, hook, prefix| {
            if let Hook::StateDict(f) = hook {
                f(m, prefix);
            }
        });
        let vars = self.vars().into_iter();
        vars.map(|v| (v.name, v.var.get().detach())).collect()
    }

    /// [`Module::load_state_dict`].
    #[track_caller]
    pub(crate) fn load_state(&self, state: &StateDict, strict: bool) -> Result<LoadReport> {
        let plan = plan(self, state)?;
        let problems = plan.problems(strict);
        if !problems.is_empty() {
            let title = format!("the values do not fit {}", self.name());
            let mut error = Error::invalid("load_state_dict", title);
            if let Some(prefix) = plan.wrapper_prefix() {
                let hint = format!(
                    "all names begin with `{prefix}`: load state.strip_prefix(\"{prefix}\")"
                );
                error = error.with_note(hint);
            }
            return Err(problems.into_iter().fold(error, Error::with_note));
        }
        plan.apply()
    }

    /// [`Module::load_matching`].
    pub(crate) fn load_matching_state(&self, state: &StateDict) -> Result<LoadReport> {
        plan(self, state)?.apply()
    }
}
