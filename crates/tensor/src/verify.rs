//! Checking a compiled function against the reference.

use crate::{Compiled, Error, ErrorKind, Result, Tensor};
use kiln_compiler::{Bisection, Compilation, Verification};
use kiln_ir::eval::{Array, Oracle};
use kiln_lazy::run::errors;
use kiln_lazy::run::reference::array;
use kiln_runtime::{Buffer, Error as RunError};
use std::panic::Location;

impl Compiled {
    /// Runs every kernel of the plan and compares what it writes with the reference evaluation, in f64,
    /// of the same values, from what the plan itself computed before: the error of each kernel by
    /// itself, the worst first, with the line that recorded it. The reference is slow; take small
    /// sizes.
    ///
    /// Nothing is committed: `Var`s and the generator of random numbers stay as they are, and the
    /// random numbers are those of the next run.
    ///
    /// # Errors
    /// If the arguments don't fit the specs, or what goes wrong in the run.
    ///
    /// ```
    /// use kiln_tensor::{DType, Spec, Tensor, compile};
    ///
    /// let f = compile(&[Spec::fixed(DType::F32, [8])], |x| x[0].exp().softmax(0))?;
    /// let found = f.verify(&[&Tensor::randn([8], DType::F32)])?;
    /// assert!(found.is_right(), "{found}");
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn verify(&self, arguments: &[&Tensor]) -> Result<Verification> {
        let loc = Location::caller();
        let inputs = self.inputs("Compiled::verify", arguments, loc)?;
        kiln_compiler::verify(&self.stages, &self.executable, &inputs)
            .map_err(|e| errors::run_error(e, &self.gather, loc))
    }

    /// Finds the rewrite of the optimiser that makes a result wrong: compiles the function with fewer
    /// and fewer rewrites and compares its results, and the values it assigns, with the reference
    /// evaluation of what was recorded. The tolerance is one that the program without rewrites is
    /// within. Commits nothing, like [`Compiled::verify`].
    ///
    /// # Errors
    /// If the arguments don't fit the specs, if the program is too large for the reference, or what
    /// goes wrong in a run.
    #[track_caller]
    pub fn bisect(&self, arguments: &[&Tensor]) -> Result<Bisection> {
        let loc = Location::caller();
        let inputs = self.inputs("Compiled::bisect", arguments, loc)?;
        let arrays = inputs.iter().map(array).collect::<Result<Vec<Array>, _>>();
        let arrays = arrays.map_err(|e| errors::run_error(e, &self.gather, loc))?;
        let graph = &self.stages.recorded;
        let floats = arrays.iter().filter_map(Array::floats).flatten();
        let largest = floats.fold(
            0.0,
            |m: f64, x| if x.is_finite() { m.max(x.abs()) } else { m },
        );
        let oracle = |least| {
            let oracle = Oracle::new(graph, &arrays, least);
            let message = |e: kiln_ir::eval::EvalError| format!("the reference: {e}");
            oracle.map_err(|e| Error::new(ErrorKind::Data, "bisect", message(e), loc))
        };
        let mut failed = None;
        let mut found = Ok(Bisection::WrongBefore);
        // Values that cancelled to less than what they were made of need the wider tolerance.
        for least in [0.0, largest] {
            let oracle = oracle(least)?;
            found = kiln_compiler::bisect(graph, &self.options, |c| {
                let right = agrees(c, &inputs, &oracle);
                right.unwrap_or_else(|e| {
                    failed = Some(e);
                    true
                })
            });
            if !matches!(found, Ok(Bisection::WrongBefore)) {
                break;
            }
        }
        match failed {
            Some(e) => Err(errors::run_error(e, &self.gather, loc)),
            None => found.map_err(|e| errors::compile_error(e, &self.gather, loc)),
        }
    }
}

/// Whether a compiled program gives what the reference does.
fn agrees(c: &Compilation, inputs: &[Buffer], oracle: &Oracle) -> Result<bool, RunError> {
    let values = c.executable.run_shared(inputs)?;
    for (i, at) in c.outputs.iter().enumerate() {
        let Some(at) = at else { continue };
        let found = oracle.compare(i, &array(&values[*at])?);
        if !found.is_ok_and(|d| d.is_right()) {
            return Ok(false);
        }
    }
    Ok(true)
}
