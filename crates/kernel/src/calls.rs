//! The calls that a plan gives to a GPU, in order.

use crate::error::Result;
use smallvec::{SmallVec, smallvec};
use std::any::Any;

/// A kernel of a GPU's engine, with known sizes.
pub trait Launch: Any + Send + Sync {
    /// The number of its sites that can report a data error.
    fn sites(&self) -> usize;

    /// True if there is nothing to do.
    fn is_empty(&self) -> bool;
}

/// A launch with its arguments.
pub struct LaunchCall<'a> {
    pub launch: &'a dyn Launch,
    pub args: SmallVec<[*mut u8; 12]>,
    /// The plan's numbers of its sites, at least as many as the kernel has.
    pub sites: SmallVec<[u32; 2]>,
    /// The address of the error record.
    pub record: u64,
    /// True if an earlier error leaves out its effect.
    pub guarded: bool,
    /// The plan's step that it belongs to.
    pub step: usize,
    /// Positions of the calls that it waits for.
    pub after: SmallVec<[u32; 4]>,
}

/// The positions of the calls after which something is done.
pub type Ends = SmallVec<[u32; 4]>;

/// A sink of calls, in order.
pub struct Calls<'a> {
    sink: &'a mut dyn FnMut(LaunchCall) -> Result<()>,
    count: u32,
}

impl<'a> Calls<'a> {
    pub fn new(sink: &'a mut dyn FnMut(LaunchCall) -> Result<()>) -> Calls<'a> {
        Calls { sink, count: 0 }
    }

    /// Adds a call, and returns its position. A call with nothing to do is omitted; then its dependencies are returned.
    ///
    /// # Errors
    /// The sink's.
    pub fn add(&mut self, call: LaunchCall) -> Result<Ends> {
        if call.launch.is_empty() {
            return Ok(call.after);
        }
        (self.sink)(call)?;
        self.count += 1;
        Ok(smallvec![self.count - 1])
    }
}

/// The surroundings of steps.
#[derive(Copy, Clone)]
pub struct Around<'a> {
    /// The error record.
    pub record: *mut u8,
    /// The step from which on an earlier error suppresses the effect.
    pub guarded_from: usize,
    /// In a body, the numbers of its sites in the outermost plan, and the step there.
    pub sites: Option<&'a [u32]>,
    pub step: Option<usize>,
    /// The calls that all of them wait for.
    pub after: &'a [u32],
}

impl Around<'_> {
    /// Returns the surroundings of a plan by itself.
    pub fn plan(record: u64, guarded_from: usize) -> Around<'static> {
        Around {
            record: record as *mut u8,
            guarded_from,
            sites: None,
            step: None,
            after: &[],
        }
    }

    /// Returns a launch in these surroundings; the engine's own launches have no site.
    pub fn call<'l>(
        &self,
        launch: &'l dyn Launch,
        args: SmallVec<[*mut u8; 12]>,
    ) -> LaunchCall<'l> {
        let sites = self.sites.unwrap_or_default();
        LaunchCall {
            launch,
            args,
            sites: sites.iter().copied().take(launch.sites()).collect(),
            record: self.record as u64,
            guarded: self.guarded_from == 0,
            step: self.step.unwrap_or(0),
            after: self.after.into(),
        }
    }
}
