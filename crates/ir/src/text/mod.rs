//! The text form: [`Graph`] prints and parses.
//!
//! ```text
//! graph {
//!   symbols s0 >= 2 "batch"
//!   %0: f32[s0, 8] = input(index: 0, role: Data)
//!   %1: f32[8, 4] = input(index: 1, role: Parameter)
//!   %2: f32[s0, 4] = matmul %0, %1
//!   %3: f32[s0, 4] = loop(trips: 3) %2 {
//!     %0: i64[] = input(index: 0, role: Data)
//!     %1: f32[s0, 4] = input(index: 1, role: Data)
//!     %2: f32[s0, 4] = relu %1
//!     return %2
//!   }
//!   return %3, kept %2
//! }
//! ```
//!
//! A line is an id, the facts of the outputs (in parentheses unless there is one), the op's name, its attributes as
//! RON without those that follow from the facts, the operands, and the bodies that the op owns (the second after
//! `else`). A line `return` ends a graph; in it, `assign 1 %2` gives %2 to the cell of input 1. `#` starts a comment.
//! The alternate form `{:#}` ends lines in comments with the source locations; parsing ignores these.
//!
//! Parsing (feature `parse`) checks the grammar only; [`crate::verify`] finds other errors in the program.

mod attributes;
#[cfg(feature = "parse")]
mod parse;
mod print;

#[cfg(feature = "parse")]
pub use parse::ParseError;

use crate::Graph;
use kiln_base::Loc;

impl Graph {
    /// The graph with every location unknown, as parsing gives it.
    pub fn without_locs(&self) -> Graph {
        let mut out = self.clone();
        for id in self.ids() {
            let node = out.node_mut(id);
            node.loc = Loc::UNKNOWN;
            node.op.inner_nodes_mut(&mut |n| n.loc = Loc::UNKNOWN);
        }
        out
    }
}
