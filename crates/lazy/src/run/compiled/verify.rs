//! Checks of a compiled function against the reference.

use super::Program;
use crate::run::errors;
use crate::run::reference::array;
use crate::{Error, ErrorKind, Handle, Result};
use kiln_compiler::{Bisection, Compilation, Verification};
use kiln_ir::eval::{Array, Oracle};
use kiln_runtime::{Buffer, Error as RunError};
use std::panic::Location;

impl Program {
    /// Runs every kernel of the plan and compares its results with the reference evaluation of the same values.
    /// Commits nothing.
    ///
    /// # Errors
    /// If the arguments do not match, or the run fails.
    pub fn verify_at(
        &self,
        arguments: &[&Handle],
        loc: &'static Location<'static>,
    ) -> Result<Verification> {
        let inputs = self.inputs("Compiled::verify", arguments, loc)?;
        kiln_compiler::verify(&self.stages, &self.executable, &inputs)
            .map_err(|e| errors::run_error(e, &self.gather, loc))
    }

    /// Finds the rewrite of the optimiser that makes a result wrong. Commits nothing.
    ///
    /// # Errors
    /// As [`Program::verify_at`], or if the program is too large for the reference.
    pub fn bisect_at(
        &self,
        arguments: &[&Handle],
        loc: &'static Location<'static>,
    ) -> Result<Bisection> {
        let inputs = self.inputs("Compiled::bisect", arguments, loc)?;
        let arrays = inputs.iter().map(array).collect::<Result<Vec<Array>, _>>();
        let arrays = arrays.map_err(|e| errors::run_error(e, &self.gather, loc))?;
        let graph = &self.stages.recorded;
        let floats = arrays.iter().filter_map(Array::floats).flatten();
        let largest = floats.fold(
            0.0,
            |m: f64, x| if x.is_finite() { m.max(x.abs()) } else { m },
        );
        let oracle = |min_scale| {
            let oracle = Oracle::new(graph, &arrays, min_scale);
            let message = |e: kiln_ir::eval::EvalError| format!("the reference: {e}");
            oracle.map_err(|e| Error::new(ErrorKind::Data, "bisect", message(e), loc))
        };
        let mut failed = None;
        let mut bisection = Ok(Bisection::WrongBefore);
        // Values that cancelled to less than their operands need the wider tolerance.
        for min_scale in [0.0, largest] {
            let oracle = oracle(min_scale)?;
            bisection = kiln_compiler::bisect(graph, &self.options, |c| {
                let is_right = agrees(c, &inputs, &oracle);
                is_right.unwrap_or_else(|e| {
                    failed = Some(e);
                    true
                })
            });
            if !matches!(bisection, Ok(Bisection::WrongBefore)) {
                break;
            }
        }
        match failed {
            Some(e) => Err(errors::run_error(e, &self.gather, loc)),
            None => bisection.map_err(|e| errors::compile_error(e, &self.gather, loc)),
        }
    }
}

/// True if the results of a compiled program match the reference.
fn agrees(c: &Compilation, inputs: &[Buffer], oracle: &Oracle) -> Result<bool, RunError> {
    let values = c.executable.run_shared(inputs)?;
    for (i, position) in c.outputs.iter().enumerate() {
        let Some(position) = position else { continue };
        let deviation = oracle.compare(i, &array(&values[*position])?);
        if !deviation.is_ok_and(|d| d.is_right()) {
            return Ok(false);
        }
    }
    Ok(true)
}
