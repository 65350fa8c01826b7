//! Kernels made from descriptions.

use super::each::Depthwise;
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
use super::emit::emit;
use super::epilogue::RegisterEpilogue;
use super::portable::{self, by_terms};
use super::tile::{Call, Tile};
use super::transform::{self, Transform};
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
use crate::emission::cache;
use kiln_base::DType;
use kiln_kernel::error::{Error, Result};
use std::sync::Arc;

/// The function of a tile.
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
type Function = unsafe extern "sysv64" fn(*const Call);

/// The kernels that a thread has used recently, which it finds without a lock.
#[derive(Default)]
pub struct Kernels(Vec<(Tile, Kernel)>);

/// The most kernels in this list.
const LATELY: usize = 16;

impl Kernels {
    /// Returns the kernel of a description.
    ///
    /// # Errors
    /// As [`Kernel::of`].
    pub fn get(&mut self, tile: &Tile) -> Result<Kernel> {
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
pub enum Kernel {
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    Emitted(Arc<kiln_x86::Code>),
    Portable(Arc<Tile>),
    PortableDepthwise(Arc<Depthwise>),
    PortableTransform(Arc<Transform>),
}

impl Kernel {
    /// Returns the kernel of a description.
    ///
    /// # Errors
    /// If there is an epilogue, and the system gives no memory for code.
    pub fn of(tile: Tile) -> Result<Kernel> {
        #[cfg(all(target_arch = "x86_64", not(portable), unix))]
        if tile.is_emitted()
            && let Some(code) = cache::code(tile.key(), || tile.name("sums"), || emit(&tile))
        {
            return Ok(emitted(code, &tile.finish, tile.taps, false));
        }
        portable_without(&tile.finish)?;
        Ok(Kernel::Portable(Arc::new(tile)))
    }

    /// Returns the kernel of a tile whose columns each have their own A.
    ///
    /// # Errors
    /// As [`Kernel::of`].
    pub fn of_depthwise(each: Depthwise) -> Result<Kernel> {
        #[cfg(all(target_arch = "x86_64", not(portable), unix))]
        if each.is_emitted()
            && let Some(code) = cache::code(
                each.key(),
                || each.tile.name("sums a column"),
                || each.emit(),
            )
        {
            return Ok(emitted(code, &each.tile.finish, 0, true));
        }
        portable_without(&each.tile.finish)?;
        Ok(Kernel::PortableDepthwise(Arc::new(each)))
    }

    /// Returns the kernel of a transform, of the square at `left` to `out`.
    ///
    /// # Errors
    /// As [`Kernel::of`].
    pub fn of_transform(transform: Transform) -> Result<Kernel> {
        #[cfg(all(target_arch = "x86_64", not(portable), unix))]
        if transform.is_emitted()
            && let Some(code) = cache::code(
                transform.key(),
                || transform.name(),
                || transform::emit::emit(&transform),
            )
        {
            return Ok(emitted(code, &transform.finish, 0, false));
        }
        portable_without(&transform.finish)?;
        Ok(Kernel::PortableTransform(Arc::new(transform)))
    }

    /// Computes a tile.
    ///
    /// # Safety
    /// The operands have the rows, steps of K and columns of the description. Nobody else uses the memory that is
    /// written. The processor has the description's level.
    #[inline]
    pub unsafe fn run(&self, call: &Call) {
        match self {
            #[cfg(all(target_arch = "x86_64", not(portable), unix))]
            Kernel::Emitted(code) => {
                #[cfg(feature = "testing")]
                if super::interpreted::tile(code.bytes(), call) {
                    return;
                }
                // SAFETY: emitted code is a function of this type.
                let run: Function = unsafe { std::mem::transmute(code.entry()) };
                // SAFETY: the caller's.
                unsafe { run(call) }
            }
            Kernel::Portable(tile) => {
                // SAFETY: the caller's; the instruction determines the element type.
                unsafe { by_terms!(tile.instruction, portable::run, tile, call) }
            }
            // SAFETY: the caller's.
            Kernel::PortableTransform(t) => unsafe { transform::run(t, call) },
            Kernel::PortableDepthwise(each) => {
                // SAFETY: the caller's; the instruction determines the element type.
                unsafe { by_terms!(each.instruction(), Depthwise::run, each, call) }
            }
        }
    }
}

/// Returns the kernel of emitted code, which is called with a list of `taps` taps, or of lines.
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
fn emitted(
    code: Arc<kiln_x86::Code>,
    finish: &Option<Arc<RegisterEpilogue>>,
    taps: u32,
    lines: bool,
) -> Kernel {
    let _ = (finish, taps, lines);
    #[cfg(feature = "testing")]
    super::interpreted::takes(
        code.bytes(),
        super::interpreted::Lists {
            taps: if taps > 1 { taps as usize } else { 0 },
            locations: finish.as_ref().map_or(0, |f| f.locations.len()),
            lines,
        },
    );
    Kernel::Emitted(code)
}

fn portable_without(finish: &Option<Arc<RegisterEpilogue>>) -> Result<()> {
    match finish {
        None => Ok(()),
        Some(_) => Err(Error::Internal(
            "work behind sums that can't be emitted".into(),
        )),
    }
}
