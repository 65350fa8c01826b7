//! The state of streams, of events and of captures.

use crate::graph::GraphNode;
use crate::status::{INVALID_VALUE, Status};
use crate::work::Work;
use std::collections::{HashMap, VecDeque};
use std::thread::ThreadId;
use std::time::Instant;

/// A stream.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub device: usize,
    /// True if the stream and the null stream wait for each other.
    pub blocking: bool,
    pub queue: VecDeque<Work>,
    /// The capture that it takes part in.
    pub capture: Option<u64>,
    /// True if its part of a capture still has to be joined.
    pub unjoined: bool,
    /// True while its first item is executed.
    pub busy: bool,
    /// The time that it has come to.
    pub now: f64,
}

/// An event.
#[derive(Debug, Default)]
pub(crate) struct Event {
    pub timing: bool,
    /// The number of recordings so far, and the last recording that was reached.
    pub recorded: u64,
    pub reached: u64,
    /// The stream of the last recording.
    pub stream: usize,
    pub at: Option<Instant>,
    /// The time on the virtual clock.
    pub now: f64,
    /// True if it is to be removed once its last recording is reached.
    pub is_destroyed: bool,
    /// The capture that recorded it last, and the stream of that recording.
    pub captured: Option<(u64, usize)>,
}

/// The calls that a capture forbids.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum CaptureMode {
    Global,
    ThreadLocal,
    Relaxed,
}

/// A capture in progress.
#[derive(Debug)]
pub(crate) struct Capture {
    pub origin: usize,
    pub mode: CaptureMode,
    pub thread: ThreadId,
    pub graph: usize,
    pub nodes: Vec<GraphNode>,
    pub broken: bool,
}

/// The captures of a process.
pub(crate) type Captures = HashMap<u64, Capture>;

/// The mode of a `CUstreamCaptureMode`.
pub(crate) fn capture_mode(mode: u32) -> Result<CaptureMode, Status> {
    Ok(match mode {
        0 => CaptureMode::Global,
        1 => CaptureMode::ThreadLocal,
        2 => CaptureMode::Relaxed,
        _ => return Err(INVALID_VALUE),
    })
}
