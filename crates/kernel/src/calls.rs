//! The launches of a plan on a GPU, in order.

use crate::error::Result;
use smallvec::{SmallVec, smallvec};
use std::any::Any;

/// A kernel of a GPU's engine, with known sizes.
pub trait Launch: Any + Send + Sync {
    /// Returns the number of sites that can report a data error.
    fn sites(&self) -> usize;

    /// True if there is nothing to do.
    fn is_empty(&self) -> bool;
}

/// A launch with its arguments.
pub struct LaunchCall<'a> {
    pub launch: &'a dyn Launch,
    pub args: SmallVec<[*mut u8; 12]>,
    /// The plan's indices of its sites, at least as many as the kernel has.
    pub sites: SmallVec<[u32; 2]>,
    /// The address of the error record.
    pub record: u64,
    /// True if an earlier error suppresses its effect.
    pub guarded: bool,
    /// The plan's step that it belongs to.
    pub step: usize,
    /// Positions of the calls that it waits for.
    pub after: SmallVec<[u32; 4]>,
}

/// The positions of the calls that a step ends with.
pub type LastCalls = SmallVec<[u32; 4]>;

/// A sink of calls, in order.
pub struct Calls<'a> {
    sink: &'a mut dyn FnMut(LaunchCall) -> Result<()>,
    count: u32,
}

impl<'a> Calls<'a> {
    /// Returns an empty list of calls.
    pub fn new(sink: &'a mut dyn FnMut(LaunchCall) -> Result<()>) -> Calls<'a> {
        Calls { sink, count: 0 }
    }

    /// Adds a call, and returns its position. An empty launch is omitted, and its dependencies are returned.
    ///
    /// # Errors
    /// The sink's.
    pub fn add(&mut self, call: LaunchCall) -> Result<LastCalls> {
        if call.launch.is_empty() {
            return Ok(call.after);
        }
        (self.sink)(call)?;
        self.count += 1;
        Ok(smallvec![self.count - 1])
    }
}

/// The context of the steps of a plan or a body.
#[derive(Copy, Clone)]
pub struct StepContext<'a> {
    /// The error record.
    pub record: *mut u8,
    /// The first step whose effect an earlier error suppresses.
    pub guarded_from: usize,
    /// In a body, the sites of the step in the outermost plan.
    pub sites: Option<&'a [u32]>,
    /// In a body, the step in the outermost plan.
    pub step: Option<usize>,
    /// The calls that all steps wait for.
    pub after: &'a [u32],
}

impl StepContext<'_> {
    /// Returns the context of the steps of an outermost plan.
    pub fn plan(record: u64, guarded_from: usize) -> StepContext<'static> {
        StepContext {
            record: record as *mut u8,
            guarded_from,
            sites: None,
            step: None,
            after: &[],
        }
    }

    /// Returns a call of a launch in this context.
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
