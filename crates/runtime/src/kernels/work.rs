//! What a step runs once sizes are known, whatever kind of kernel it is.

use super::calls::{Around, Calls, Ends};
use crate::buffer::Buffer;
use crate::cuda;
use crate::error::{Error, Result};
use crate::memory::{Storage, room};
use crate::tile::{Failure, Failures, Linked};
use kiln_plan::{Contract, Kernel, Site};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// What a kernel on the CPU is called with.
pub(crate) struct Call<'a> {
    pub args: &'a [*mut u8],
    /// The weights that [`Work::pack`] made, if they were packed.
    pub packed: Option<*mut u8>,
    pub scratch: *mut u8,
    /// Whether its parts may run at the same time.
    pub parallel: bool,
    /// The plan's sites that the step names.
    pub step_sites: &'a [u32],
    pub sites: &'a [Site],
    /// Counts the kernels of bodies.
    pub kernels: &'a AtomicU64,
    pub failures: &'a Failures,
}

/// What calls on a GPU are made of.
pub(crate) struct Expand<'a> {
    pub args: SmallVec<[*mut u8; 12]>,
    pub scratch: *mut u8,
    /// What is around a body of the step.
    pub within: Around<'a>,
}

/// Weights in a form that they are packed into once.
pub(crate) struct Packs {
    /// The argument that they are.
    pub weights: usize,
    pub bytes: usize,
}

/// The weights that were packed before, or what `pack` makes of them now, so many elements.
pub(crate) fn packed_weights<T>(
    packed: Option<*mut u8>,
    (storage, len): (&mut Option<Storage>, i64),
    pack: impl FnOnce(*mut T),
) -> Result<*mut T> {
    match packed {
        Some(packed) => Ok(packed.cast()),
        None => room::<T>(storage, len).inspect(|to| pack(*to)),
    }
}

/// A kernel with known sizes. One that runs on the CPU has [`Work::run`], one on a GPU [`Work::expand`].
pub(crate) trait Work: Send + Sync {
    /// Runs it; gives the data error of a body in it.
    ///
    /// # Safety
    /// The arguments and the scratch memory are those it was linked for, and `parallel` is right: see
    /// [`tile::Runner::new`]. What is packed is what [`Work::pack`] made of the same weights.
    unsafe fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        let _ = call;
        Err(Error::Internal("a GPU kernel for the CPU".into()))
    }

    /// Gives its calls; gives those behind which it is done.
    fn expand(&self, with: Expand, calls: &mut Calls) -> Result<Ends> {
        let _ = (with, calls);
        Err(Error::Internal("a CPU kernel for a GPU".into()))
    }

    /// How it is cut, for people, where there is more to say than its algorithm.
    fn schedule(&self) -> Option<String> {
        None
    }

    /// The tile program that it is.
    fn tile(&self) -> Option<&Linked> {
        None
    }

    /// The tile program that writes its results.
    fn last(&self) -> Option<&Linked> {
        self.tile()
    }

    /// Which of its weights can be packed once.
    fn packs(&self) -> Option<Packs> {
        None
    }

    /// Whether it touches weights no more that were packed for it, whatever their values are.
    fn forgets_packed(&self) -> bool {
        false
    }

    /// Packs weights.
    ///
    /// # Safety
    /// As [`Work::run`]; the arguments are the weights and memory of the bytes that [`Work::packs`] says.
    unsafe fn pack(&self, call: &Call<'_>) {
        let _ = call;
    }

    /// Bytes of memory that it needs beside its arguments.
    fn scratch(&self) -> usize {
        0
    }

    /// Whether it runs programs, whose results have the sizes of its arguments, or of slices of them, ...
    fn has_bodies(&self) -> bool {
        false
    }

    /// ... and whether something may be read in these, or be their result, that nothing has written.
    fn is_bare(&self) -> bool {
        false
    }

    /// What it holds on a GPU.
    fn held(&self) -> Vec<&Buffer> {
        Vec::new()
    }

    /// How many calls it makes on a GPU, at most.
    fn calls(&self) -> usize {
        1
    }

    /// Whether it may report a data error on a GPU.
    fn can_fail(&self) -> bool {
        false
    }
}

/// What a kernel is linked for.
#[derive(Copy, Clone)]
pub(crate) struct Sizes<'a> {
    /// The values of symbols.
    pub values: &'a [i64],
    /// The lengths of the arguments in elements.
    pub lens: &'a [i64],
}

/// What makes work of kernels, for a CPU or a GPU. A program that a step runs is given what its own kernels are
/// linked by.
pub(crate) trait Link {
    /// The GPU.
    fn gpu(&self) -> Option<&cuda::Loader>;

    /// Links a kernel; `launch` is a CUDA kernel's.
    fn link(
        &self,
        kernel: &Kernel,
        contract: &Contract,
        sizes: Sizes<'_>,
        launch: Option<&Arc<cuda::Launch>>,
    ) -> Result<Arc<dyn Work>>;
}
