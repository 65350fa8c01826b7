//! Kernels made from descriptions.

use super::depthwise::Depthwise;
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
use super::emit::emit;
use super::epilogue::{Accesses, RegisterEpilogue};
use super::footprint::{Footprint, strip};
use super::portable::{self, by_terms};
use super::tile::{Call, MAX_TILES, Tile};
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

/// The description of a kernel.
#[derive(Clone, Debug)]
pub enum Description {
    Tile(Tile),
    /// A tile whose columns each have their own A.
    Depthwise(Depthwise),
    /// A transform of the square at `left` to `out`.
    Transform(Transform),
}

impl From<Tile> for Description {
    fn from(tile: Tile) -> Description {
        Description::Tile(tile)
    }
}

impl From<Depthwise> for Description {
    fn from(depthwise: Depthwise) -> Description {
        Description::Depthwise(depthwise)
    }
}

impl From<Transform> for Description {
    fn from(transform: Transform) -> Description {
        Description::Transform(transform)
    }
}

impl Description {
    fn footprint(&self) -> Footprint {
        match self {
            Description::Tile(tile) => tile.footprint(),
            Description::Depthwise(depthwise) => depthwise.footprint(),
            Description::Transform(transform) => transform.footprint(),
        }
    }

    fn epilogue(&self) -> &Option<Arc<RegisterEpilogue>> {
        match self {
            Description::Tile(tile) | Description::Depthwise(Depthwise { tile, .. }) => {
                &tile.epilogue
            }
            Description::Transform(transform) => &transform.epilogue,
        }
    }

    /// Returns the machine code, if code can be emitted for the level and the strides.
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    fn emitted(&self) -> Option<Arc<kiln_x86::Code>> {
        use Description::{Depthwise, Tile, Transform};
        match self {
            Tile(t) if t.is_emitted() => {
                cache::code(cache::key(b'c', t), || t.name("sums"), || self.emit())
            }
            Depthwise(e) if e.is_emitted() => {
                let name = || e.tile.name("sums a column");
                cache::code(cache::key(b'e', e), name, || self.emit())
            }
            Transform(t) if t.is_emitted() => cache::code(t.key(), || t.name(), || self.emit()),
            _ => None,
        }
    }

    /// Emits machine code.
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    pub(super) fn emit(&self) -> Vec<u8> {
        match self {
            Description::Tile(tile) => emit(tile),
            Description::Depthwise(depthwise) => depthwise.emit(),
            Description::Transform(transform) => super::transform::emit::emit(transform),
        }
    }
}

/// A register tile that can be computed.
#[derive(Clone)]
pub struct Kernel {
    code: Code,
    footprint: Footprint,
    epilogue: Option<Arc<RegisterEpilogue>>,
}

#[derive(Clone)]
enum Code {
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    Emitted(Arc<kiln_x86::Code>),
    Portable(Arc<Description>),
}

/// The destination of results.
pub enum Output<'a, 'b> {
    Memory(ViewMut<'b, u8>),
    /// The accesses of the epilogue, for the result in this row and column.
    Epilogue(&'a mut Accesses<'b>, (i64, i64)),
}

impl<'b> Output<'_, 'b> {
    /// Returns the output from another row and column on, with these strides in bytes.
    #[inline]
    pub(super) fn shift(&mut self, (row, column): (i64, i64), strides: [i64; 2]) -> Output<'_, 'b> {
        match self {
            Output::Memory(out) => {
                Output::Memory(out.shift(row * strides[0] + column * strides[1]))
            }
            Output::Epilogue(accesses, at) => {
                Output::Epilogue(accesses, (at.0 + row, at.1 + column))
            }
        }
    }
}

/// The A of a kernel.
pub enum Left<'a, 'b> {
    /// A matrix from the first row on, and the offset of each tap from that row, if there are several.
    Rows(View<'a, u8>, &'a [i64]),
    /// For tiles whose columns have an A each: lines, and an offset in bytes.
    Lines(&'a mut Lines<'b>, i64),
}

impl<'b> Left<'_, 'b> {
    /// Returns the operand from another row on, by its offset in bytes.
    #[inline]
    pub(super) fn shift(&mut self, by: i64) -> Left<'_, 'b> {
        match self {
            Left::Rows(rows, taps) => Left::Rows(rows.shift(by), taps),
            Left::Lines(lines, first) => Left::Lines(lines, *first + by),
        }
    }
}

impl Kernel {
    /// Returns the kernel of a description.
    ///
    /// # Errors
    /// If there is an epilogue, and the system gives no memory for code.
    pub fn of(description: impl Into<Description>) -> Result<Kernel> {
        let of = description.into();
        let (footprint, epilogue) = (of.footprint(), of.epilogue().clone());
        #[cfg(all(target_arch = "x86_64", not(portable), unix))]
        if let Some(code) = of.emitted() {
            let code = Code::Emitted(code);
            return Ok(Kernel {
                code,
                footprint,
                epilogue,
            });
        }
        if epilogue.is_some() {
            return Err(Error::Internal(
                "an epilogue of sums that can't be emitted".into(),
            ));
        }
        Ok(Kernel {
            code: Code::Portable(Arc::new(of)),
            footprint,
            epilogue,
        })
    }

    /// True if the kernel is machine code.
    pub fn is_emitted(&self) -> bool {
        #[cfg(all(target_arch = "x86_64", not(portable), unix))]
        return matches!(self.code, Code::Emitted(_));
        #[cfg(not(all(target_arch = "x86_64", not(portable), unix)))]
        false
    }

    /// Computes some tiles in order, at most [`Tile::max_tiles`].
    ///
    /// # Panics
    /// If a view lacks elements that the tiles access.
    #[inline]
    pub fn compute(&self, left: Left, right: View<u8>, out: Output, tiles: i64) {
        let f = &self.footprint;
        assert!((1..=MAX_TILES).contains(&tiles), "{tiles} tiles");
        match (left, f.weights) {
            (Left::Rows(left, taps), None) => {
                let mut read = f.left;
                if let [first, rest @ ..] = &taps[..f.taps]
                    && read != [0; 2]
                {
                    let ends = (*first, *first);
                    let (min, max) = rest
                        .iter()
                        .fold(ends, |(min, max), tap| (min.min(*tap), max.max(*tap)));
                    read = [read[0] + min, read[1] + max];
                }
                let left = left.address(strip(read, f.strip[0], tiles));
                self.call(left, right.address(f.right), out, taps, tiles);
            }
            (Left::Lines(lines, shift), Some([weights, padding])) => {
                lines.list.clear();
                for (line, of) in &lines.lines {
                    let line = line.shift(shift).address(f.left).addr();
                    lines.list.extend([line, of.address(weights).addr()]);
                }
                lines.list.push(0);
                let padding = lines.padding.iter().map(|of| of.address(padding).addr());
                lines.list.extend(padding);
                lines.list.push(0);
                let list = lines.list.as_ptr().cast();
                self.call(list, std::ptr::null(), out, &[], 1);
            }
            _ => panic!("the A is of another kind of tile"),
        }
    }

    /// Makes a call whose operands were checked.
    #[inline]
    fn call(&self, left: *const u8, right: *const u8, out: Output, taps: &[i64], tiles: i64) {
        let f = &self.footprint;
        let (out, addresses) = match (out, &self.epilogue) {
            (Output::Memory(out), None) => (
                out.address_mut(strip(f.out, f.strip[1], tiles)),
                std::ptr::null(),
            ),
            (Output::Epilogue(accesses, at), Some(epilogue)) => {
                let rows = strip(f.rows, f.strip[2], tiles);
                (
                    std::ptr::null_mut(),
                    accesses.checked(epilogue, at, rows, f.columns),
                )
            }
            _ => panic!("an epilogue without its accesses"),
        };
        let call = Call {
            left,
            right,
            out,
            accesses: addresses,
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
                if self.interpret(code.bytes(), call) {
                    return;
                }
                // SAFETY: emitted code is a function of this type.
                let run: Function = unsafe { std::mem::transmute(code.entry()) };
                // SAFETY: the caller's.
                unsafe { run(call) }
            }
            // SAFETY: the caller's; the instruction determines the element type.
            Code::Portable(description) => unsafe {
                match &**description {
                    Description::Tile(tile) => {
                        by_terms!(tile.instruction, portable::run, tile, call)
                    }
                    Description::Depthwise(depthwise) => {
                        by_terms!(
                            depthwise.instruction(),
                            portable::run_depthwise,
                            depthwise,
                            call
                        )
                    }
                    Description::Transform(t) => portable::run_transform(t, call),
                }
            },
        }
    }

    /// Interprets a call of its code, which may also read the call's lists of addresses, if this thread interprets.
    /// Returns false otherwise.
    #[cfg(all(feature = "testing", target_arch = "x86_64", not(portable), unix))]
    fn interpret(&self, code: &[u8], call: &Call) -> bool {
        if !kiln_kernel::interpreted::is_interpreting() {
            return false;
        }
        let list = |at: *const u8, len: usize| (at, 8 * len, false);
        let accesses = self.epilogue.as_ref().map_or(0, |f| f.locations.len());
        let mut memory = vec![
            (std::ptr::from_ref(call).cast(), size_of::<Call>(), false),
            list(call.taps.cast(), self.footprint.taps),
            list(call.accesses.cast(), accesses),
        ];
        if self.footprint.weights.is_some() {
            let (lines, mut len) = (call.left.cast::<usize>(), 0);
            // Pairs of addresses up to a zero, then addresses up to a zero.
            for step in [2, 1] {
                // SAFETY: either list ends with a zero.
                while unsafe { *lines.add(len) } != 0 {
                    len += step;
                }
                len += 1;
            }
            memory.push(list(call.left, len));
        }
        kiln_kernel::interpreted::call(code, &[std::ptr::from_ref(call) as u64], &memory)
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
