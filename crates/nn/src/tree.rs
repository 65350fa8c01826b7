//! Walks over a module and what is within it.

use crate::members::Member;
use crate::{Mode, Module};
use kiln_tensor::Var;

/// A parameter or buffer with its path.
pub(crate) struct NamedVar<'a> {
    pub(crate) name: String,
    pub(crate) var: &'a Var,
    pub(crate) is_parameter: bool,
}

fn joined(prefix: &str, name: &str) -> String {
    match prefix {
        "" => name.to_string(),
        _ => format!("{prefix}.{name}"),
    }
}

/// The modules with their paths, each before those within it.
pub(crate) fn modules<'a>(m: &'a dyn Module, path: &str, out: &mut Vec<(String, &'a dyn Module)>) {
    out.push((path.to_string(), m));
    for (name, child) in m.named_children() {
        modules(child, &joined(path, &name), out);
    }
}

/// The module's own parameters, then its own buffers.
pub(crate) fn own_vars<'a>(m: &'a dyn Module, path: &str) -> Vec<NamedVar<'a>> {
    let (mut parameters, mut buffers) = (Vec::new(), Vec::new());
    for (name, member) in m.members().iter() {
        let (var, is_parameter, list) = match member {
            Member::Parameter(var) => (var, true, &mut parameters),
            Member::Buffer(var) => (var, false, &mut buffers),
            Member::Child(_) | Member::Mode(_) => continue,
        };
        let name = joined(path, name);
        list.push(NamedVar {
            name,
            var,
            is_parameter,
        });
    }
    parameters.append(&mut buffers);
    parameters
}

/// All parameters and buffers, in PyTorch's order: a module's parameters, its buffers, its children.
pub(crate) fn vars(m: &dyn Module) -> Vec<NamedVar<'_>> {
    let all = m.named_modules().into_iter();
    let vars: Vec<NamedVar<'_>> = all.flat_map(|(path, m)| own_vars(m, &path)).collect();
    vars.iter().for_each(NamedVar::tell);
    vars
}

impl NamedVar<'_> {
    /// Tells the cell its name, for errors. The longest path, that in the whole model, stays.
    fn tell(&self) {
        let longer = |known: &str| self.name.ends_with(&format!(".{known}"));
        if self.var.name().is_none_or(|known| longer(&known)) {
            self.var.set_name(&self.name);
        }
    }
}

/// Tells the cells that a module holds itself their names, for errors.
pub(crate) fn name_own(m: &dyn Module) {
    own_vars(m, "").iter().for_each(NamedVar::tell);
}

/// All modes, with the path of the module that holds them.
pub(crate) fn modes(m: &dyn Module) -> Vec<(String, &Mode)> {
    let all = m.named_modules().into_iter();
    all.flat_map(|(path, m)| {
        own_modes(m)
            .into_iter()
            .map(move |mode| (path.clone(), mode))
    })
    .collect()
}

fn own_modes(m: &dyn Module) -> Vec<&Mode> {
    let members = m.members();
    let modes = members.iter().filter_map(|(_, member)| match member {
        Member::Mode(mode) => Some(mode),
        _ => None,
    });
    modes.collect()
}

pub(crate) fn apply(m: &dyn Module, f: &mut dyn FnMut(&dyn Module)) {
    for child in m.children() {
        apply(child, f);
    }
    f(m);
}

pub(crate) fn freeze(m: &dyn Module, chosen: &dyn Fn(&str) -> bool) {
    for (path, m) in m.named_modules() {
        let vars = own_vars(m, &path);
        let has_parameters = vars.iter().any(|v| v.is_parameter);
        let mut deciding = vars.iter().filter(|v| v.is_parameter == has_parameters);
        if deciding.all(|v| chosen(&v.name)) {
            own_modes(m).iter().for_each(|mode| mode.freeze());
        }
        for v in vars.iter().filter(|v| v.is_parameter && chosen(&v.name)) {
            // Switching off can't fail.
            let _ = v.var.requires_grad_(false);
        }
    }
}
