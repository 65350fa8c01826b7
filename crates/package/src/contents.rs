//! The contents of an open package, from which a changed one can be written.

use crate::compiled;
use crate::error::Result;
use crate::package::Package;
use crate::program;
use crate::write::{Contents, NewEntry, NewProgram};
use kiln_runtime::Features;

impl Package {
    /// All contents, with the states as they are now. To change some of them, write another package by
    /// [`Contents::save`]. That packs weights anew, for those of the package's levels that this machine has, and
    /// compiles GPU kernels anew, if this machine has NVRTC.
    ///
    /// # Errors
    /// If a program is of another format, or damaged, or a value is on a device that fails.
    pub fn contents(&self) -> Result<Contents> {
        let shared = &*self.shared;
        let mut entries = Vec::new();
        for entry in &shared.manifest.entries {
            let programs = entry.programs.iter().map(|p| {
                Ok(NewProgram {
                    machine: p.machine.clone(),
                    sizes: p.sizes.clone(),
                    program: program::decode(shared.file(&p.file), self.written_by())?,
                })
            });
            entries.push(NewEntry {
                name: entry.name.clone(),
                graph: self.graph(&entry.name)?.to_string(),
                programs: programs.collect::<Result<_>>()?,
            });
        }
        let assets = self.assets().map(|name| {
            let contents = self.asset(name)?;
            Ok((name.to_string(), contents.to_vec()))
        });
        let levels = self.packed_levels();
        let level = |l: &Features| levels.contains(l.name()) && l.is_supported();
        Ok(Contents {
            cuda: compiled::codes(&shared.manifest)?,
            packed: Features::LEVELS.into_iter().filter(level).collect(),
            written_by: self.written_by().into(),
            metadata: self.metadata().clone(),
            entries,
            state: (self.states().iter())
                .map(|s| (s.name.clone(), s.elements.clone()))
                .collect(),
            tensors: self.tensors()?,
            assets: assets.collect::<Result<_>>()?,
        })
    }
}
