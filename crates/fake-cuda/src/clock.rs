//! A virtual clock: the time that work would take.
//!
//! Streams have times of their own, which events hand on. The kernels of a graph run one after the other, each once its
//! dependencies have ended. An operation of NCCL begins once all ranks have reached it, and those of a communicator run
//! one after the other. All times are in nanoseconds.

/// The costs of work.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Costs {
    /// Of a kernel, copy or operation, whatever it does.
    pub launch: f64,
    /// Of a byte that a rank sends.
    pub byte: f64,
}

impl Costs {
    /// Reads both numbers, with a comma between.
    pub fn parse(text: &str) -> Option<Costs> {
        let (launch, byte) = text.split_once(',')?;
        Some(Costs {
            launch: launch.trim().parse().ok()?,
            byte: byte.trim().parse().ok()?,
        })
    }
}

/// Work on the timeline of a device.
#[derive(Clone, Debug)]
pub struct Span {
    /// The device.
    pub device: usize,
    /// The time at which it begins.
    pub start: f64,
    /// The time at which it ends.
    pub end: f64,
    /// The name of the kernel, or a description of the operation of NCCL, which begins with `nccl`.
    pub name: String,
}
