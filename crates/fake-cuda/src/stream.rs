//! Streams: queues that run only when someone waits for them, so that a program that forgets to wait sees old data,
//! as it may on hardware.

use crate::driver::{Driver, State, is_null_stream};
use crate::graph::GraphNode;
use crate::nccl::RankCall;
use crate::queue::{CaptureMode, Stream};
use crate::status::{CAPTURE_IMPLICIT, CAPTURE_UNSUPPORTED, Failure, INVALID_HANDLE};
use crate::work::{Broken, Node, Work, illegal};
use std::time::Duration;

/// The length above which the caller that appends runs the queue; hardware's queues are finite too.
const MAX_QUEUE: usize = 1024;

/// The time between two looks at other ranks.
const POLL: Duration = Duration::from_micros(200);

impl State {
    /// The stream called `handle`.
    pub fn stream(&mut self, handle: usize) -> Result<&mut Stream, Failure> {
        self.streams
            .get_mut(&handle)
            .ok_or_else(|| INVALID_HANDLE.into())
    }

    /// The number of items in the queue of a stream.
    fn queued(&self, stream: usize) -> usize {
        self.streams.get(&stream).map_or(0, |s| s.queue.len())
    }

    /// Fails if a capture forbids calls that could touch captured work.
    pub fn check_captures(&mut self) -> Result<(), Failure> {
        let thread = std::thread::current().id();
        let forbidden = self.captures.values_mut().find(|c| match c.mode {
            CaptureMode::Global => true,
            CaptureMode::ThreadLocal => c.thread == thread,
            CaptureMode::Relaxed => false,
        });
        match forbidden {
            Some(capture) => {
                capture.broken = true;
                Err(CAPTURE_UNSUPPORTED.into())
            }
            None => Ok(()),
        }
    }

    /// Fails if work in the null stream `null` would wait for a capture; this breaks the capture.
    fn check_not_implied(&mut self, null: usize) -> Result<(), Failure> {
        let device = self.stream(null)?.device;
        let mut streams = self
            .streams
            .values()
            .filter(|s| s.device == device && s.blocking);
        match streams.find_map(|s| s.capture) {
            Some(id) => {
                self.captures.get_mut(&id).ok_or(INVALID_HANDLE)?.broken = true;
                Err(CAPTURE_IMPLICIT.into())
            }
            None => Ok(()),
        }
    }

    /// Fails if the stream is capturing; this breaks the capture.
    pub fn check_not_capturing(&mut self, stream: usize) -> Result<(), Failure> {
        if let Some(id) = self.stream(stream)?.capture {
            self.captures.get_mut(&id).ok_or(INVALID_HANDLE)?.broken = true;
            return Err(CAPTURE_UNSUPPORTED.into());
        }
        Ok(())
    }
}

impl Driver {
    /// Appends `node` to the stream or to the graph that it captures.
    pub fn submit(&self, stream: usize, node: Node) -> Result<(), Failure> {
        let mut state = self.state();
        state.check_healthy()?;
        if let Some(id) = state.stream(stream)?.capture {
            state.stream(stream)?.unjoined = true;
            let handle = state.new_handle();
            let capture = state.captures.get_mut(&id).ok_or(INVALID_HANDLE)?;
            // Captured work of several streams becomes one chain, in the order of submission.
            let after = capture.nodes.len().checked_sub(1).into_iter().collect();
            capture.nodes.push(GraphNode {
                handle,
                node,
                after,
            });
            return Ok(());
        }
        drop(state);
        self.enqueue(stream, Work::Node(node))
    }

    /// Appends `work` to the stream's queue.
    pub fn enqueue(&self, stream: usize, work: Work) -> Result<(), Failure> {
        let mut state = self.state();
        state.check_healthy()?;
        state.check_not_capturing(stream)?;
        if is_null_stream(stream) {
            state.check_not_implied(stream)?;
        }
        let queue = &mut state.stream(stream)?.queue;
        queue.push_back(work);
        let is_long = queue.len() > MAX_QUEUE;
        let seed = self.config.options.seed;
        // With a seed, some work is executed early: a program must not rely on delays either.
        let is_early = seed != 0
            && (state.new_handle() as u64 ^ seed)
                .count_ones()
                .is_multiple_of(3);
        drop(state);
        if is_null_stream(stream) {
            self.drain_blocking(stream)
        } else if is_long || is_early {
            self.try_drain(stream);
            self.state().check_healthy()
        } else {
            Ok(())
        }
    }

    /// Runs all blocking streams, then the null stream.
    fn drain_blocking(&self, null: usize) -> Result<(), Failure> {
        let device = self.state().stream(null)?.device;
        for stream in self.streams_of(device, |s| s.blocking) {
            self.drain(stream)?;
        }
        self.drain(null)
    }

    /// The streams of a device that are `wanted`, oldest first.
    pub fn streams_of(&self, device: usize, wanted: impl Fn(&Stream) -> bool) -> Vec<usize> {
        let state = self.state();
        let mut streams: Vec<usize> = state
            .streams
            .iter()
            .filter(|(_, s)| s.device == device && wanted(s))
            .map(|(&handle, _)| handle)
            .collect();
        streams.sort_unstable();
        streams
    }

    /// Runs all work that was queued in `stream`.
    pub fn drain(&self, stream: usize) -> Result<(), Failure> {
        while !self.try_drain(stream) {
            std::thread::sleep(POLL);
        }
        let mut state = self.state();
        let time = state.streams.get(&stream).map_or(0.0, |s| s.now);
        state.waited(stream, time);
        state.check_healthy()
    }

    /// Runs work that was queued in `stream`; false if it ends at an operation that waits for other ranks.
    fn try_drain(&self, stream: usize) -> bool {
        let _engine = self.engine();
        self.run_until(stream, |state| state.queued(stream) == 0)
    }

    /// Runs all work of every stream of a device.
    pub fn drain_device(&self, device: usize) -> Result<(), Failure> {
        for stream in self.streams_of(device, |_| true) {
            self.drain(stream)?;
        }
        self.state().accounts.synchronised(device);
        self.state().check_healthy()
    }

    /// Waits until the last recording of `event` is reached.
    pub fn wait_event(&self, event: usize) -> Result<(), Failure> {
        let (stream, recorded) = {
            let state = self.state();
            let event = state.events.get(&event).ok_or(INVALID_HANDLE)?;
            (event.stream, event.recorded)
        };
        loop {
            let engine = self.engine();
            if self.reach(stream, event, recorded) {
                let mut state = self.state();
                let time = state.events.get(&event).map_or(0.0, |e| e.now);
                state.waited(stream, time);
                return state.check_healthy();
            }
            drop(engine);
            std::thread::sleep(POLL);
        }
    }

    /// Runs `stream` until recording `number` of `event` is reached; false if other ranks are to be waited for. The
    /// caller holds the engine's lock.
    fn reach(&self, stream: usize, event: usize, number: u64) -> bool {
        self.run_until(stream, |state| {
            let is_over = state.events.get(&event).is_none_or(|e| e.reached >= number);
            is_over || state.queued(stream) == 0
        })
    }

    /// Runs `stream` until `done`; false if it meets an operation that waits for other ranks. The caller holds the
    /// engine's lock.
    fn run_until(&self, stream: usize, done: impl Fn(&State) -> bool) -> bool {
        loop {
            let work = {
                let mut state = self.state();
                if done(&state) || state.check_healthy().is_err() {
                    return true;
                }
                match state.streams.get_mut(&stream) {
                    Some(s) if s.busy => return false,
                    Some(s) if !s.queue.is_empty() => {
                        s.busy = true;
                        s.queue[0].clone()
                    }
                    _ => return true,
                }
            };
            let executed = self.execute(stream, work);
            if let Some(s) = self.state().streams.get_mut(&stream) {
                s.busy = false;
                if matches!(executed, Ok(true)) {
                    s.queue.pop_front();
                }
            }
            match executed {
                Ok(true) => {}
                Ok(false) => return false,
                Err(broken) => {
                    self.break_down(broken);
                    return true;
                }
            }
        }
    }

    /// Runs one item of a stream that someone polls; true if the queue is empty now.
    pub fn step(&self, stream: usize) -> Result<bool, Failure> {
        let _engine = self.engine();
        let length = self.state().stream(stream)?.queue.len();
        self.run_until(stream, |state| state.queued(stream) < length.max(1));
        let mut state = self.state();
        state.check_healthy()?;
        Ok(state.stream(stream)?.queue.is_empty())
    }

    /// Executes an item; false if it is to be tried again, since it waits for other ranks.
    fn execute(&self, stream: usize, work: Work) -> Result<bool, Broken> {
        let (device, time) = self.state().time_of(stream);
        match work {
            Work::Node(node) => match node.execute(self, device, time)? {
                Some(end) => self.state().set_time(stream, end),
                None => return Ok(false),
            },
            Work::Graph(run) => match run.advance(self, device, time)? {
                Some(end) => self.state().set_time(stream, end),
                None => return Ok(false),
            },
            Work::Free(address) => self.release(address),
            Work::Record(event, number) => {
                let instant = self.now();
                let mut state = self.state();
                if let Some(recorded) = state.events.get_mut(&event) {
                    recorded.reached = recorded.reached.max(number);
                    recorded.at = Some(instant);
                    recorded.now = time;
                    // With a clock, waits still read its time.
                    let is_read = self.config.costs.is_some();
                    if recorded.is_destroyed && recorded.reached == recorded.recorded && !is_read {
                        state.events.remove(&event);
                    }
                }
            }
            Work::Wait(event, number) => {
                let recorded_in = self.state().events.get(&event).map(|e| e.stream);
                if let Some(recorded_in) = recorded_in {
                    if !self.reach(recorded_in, event, number) {
                        return Ok(false);
                    }
                    let mut state = self.state();
                    let time = state.events.get(&event).map_or(0.0, |e| e.now);
                    state.set_time(stream, time);
                }
            }
        }
        Ok(true)
    }

    /// Takes part in an operation of NCCL from a time on, and executes the streams of the other ranks as far as that
    /// needs. Returns the time of its end; `None` if the others have not come so far.
    pub fn meet(&self, part: &RankCall, ready: f64) -> Result<Option<f64>, Broken> {
        let advance = || {
            part.advance(&self.memory, &self.config, ready)
                .map_err(illegal)
        };
        let mut end = advance()?;
        if end.is_none() {
            for stream in part.awaited() {
                self.run_until(stream, |_| part.is_ready());
            }
            end = advance()?;
        }
        if let (Some(end), Some(costs)) = (end, self.config.costs) {
            let start = end - part.cost(costs);
            self.note(part.comm.device(), [start, end], part.to_string());
        }
        Ok(end)
    }

    /// Records a fault: from now on every call fails, as on hardware.
    fn break_down(&self, broken: Broken) {
        eprintln!("[fake cuda] {}", broken.text);
        if let Some(path) = &self.config.fault_file
            && let Err(error) = std::fs::write(path, &broken.text)
        {
            eprintln!("[fake cuda] {}: {error}", path.display());
        }
        let mut state = self.state();
        state.sticky = broken.status;
        state.fault = Some(broken.text);
        for stream in state.streams.values_mut() {
            stream.queue.clear();
        }
    }
}
