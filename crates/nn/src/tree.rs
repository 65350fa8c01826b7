//! Walks over a module and the modules within it: the bodies of [`Module`]'s provided methods, compiled once rather
//! than for every module.

use crate::layer;
use crate::members::Member;
use crate::parametrized::Parametrized;
use crate::{Mode, Module, SOURCE};
use kiln_tensor::{Device, Error, Result, Var, on_behalf_of_caller};
use std::collections::BTreeSet;

/// A parameter or buffer with its path.
pub(crate) struct NamedVar {
    pub(crate) name: String,
    pub(crate) var: Var,
    pub(crate) is_parameter: bool,
}

/// Returns the full path of the member `name` of the module at `prefix`.
pub(crate) fn join_path(prefix: &str, name: &str) -> String {
    match prefix {
        "" => name.to_string(),
        _ => format!("{prefix}.{name}"),
    }
}

impl NamedVar {
    /// Sets the name of the cell, for errors. The longest path, in the whole model, is kept.
    fn set_name(&self) {
        let longer = |known: &str| self.name.ends_with(&format!(".{known}"));
        if self.var.name().is_none_or(|known| longer(&known)) {
            self.var.set_name(&self.name);
        }
    }
}

impl dyn Module {
    /// [`Module::named_modules`].
    pub(crate) fn collect_modules(&self) -> Vec<(String, &dyn Module)> {
        let mut named = Vec::new();
        self.add_modules("", &mut named);
        named
    }

    /// Adds this module, which is at `path`, and then those within it.
    fn add_modules<'a>(&'a self, path: &str, named: &mut Vec<(String, &'a dyn Module)>) {
        named.push((path.to_string(), self));
        for (name, child) in self.named_children() {
            child.add_modules(&join_path(path, &name), named);
        }
    }

    /// [`Module::named_children`].
    pub(crate) fn collect_children(&self) -> Vec<(String, &dyn Module)> {
        let members = self.members();
        let children = members.iter().filter_map(|(name, member)| match member {
            Member::Child(child) => Some((name.to_string(), child)),
            _ => None,
        });
        children.collect()
    }

    /// Makes the error of a module that implements no copy.
    #[track_caller]
    pub(crate) fn copy_error(&self) -> Error {
        let message = format!("{} does not say how it is copied", self.name());
        Error::invalid("deep_copy", message)
    }

    /// [`Module::reset_parameters`] of the children.
    #[track_caller]
    pub(crate) fn reset_children(&self) -> Result<()> {
        let mut children = self.collect_children().into_iter();
        on_behalf_of_caller(SOURCE, || {
            children.try_for_each(|(_, m)| m.reset_parameters())
        })
    }

    /// Returns the module at a path. The error lists the children of the last module on it that exists.
    #[track_caller]
    pub(crate) fn submodule(&self, called: &str, path: &str) -> Result<&dyn Module> {
        let modules = self.collect_modules();
        if let Some((_, module)) = modules.iter().find(|(p, _)| p == path) {
            return Ok(*module);
        }
        let on_the_way = |p: &str| {
            p.is_empty()
                || path
                    .strip_prefix(p)
                    .is_some_and(|suffix| suffix.starts_with('.'))
        };
        let mut above = modules.iter().filter(|(p, _)| on_the_way(p));
        let (base, last) = above
            .next_back()
            .map_or(("", self), |(p, last)| (p.as_str(), *last));
        Err(last.without(called, "module", path[base.len()..].trim_start_matches('.')))
    }

    /// Returns the module's own parameters, then its own buffers, then what computed parameters are computed from.
    pub(crate) fn own_vars(&self, path: &str) -> Vec<NamedVar> {
        let (mut parameters, mut buffers, mut originals) = (Vec::new(), Vec::new(), Vec::new());
        for (name, member) in self.members().iter() {
            let (var, is_parameter, list) = match member {
                Member::Parameter(var) => (var, true, &mut parameters),
                Member::Buffer(var) => (var, false, &mut buffers),
                Member::Child(_) | Member::Mode(_) => continue,
            };
            if let Some(p) = Parametrized::of_cell(var) {
                let prefix = join_path(path, &format!("parametrizations.{name}"));
                originals.extend(p.cells().map(|(name, var, is_parameter)| NamedVar {
                    name: join_path(&prefix, name),
                    var: var.clone(),
                    is_parameter,
                }));
                continue;
            }
            list.push(NamedVar {
                name: join_path(path, name),
                var: var.clone(),
                is_parameter,
            });
        }
        parameters.append(&mut buffers);
        parameters.append(&mut originals);
        parameters
    }

    /// Returns the module's own parameters that are computed from others, by name.
    pub(crate) fn computed(&self) -> Vec<(String, Var)> {
        let members = self.members();
        let computed = members.iter().filter_map(|(name, member)| match member {
            Member::Parameter(var) if var.source().is_some() => {
                Some((name.to_string(), var.clone()))
            }
            _ => None,
        });
        computed.collect()
    }

    /// Returns all parameters and buffers, in PyTorch's order: a module's parameters, its buffers, its children.
    pub(crate) fn vars(&self) -> Vec<NamedVar> {
        let modules = self.collect_modules().into_iter();
        let vars: Vec<NamedVar> = modules.flat_map(|(path, m)| m.own_vars(&path)).collect();
        vars.iter().for_each(NamedVar::set_name);
        vars
    }

    /// [`Module::named_parameters`].
    pub(crate) fn distinct_parameters(&self) -> Vec<(String, Var)> {
        let mut ids = BTreeSet::new();
        let vars = self.vars().into_iter();
        let unique = vars.filter(|v| v.is_parameter && ids.insert(v.var.id()));
        unique.map(|v| (v.name, v.var)).collect()
    }

    /// [`Module::named_buffers`].
    pub(crate) fn collect_buffers(&self) -> Vec<(String, Var)> {
        let buffers = self.vars().into_iter().filter(|v| !v.is_parameter);
        buffers.map(|v| (v.name, v.var)).collect()
    }

    /// [`Module::get_parameter`].
    #[track_caller]
    pub(crate) fn find_parameter(&self, path: &str) -> Result<Var> {
        let mut parameters = self.vars().into_iter().filter(|v| v.is_parameter);
        match parameters.find(|v| v.name == path) {
            Some(found) => Ok(found.var),
            None => Err(self.without("get_parameter", "parameter", path)),
        }
    }

    /// Returns the number of elements of the parameters that `counted` accepts.
    pub(crate) fn count_elements(&self, counted: fn(&Var) -> bool) -> usize {
        let parameters = self.distinct_parameters().into_iter();
        let counted = parameters.filter(|(_, var)| counted(var));
        counted
            .map(|(_, var)| layer::shape(&var).iter().product::<usize>())
            .sum()
    }

    /// [`Module::to`].
    pub(crate) fn move_to(&self, device: Device) -> Result<()> {
        self.vars().iter().try_for_each(|v| v.var.to_(device))?;
        let computed = self.modules().into_iter().flat_map(|m| m.computed());
        computed
            .into_iter()
            .try_for_each(|(_, var)| var.to_(device))
    }

    /// The name of a wrapper for data parallel training within, which is put around a model last.
    pub(crate) fn wrapper(&self) -> Option<&str> {
        let wrappers = ["DistributedDataParallel", "DataParallel"];
        let names = self.modules().into_iter().map(|m| m.name());
        names.into_iter().find(|name| wrappers.contains(name))
    }

    /// [`Module::share_memory`].
    #[track_caller]
    pub(crate) fn share_vars(&self) -> Result<()> {
        for v in self.vars() {
            v.var.share_memory_()?;
        }
        Ok(())
    }

    /// [`Module::zero_grad`].
    pub(crate) fn clear_gradients(&self) {
        self.distinct_parameters()
            .iter()
            .for_each(|(_, var)| var.zero_grad());
    }

    /// [`Module::requires_grad_`].
    pub(crate) fn switch_gradients(&self, requires_grad: bool) -> Result<()> {
        let parameters = self.distinct_parameters();
        let mut vars = parameters.iter().map(|(_, var)| var);
        vars.try_for_each(|var| var.requires_grad_(requires_grad).map(drop))
    }

    /// Sets the names of the cells that a module holds itself, for errors.
    pub(crate) fn name_own_vars(&self) {
        self.own_vars("").iter().for_each(NamedVar::set_name);
    }

    /// Calls `f` with every mode within a module.
    pub(crate) fn each_mode(&self, f: &mut dyn FnMut(&Mode)) {
        self.modules().into_iter().for_each(|m| m.each_own_mode(f));
    }

    fn each_own_mode(&self, f: &mut dyn FnMut(&Mode)) {
        for (_, member) in self.members().iter() {
            match member {
                Member::Mode(mode) => f(mode),
                Member::Parameter(var) => {
                    if let Some(p) = Parametrized::of_cell(var) {
                        f(p.mode());
                    }
                }
                Member::Buffer(_) | Member::Child(_) => (),
            }
        }
    }

    /// [`Module::set_training`].
    pub(crate) fn switch_modes(&self, training: bool) {
        self.each_mode(&mut |mode| mode.set_training(training));
    }

    /// [`Module::is_training`].
    pub(crate) fn has_training_mode(&self) -> bool {
        let mut training = false;
        self.each_mode(&mut |mode| training |= mode.is_training());
        training
    }

    /// [`Module::unfreeze`].
    pub(crate) fn thaw(&self) -> Result<()> {
        self.each_mode(&mut |mode| mode.unfreeze());
        self.switch_gradients(true)
    }

    /// [`Module::apply`].
    pub(crate) fn visit(&self, f: &mut dyn FnMut(&dyn Module)) {
        for child in self.children() {
            child.visit(f);
        }
        f(self);
    }

    /// [`Module::freeze_where`].
    pub(crate) fn freeze_chosen(&self, chosen: &dyn Fn(&str) -> bool) {
        for (path, m) in self.collect_modules() {
            let vars = m.own_vars(&path);
            let has_parameters = vars.iter().any(|v| v.is_parameter);
            let mut deciding = vars.iter().filter(|v| v.is_parameter == has_parameters);
            if deciding.all(|v| chosen(&v.name)) {
                m.each_own_mode(&mut |mode| mode.freeze());
            }
            for v in vars.iter().filter(|v| v.is_parameter && chosen(&v.name)) {
                // Switching off can't fail.
                let _ = v.var.requires_grad_(false);
            }
        }
    }
}
