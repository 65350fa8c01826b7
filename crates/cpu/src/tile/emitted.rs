//! Functions of machine code, and their operands.

use kiln_kernel::simd::Features;
use std::sync::Arc;

/// The location of an operand of an emitted function.
#[derive(Copy, Clone, Debug)]
pub(crate) enum OperandLocation {
    /// A line of consecutive elements, by its walk.
    Line(u32),
    /// A prefetch of the same line, this many elements further on.
    Prefetch(u32, u32),
    /// The element at lane index zero.
    First(u32),
    /// The element of a walk at the current lane: the lanes are then visited in runs.
    Run(u32),
    /// The elements of a register.
    Register(u32),
    /// A copy of the elements of a walk with one stride between lanes: for one step in a register, for several in
    /// memory of the steps.
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
    /// True if it is written with non-temporal stores.
    pub streams: bool,
    /// True if it is the walk's number, not an address.
    pub number: bool,
}

/// An emitted function, with its operands.
#[derive(Clone)]
pub(crate) struct Emitted {
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    pub code: Arc<kiln_x86::Code>,
    /// The same without non-temporal stores, which need aligned memory.
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    pub plain: Option<Arc<kiln_x86::Code>>,
    #[cfg(not(all(target_arch = "x86_64", not(portable), unix)))]
    pub none: Arc<std::convert::Infallible>,
    pub level: Features,
    pub operands: Vec<EmittedOperand>,
    /// True if it is called with a row of addresses for each of several steps, or runs.
    pub steps: bool,
    /// The walks that are visited run by run, and the operands that each of them is.
    pub runs: Vec<(u32, Vec<usize>)>,
}
