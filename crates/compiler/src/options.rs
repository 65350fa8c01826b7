//! How to compile.

use crate::tune::{self, Precision, Settings};
use kiln_base::Machine;
use kiln_codegen as codegen;

/// How to compile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// Which approximations may be used.
    pub precision: Precision,
    /// The same as [`Precision::Exact`], whatever `precision` says.
    pub exact: bool,
    /// How algorithms are chosen.
    pub tune: Settings,
    /// The number of the GPU to compile for; `None` for the CPU.
    pub gpu: Option<u32>,
    /// Whether to optimise the graph at all.
    pub optimize: bool,
    /// Whether to fuse ops into common kernels.
    pub fuse: bool,
    /// How images lie in memory between the kernels of the CPU engine.
    pub layout: codegen::Layout,
    /// Stops after this many rewrites, to find the one that makes a result wrong.
    pub max_patches: Option<usize>,
    /// The most bytes of temporaries that a run may need. Values that live long and are cheap to compute
    /// again from what is in memory anyway are then computed again instead of being kept, as many as it
    /// takes; [`Explain::recomputed`](crate::Explain::recomputed) lists them. Parameters, inputs and results do not count. Sizes must
    /// be known.
    pub memory_budget: Option<usize>,
}

impl Options {
    /// Which approximations may be used.
    pub fn precision(&self) -> Precision {
        match self.exact {
            true => Precision::Exact,
            false => self.precision,
        }
    }
}

/// Precision and tuning are those of the process; see [`tune::set_precision`] and [`tune::set`].
impl Default for Options {
    fn default() -> Options {
        Options {
            precision: Precision::current(),
            exact: false,
            tune: Settings::current(),
            gpu: None,
            optimize: true,
            fuse: true,
            layout: codegen::Layout::Auto,
            max_patches: None,
            memory_budget: None,
        }
    }
}

impl Options {
    /// How to lower.
    pub(crate) fn codegen(&self, machine: &Machine) -> codegen::Options {
        codegen::Options {
            machine: *machine,
            fuse: self.fuse,
            layout: self.layout,
            exact: self.precision() == tune::Precision::Exact,
            // Ways differ in the memory that they take, which a budget is kept without.
            ways: self.tune.mode != tune::Mode::Off && self.memory_budget.is_none(),
            ..codegen::Options::default()
        }
    }
}
