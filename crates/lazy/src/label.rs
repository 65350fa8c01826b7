//! What the user calls things.

use std::sync::{Arc, Mutex};

/// What the user calls a cell, such as `fc.weight`, once that is known.
#[derive(Default)]
pub struct Label(Mutex<Option<Arc<str>>>);

impl Label {
    /// The name, if one is known.
    pub fn get(&self) -> Option<Arc<str>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Says the name.
    pub fn set(&self, name: &str) {
        *self.0.lock().unwrap_or_else(|e| e.into_inner()) = Some(name.into());
    }
}

/// What messages call a part of a structure: `argument 1.weight`, `the argument`.
pub fn called(what: &str, path: &str) -> String {
    match path {
        "" => format!("the {what}"),
        path => format!("{what} {path}"),
    }
}
