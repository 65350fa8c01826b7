//! Functions of machine code, and their operands.

use kiln_kernel::simd::Features;
use std::sync::Arc;

/// Where an operand of a printed function is.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Place {
    /// A line of consecutive elements, by its walk.
    Line(u32),
    /// The same, so many elements further on.
    Ahead(u32, u32),
    /// The element at lane index zero.
    First(u32),
    /// What a walk has at the lane at hand: the lanes are then visited in runs.
    Run(u32),
    /// The elements of a register.
    Register(u32),
    /// What a walk with one distance between lanes has, copied: for one step into a register, for many into memory of
    /// the steps'.
    Turned(u32, u32),
    Slot(u32),
    State(u32),
    /// The first element of an argument.
    Argument(u32),
    /// The context itself.
    Context,
    /// The number 0.
    Zero,
}

/// An operand of a printed function.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Operand {
    pub place: Place,
    /// Bytes of an element.
    pub size: usize,
    /// Bytes to the next lane.
    pub step: usize,
    /// Whether it is written past the cache.
    pub streams: bool,
    /// Whether it is the number that a walk has, and no address.
    pub number: bool,
}

/// A function that is machine code, with what it is called with.
#[derive(Clone)]
pub(crate) struct Printed {
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    pub code: Arc<kiln_x86::Code>,
    /// The same without stores past the cache, which need aligned memory.
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    pub plain: Option<Arc<kiln_x86::Code>>,
    #[cfg(not(all(target_arch = "x86_64", not(portable), unix)))]
    pub none: Arc<std::convert::Infallible>,
    pub level: Features,
    pub operands: Vec<Operand>,
    /// Whether it is called with a row of addresses for each of several steps, or runs.
    pub steps: bool,
    /// Walks that are visited run by run, and which operands they are.
    pub runs: Vec<(u32, Vec<usize>)>,
}
