//! The options of compilation.

use crate::tune::{self, Precision, Settings};
use kiln_base::Machine;
use kiln_codegen as codegen;

/// The options of compilation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// The approximations that may be used.
    pub precision: Precision,
    /// The same as [`Precision::Exact`], whatever `precision` says.
    pub exact: bool,
    /// The settings of the tuner, which chooses algorithms.
    pub tune: Settings,
    /// The number of the GPU to compile for; `None` for the CPU.
    pub gpu: Option<u32>,
    /// True to optimise the graph at all.
    pub optimize: bool,
    /// True to fuse ops into common kernels.
    pub fuse: bool,
    /// The layout of images in memory between the kernels of the CPU engine.
    pub layout: codegen::Layout,
    /// The maximum number of rewrites, to find the one that makes a result wrong.
    pub max_patches: Option<usize>,
    /// The maximum number of bytes of temporaries that a run may need. To stay within it, values are rematerialised
    /// instead of being kept: long-lived ones that are cheap to compute again from values that are in memory anyway,
    /// as many as needed. [`Explain::recomputed`](crate::Explain::recomputed) lists them. Parameters, inputs and
    /// results do not count. Sizes must be known.
    pub memory_budget: Option<usize>,
}

impl Options {
    /// The approximations that may be used.
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
    /// The options of lowering.
    pub(crate) fn codegen(&self, machine: &Machine) -> codegen::Options {
        codegen::Options {
            machine: *machine,
            fuse: self.fuse,
            layout: self.layout,
            exact: self.precision() == tune::Precision::Exact,
            // Candidates differ in the memory that they take, so a plan within a memory budget has none.
            candidates: self.tune.mode != tune::Mode::Off && self.memory_budget.is_none(),
            ..codegen::Options::default()
        }
    }
}
