//! What was done.

use kiln_ir::Loc;
use std::fmt;

/// A patch that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired {
    /// The pass.
    pub pass: &'static str,
    /// The rule.
    pub rule: &'static str,
    /// The node that the rule looked at, such as `add(f32[4], f32[4]) -> f32[4]`.
    pub node: String,
    /// Where the user recorded that node.
    pub loc: Loc,
    /// How many bodies of loops and branches the node lies in.
    pub depth: usize,
}

/// What [`crate::optimize`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The patches, in order.
    pub fired: Vec<Fired>,
    /// Nodes of the graph, without its bodies, before.
    pub nodes_before: usize,
    /// Nodes of the graph, without its bodies, after.
    pub nodes_after: usize,
    /// How many times the list of passes was walked.
    pub rounds: usize,
    /// Whether `max_patches` ended it before the fixed point.
    pub stopped: bool,
}

impl Report {
    /// How often each rule fired, in the order of their first patch.
    pub fn counts(&self) -> Vec<(&'static str, usize)> {
        let mut counts: Vec<(&'static str, usize)> = Vec::new();
        for f in &self.fired {
            match counts.iter_mut().find(|(rule, _)| *rule == f.rule) {
                Some((_, n)) => *n += 1,
                None => counts.push((f.rule, 1)),
            }
        }
        counts
    }

    /// How often a rule fired.
    pub fn count(&self, rule: &str) -> usize {
        self.fired.iter().filter(|f| f.rule == rule).count()
    }
}

impl fmt::Display for Fired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let indent = 2 * self.depth;
        write!(f, "{:indent$}{}: {}", "", self.rule, self.node)?;
        if self.loc.is_known() {
            write!(f, " at {}", self.loc)?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.fired.len();
        writeln!(
            f,
            "{} -> {} nodes, {n} {}{}",
            self.nodes_before,
            self.nodes_after,
            if n == 1 { "rewrite" } else { "rewrites" },
            if self.stopped { " (stopped)" } else { "" },
        )?;
        for fired in &self.fired {
            writeln!(f, "  {fired}")?;
        }
        Ok(())
    }
}
