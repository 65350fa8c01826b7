//! What a step runs once sizes are known, whatever kind of kernel it is.

use crate::calls::{Around, Calls, Ends};
use crate::error::{Error, Result};
use crate::failures::{Failure, Failures};
use crate::memory::{Storage, room};
use kiln_plan::Site;
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// What a kernel on the CPU is called with.
pub struct Call<'a> {
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
pub struct Expand<'a> {
    pub args: SmallVec<[*mut u8; 12]>,
    pub scratch: *mut u8,
    /// What is around a body of the step.
    pub within: Around<'a>,
}

/// Weights in a form that they are packed into once.
pub struct Packs {
    /// The argument that they are.
    pub weights: usize,
    pub bytes: usize,
}

/// The weights that were packed before, or what `pack` makes of them now, so many elements.
pub fn packed_weights<T>(
    packed: Option<*mut u8>,
    (storage, len): (&mut Option<Storage>, i64),
    pack: impl FnOnce(*mut T),
) -> Result<*mut T> {
    match packed {
        Some(packed) => Ok(packed.cast()),
        None => room::<T>(storage, len).inspect(|to| pack(*to)),
    }
}

/// The facts of a tile program that decide how a step may run.
pub trait Program {
    /// Whether its parts may run at the same time.
    fn is_parallel(&self) -> bool;

    /// Whether accesses to these arguments, which may be one memory, never meet at an element from different points.
    fn keeps_apart(&self, args: &[usize]) -> bool;

    /// Whether it writes all of an argument, and reads nothing of it before.
    fn covers(&self, arg: usize) -> bool;
}

/// A kernel with known sizes. One that runs on the CPU has [`Work::run`], one on a GPU [`Work::expand`].
pub trait Work: Send + Sync {
    /// Runs it; gives the data error of a body in it.
    ///
    /// # Safety
    /// The arguments and the scratch memory are those it was linked for, and `parallel` is right: see. What is packed is what [`Work::pack`] made of the same weights.
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

    /// The work as its engine's own type, which runs several tile programs at once.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// The tile program that writes its results.
    fn program(&self) -> Option<&dyn Program> {
        None
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
    fn held(&self) -> Vec<&Arc<Storage>> {
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
pub struct Sizes<'a> {
    /// The values of symbols.
    pub values: &'a [i64],
    /// The lengths of the arguments in elements.
    pub lens: &'a [i64],
}
