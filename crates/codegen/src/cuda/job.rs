//! Work to emit for a GPU.

use super::source::Source;
use super::values::Values;
use crate::kir::Kernel;
use crate::work::Work;
use kiln_base::Gpu;
use kiln_plan::schedule;
use std::ops::Deref;

/// Work to emit for a GPU.
#[derive(Copy, Clone)]
pub(super) struct Job<'a> {
    pub work: &'a Work,
    pub gpu: &'a Gpu,
    /// A schedule of contractions to emit too, where it is legal.
    pub schedule: Option<schedule::Gpu>,
}

impl Job<'_> {
    /// Returns the empty source of a kernel. The arguments of each pair of `aliases` may share memory.
    pub fn source(&self, kernel: &Kernel, aliases: &[(usize, usize)]) -> Source {
        let index = Values::index_type(kernel);
        let mut source = Source::new(self.gpu, &kernel.name, &kernel.args, kernel.sites, index);
        for (a, b) in aliases {
            source.may_alias(*a, *b);
        }
        source
    }
}

impl<'a> Deref for Job<'a> {
    type Target = &'a Work;

    fn deref(&self) -> &&'a Work {
        &self.work
    }
}
