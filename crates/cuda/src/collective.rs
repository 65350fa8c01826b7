//! Collective operations of ranks on GPUs, concurrent with kernels.
//!
//! Each device has a stream for them, which waits for the kernels that were launched before. The run's stream waits for
//! an operation before the first launch that needs it, or at the end.

use super::control;
use super::device::Device;
use super::lane::Lane;
use super::launch::Launch;
use super::loader::Loader;
use super::stream::{Event, Stream};
use kiln_base::collective::{Communicator, DeviceCall, DeviceRun, Kind, group_of};
use kiln_kernel::calls::{self, Calls, LastCalls, LaunchCall};
use kiln_kernel::collective::operand_sizes;
use kiln_kernel::error::{Error, Result};
use kiln_kernel::lock::lock;
use kiln_kernel::work::{Expand, LinkedKernel};
use kiln_plan as plan;
use smallvec::smallvec;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A collective operation with known sizes.
pub struct Collective {
    operation: plan::Collective,
    bytes: [usize; 2],
    /// The kernel that copies the operand to the result, if this rank needs no more, as in a group of one.
    copy: Option<Arc<Launch>>,
    /// The kernel that writes the next token.
    next: Arc<Launch>,
}

impl Collective {
    /// # Errors
    /// [`Error::Plan`] if arguments have other sizes, [`Error::Cuda`] if the engine's own kernels can't be compiled.
    pub fn new(
        loader: &Loader,
        operation: &plan::Collective,
        values: &[i64],
        lens: &[i64],
    ) -> Result<Collective> {
        let [input_bytes, output_bytes] = operand_sizes(operation, values, lens)?;
        let copies = operation.ranks == 1 || matches!(operation.kind, Kind::Reduce(..));
        let copies = copies && input_bytes > 0 && input_bytes == output_bytes;
        Ok(Collective {
            operation: operation.clone(),
            bytes: [input_bytes, output_bytes],
            copy: copies
                .then(|| control::copy(loader, input_bytes))
                .transpose()?,
            next: control::next(loader)?,
        })
    }

    /// The operation of a call, if it is one.
    pub(super) fn of_launch<'a>(call: &LaunchCall<'a>) -> Option<&'a Collective> {
        let launch: &dyn Any = call.launch;
        launch.downcast_ref()
    }

    /// The call of a group for the operation.
    pub(super) fn device_call(&self, call: &LaunchCall, stream: usize) -> DeviceCall {
        let plan::Collective { kind, x, out, .. } = &self.operation;
        let [input, output] = [x.arg, out.arg].map(|arg| call.args[usize::from(arg)] as u64);
        DeviceCall {
            kind: *kind,
            dtype: x.dtype,
            input: (input, self.bytes[0]),
            output: (output, self.bytes[1]),
            stream,
        }
    }

    /// The group of a call; `None` for a group of one.
    pub(super) fn group(&self, call: &DeviceCall) -> std::result::Result<Group, String> {
        match (self.operation.ranks, call.kind) {
            (1, Kind::Send(_) | Kind::Receive(_)) => Err("there is no other rank".into()),
            (1, _) => Ok(None),
            (ranks, _) => group_of(&self.operation.group, ranks, call).map(Some),
        }
    }

    /// Enqueues it on a stream, and returns its group. `issue` calls the group.
    pub(super) fn enqueue(
        &self,
        call: &LaunchCall,
        stream: &Stream,
        issue: impl FnOnce(&dyn Communicator, &DeviceCall) -> std::result::Result<(), String>,
    ) -> std::result::Result<Group, String> {
        let device_call = self.device_call(call, stream.handle() as usize);
        let group = self.group(&device_call)?;
        if let Some(group) = &group {
            issue(&**group, &device_call)?;
        }
        let root = match device_call.kind {
            Kind::Reduce(_, root) => Some(root as usize),
            _ => None,
        };
        let copies = group
            .as_ref()
            .is_none_or(|g| root.is_some_and(|r| r != g.rank()));
        if let (Some(copy), true) = (&self.copy, copies) {
            let [input, output] = [device_call.input, device_call.output].map(|(arg, _)| arg);
            let copy = LaunchCall {
                launch: &**copy,
                args: smallvec![input as *mut u8, output as *mut u8],
                sites: smallvec![],
                after: smallvec![],
                ..*call
            };
            Launch::run(&copy, stream).map_err(|e| e.to_string())?;
        }
        Ok(group)
    }
}

impl calls::Launch for Collective {
    fn sites(&self) -> usize {
        1
    }

    fn is_empty(&self) -> bool {
        false
    }
}

impl LinkedKernel for Collective {
    fn expand(&self, with: Expand, calls: &mut Calls) -> Result<LastCalls> {
        let Expand {
            args,
            context: parent,
            ..
        } = with;
        let [token, next] =
            [self.operation.token, self.operation.next].map(|arg| args[usize::from(arg)]);
        let after = calls.add(parent.call(self, args))?;
        let counted = calls::StepContext {
            after: &after,
            ..parent
        };
        calls.add(counted.call(&*self.next, smallvec![token, next]))
    }

    fn communicates(&self) -> bool {
        true
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn calls(&self) -> usize {
        2
    }
}

/// The group of an operation; `None` for a group of one.
pub(super) type Group = Option<Arc<dyn Communicator>>;

/// A group, and the site of its first operation in a run.
pub(super) type Participant = (Arc<dyn Communicator>, u32);

/// Launches the calls of a run one by one, in order.
pub(super) struct Launcher<'a> {
    device: &'a Device,
    lane: &'a Lane,
    /// The number of calls so far.
    count: u32,
    /// The ends of operations that the run's stream does not wait for yet, with the positions of their calls.
    open: Vec<(u32, Arc<Event>)>,
    /// The kernel that writes the token of the operation that was launched last.
    next: Option<Arc<Launch>>,
    groups: Vec<Participant>,
}

impl<'a> Launcher<'a> {
    pub(super) fn new(device: &'a Device, lane: &'a Lane) -> Launcher<'a> {
        Launcher {
            device,
            lane,
            count: 0,
            open: Vec::new(),
            next: None,
            groups: Vec::new(),
        }
    }

    /// Launches a call. `failed` converts the message of an operation at a site to an error.
    pub(super) fn launch(
        &mut self,
        call: &LaunchCall,
        failed: &dyn Fn(u32, String) -> Error,
    ) -> Result<()> {
        let position = self.count;
        self.count += 1;
        let stream = &self.lane.stream;
        if let Some(operation) = Collective::of_launch(call) {
            let communication = self.device.communication()?;
            communication.wait(&*stream.event()?)?;
            let site = call.sites.first().copied().unwrap_or_default();
            let group = operation.enqueue(call, &communication, |group, call| group.enqueue(call));
            let is_same =
                |g: &Arc<dyn Communicator>, (other, _): &Participant| Arc::ptr_eq(g, other);
            match group.map_err(|text| failed(site, text))? {
                Some(group) if !self.groups.iter().any(|other| is_same(&group, other)) => {
                    self.groups.push((group, site));
                }
                _ => {}
            }
            self.open.push((position, communication.event()?));
            self.next = Some(operation.next.clone());
            return Ok(());
        }
        let next = self.next.take();
        if next.is_some_and(|next| std::ptr::addr_eq(&*next, call.launch)) {
            // On the operation's stream, so that the run's stream waits for neither.
            let communication = self.device.communication()?;
            Launch::run(call, &communication)?;
            self.open.push((position, communication.event()?));
            return Ok(());
        }
        // Operations end in order.
        let is_needed = |(index, _): &(u32, Arc<Event>)| call.after.contains(index);
        if let Some(last) = self.open.iter().rposition(is_needed) {
            self.wait(last + 1)?;
        }
        Launch::run(call, stream)
    }

    /// Makes the run's stream wait for the first open operations.
    fn wait(&mut self, count: usize) -> Result<()> {
        match self.open.drain(..count).next_back() {
            Some((_, end)) => self.lane.stream.wait(&end),
            None => Ok(()),
        }
    }

    /// Makes the run's stream wait for all operations.
    pub(super) fn join(&mut self) -> Result<()> {
        self.wait(self.open.len())
    }

    /// Returns the groups that took part.
    pub(super) fn groups(mut self) -> Result<Vec<Participant>> {
        self.join()?;
        Ok(self.groups)
    }
}

/// A run with operations, which its groups watch. It holds the lane, and thus the error record, until it ends.
pub(super) struct Watched {
    device: Arc<Device>,
    lane: Option<Lane>,
    end: Arc<Event>,
    groups: Vec<Participant>,
    has_failed: AtomicBool,
}

impl Watched {
    /// Lets the groups watch a run that ends with an event.
    pub(super) fn new(
        device: &Arc<Device>,
        lane: Lane,
        end: Arc<Event>,
        groups: Vec<Participant>,
    ) -> Arc<Watched> {
        let watched = Arc::new(Watched {
            device: device.clone(),
            lane: Some(lane),
            end,
            groups,
            has_failed: AtomicBool::new(false),
        });
        for (group, _) in &watched.groups {
            group.watch(watched.clone());
        }
        watched
    }

    /// The site of the first operation that failed, and the fault.
    pub(super) fn fault(&self) -> Option<(u32, String)> {
        if !self.has_failed.load(Ordering::Relaxed) {
            return None;
        }
        let mut faults = self
            .groups
            .iter()
            .map(|(g, site)| Some((*site, g.fault()?)));
        faults.find_map(|fault| fault)
    }

    /// Writes the record of an error at the first operation, by which later kernels leave parameters alone.
    fn mark(&self) -> Result<()> {
        let (Some(lane), Some((_, site))) = (&self.lane, self.groups.first()) else {
            return Ok(());
        };
        self.device.context.activate()?;
        let stream = Stream::new(self.device.context)?;
        lane.mark(*site, &stream)
    }
}

impl DeviceRun for Watched {
    fn has_ended(&self) -> bool {
        // A lost device never signals the event.
        self.device.context.activate().is_err() || self.end.has_happened()
    }

    fn fail(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
        // Failure to write means that the device has failed.
        let _ = self.mark();
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // The record of a failed run may be written at any time.
        let lane = self.lane.take().filter(|_| !*self.has_failed.get_mut());
        lock(&self.device.lanes).extend(lane);
    }
}
