//! Finding the patch that makes a result wrong.

use crate::{Fired, Options, Pass, optimize_with, passes};
use kiln_ir::Graph;

/// A patch before which the graph is right and after which it is wrong. It is the first such patch, unless later
/// patches repair its error. `None` where the optimised graph is right, where the unoptimised one is already wrong,
/// and where optimisation fails, since that error names its rule. Takes about log₂(patches) runs.
pub fn bisect(
    graph: &Graph,
    options: &Options,
    is_right: impl FnMut(&Graph) -> bool,
) -> Option<Fired> {
    bisect_with(graph, passes(), options, is_right)
}

/// [`bisect`] over another list of passes.
pub fn bisect_with(
    graph: &Graph,
    passes: &[Pass],
    options: &Options,
    mut is_right: impl FnMut(&Graph) -> bool,
) -> Option<Fired> {
    let mut run = |max_patches: Option<usize>| {
        let options = Options {
            max_patches,
            ..options.clone()
        };
        let (graph, report) = optimize_with(graph.clone(), passes, &options).ok()?;
        Some((is_right(&graph), report.fired))
    };
    let (all_right, fired) = run(options.max_patches)?;
    if all_right || !run(Some(0))?.0 {
        return None;
    }
    let first = first_wrong(fired.len(), |n| run(Some(n)).map(|r| r.0).ok_or(()));
    fired.into_iter().nth(first.ok()?)
}

/// The position of the first of `patches` patches after which `is_right` is false, where it is true after none and
/// false after all of them.
///
/// # Errors
/// The errors of `is_right`.
pub fn first_wrong<E>(
    patches: usize,
    mut is_right: impl FnMut(usize) -> Result<bool, E>,
) -> Result<usize, E> {
    let (mut right, mut wrong) = (0, patches);
    while wrong - right > 1 {
        let middle = right + (wrong - right) / 2;
        match is_right(middle)? {
            true => right = middle,
            false => wrong = middle,
        }
    }
    Ok(right)
}
