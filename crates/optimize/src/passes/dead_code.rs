//! Dead code elimination: removes nodes without uses.
//!
//! Inputs stay, so that callers need not renumber their arguments. Outputs of every target count as uses. Removing
//! a node that could report a data error removes the report; no result that a caller sees depended on it. One walk
//! in reverse topological order.

use crate::{OptimizeError, Pass, Rewriter, Run};
use kiln_ir::Op;

/// The pass.
pub const PASS: Pass = Pass {
    name: "dead_code",
    about: "removes nodes that nothing reads",
    exact: true,
    run: Run::Walk(&["dead_code"], remove_dead),
};

fn remove_dead(rewriter: &mut Rewriter<'_>) -> Result<(), OptimizeError> {
    for id in rewriter.ids().into_iter().rev() {
        let view = rewriter.view();
        let input = matches!(view.node(id).op, Op::Input(_));
        if !input && rewriter.is_live(id) && view.use_count(id) == 0 {
            rewriter.remove("dead_code", id)?;
        }
        if rewriter.is_stopped() {
            break;
        }
    }
    Ok(())
}
