//! A run on a device: its memory, the work that it waits for, and the work that waits for it.

use super::collective::{Launcher, Participant, Watched};
use super::collective_graph::Run;
use super::device::Device;
use super::driver::Address;
use super::graph::{Graph, Graphs};
use super::lane::Lane;
use super::memory::Memory;
use super::outcome::Outcome;
use super::stream::Event;
use kiln_kernel::calls::LaunchCall;
use kiln_kernel::error::{Error, Result};
use kiln_kernel::lock::lock;
use kiln_kernel::memory::{Holder, Storage};
use kiln_plan::cuda::ErrorRecord;
use std::sync::Arc;
use std::time::Duration;

/// A part of a plan being run on a device.
pub struct Session {
    device: Arc<Device>,
    lane: Option<Lane>,
}

/// The work of a part of a plan for a device.
pub struct Job<'a> {
    /// Passes its calls to a function, in order, for an error record.
    pub calls: &'a Expand<'a>,
    /// The number of calls.
    pub count: usize,
    /// True if one of them may report a data error.
    pub fallible: bool,
    /// True if one of them communicates with other ranks.
    pub communicates: bool,
    pub graphs: Option<&'a Graphs>,
    /// Receives the time of each step, if times are collected; the run is then waited for.
    pub profile: Option<&'a dyn Fn(usize, Duration)>,
    /// The memory that determines all addresses.
    pub read: &'a [&'a Storage],
    pub written: &'a [&'a Storage],
}

pub type Expand<'a> = dyn Fn(Address, &mut dyn FnMut(LaunchCall) -> Result<()>) -> Result<()> + 'a;

/// The maximum number of launches of a graph; longer runs gain nothing from one.
const MAX_LAUNCHES: usize = 1 << 14;

impl Session {
    pub fn new(device: &Arc<Device>) -> Result<Session> {
        Ok(Session {
            device: device.clone(),
            lane: Some(device.lane()?),
        })
    }

    fn lane(&self) -> Result<&Lane> {
        self.lane
            .as_ref()
            .ok_or_else(|| Error::Internal("a session without a lane".into()))
    }

    /// Memory for this run.
    pub fn allocate(&self, bytes: usize, holder: Holder) -> Result<Storage> {
        let memory = Memory::new(&self.device, bytes, &self.lane()?.stream, holder)?;
        Ok(Storage::on_gpu(Arc::new(memory), bytes))
    }

    /// Copies one storage to another of the same size, before later work of the run.
    pub fn copy(&self, from: &Storage, to: &Storage) -> Result<()> {
        Memory::copy(from, to, &self.lane()?.stream)
    }

    /// Runs a job, and returns its outcome if it can fail. `explain` converts the record, or a fault of communication,
    /// to an error.
    pub fn run(
        mut self,
        job: &Job,
        explain: impl Fn(ErrorRecord, Option<String>) -> Error + Send + Sync + 'static,
    ) -> Result<Option<Arc<Outcome>>> {
        let slot = job.fallible.then(|| self.device.slots.take()).transpose()?;
        let lane = self.lane()?;
        let move_record = || slot.as_ref().map_or(Ok(()), |slot| lane.move_record(slot));
        let failed = |site: u32, text| explain(record_at(site), Some(text));
        let enqueued = self.enqueue(job, &failed);
        let groups = match enqueued.and_then(|groups| move_record().map(|()| groups)) {
            Ok(groups) => groups,
            Err(e) => {
                // No work of this run may continue after the error is returned. The lane is not used again.
                let _ = lane.stream.synchronize();
                self.lane = None;
                return Err(e);
            }
        };
        let event = lane.stream.event()?;
        let record_uses = |list: &[&Storage], written| {
            let list = list.iter().filter_map(|s| Memory::of(s));
            list.for_each(|m| m.record_use(&event, written));
        };
        record_uses(job.read, false);
        record_uses(job.written, true);
        let lane = match groups.is_empty() {
            true => None,
            false => self.lane.take(),
        };
        let watched = lane.map(|lane| Watched::new(&self.device, lane, event.clone(), groups));
        let error = move |record: ErrorRecord| {
            let fault = watched.as_ref().and_then(|w| w.fault());
            match fault {
                Some((site, text)) => Some(explain(record_at(site), Some(text))),
                None => (record.state != 0).then(|| explain(record, None)),
            }
        };
        let outcome = |slot| {
            let outcome = Outcome::new(&self.device.slots, event, slot, Box::new(error));
            self.device.outcomes.add(outcome)
        };
        Ok(slot.map(outcome))
    }

    /// Enqueues the work, and returns the groups of ranks that take part.
    fn enqueue(
        &self,
        job: &Job,
        failed: &dyn Fn(u32, String) -> Error,
    ) -> Result<Vec<Participant>> {
        let lane = self.lane()?;
        for memory in job.read.iter().filter_map(|s| Memory::of(s)) {
            memory.before_reading(&lane.stream)?;
        }
        for memory in job.written.iter().filter_map(|s| Memory::of(s)) {
            memory.before_writing(&lane.stream)?;
        }
        let record = lane.record();
        if let Some(profile) = job.profile {
            return self.enqueue_profiled(job, profile, failed);
        }
        let calls = |sink: &mut dyn FnMut(LaunchCall) -> Result<()>| (job.calls)(record, sink);
        let graphs = job.graphs.filter(|_| self.device.graphs());
        if let Some(graphs) = graphs.filter(|_| (2..=MAX_LAUNCHES).contains(&job.count)) {
            let touched = job.read.iter().chain(job.written);
            let key = touched.map(|s| s.ptr() as u64).chain([record]).collect();
            if !job.communicates {
                return graphs.run(&lane.stream, key, &calls).map(|()| Vec::new());
            }
            let run = Run {
                context: self.device.context,
                stream: &lane.stream,
                key,
                calls: &calls,
                failed,
            };
            if let Some(groups) = graphs.collective.run(run)? {
                return Ok(groups);
            }
        }
        let mut launcher = Launcher::new(&self.device, lane);
        calls(&mut |call| launcher.launch(&call, failed))?;
        launcher.groups()
    }
}

/// The record of an error at a site.
fn record_at(site: u32) -> ErrorRecord {
    ErrorRecord {
        state: site + 1,
        ..ErrorRecord::default()
    }
}

impl Session {
    fn enqueue_profiled(
        &self,
        job: &Job,
        profile: &dyn Fn(usize, Duration),
        failed: &dyn Fn(u32, String) -> Error,
    ) -> Result<Vec<Participant>> {
        let lane = self.lane()?;
        let mut launcher = Launcher::new(&self.device, lane);
        let mut starts: Vec<(usize, Arc<Event>)> = Vec::new();
        (job.calls)(lane.record(), &mut |call| {
            if starts.last().is_none_or(|(step, _)| *step != call.step) {
                starts.push((call.step, lane.stream.timed_event()?));
            }
            launcher.launch(&call, failed)?;
            launcher.join() // so that steps do not overlap
        })?;
        let end = lane.stream.timed_event()?;
        end.synchronize()?;
        let ends = starts.iter().skip(1).map(|(_, event)| event).chain([&end]);
        for ((step, start), end) in starts.iter().zip(ends) {
            profile(*step, start.until(end)?);
        }
        launcher.groups()
    }
}

impl Session {
    /// Captures calls as a graph, which [`Session::time`] launches once its operands are computed.
    pub fn capture<'a>(
        &self,
        read: impl Iterator<Item = &'a Arc<Storage>>,
        calls: &Expand,
    ) -> Result<Graph> {
        let lane = self.lane()?;
        for memory in read.filter_map(|s| Memory::of(s)) {
            memory.before_reading(&lane.stream)?;
        }
        let record = lane.record();
        Graph::new(Vec::new(), &|sink| calls(record, sink), None)
    }

    /// Launches a graph, waits for it and returns the device's time. Data errors are ignored.
    pub fn time(&self, graph: &Graph) -> Result<Duration> {
        let lane = self.lane()?;
        self.device.context.activate()?;
        let start = lane.stream.timed_event()?;
        graph.launch(&lane.stream)?;
        let end = lane.stream.timed_event()?;
        lane.clear()?;
        lane.stream.synchronize()?;
        start.until(&end)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take() {
            lock(&self.device.lanes).push(lane);
        }
    }
}
