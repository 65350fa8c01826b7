//! Descriptions as functions.

use super::portable;
use super::tile::{Call, Tile};
use crate::error::{Error, Result};
use kiln_base::{DType, Level};
use std::sync::Arc;

/// The kernels that a thread has used lately, which it finds without a lock.
#[derive(Default)]
pub(crate) struct Kernels(Vec<(Tile, Kernel)>);

/// How many these are, at most.
const LATELY: usize = 16;

impl Kernels {
    /// The kernel of a description.
    ///
    /// # Errors
    /// As [`Kernel::of`].
    pub(crate) fn get(&mut self, tile: &Tile) -> Result<Kernel> {
        if let Some((_, kernel)) = self.0.iter().find(|(t, _)| t == tile) {
            return Ok(kernel.clone());
        }
        let kernel = Kernel::of(tile.clone())?;
        if self.0.len() == LATELY {
            self.0.remove(0);
        }
        self.0.push((tile.clone(), kernel.clone()));
        Ok(kernel)
    }
}

/// A register tile that can be computed.
#[derive(Clone)]
pub(crate) enum Kernel {
    #[cfg(all(target_arch = "x86_64", unix))]
    Printed(Arc<kiln_x86::Code>),
    Portable(Arc<Tile>),
}

impl Kernel {
    /// The kernel of a description.
    ///
    /// # Errors
    /// If the system gives no memory for code.
    pub(crate) fn of(tile: Tile) -> Result<Kernel> {
        match tile.level {
            #[cfg(all(target_arch = "x86_64", unix))]
            Level::Avx2 | Level::Avx512 if tile.is_printed() => printed::code(tile),
            _ => Ok(Kernel::Portable(Arc::new(tile))),
        }
    }

    /// Computes a tile.
    ///
    /// # Safety
    /// The operands have the rows, steps and columns of the description, and nobody else uses what is written. The
    /// processor has the description's level.
    #[inline]
    pub(crate) unsafe fn run(&self, call: &Call) {
        match self {
            #[cfg(all(target_arch = "x86_64", unix))]
            Kernel::Printed(code) => {
                // SAFETY: what was printed is a function of this type.
                let run: printed::Function = unsafe { std::mem::transmute(code.entry()) };
                // SAFETY: the caller's.
                unsafe { run(call) }
            }
            Kernel::Portable(tile) => {
                // SAFETY: the caller's; the dtype tells the numbers.
                unsafe {
                    match tile.dtype {
                        DType::F64 => portable::run::<f64>(tile, call),
                        _ => portable::run::<f32>(tile, call),
                    }
                }
            }
        }
    }
}

#[cfg(all(target_arch = "x86_64", unix))]
mod printed {
    use super::super::print::print;
    use super::*;
    use crate::lock::lock;
    use hashbrown::HashMap;
    use kiln_x86::Code;
    use std::sync::Mutex;

    /// A tile as a function.
    pub(super) type Function = unsafe extern "sysv64" fn(*const Call);

    /// The most tiles whose code is kept; with one more, all begin anew.
    const KEPT: usize = 4096;
    static CODES: Mutex<Option<HashMap<Tile, Arc<Code>>>> = Mutex::new(None);

    /// The code of a tile, which is printed once.
    pub(super) fn code(tile: Tile) -> Result<Kernel> {
        let mut codes = lock(&CODES);
        let codes = codes.get_or_insert_default();
        if let Some(code) = codes.get(&tile) {
            return Ok(Kernel::Printed(code.clone()));
        }
        let code = Code::new(&print(&tile)).map_err(|e| Error::Internal(e.to_string()))?;
        let code = Arc::new(code);
        if codes.len() == KEPT {
            codes.clear();
        }
        codes.insert(tile, code.clone());
        Ok(Kernel::Printed(code))
    }
}
