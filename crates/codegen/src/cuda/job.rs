//! Work to emit for a GPU.

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

impl<'a> Deref for Job<'a> {
    type Target = &'a Work;

    fn deref(&self) -> &&'a Work {
        &self.work
    }
}
