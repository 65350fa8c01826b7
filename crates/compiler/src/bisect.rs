//! Finds the rewrite that makes a compiled result wrong.

use crate::pipeline::{Compilation, compile_with};
use crate::{CompileError, Options};
use kiln_ir::Graph;
use kiln_optimize::{Fired, Pass, first_wrong, passes};

/// The outcome of a search for the rewrite that makes a result wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bisection {
    /// The optimised program is right.
    Right,
    /// The program is wrong even without any rewrite: not the optimiser's fault.
    WrongBefore,
    /// The first rewrite after which the program is wrong.
    Rewrite {
        /// The rewrite.
        fired: Fired,
        /// Its position among the rewrites.
        at: usize,
    },
}

/// Compiles a graph with fewer and fewer rewrites until it finds the one after which `is_right` returns false, in about
/// log₂(rewrites) compilations. If later rewrites correct the result, another rewrite with the same effect may be
/// found.
///
/// # Errors
/// If the graph can't be compiled.
pub fn bisect(
    graph: &Graph,
    options: &Options,
    is_right: impl FnMut(&Compilation) -> bool,
) -> Result<Bisection, CompileError> {
    bisect_with(graph, options, passes(), is_right)
}

/// [`bisect`] over another list of passes.
///
/// # Errors
/// As for [`bisect`].
pub fn bisect_with(
    graph: &Graph,
    options: &Options,
    passes: &[Pass],
    mut is_right: impl FnMut(&Compilation) -> bool,
) -> Result<Bisection, CompileError> {
    let mut run = |max_patches: Option<usize>| {
        let options = Options {
            max_patches,
            ..options.clone()
        };
        let compilation = compile_with(graph, &[], &options, passes)?;
        let correct = is_right(&compilation);
        Ok((correct, compilation.explain.rewrites))
    };
    let (correct, fired) = run(options.max_patches)?;
    if correct {
        return Ok(Bisection::Right);
    }
    if !run(Some(0))?.0 {
        return Ok(Bisection::WrongBefore);
    }
    let index = first_wrong(fired.len(), |n| Ok(run(Some(n))?.0))?;
    Ok(match fired.into_iter().nth(index) {
        Some(fired) => Bisection::Rewrite { fired, at: index },
        None => Bisection::WrongBefore,
    })
}

impl std::fmt::Display for Bisection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bisection::Right => f.write_str("the optimised program is right"),
            Bisection::WrongBefore => {
                f.write_str("the program is wrong without any rewrite: verify its kernels")
            }
            Bisection::Rewrite { fired, at } => {
                write!(f, "wrong since rewrite {}, {}: {fired}", at + 1, fired.pass)
            }
        }
    }
}
