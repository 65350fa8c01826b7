//! Cells whose values are in memory that several processes have.

use crate::var::check_outside_compile;
use crate::{Device, Error, ErrorKind, Result, Var};
use std::panic::Location;

impl Var {
    /// Moves the cell's value to memory that child processes forked from now on share with this one
    /// (`torch.Tensor.share_memory_`). The system frees it with the last of them, however they end. A cell that is
    /// shared already stays as it is. Share cells before functions that read them are compiled.
    ///
    /// Each process writes its assignments there without a lock, and reads what others have written:
    ///
    /// - An update such as an optimiser's reads each element, computes, and writes it, in one kernel. What another process
    ///   writes to the element in between is lost. Where the old value is still held, or the new one is computed in
    ///   several kernels, that is whatever others write while the step runs.
    /// - An element is written as a whole; the elements of a tensor may be of several updates.
    /// - A snapshot keeps its value when this process assigns the cell. It shows what other processes write: `Var::new(&w)` holds a
    ///   copy that does not.
    /// - Gradients, and the states of optimisers, are each process's own.
    ///
    /// ```
    /// use kiln_tensor::{Tensor, Var};
    /// let w = Var::parameter(Tensor::from([1.0f32, 2.0]))?;
    /// w.share_memory_()?;
    /// let before = w.get();
    /// w.add_(1.0)?;
    /// assert!(w.is_shared());
    /// assert_eq!((before.to_vec::<f32>()?, w.to_vec::<f32>()?), (vec![1.0, 2.0], vec![2.0, 3.0]));
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the value can't be computed, is on a GPU or is computed from other cells, if the system can't share memory, or
    /// inside `compile`.
    #[track_caller]
    pub fn share_memory_(&self) -> Result<()> {
        let loc = Location::caller();
        let wrong = |text: String| Err(Error::new(ErrorKind::Value, "share_memory_", text, loc));
        if self.is_shared() {
            return Ok(());
        }
        check_outside_compile("share_memory_", "shared", "share")?;
        if self.device() != Device::Cpu {
            let text = format!(
                "memory of {} can't be shared: move the Var to the CPU",
                self.device()
            );
            return wrong(text);
        }
        if self.source().is_some() {
            return wrong("the value is computed from other cells: share these".into());
        }
        let value = self.get().detach();
        value.realize()?;
        self.cell.leaf.set_narrow(None);
        let shared = self.cell.share(&value.handle, loc);
        shared.or_else(|e| wrong(e.to_string()))
    }

    /// True if child processes share the memory of its value (`torch.Tensor.is_shared`).
    pub fn is_shared(&self) -> bool {
        self.cell.is_shared()
    }

    /// Errs if the cell is shared, whose memory has a size and a place.
    #[track_caller]
    pub(crate) fn check_unshared(&self, called: &str) -> Result<()> {
        if !self.is_shared() {
            return Ok(());
        }
        let text = "the Var is in memory that other processes have: do this before share_memory_";
        Err(Error::invalid(called, text))
    }
}
