//! Work: a kernel of any kind, linked for known sizes.

use crate::calls::{Around, Calls, Ends};
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
    /// The plan's sites that the step names.
    pub step_sites: &'a [u32],
    pub sites: &'a [Site],
    /// Counts the kernels of bodies.
    pub kernels: &'a AtomicU64,
    pub failures: &'a Failures,
}

impl Call<'_> {
    /// Returns the error of the step's operator that `text` describes.
    pub fn failed(&self, text: String) -> Error {
        failed(self.step_sites, self.sites, text)
    }
}

/// Returns the error of the operator of a step with these sites that `text` describes.
pub fn failed(step_sites: &[u32], sites: &[Site], text: String) -> Error {
    let site = step_sites.first();
    let site = site.and_then(|s| sites.get(*s as usize));
    Error::Custom {
        op: site.map_or_else(String::new, |s| s.op.clone()),
        text,
        node: site.map_or(0, |s| s.node),
    }
}

/// An operation that goes on while other steps run.
pub struct Started {
    pub request: Box<dyn Request>,
    /// The argument that gets the result, and its bytes.
    pub out: usize,
    pub bytes: usize,
}

/// The arguments of a kernel on a GPU.
pub struct Expand<'a> {
    pub args: SmallVec<[*mut u8; 12]>,
    pub scratch: *mut u8,
    /// The surroundings of a body of the step.
    pub within: Around<'a>,
}

/// Weights that are packed once.
pub struct Packs {
    /// Their argument.
    pub weights: usize,
    pub bytes: usize,
}

/// The facts of a tile program that decide how a step may run.
pub trait Program {
    /// True if its parts may run concurrently.
    fn is_parallel(&self) -> bool;

    /// True if accesses to these arguments, which may alias, never touch the same element from different points.
    fn keeps_apart(&self, args: &[usize]) -> bool;

    /// True if it writes all of an argument, without reading it before.
    fn covers(&self, arg: usize) -> bool;
}

/// A kernel with known sizes. One that runs on the CPU has [`LinkedKernel::run`] or [`LinkedKernel::start`], one on a
/// GPU [`LinkedKernel::expand`].
pub trait LinkedKernel: Send + Sync {
    /// Runs it, and returns the data error of a body in it.
    ///
    /// # Errors
    /// If it can't run at all.
    ///
    /// The arguments and the scratch memory are those it was linked for, and `parallel` is right. The packed weights
    /// are the result of [`LinkedKernel::pack`] on the same weights.
    fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        let _ = call;
        Err(Error::Internal("a GPU kernel for the CPU".into()))
    }

    /// Starts it asynchronously, and returns a handle to wait for before another step touches its result; `None` if it
    /// is not asynchronous and must be run.
    ///
    /// # Errors
    /// If it can't be started.
    fn start(&self, call: &Call<'_>) -> Result<Option<Started>> {
        let _ = call;
        Ok(None)
    }

    /// Adds its calls, and returns the last ones, after which it is done.
    ///
    /// # Errors
    /// If a call can't be given to the device.
    fn expand(&self, with: Expand, calls: &mut Calls) -> Result<Ends> {
        let _ = (with, calls);
        Err(Error::Internal("a CPU kernel for a GPU".into()))
    }

    /// Returns its schedule as text, if there is more to say than its algorithm.
    fn schedule(&self) -> Option<String> {
        None
    }

    /// Returns the work as its engine's own type, by which the engine finds tile programs that it runs together.
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

    /// True if it never touches weights that were packed for it, for any values.
    fn forgets_packed(&self) -> bool {
        false
    }

    /// Packs weights. The arguments are the weights, and memory of the bytes that [`LinkedKernel::packs`] returns.
    fn pack(&self, call: &Call<'_>) {
        let _ = call;
    }

    /// Returns its workspace, in bytes.
    fn scratch(&self) -> usize {
        0
    }

    /// True if it runs programs, whose results have the sizes of its arguments, or of slices of them.
    fn has_bodies(&self) -> bool {
        false
    }

    /// True if its programs may read something, or have a result, that nothing has written.
    fn is_bare(&self) -> bool {
        false
    }

    /// Returns the GPU memory that it holds.
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
