//! Compiled functions whose symbolic sizes are 0 or 1.
//!
//! A symbol is at least 2, so that shapes broadcast in one way. A smaller size takes the place of its symbol in
//! what was recorded, and the plan for that is compiled when it is first asked for.

use super::{Argument, Program, RUN, record};
use crate::{Error, ErrorKind, Handle, Result};
use kiln_base::{Dim, Sym};
use kiln_compiler::Compilation;
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::{Arc, Mutex};

/// The symbols with values less than 2, and these.
pub(super) type Small = SmallVec<[(usize, i64); 1]>;

impl Program {
    /// The function for arguments of which symbolic sizes are 0 or 1.
    pub(super) fn for_small(
        &self,
        arguments: &[&Handle],
        loc: &'static Location<'static>,
    ) -> Result<Option<Arc<Program>>> {
        let values = self.values(arguments);
        let small = values.iter().copied().enumerate();
        let small: Small = small.filter(|(_, v)| *v < 2).collect();
        if small.is_empty() {
            return Ok(None);
        }
        // Held while compiling, so that runs that need the same plan wait for it.
        let mut known = self.small.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, found)) = known.iter().find(|(sizes, _)| *sizes == small) {
            return Ok(Some(found.clone()));
        }
        let made = Arc::new(self.specialised(&small, loc)?);
        known.push((small, made.clone()));
        Ok(Some(made))
    }

    fn specialised(&self, small: &Small, loc: &'static Location<'static>) -> Result<Program> {
        let value = |s: usize| small.iter().find(|(symbol, _)| *symbol == s);
        let mut kept = 0;
        let by = (0..self.names.len()).map(|s| match value(s) {
            Some((_, v)) => Dim::Const(*v),
            None => {
                kept += 1;
                Dim::symbol(Sym(kept - 1))
            }
        });
        let by: Vec<Dim> = by.collect();
        let left = (0..self.names.len()).filter(|s| value(*s).is_none());
        let names: Vec<String> = left.clone().map(|s| self.names[s].clone()).collect();
        let symbols = (&names[..], &by[..]);
        let compiled =
            record::compiled(&self.gather, &self.asked, symbols, &self.options, self.loc);
        let compilation = compiled.map_err(|e| {
            let sizes = small
                .iter()
                .map(|(s, v)| format!("{} = {v}", self.names[*s]));
            let sizes = sizes.collect::<Vec<_>>().join(", ");
            let text = format!(
                "the function can't be compiled for {sizes}: {}",
                e.message()
            );
            Error::new(e.kind(), RUN, text, loc)
        })?;
        let Compilation {
            executable,
            explain,
            stages,
            outputs,
        } = compilation;
        // The plan's outputs may stand elsewhere than in this one's.
        let place = |asked: usize| {
            let lost = "a result has no place";
            outputs[asked].ok_or_else(|| Error::new(ErrorKind::Internal, RUN, lost, loc))
        };
        let results = self.results.len();
        let mut writes = self.writes.clone();
        for (i, w) in writes.iter_mut().enumerate() {
            w.output = place(results + i)?;
        }
        let mut takes = self.takes.clone();
        for Argument { fact, .. } in &mut takes {
            fact.shape.iter_mut().for_each(|d| *d = d.substitute(&by));
        }
        Ok(Program {
            executable,
            explain,
            stages,
            options: self.options.clone(),
            device: self.device,
            takes,
            names,
            bindings: self.bindings.clone(),
            cells: self.cells.clone(),
            written: self.written.clone(),
            keys: self.keys.iter().map(|k| k.substitute(&by)).collect(),
            results: (0..results).map(place).collect::<Result<_>>()?,
            writes,
            symbols: left.map(|s| self.symbols[s]).collect(),
            gather: self.gather.clone(),
            asked: self.asked.clone(),
            small: Mutex::default(),
            loc: self.loc,
        })
    }
}
