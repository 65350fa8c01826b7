//! Errors of optimisation: bugs of rules, as values.

use kiln_ir::Loc;

/// The reason that optimisation stopped. All but [`OptimizeError::InvalidInput`] are bugs of the rule or pass that
/// they name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptimizeError {
    /// The graph was invalid before any rule ran.
    #[error("the graph is invalid before any rewrite:\n{violations}")]
    InvalidInput {
        /// The verifier's report.
        violations: String,
    },
    /// A rule replaces a value by one of another dtype or shape.
    #[error("rule {rule} replaces {before} by {after}, for {node} recorded at {loc}")]
    FactChanged {
        /// The rule.
        rule: &'static str,
        /// The node that the rule looked at.
        node: String,
        /// The place where the user recorded the node.
        loc: Loc,
        /// The fact of the replaced value.
        before: String,
        /// The fact of the replacement.
        after: String,
    },
    /// A rule gives an inconsistent patch.
    #[error("rule {rule} gives an illegal patch for {node} recorded at {loc}: {problem}")]
    BadPatch {
        /// The rule.
        rule: &'static str,
        /// The node that the rule looked at.
        node: String,
        /// The place where the user recorded the node.
        loc: Loc,
        /// The problem with the patch.
        problem: String,
    },
    /// The graph is invalid after a patch.
    #[error("rule {rule} makes the graph invalid at {node} recorded at {loc}:\n{violations}")]
    Invalid {
        /// The rule.
        rule: &'static str,
        /// The node that the rule looked at.
        node: String,
        /// The place where the user recorded the node.
        loc: Loc,
        /// The verifier's report.
        violations: String,
    },
    /// Rules of a pass undo each other's work.
    #[error("pass {pass} finds no fixed point; the last rule that fired is {rule}")]
    NoFixedPoint {
        /// The pass.
        pass: &'static str,
        /// The last rule that fired.
        rule: &'static str,
    },
    /// A pass lost or changed an input or output of the graph.
    #[error("pass {pass} changes the interface of the graph: {problem}")]
    InterfaceChanged {
        /// The pass.
        pass: &'static str,
        /// The change.
        problem: String,
    },
}
