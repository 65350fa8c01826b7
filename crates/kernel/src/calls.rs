//! The calls that a plan gives to a GPU, in order.

use crate::error::Result;
use smallvec::{SmallVec, smallvec};
use std::any::Any;

/// A kernel of a GPU's engine, with known sizes.
pub trait Launch: Any + Send + Sync {
    /// How many places in it can report a data error.
    fn sites(&self) -> usize;

    /// Whether there is nothing to do.
    fn is_empty(&self) -> bool;
}

/// A launch and what it is called with.
pub struct Call<'a> {
    pub launch: &'a dyn Launch,
    pub args: SmallVec<[*mut u8; 12]>,
    /// The plan's numbers of its sites, at least as many as the kernel has.
    pub sites: SmallVec<[u32; 2]>,
    /// The address of the error record.
    pub record: u64,
    /// Whether an error before leaves out its effect.
    pub guarded: bool,
    /// The plan's step that it belongs to.
    pub step: usize,
    /// The calls before it, by position, that it waits for.
    pub after: SmallVec<[u32; 4]>,
}

/// Calls by position, those behind which something is done.
pub type Ends = SmallVec<[u32; 4]>;

/// Where calls go, in order.
pub struct Calls<'a> {
    sink: &'a mut dyn FnMut(Call) -> Result<()>,
    made: u32,
}

impl<'a> Calls<'a> {
    pub fn new(sink: &'a mut dyn FnMut(Call) -> Result<()>) -> Calls<'a> {
        Calls { sink, made: 0 }
    }

    /// Gives a call; in its place, if there is nothing to do, stands what it would wait for.
    pub fn add(&mut self, call: Call) -> Result<Ends> {
        if call.launch.is_empty() {
            return Ok(call.after);
        }
        (self.sink)(call)?;
        self.made += 1;
        Ok(smallvec![self.made - 1])
    }
}

/// What steps have around them.
#[derive(Copy, Clone)]
pub struct Around<'a> {
    /// The error record.
    pub record: *mut u8,
    /// The step from which on an error before leaves out the effect.
    pub guarded_from: usize,
    /// In a body, the numbers of its sites in the plan around all, and the step there.
    pub sites: Option<&'a [u32]>,
    pub step: Option<usize>,
    /// The calls that all of it waits for.
    pub after: &'a [u32],
}

impl Around<'_> {
    /// A plan by itself.
    pub fn plan(record: u64, guarded_from: usize) -> Around<'static> {
        Around {
            record: record as *mut u8,
            guarded_from,
            sites: None,
            step: None,
            after: &[],
        }
    }

    fn guarded(&self) -> bool {
        self.guarded_from == 0
    }

    /// A launch with what is around it; the engine's own have no site.
    pub fn call<'l>(&self, launch: &'l dyn Launch, args: SmallVec<[*mut u8; 12]>) -> Call<'l> {
        let sites = self.sites.unwrap_or_default();
        Call {
            launch,
            args,
            sites: sites.iter().copied().take(launch.sites()).collect(),
            record: self.record as u64,
            guarded: self.guarded(),
            step: self.step.unwrap_or(0),
            after: self.after.into(),
        }
    }
}
