//! The options of optimisation.

use kiln_base::Machine;

/// The selection of passes that run, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Select {
    /// All of them.
    #[default]
    All,
    /// Only these; the order stays that of the list.
    Only(Vec<String>),
    /// All but these.
    Except(Vec<String>),
}

/// Options of [`crate::optimize`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The passes that run.
    pub passes: Select,
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
            passes: Select::All,
            max_patches: None,
            exact: false,
            verify: cfg!(debug_assertions),
            machine: Machine::default(),
        }
    }
}

impl Select {
    /// The passes with these names.
    pub fn only<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Select {
        Select::Only(names.into_iter().map(Into::into).collect())
    }

    /// All passes but the ones with these names.
    pub fn except<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Select {
        Select::Except(names.into_iter().map(Into::into).collect())
    }

    /// True if a pass is selected.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Select::All => true,
            Select::Only(names) => names.iter().any(|n| n == name),
            Select::Except(names) => names.iter().all(|n| n != name),
        }
    }

    /// The names in the selection.
    pub(crate) fn names(&self) -> &[String] {
        match self {
            Select::All => &[],
            Select::Only(names) | Select::Except(names) => names,
        }
    }
}
