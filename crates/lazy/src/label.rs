//! The user's names of things.

use kiln_runtime::lock::lock;
use std::sync::{Arc, Mutex};

/// The user's name of a cell, such as `fc.weight`, once it is known.
#[derive(Default)]
pub struct Label(Mutex<Option<Arc<str>>>);

impl Label {
    /// The name, if one is known.
    pub fn get(&self) -> Option<Arc<str>> {
        lock(&self.0).clone()
    }

    /// Sets the name.
    pub fn set(&self, name: &str) {
        *lock(&self.0) = Some(name.into());
    }
}

/// Returns the name of a part of a structure, for messages: `argument 1.weight`, `the argument`.
pub fn called(kind: &str, path: &str) -> String {
    match path {
        "" => format!("the {kind}"),
        path => format!("{kind} {path}"),
    }
}
