//! Modules of modules.

use crate::layer;
use crate::members::Members;
use crate::{Copies, Module};
use kiln_tensor::{Result, Var};
use std::ops::{Deref, DerefMut};

/// Modules of one type in a list (`torch.nn.ModuleList`): a `Vec` that prints as one child. For layers
/// of several types, `ModuleList<Box<dyn Forward>>`.
pub struct ModuleList<M>(pub Vec<M>);

impl<M> Default for ModuleList<M> {
    fn default() -> ModuleList<M> {
        ModuleList(Vec::new())
    }
}

impl<M> FromIterator<M> for ModuleList<M> {
    fn from_iter<I: IntoIterator<Item = M>>(modules: I) -> ModuleList<M> {
        ModuleList(modules.into_iter().collect())
    }
}

impl<M> Deref for ModuleList<M> {
    type Target = Vec<M>;

    fn deref(&self) -> &Vec<M> {
        &self.0
    }
}

impl<M> DerefMut for ModuleList<M> {
    fn deref_mut(&mut self) -> &mut Vec<M> {
        &mut self.0
    }
}

impl<M: Module> Module for ModuleList<M> {
    fn as_module(&self) -> &dyn Module {
        self
    }

    fn name(&self) -> &str {
        "ModuleList"
    }

    fn members(&self) -> Members<'_> {
        let mut members = Members::new();
        for (i, module) in self.0.iter().enumerate() {
            members.child(i.to_string(), module);
        }
        members
    }

    fn copy_with(&self, copies: &mut Copies) -> Result<ModuleList<M>> {
        self.0.iter().map(|m| m.copy_with(copies)).collect()
    }
}

/// Modules of one type by name (`torch.nn.ModuleDict`), in the order in which they were inserted. For
/// layers of several types, `ModuleDict<Box<dyn Forward>>`.
pub struct ModuleDict<M>(Vec<(String, M)>);

impl<M> ModuleDict<M> {
    /// No modules.
    pub fn new() -> ModuleDict<M> {
        ModuleDict(Vec::new())
    }

    /// Adds a module under a name, or replaces the module of that name.
    pub fn insert(&mut self, name: impl Into<String>, module: M) {
        let name = name.into();
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some((_, place)) => *place = module,
            None => self.0.push((name, module)),
        }
    }

    /// The module of a name.
    pub fn get(&self, name: &str) -> Option<&M> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, m)| m)
    }

    /// Names and modules, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &M)> {
        self.0.iter().map(|(name, module)| (name.as_str(), module))
    }
}

impl<M> Default for ModuleDict<M> {
    fn default() -> ModuleDict<M> {
        ModuleDict::new()
    }
}

impl<S: Into<String>, M> FromIterator<(S, M)> for ModuleDict<M> {
    fn from_iter<I: IntoIterator<Item = (S, M)>>(modules: I) -> ModuleDict<M> {
        let mut dict = ModuleDict::new();
        for (name, module) in modules {
            dict.insert(name, module);
        }
        dict
    }
}

impl<M: Module> Module for ModuleDict<M> {
    fn as_module(&self) -> &dyn Module {
        self
    }

    fn name(&self) -> &str {
        "ModuleDict"
    }

    fn members(&self) -> Members<'_> {
        let mut members = Members::new();
        for (name, module) in &self.0 {
            members.child(name, module);
        }
        members
    }

    fn copy_with(&self, copies: &mut Copies) -> Result<ModuleDict<M>> {
        let named = self.0.iter();
        named
            .map(|(name, m)| Ok((name.clone(), m.copy_with(copies)?)))
            .collect()
    }
}

/// Parameters in a list (`torch.nn.ParameterList`): a `Vec` that is a module, for a place that takes one.
#[derive(Default)]
pub struct ParameterList(pub Vec<Var>);

/// Parameters by name (`torch.nn.ParameterDict`), in order.
#[derive(Default)]
pub struct ParameterDict(pub Vec<(String, Var)>);

impl ParameterDict {
    /// The parameter of a name.
    pub fn get(&self, name: &str) -> Option<&Var> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, var)| var)
    }
}

impl FromIterator<Var> for ParameterList {
    fn from_iter<I: IntoIterator<Item = Var>>(parameters: I) -> ParameterList {
        ParameterList(parameters.into_iter().collect())
    }
}

impl<S: Into<String>> FromIterator<(S, Var)> for ParameterDict {
    fn from_iter<I: IntoIterator<Item = (S, Var)>>(parameters: I) -> ParameterDict {
        let named = parameters.into_iter().map(|(name, var)| (name.into(), var));
        ParameterDict(named.collect())
    }
}

macro_rules! parameters {
    ($($name:ident |$this:ident| $named:expr, |$list:ident| $copy:expr;)*) => {$(
        impl Module for $name {
            fn as_module(&self) -> &dyn Module {
                self
            }

            fn name(&self) -> &str {
                stringify!($name)
            }

            fn members(&self) -> Members<'_> {
                let mut members = Members::new();
                let $this = self;
                for (name, var) in $named {
                    members.parameter(name, var);
                }
                members
            }

            /// `(0): Parameter(f32[2, 3])` for each.
            fn extra_repr(&self) -> String {
                let $this = self;
                let line = |(name, var): (String, &Var)| {
                    format!("({name}): Parameter({}{:?})", var.dtype(), layer::shape(var))
                };
                let lines: Vec<String> = $named.map(line).collect();
                if lines.is_empty() { String::new() } else { format!("\n  {}\n", lines.join("\n  ")) }
            }

            /// Does nothing: the list does not know how its parameters were initialised.
            fn reset_parameters(&self) -> Result<()> {
                Ok(())
            }

            fn copy_with(&self, copies: &mut Copies) -> Result<$name> {
                let $this = self;
                let mut $list = Vec::new();
                for (name, var) in $named {
                    $list.push((name, copies.var(var)?));
                }
                Ok($copy)
            }
        }
    )*};
}
parameters! {
    ParameterList |this| this.0.iter().enumerate().map(|(i, var)| (i.to_string(), var)),
        |list| list.into_iter().map(|(_, var): (String, Var)| var).collect();
    ParameterDict |this| this.0.iter().map(|(name, var)| (name.clone(), var)),
        |list| ParameterDict(list);
}
