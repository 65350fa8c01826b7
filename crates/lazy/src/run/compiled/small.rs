//! Compiled functions whose symbolic sizes are 0 or 1.
//!
//! A symbol is at least 2, so shapes broadcast unambiguously. A smaller size replaces its symbol in the recorded graph,
//! and the plan of that graph is compiled on first use.

use super::{Program, RUN, record};
use crate::caller::user_line;
use crate::run::profiler;
use crate::{Error, Handle, Result};
use kiln_base::{Dim, Sym};
use kiln_runtime::lock::lock;
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::{Arc, Mutex};

/// The symbols with values less than 2, and these values.
pub(super) type Small = SmallVec<[(usize, i64); 1]>;

impl Program {
    /// Returns the function for the symbolic sizes of 0 or 1 among those of the arguments; `None` if there are none.
    pub(super) fn for_small(
        &self,
        arguments: &[&Handle],
        loc: &'static Location<'static>,
    ) -> Result<Option<Arc<Program>>> {
        let values = self.values(arguments);
        let small = values.iter().copied().enumerate();
        let small: Small = small.filter(|(_, v)| *v < 2).collect();
        self.for_sizes(small, loc)
    }

    /// Returns the function for symbols, by number, that are 0 or 1; `None` if there are none.
    ///
    /// # Errors
    /// If the function can't be compiled for them.
    pub fn for_sizes(
        &self,
        small: impl IntoIterator<Item = (usize, i64)>,
        loc: &'static Location<'static>,
    ) -> Result<Option<Arc<Program>>> {
        let small: Small = small.into_iter().collect();
        if small.is_empty() {
            return Ok(None);
        }
        // Locked while compiling, so runs that need the same plan wait for it.
        let mut programs = lock(&self.small);
        if let Some((_, program)) = programs.iter().find(|(sizes, _)| *sizes == small) {
            return Ok(Some(program.clone()));
        }
        let program = Arc::new(self.specialise(&small, loc)?);
        programs.push((small, program.clone()));
        Ok(Some(program))
    }

    fn specialise(&self, small: &Small, loc: &'static Location<'static>) -> Result<Program> {
        let value = |s: usize| small.iter().find(|(symbol, _)| *symbol == s);
        let mut count = 0;
        let symbols = &self.plan().symbols;
        let dims = (0..symbols.len()).map(|s| match value(s) {
            Some((_, v)) => Dim::Const(*v),
            None => {
                count += 1;
                Dim::symbol(Sym(count - 1))
            }
        });
        let dims: Vec<Dim> = dims.collect();
        let symbolic = (0..symbols.len()).filter(|s| value(*s).is_none());
        let names: Vec<String> = symbolic.map(|s| symbols[s].name.clone()).collect();
        let mut signature = self.signature.clone();
        for draw in &mut signature.draws {
            draw.count = draw.count.substitute(&dims);
        }
        let recorded = (&*self.gather, &self.outputs[..], &signature);
        let compiled = record::compiled(recorded, (&names, &dims), &self.options, self.loc);
        let sizes = small.iter();
        let sizes = sizes.map(|(s, v)| format!("{} = {v}", symbols[*s].name));
        let sizes = sizes.collect::<Vec<_>>().join(", ");
        let compilation = compiled.map_err(|e| {
            let text = format!(
                "the function can't be compiled for {sizes}: {}",
                e.message()
            );
            Error::new(e.kind(), RUN, text, loc)
        })?;
        let reason = format!("sizes of 0 and 1 have plans of their own: {sizes}");
        profiler::note_compiled(loc, &reason, &compilation.explain);
        let reason = format!("{reason}, at {}", user_line(loc));
        self.explain.reasons.push(reason.clone());
        compilation.explain.reasons.push(reason);
        Ok(Program {
            executable: compilation.executable,
            signature,
            captured: self.captured.clone(),
            cells: self.cells.clone(),
            explain: compilation.explain,
            stages: compilation.stages,
            options: self.options.clone(),
            device: self.device,
            gather: self.gather.clone(),
            outputs: self.outputs.clone(),
            small: Mutex::default(),
            loc: self.loc,
        })
    }
}
