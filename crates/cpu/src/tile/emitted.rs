//! Functions of machine code, and their operands.

use kiln_kernel::simd::Features;
use std::sync::Arc;

/// The location of an operand of an emitted function.
#[derive(Copy, Clone, Debug)]
pub(crate) enum OperandLocation {
    /// Consecutive elements, by their walk.
    Contiguous(u32),
    /// A prefetch of the elements of a walk, at this distance in elements.
    Prefetch(u32, u32),
    /// The element of a walk at lane zero.
    LaneZero(u32),
    /// The element of a walk at the current lane; the function is called run by run.
    Run(u32),
    /// The elements of a register.
    Register(u32),
    /// A contiguous copy of the strided elements of a walk: in a register for one step, in
    /// [`Steps`](super::call::Steps) for several.
    Transposed(u32, u32),
    Slot(u32),
    State(u32),
    /// The first element of an argument.
    Argument(u32),
    /// The context itself.
    Context,
    /// The number 0.
    Zero,
}

/// An operand of an emitted function.
#[derive(Copy, Clone, Debug)]
pub(crate) struct EmittedOperand {
    pub location: OperandLocation,
    /// The bytes of an element.
    pub size: usize,
    /// The bytes to the next lane.
    pub step: usize,
    /// True if non-temporal stores write it.
    pub streams: bool,
    /// True if it is the walk's affine number instead of an address.
    pub number: bool,
}

/// An emitted function, with its operands.
#[derive(Clone)]
pub(crate) struct Emitted {
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    pub code: Arc<kiln_x86::Code>,
    /// A variant without non-temporal stores, for unaligned memory.
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    pub unaligned: Option<Arc<kiln_x86::Code>>,
    #[cfg(not(all(target_arch = "x86_64", not(portable), unix)))]
    pub never: Arc<std::convert::Infallible>,
    pub level: Features,
    pub operands: Vec<EmittedOperand>,
    /// True if a call takes a row of addresses for each of several steps or runs.
    pub steps: bool,
    /// The walks that are visited run by run, each with the indices of its operands.
    pub runs: Vec<(u32, Vec<usize>)>,
}
