//! The report of a run.

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
    /// The location where the user recorded that node.
    pub loc: Loc,
    /// The nesting depth of the node in bodies of loops and branches.
    pub depth: usize,
}

/// The report of [`crate::optimize`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The patches, in order.
    pub fired: Vec<Fired>,
    /// Nodes of the graph, without its bodies, before.
    pub nodes_before: usize,
    /// Nodes of the graph, without its bodies, after.
    pub nodes_after: usize,
    /// The number of times that the list of passes was walked.
    pub rounds: usize,
    /// True if `max_patches` ended it before the fixed point.
    pub stopped: bool,
}

impl Report {
    /// The number of times that each rule fired, in the order of their first patch.
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

    /// The number of times that a rule fired.
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
