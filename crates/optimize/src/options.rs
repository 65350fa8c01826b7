//! The options of optimisation.

use kiln_base::Machine;

/// Options of [`crate::optimize`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The names of the passes that run; `None` for all.
    pub passes: Option<Vec<&'static str>>,
    /// Stop after this many patches; bodies of loops and branches count too.
    pub max_patches: Option<usize>,
    /// Leave out passes that change rounding.
    pub exact: bool,
    /// Verify the graph around every patch. On in debug builds by default.
    pub verify: bool,
    /// The machine that the graph is compiled for.
    pub machine: Machine,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            passes: None,
            max_patches: None,
            exact: false,
            verify: cfg!(debug_assertions),
            machine: Machine::default(),
        }
    }
}
