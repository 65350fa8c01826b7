//! The names of cells in a package.

use kiln_package::RNG_STATE;
use kiln_tensor::Var;
use std::collections::{HashMap, HashSet};

/// Cells and their names, in the order in which they were named.
#[derive(Clone, Default)]
pub(crate) struct Names {
    entries: Vec<(String, Var, Vec<String>)>,
    by_id: HashMap<u64, usize>,
    used: HashSet<String>,
}

impl Names {
    /// Names a cell and its elements, unless it already has a name.
    pub fn add(&mut self, name: String, var: &Var, elements: Vec<String>) -> Result<(), String> {
        if self.by_id.contains_key(&var.id()) {
            return Ok(());
        }
        if name == RNG_STATE {
            return Err(format!(
                "`{name}` is the state of the generator of random numbers"
            ));
        }
        if !self.used.insert(name.clone()) {
            return Err(format!("two states are called `{name}`"));
        }
        self.insert(name, var, elements);
        Ok(())
    }

    fn insert(&mut self, name: String, var: &Var, elements: Vec<String>) {
        self.by_id.insert(var.id(), self.entries.len());
        self.entries.push((name, var.clone(), elements));
    }

    /// Returns the name of a cell that an entry names `name_in_entry`.
    pub fn resolve(&mut self, var: &Var, name_in_entry: &str, entry: &str) -> String {
        if let Some(index) = self.by_id.get(&var.id()) {
            return self.entries[*index].0.clone();
        }
        let name = match name_in_entry != RNG_STATE && !self.used.contains(name_in_entry) {
            true => self.reserve(name_in_entry.into()),
            false => self.reserve(format!("{entry}.{name_in_entry}")),
        };
        self.insert(name.clone(), var, Vec::new());
        name
    }

    /// Returns the name, with a number appended if it is taken, and reserves it.
    pub fn reserve(&mut self, wanted: String) -> String {
        let (mut name, mut suffix) = (wanted.clone(), 0);
        while !self.used.insert(name.clone()) {
            suffix += 1;
            name = format!("{wanted}_{suffix}");
        }
        name
    }

    /// The cells with their names and those of their elements.
    pub fn entries(&self) -> &[(String, Var, Vec<String>)] {
        &self.entries
    }
}
