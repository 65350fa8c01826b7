//! The names of cells in a package.

use kiln_package::RNG_STATE;
use kiln_tensor::Var;
use std::collections::{HashMap, HashSet};

/// Cells and their names, in the order in which they were named.
#[derive(Clone, Default)]
pub(crate) struct Names {
    all: Vec<(String, Var, Vec<String>)>,
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
        self.keep(name, var, elements);
        Ok(())
    }

    fn keep(&mut self, name: String, var: &Var, elements: Vec<String>) {
        self.by_id.insert(var.id(), self.all.len());
        self.all.push((name, var.clone(), elements));
    }

    /// Returns the name of a cell that an entry names `wanted`.
    pub fn of(&mut self, var: &Var, wanted: &str, entry: &str) -> String {
        if let Some(at) = self.by_id.get(&var.id()) {
            return self.all[*at].0.clone();
        }
        let name = match wanted != RNG_STATE && !self.used.contains(wanted) {
            true => self.free(wanted.into()),
            false => self.free(format!("{entry}.{wanted}")),
        };
        self.keep(name.clone(), var, Vec::new());
        name
    }

    /// Returns the name, with a number appended if it is taken, and reserves it.
    pub fn free(&mut self, wanted: String) -> String {
        let (mut name, mut more) = (wanted.clone(), 0);
        while !self.used.insert(name.clone()) {
            more += 1;
            name = format!("{wanted}_{more}");
        }
        name
    }

    /// The cells with their names and those of their elements.
    pub fn all(&self) -> &[(String, Var, Vec<String>)] {
        &self.all
    }
}
