//! The calls that a plan gives to a GPU, in order.

use crate::cuda::{Call, Launch};
use crate::error::Result;
use smallvec::{SmallVec, smallvec};

/// Calls by position, those behind which something is done.
pub(crate) type Ends = SmallVec<[u32; 4]>;

/// Where calls go, in order.
pub(crate) struct Calls<'a> {
    sink: &'a mut dyn FnMut(Call) -> Result<()>,
    made: u32,
}

impl<'a> Calls<'a> {
    pub fn new(sink: &'a mut dyn FnMut(Call) -> Result<()>) -> Calls<'a> {
        Calls { sink, made: 0 }
    }

    /// Gives a call; in its place, if there is nothing to do, stands what it would wait for.
    pub fn add(&mut self, call: Call) -> Result<Ends> {
        if call.is_empty() {
            return Ok(call.after);
        }
        (self.sink)(call)?;
        self.made += 1;
        Ok(smallvec![self.made - 1])
    }
}

/// What steps have around them.
#[derive(Copy, Clone)]
pub(crate) struct Around<'a> {
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
    pub(crate) fn plan(record: u64, guarded_from: usize) -> Around<'static> {
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
    pub(crate) fn call<'l>(&self, launch: &'l Launch, args: SmallVec<[*mut u8; 12]>) -> Call<'l> {
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
