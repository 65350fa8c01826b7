//! Rules and passes.

use crate::{OptimizeError, Patch, Rewriter, View};
use kiln_ir::NodeId;
use std::fmt;

/// A rewrite rule: one equation.
#[derive(Copy, Clone)]
pub struct Rule {
    /// The name in reports.
    pub name: &'static str,
    /// Returns the patch for a node, or nothing where the rule does not apply. Depends only on the view.
    pub apply: fn(&View<'_>, NodeId) -> Option<Patch>,
}

/// The rules of these functions, under their names.
#[macro_export]
macro_rules! rules {
    ($($rule:ident),* $(,)?) => {
        &[$($crate::Rule { name: stringify!($rule), apply: $rule }),*]
    };
}

/// A step of the pipeline.
///
/// A pass that is not exact introduces no cancellation and no overflow that the recorded program avoids:
///
/// - *Error.* Let every operation of the recorded program round its result by a unit roundoff. The error of the new
///   program is at most a small multiple of the effect of these roundings on the result, plus a few units of the
///   result itself. So a shift may move past an operation that rounds by as much as the shift cancels, such as the
///   product before a bias. It may never move off data, which may be exact.
/// - *Range.* Intermediate values differ in magnitude from those of the recorded program by a factor near 1
///   (`keeps_range`), or by the range that the statistics of a norm imply for its data. For f16 neither is allowed.
///
/// A rule keeps to this for any data. The values of parameters are unknown when it fires, so a rule that would need
/// an assumption about them does not fire either.
#[derive(Copy, Clone)]
pub struct Pass {
    /// The name in options and reports.
    pub name: &'static str,
    /// A description of its effect, in one line.
    pub about: &'static str,
    /// True if results stay the same, bit for bit, in the reference's rounded mode.
    pub exact: bool,
    /// Its rules or its walk.
    pub run: Run,
}

/// The method by which a pass runs.
#[derive(Copy, Clone)]
pub enum Run {
    /// Rules on every node, operands first, until none applies.
    Rules(&'static [Rule]),
    /// One walk of its own, with the names of its rules.
    Walk(
        &'static [&'static str],
        fn(&mut Rewriter<'_>) -> Result<(), OptimizeError>,
    ),
}

/// True for a factor that a rule may move past an operation of f32, bf16 or f64.
pub(crate) fn keeps_range(factor: f64) -> bool {
    const FARTHEST: f64 = 1024.0;
    (1.0 / FARTHEST..=FARTHEST).contains(&factor.abs())
}

impl Pass {
    /// The names of all its rules in reports.
    pub fn rules(&self) -> Vec<&'static str> {
        match self.run {
            Run::Rules(rules) => rules.iter().map(|r| r.name).collect(),
            Run::Walk(names, _) => names.to_vec(),
        }
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pass({})", self.name)
    }
}
