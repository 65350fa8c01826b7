//! Modules whose types are not known.

use crate::copy::{BoxCopy, Copies};
use crate::{
    Lazy, Module, ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential, print,
};
use kiln_tensor::{Error, Result};
use std::any::Any;
use std::fmt;

impl dyn Module {
    /// This module as one of a given type, if it is one.
    pub fn downcast_ref<M: Module>(&self) -> Option<&M> {
        (self as &dyn Any).downcast_ref()
    }

    /// [`Module::deep_copy`] of a module whose type is not known.
    ///
    /// # Errors
    /// As [`Module::deep_copy`].
    #[track_caller]
    pub fn deep_copy_boxed(&self) -> Result<Box<dyn Module>> {
        let mut copies = Copies::default();
        let copy = self.box_copy(&mut copies)?;
        copies.compute()?;
        Ok(copy)
    }

    /// Makes the error that there is no part at a path.
    #[track_caller]
    pub(crate) fn without(&self, called: &str, what: &str, path: &str) -> Error {
        let children: Vec<String> = self.named_children().into_iter().map(|(n, _)| n).collect();
        let message = format!(
            "{} has no {what} {path:?}; directly within it are {children:?}",
            self.name()
        );
        Error::invalid(called, message)
    }
}

impl fmt::Display for dyn Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print::tree(self, f)
    }
}

macro_rules! displays {
    ($([$($parameters:tt)*] $module:ty;)*) => {$(
        impl<$($parameters)*> fmt::Display for $module {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.as_module().fmt(f)
            }
        }
    )*};
}
displays! {
    [M: Module] ModuleList<M>;
    [M: Module] ModuleDict<M>;
    [] ParameterList;
    [] ParameterDict;
    [] Sequential;
    [L: Module] Lazy<L>;
}
