//! Entries of packages as C sources.

use crate::error::{Error, Result};
use crate::sources::{Draws, Input, Output, Program, Sources, Weights, emit};
use kiln_package::{Package, RNG_STATE};
use std::io::Write;
use std::path::Path;

/// The entries of a package that become C sources, and the options for them.
#[derive(Clone, Debug)]
pub struct Export {
    name: String,
    entries: Vec<String>,
    sizes: Vec<(String, i64)>,
    weights: Weights,
}

impl Export {
    /// Exports all entries that change no states and draw no random numbers, as functions whose names begin with
    /// `name`.
    pub fn new(name: impl Into<String>) -> Export {
        Export {
            name: name.into(),
            entries: Vec::new(),
            sizes: Vec::new(),
            weights: Weights::default(),
        }
    }

    /// Exports this entry and others that are named, instead of the default ones.
    pub fn entry(mut self, name: impl Into<String>) -> Export {
        self.entries.push(name.into());
        self
    }

    /// Sets an open size of entries, such as `batch`; an open size without a value is 1.
    pub fn size(mut self, name: impl Into<String>, n: i64) -> Export {
        self.sizes.push((name.into(), n));
        self
    }

    /// Sets the storage of the weights.
    pub fn weights(mut self, weights: Weights) -> Export {
        self.weights = weights;
        self
    }

    /// Emits the sources of a package.
    ///
    /// # Errors
    /// If there is no such entry or size, or a part of it can't be emitted.
    pub fn sources(&self, package: &Package) -> Result<Sources> {
        let entries = self.chosen_entries(package)?;
        let mut is_size_used = vec![false; self.sizes.len()];
        let (mut compiled, mut has_effects) = (Vec::new(), false);
        for name in &entries {
            let interface = package.interface(name)?;
            has_effects |= !interface.writes.is_empty() || interface.random;
            let mut sizes = Vec::new();
            for symbol in &interface.symbols {
                let option = self.sizes.iter().position(|(n, _)| *n == symbol.name);
                option.into_iter().for_each(|i| is_size_used[i] = true);
                let n = option.map_or(1, |i| self.sizes[i].1);
                sizes.push((&symbol.name[..], n));
            }
            compiled.push(package.entry(name)?.compiled(&sizes)?);
        }
        if let Some(i) = is_size_used.iter().position(|used| !used) {
            return Err(Error::Entry {
                entry: entries.join("`, `"),
                why: format!("it has no size `{}`", self.sizes[i].0),
            });
        }
        let mut programs = Vec::new();
        for (name, (entry, symbols)) in entries.iter().zip(&compiled) {
            let interface = package.interface(name)?;
            let signature = &entry.signature;
            let mut inputs = vec![None; entry.plan.inputs.len()];
            for (named, info) in signature.arguments.iter().zip(&interface.inputs) {
                inputs[named.at as usize] = Some(Input::Argument(info.name.clone()));
            }
            for state in &signature.states {
                if let Some(input) = state.input {
                    let value = package.get(&state.name)?;
                    inputs[input as usize] = Some(match has_effects {
                        true => Input::State(state.name.clone(), value),
                        false => Input::Fixed(value),
                    });
                }
            }
            for named in &signature.captured {
                let value = package.constant(&named.name)?;
                inputs[named.at as usize] = Some(Input::Fixed(value));
            }
            let mut count = 0;
            let keys = signature.keys(symbols, |numbers| {
                count = numbers;
                [0; 2]
            });
            let keys = keys.filter(|_| count >= 0).ok_or_else(|| Error::Entry {
                entry: name.clone(),
                why: "it draws more random numbers than an i64 counts".into(),
            })?;
            for (draw, [_, offset]) in signature.draws.iter().zip(keys) {
                if let Some(input) = draw.input {
                    inputs[input as usize] = Some(Input::Key(offset));
                }
            }
            let draws = match interface.random {
                true => Some(Draws {
                    state: RNG_STATE.into(),
                    value: package.get(RNG_STATE)?,
                    count,
                }),
                false => None,
            };
            let nothing = Output::Named(String::new());
            let mut outputs = vec![nothing; entry.plan.outputs.len()];
            for (named, info) in signature.results.iter().zip(&interface.outputs) {
                outputs[named.at as usize] = Output::Named(info.name.clone());
            }
            for state in &signature.states {
                if let Some(output) = state.output {
                    outputs[output as usize] = Output::State(state.name.clone());
                }
            }
            let inputs = inputs.into_iter().collect::<Option<Vec<Input>>>();
            programs.push(Program {
                name,
                plan: &entry.plan,
                symbols,
                inputs: inputs.ok_or_else(|| Error::Damaged("an input has no source".into()))?,
                outputs,
                draws,
            });
        }
        emit(&self.name, &programs, self.weights)
    }

    /// The named entries, or else all that change no states and draw no random numbers.
    fn chosen_entries(&self, package: &Package) -> Result<Vec<String>> {
        if !self.entries.is_empty() {
            return Ok(self.entries.clone());
        }
        let is_pure = |name: &&str| {
            let interface = package.interface(name);
            interface.is_ok_and(|i| i.writes.is_empty() && !i.random)
        };
        let names = package.entries().filter(is_pure);
        let names: Vec<String> = names.map(String::from).collect();
        match names.is_empty() {
            false => Ok(names),
            true => Err(Error::Entry {
                entry: package.entries().collect::<Vec<_>>().join("`, `"),
                why:
                    "it changes states or draws random numbers, so it is emitted only where it is named"
                        .into(),
            }),
        }
    }

    /// Writes the sources of a package into a folder, which is created if it is missing.
    ///
    /// # Errors
    /// As [`Export::sources`], or if a file can't be written.
    pub fn write(&self, package: &Package, folder: impl AsRef<Path>) -> Result<Sources> {
        let sources = self.sources(package)?;
        sources.write(folder)?;
        Ok(sources)
    }
}

impl Sources {
    /// Writes the files into a folder, which is created if it is missing. A reader sees each old file or the whole new
    /// one, never a part.
    ///
    /// # Errors
    /// If a file can't be written.
    pub fn write(&self, folder: impl AsRef<Path>) -> Result<()> {
        let folder = folder.as_ref();
        std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
        for (name, contents) in &self.files {
            let file = folder.join(name);
            kiln_base::file::replace(&file, |f| f.write_all(contents.as_ref()))
                .map_err(Error::io(&file))?;
        }
        Ok(())
    }
}
