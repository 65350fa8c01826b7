//! Kernels made from descriptions.

use super::each::Depthwise;
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
use super::emit::emit;
use super::epilogue::{Accesses, RegisterEpilogue};
use super::footprint::{Footprint, strip};
use super::portable::{self, by_terms};
use super::tile::{Call, STRIP, Tile};
use super::transform::Transform;
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
use crate::emission::cache;
use kiln_base::DType;
use kiln_kernel::error::{Error, Result};
use kiln_kernel::view::{View, ViewMut};
use std::sync::Arc;

/// The function of a tile.
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
type Function = unsafe extern "sysv64" fn(*const Call);

/// The kernels that a thread has used recently, which it finds without a lock.
#[derive(Default)]
pub struct Kernels {
    list: Vec<(Tile, Kernel)>,
    /// The position of the last one that was found.
    last: usize,
}

/// The most kernels in this list.
const LATELY: usize = 16;

impl Kernels {
    /// Returns the kernel of a description.
    ///
    /// # Errors
    /// As [`Kernel::of`].
    pub fn get(&mut self, tile: &Tile) -> Result<&Kernel> {
        let is_last = self.list.get(self.last).is_some_and(|(t, _)| t == tile);
        if !is_last {
            self.last = match self.list.iter().position(|(t, _)| t == tile) {
                Some(at) => at,
                None => {
                    let kernel = Kernel::of(tile.clone())?;
                    if self.list.len() == LATELY {
                        self.list.remove(0);
                    }
                    self.list.push((tile.clone(), kernel));
                    self.list.len() - 1
                }
            };
        }
        Ok(&self.list[self.last].1)
    }
}

/// A register tile that can be computed.
#[derive(Clone)]
pub struct Kernel {
    pub(super) code: Code,
    footprint: Footprint,
    finish: Option<Arc<RegisterEpilogue>>,
}

#[derive(Clone)]
pub(super) enum Code {
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    Emitted(Arc<kiln_x86::Code>),
    Portable(Arc<Tile>),
    PortableDepthwise(Arc<Depthwise>),
    PortableTransform(Arc<Transform>),
}

/// The memory that results go to.
pub enum Output<'a, 'b> {
    Memory(ViewMut<'b, u8>),
    /// That of the epilogue's accesses, for the result in this row and column.
    Epilogue(&'a mut Accesses<'b>, (i64, i64)),
}

impl Kernel {
    /// Returns the kernel of a description.
    ///
    /// # Errors
    /// If there is an epilogue, and the system gives no memory for code.
    pub fn of(tile: Tile) -> Result<Kernel> {
        let (footprint, finish) = (tile.footprint(), tile.finish.clone());
        let code = || -> Result<Code> {
            #[cfg(all(target_arch = "x86_64", not(portable), unix))]
            if tile.is_emitted()
                && let Some(code) = cache::code(tile.key(), || tile.name("sums"), || emit(&tile))
            {
                return Ok(emitted(code, &tile.finish, tile.taps, false));
            }
            portable_without(&tile.finish)?;
            Ok(Code::Portable(Arc::new(tile)))
        };
        Ok(Kernel {
            code: code()?,
            footprint,
            finish,
        })
    }

    /// Returns the kernel of a tile whose columns each have their own A.
    ///
    /// # Errors
    /// As [`Kernel::of`].
    pub fn of_depthwise(each: Depthwise) -> Result<Kernel> {
        let (footprint, finish) = (each.footprint(), each.tile.finish.clone());
        let code = || -> Result<Code> {
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
            Ok(Code::PortableDepthwise(Arc::new(each)))
        };
        Ok(Kernel {
            code: code()?,
            footprint,
            finish,
        })
    }

    /// Returns the kernel of a transform, of the square at `left` to `out`.
    ///
    /// # Errors
    /// As [`Kernel::of`].
    pub fn of_transform(transform: Transform) -> Result<Kernel> {
        let (footprint, finish) = (transform.footprint(), transform.finish.clone());
        let code = || -> Result<Code> {
            #[cfg(all(target_arch = "x86_64", not(portable), unix))]
            if transform.is_emitted()
                && let Some(code) = cache::code(
                    transform.key(),
                    || transform.name(),
                    || super::transform::emit::emit(&transform),
                )
            {
                return Ok(emitted(code, &transform.finish, 0, false));
            }
            portable_without(&transform.finish)?;
            Ok(Code::PortableTransform(Arc::new(transform)))
        };
        Ok(Kernel {
            code: code()?,
            footprint,
            finish,
        })
    }

    /// True if it is machine code.
    pub fn is_emitted(&self) -> bool {
        #[cfg(all(target_arch = "x86_64", not(portable), unix))]
        return matches!(self.code, Code::Emitted(_));
        #[cfg(not(all(target_arch = "x86_64", not(portable), unix)))]
        false
    }

    /// Computes some tiles, one after the other; more than one only up to [`Tile::most`]. `taps` are the offsets of the
    /// taps, if there are several.
    ///
    /// # Panics
    /// If a view lacks elements that the tiles access.
    #[inline]
    pub fn compute(&self, [left, right]: [View<u8>; 2], out: Output, taps: &[i64], tiles: i64) {
        let f = &self.footprint;
        assert!(f.weights.is_none() && f.taps <= taps.len(), "other taps");
        assert!((1..=STRIP).contains(&tiles), "{tiles} tiles");
        let mut read = f.left;
        if let [first, rest @ ..] = &taps[..f.taps]
            && read != [0; 2]
        {
            let ends = (*first, *first);
            let (low, high) = rest
                .iter()
                .fold(ends, |(low, high), tap| (low.min(*tap), high.max(*tap)));
            read = [read[0] + low, read[1] + high];
        }
        let left = left.address(strip(read, f.strip[0], tiles));
        self.call(left, right.address(f.right), out, taps, tiles);
    }

    /// Computes a tile whose left operand is a list of lines, `shift` bytes behind the first ones.
    ///
    /// # Panics
    /// As [`Kernel::compute`].
    #[inline]
    pub fn compute_lines(&self, lines: &mut Lines, shift: i64, out: Output) {
        let Some([weights, padding]) = self.footprint.weights else {
            panic!("a tile without lines");
        };
        lines.list.clear();
        for (line, of) in &lines.lines {
            let line = line.shift(shift).address(self.footprint.left).addr();
            lines.list.extend([line, of.address(weights).addr()]);
        }
        lines.list.push(0);
        let padding = lines.padding.iter().map(|of| of.address(padding).addr());
        lines.list.extend(padding);
        lines.list.push(0);
        let list = lines.list.as_ptr().cast();
        self.call(list, std::ptr::null(), out, &[], 1);
    }

    /// Makes a call whose operands were checked.
    #[inline]
    fn call(&self, left: *const u8, right: *const u8, out: Output, taps: &[i64], tiles: i64) {
        let f = &self.footprint;
        let (out, finish) = match (out, &self.finish) {
            (Output::Memory(out), None) => (
                out.address_mut(strip(f.out, f.strip[1], tiles)),
                std::ptr::null(),
            ),
            (Output::Epilogue(accesses, at), Some(finish)) => {
                let rows = strip(f.rows, f.strip[2], tiles);
                (
                    std::ptr::null_mut(),
                    accesses.checked(finish, at, rows, f.columns),
                )
            }
            _ => panic!("an epilogue without its accesses"),
        };
        let call = Call {
            left,
            right,
            out,
            finish,
            taps: taps.as_ptr(),
            tiles: tiles as u64,
        };
        // SAFETY: views have all bytes that the tiles access, and results are this thread's. Descriptions are of levels
        // of this processor.
        unsafe { self.run(&call) }
    }

    /// Computes a tile.
    ///
    /// # Safety
    /// The operands have the rows, steps of K and columns of the description. Nobody else uses the memory that is
    /// written. The processor has the description's level.
    #[inline]
    pub(super) unsafe fn run(&self, call: &Call) {
        match &self.code {
            #[cfg(all(target_arch = "x86_64", not(portable), unix))]
            Code::Emitted(code) => {
                #[cfg(feature = "testing")]
                if super::interpreted::tile(code.bytes(), call) {
                    return;
                }
                // SAFETY: emitted code is a function of this type.
                let run: Function = unsafe { std::mem::transmute(code.entry()) };
                // SAFETY: the caller's.
                unsafe { run(call) }
            }
            Code::Portable(tile) => {
                // SAFETY: the caller's; the instruction determines the element type.
                unsafe { by_terms!(tile.instruction, portable::run, tile, call) }
            }
            // SAFETY: the caller's.
            Code::PortableTransform(t) => unsafe { portable::run_transform(t, call) },
            Code::PortableDepthwise(each) => {
                // SAFETY: the caller's; the instruction determines the element type.
                unsafe { by_terms!(each.instruction(), portable::run_depthwise, each, call) }
            }
        }
    }
}

/// The left operand of tiles whose columns have one each: lines of positions with their weights, and the weights of
/// lines of padding.
#[derive(Default)]
pub struct Lines<'a> {
    pub lines: Vec<(View<'a, u8>, View<'a, u8>)>,
    pub padding: Vec<View<'a, u8>>,
    list: Vec<usize>,
}

/// Returns the kernel of emitted code, which is called with a list of `taps` taps, or of lines.
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
fn emitted(
    code: Arc<kiln_x86::Code>,
    finish: &Option<Arc<RegisterEpilogue>>,
    taps: u32,
    lines: bool,
) -> Code {
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
    Code::Emitted(code)
}

fn portable_without(finish: &Option<Arc<RegisterEpilogue>>) -> Result<()> {
    match finish {
        None => Ok(()),
        Some(_) => Err(Error::Internal(
            "work behind sums that can't be emitted".into(),
        )),
    }
}
