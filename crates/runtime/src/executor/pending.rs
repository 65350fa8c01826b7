//! Operations that go on while other steps run.

use super::profile::Profile;
use super::step::BoundStep;
use kiln_kernel::error::Result;
use kiln_kernel::view::ViewMut;
use kiln_kernel::work::{Started, step_error};
use kiln_plan::Site;
use std::ops::Range;
use std::time::Instant;

/// Operations that were started, the first one first.
pub(super) struct Pending<'a> {
    sites: &'a [Site],
    profile: Option<&'a Profile>,
    operations: Vec<Operation<'a>>,
}

struct Operation<'a> {
    step: &'a BoundStep,
    started: Started,
    out: ViewMut<'a, u8>,
}

impl Operation<'_> {
    /// Returns the addresses of its result.
    fn range(&self) -> Range<usize> {
        let first = self.out.id();
        first..first + self.started.bytes
    }
}

impl<'a> Pending<'a> {
    pub fn new(sites: &'a [Site], profile: Option<&'a Profile>) -> Pending<'a> {
        let operations = Vec::new();
        Pending {
            sites,
            profile,
            operations,
        }
    }

    /// Adds an operation that a step started, and the argument for its result.
    pub fn add(&mut self, step: &'a BoundStep, started: Started, out: ViewMut<'a, u8>) {
        self.operations.push(Operation { step, started, out });
    }

    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Waits for the operations up to the last one whose result lies in memory that `touched` accepts.
    ///
    /// # Errors
    /// The first error of one of them. The others continue in the background.
    pub fn wait(&mut self, touched: impl Fn(&Range<usize>) -> bool) -> Result<()> {
        let last = self.operations.iter().rposition(|o| touched(&o.range()));
        for operation in self.operations.drain(..last.map_or(0, |index| index + 1)) {
            let Operation {
                step,
                started,
                mut out,
            } = operation;
            let start = Instant::now();
            let output = out.slice_mut(0, started.bytes as i64);
            let result = started.request.wait(output);
            result.map_err(|text| step_error(&step.sites, self.sites, text))?;
            if let Some(profile) = self.profile {
                profile.add(step.step, start, start.elapsed());
            }
        }
        Ok(())
    }
}
