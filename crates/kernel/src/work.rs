//! Linked kernels: kernels of any kind with known sizes.

use crate::calls::{Calls, LastCalls, StepContext};
use crate::error::{Error, Result};
use crate::failures::{Failure, Failures};
use crate::memory::Storage;
use crate::view::{Arguments, ViewMut};
use kiln_base::collective::Request;
use kiln_plan::Site;
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The arguments of a kernel on the CPU.
pub struct Call<'a> {
    pub args: Arguments<'a>,
    /// Weights that [`LinkedKernel::pack`] packed.
    pub packed: Option<ViewMut<'a, u8>>,
    pub scratch: ViewMut<'a, u8>,
    /// True if its parts may run concurrently.
    pub parallel: bool,
    /// The indices of the step's sites in the plan.
    pub step_sites: &'a [u32],
    pub sites: &'a [Site],
    /// A counter of the kernels that bodies run.
    pub kernels: &'a AtomicU64,
    pub failures: &'a Failures,
}

impl Call<'_> {
    /// Returns an error of the step's operator with this text.
    pub fn error(&self, text: String) -> Error {
        step_error(self.step_sites, self.sites, text)
    }
}

/// Returns an error with this text, of the operator of a step with these sites.
pub fn step_error(step_sites: &[u32], sites: &[Site], text: String) -> Error {
    let site = step_sites.first();
    let site = site.and_then(|s| sites.get(*s as usize));
    Error::Custom {
        op: site.map_or_else(String::new, |s| s.op.clone()),
        text,
        node: site.map_or(0, |s| s.node),
    }
}

/// An asynchronous operation that runs concurrently with later steps.
pub struct Started {
    pub request: Box<dyn Request>,
    /// The argument that receives the result.
    pub out: usize,
    /// The bytes of the result.
    pub bytes: usize,
}

/// The arguments of a kernel on a GPU.
pub struct Expand<'a> {
    pub args: SmallVec<[*mut u8; 12]>,
    pub scratch: *mut u8,
    /// The context of the step.
    pub context: StepContext<'a>,
}

/// Weights that a kernel can pack once.
pub struct Packs {
    /// The argument with the weights.
    pub weights: usize,
    /// The bytes of the packed weights.
    pub bytes: usize,
}

/// The properties of a tile program that decide how a step may run.
pub trait Program {
    /// True if its parts may run concurrently.
    fn is_parallel(&self) -> bool;

    /// True if different points never access the same element through these arguments, which may alias.
    fn never_overlap(&self, args: &[usize]) -> bool;

    /// True if it writes all of an argument, without reading it before.
    fn covers(&self, arg: usize) -> bool;
}

/// A kernel with known sizes. CPU kernels implement [`LinkedKernel::run`] or [`LinkedKernel::start`], GPU kernels
/// [`LinkedKernel::expand`].
pub trait LinkedKernel: Send + Sync {
    /// Runs the kernel, and returns the data error of a body in it.
    ///
    /// # Errors
    /// If it can't run.
    ///
    /// The arguments and the scratch memory have the sizes it was linked for, `parallel` is true only if points are
    /// independent, and packed weights come from [`LinkedKernel::pack`] on the same weights.
    fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        let _ = call;
        Err(Error::Internal("a GPU kernel for the CPU".into()))
    }

    /// Starts an asynchronous kernel. Another step may use its result once the returned operation is complete. `None`
    /// if the kernel is not asynchronous and must be run.
    ///
    /// # Errors
    /// If it can't be started.
    fn start(&self, call: &Call<'_>) -> Result<Option<Started>> {
        let _ = call;
        Ok(None)
    }

    /// Adds the kernel's calls to a GPU, and returns the last ones.
    ///
    /// # Errors
    /// If the device refuses a call.
    fn expand(&self, args: Expand, calls: &mut Calls) -> Result<LastCalls> {
        let _ = (args, calls);
        Err(Error::Internal("a CPU kernel for a GPU".into()))
    }

    /// Returns a text about the schedule, if there is more to say than the algorithm.
    fn schedule(&self) -> Option<String> {
        None
    }

    /// Returns the kernel for a downcast by its engine, which runs several tile programs together.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// Returns the tile program that writes its results.
    fn program(&self) -> Option<&dyn Program> {
        None
    }

    /// Returns its weights that can be packed once.
    fn packs(&self) -> Option<Packs> {
        None
    }

    /// True if it never reads packed weights, for any values of symbols.
    fn ignores_packed(&self) -> bool {
        false
    }

    /// Packs weights. The arguments are the weights, and memory of the size that [`LinkedKernel::packs`] returns.
    fn pack(&self, call: &Call<'_>) {
        let _ = call;
    }

    /// Returns the size of the workspace in bytes.
    fn scratch(&self) -> usize {
        0
    }

    /// True if it runs programs as bodies, whose results have the sizes of its arguments, or of slices of them.
    fn has_bodies(&self) -> bool {
        false
    }

    /// True if its bodies may read or return uninitialised memory.
    fn may_be_uninitialized(&self) -> bool {
        false
    }

    /// Returns the GPU memory that the kernel owns.
    fn gpu_memory(&self) -> Vec<&Arc<Storage>> {
        Vec::new()
    }

    /// Returns the maximum number of calls that it makes on a GPU.
    fn calls(&self) -> usize {
        1
    }

    /// True if it communicates with other ranks from a GPU.
    fn communicates(&self) -> bool {
        false
    }

    /// True if it may report a data error on a GPU.
    fn can_fail(&self) -> bool {
        false
    }
}

/// The sizes that a kernel is linked for.
#[derive(Copy, Clone)]
pub struct Sizes<'a> {
    /// The values of symbols.
    pub values: &'a [i64],
    /// The lengths of the arguments in elements.
    pub lens: &'a [i64],
}
