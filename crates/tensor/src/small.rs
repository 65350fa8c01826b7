//! Compiled functions whose symbolic sizes are 0 or 1.
//!
//! A symbol is at least 2, so that shapes broadcast in one way. A smaller size takes the place of its symbol in
//! what was recorded, and the plan for that is compiled when it is first asked for.

use crate::compile::{compile_graph, symbol_info};
use crate::{DimSpec, Error, ErrorKind, Program, Result, Tensor};
use kiln_base::{Dim, Sym};
use kiln_compiler::Compilation;
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::{Arc, Mutex};

/// The symbols with values less than 2, and these.
pub(crate) type Small = SmallVec<[(usize, i64); 1]>;

impl Program {
    /// The function for arguments of which symbolic sizes are 0 or 1.
    pub(crate) fn for_small(
        &self,
        arguments: &[&Tensor],
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
        let names: Vec<String> = self.names();
        let mut kept = 0;
        let by = (0..names.len()).map(|s| match value(s) {
            Some((_, v)) => Dim::Const(*v),
            None => {
                kept += 1;
                Dim::symbol(Sym(kept - 1))
            }
        });
        let by: Vec<Dim> = by.collect();
        let left = (0..names.len()).filter(|s| value(*s).is_none());
        let symbols: Vec<_> = left.clone().map(|s| symbol_info(&names[s])).collect();
        let recorded = (&symbols[..], &by[..]);
        let compiled = compile_graph(&self.gather, &self.asked, recorded, &self.options, self.loc);
        let compilation = compiled.map_err(|e| {
            let sizes = small.iter().map(|(s, v)| format!("{} = {v}", names[*s]));
            let sizes = sizes.collect::<Vec<_>>().join(", ");
            let text = format!(
                "the function can't be compiled for {sizes}: {}",
                e.message()
            );
            Error::new(e.kind(), "Compiled::run", text, loc)
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
            outputs[asked]
                .ok_or_else(|| Error::new(ErrorKind::Internal, "Compiled::run", lost, loc))
        };
        let results = self.results.len();
        let mut writes = self.writes.clone();
        for (i, w) in writes.iter_mut().enumerate() {
            w.output = place(results + i)?;
        }
        let spec = |dim: &DimSpec| match dim {
            DimSpec::Symbol(name) => {
                let symbol = names.iter().position(|n| n == name);
                let known = symbol.and_then(value);
                known.map_or_else(|| dim.clone(), |(_, v)| DimSpec::Known(*v))
            }
            DimSpec::Known(n) => DimSpec::Known(*n),
        };
        let mut specs = self.specs.clone();
        for s in &mut specs {
            s.dims = s.dims.iter().map(spec).collect();
        }
        Ok(Program {
            executable,
            explain,
            stages,
            options: self.options.clone(),
            device: self.device,
            specs,
            paths: self.paths.clone(),
            bindings: self.bindings.clone(),
            vars: self.vars.clone(),
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

    /// The names of the symbols, in order.
    fn names(&self) -> Vec<String> {
        let name = |(a, axis): &(usize, usize)| match &self.specs[*a].dims[*axis] {
            DimSpec::Symbol(name) => name.clone(),
            DimSpec::Known(n) => n.to_string(),
        };
        self.symbols.iter().map(name).collect()
    }
}
