//! Collective operations of ranks on GPUs, which go on beside kernels.
//!
//! They are enqueued on a stream of the device's own. It waits for the kernels that were launched before, and the run's
//! stream waits for it in front of the first launch that needs the operation, and in the end.

use super::control;
use super::device::Device;
use super::lane::Lane;
use super::launch::Launch;
use super::loader::Loader;
use super::stream::{Event, Stream};
use kiln_base::collective::{Communicator, DeviceCall, DeviceRun, Kind, group_of};
use kiln_kernel::calls::{self, Calls, Ends, LaunchCall};
use kiln_kernel::collective::bytes;
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
    of: plan::Collective,
    bytes: [usize; 2],
    /// The kernel that copies the operand to the result, where that is all or this rank's part.
    copy: Option<Arc<Launch>>,
    /// The kernel that writes the next token.
    next: Arc<Launch>,
}

impl Collective {
    /// # Errors
    /// [`Error::Plan`] if arguments have other sizes, [`Error::Cuda`] if the engine's own kernels can't be compiled.
    pub fn new(
        loader: &Loader,
        of: &plan::Collective,
        values: &[i64],
        lens: &[i64],
    ) -> Result<Collective> {
        let [input_bytes, output_bytes] = bytes(of, values, lens)?;
        let copies = of.ranks == 1 || matches!(of.kind, Kind::Reduce(..));
        let copies = copies && input_bytes > 0 && input_bytes == output_bytes;
        Ok(Collective {
            of: of.clone(),
            bytes: [input_bytes, output_bytes],
            copy: copies
                .then(|| control::copy(loader, input_bytes))
                .transpose()?,
            next: control::next(loader)?,
        })
    }

    /// The call of a launch.
    pub(super) fn of_launch<'a>(call: &LaunchCall<'a>) -> Option<&'a Collective> {
        let launch: &dyn Any = call.launch;
        launch.downcast_ref()
    }

    /// The operation that a group is asked for.
    pub(super) fn call(&self, call: &LaunchCall, stream: usize) -> DeviceCall {
        let plan::Collective { kind, x, out, .. } = &self.of;
        let [input, output] = [x.arg, out.arg].map(|arg| call.args[usize::from(arg)] as u64);
        DeviceCall {
            kind: *kind,
            dtype: x.dtype,
            input: (input, self.bytes[0]),
            output: (output, self.bytes[1]),
            stream,
        }
    }

    /// The group of a call; a group of one is none.
    pub(super) fn group(&self, call: &DeviceCall) -> std::result::Result<Group, String> {
        match (self.of.ranks, call.kind) {
            (1, Kind::Send(_) | Kind::Receive(_)) => Err("there is no other rank".into()),
            (1, _) => Ok(None),
            (ranks, _) => group_of(&self.of.group, ranks, call).map(Some),
        }
    }

    /// Gives it to a stream, and returns its group. `issue` calls the group.
    pub(super) fn enqueue(
        &self,
        call: &LaunchCall,
        stream: &Stream,
        issue: impl FnOnce(&dyn Communicator, &DeviceCall) -> std::result::Result<(), String>,
    ) -> std::result::Result<Group, String> {
        let device_call = self.call(call, stream.handle() as usize);
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
    fn expand(&self, with: Expand, calls: &mut Calls) -> Result<Ends> {
        let Expand {
            args,
            within: parent,
            ..
        } = with;
        let [token, next] = [self.of.token, self.of.next].map(|arg| args[usize::from(arg)]);
        let after = calls.add(parent.call(self, args))?;
        let counted = calls::Around {
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

    /// Launches a call. `failed` makes an error of the text of an operation at a site.
    pub(super) fn launch(
        &mut self,
        call: &LaunchCall,
        failed: &dyn Fn(u32, String) -> Error,
    ) -> Result<()> {
        let position = self.count;
        self.count += 1;
        let stream = &self.lane.stream;
        if let Some(operation) = Collective::of_launch(call) {
            let own = self.device.communication()?;
            own.wait(&*stream.event()?)?;
            let site = call.sites.first().copied().unwrap_or_default();
            let group = operation.enqueue(call, &own, |group, call| group.enqueue(call));
            let known = |g: &Arc<dyn Communicator>, (other, _): &Participant| Arc::ptr_eq(g, other);
            match group.map_err(|text| failed(site, text))? {
                Some(group) if !self.groups.iter().any(|other| known(&group, other)) => {
                    self.groups.push((group, site));
                }
                _ => {}
            }
            self.open.push((position, own.event()?));
            self.next = Some(operation.next.clone());
            return Ok(());
        }
        let next = self.next.take();
        if next.is_some_and(|next| std::ptr::addr_eq(&*next, call.launch)) {
            // On the operation's stream: the run's stream waits for neither.
            let own = self.device.communication()?;
            Launch::run(call, &own)?;
            self.open.push((position, own.event()?));
            return Ok(());
        }
        // Operations end one after the other.
        let needed = |(index, _): &(u32, Arc<Event>)| call.after.contains(index);
        if let Some(last) = self.open.iter().rposition(needed) {
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

/// A run with operations, which its groups watch. It holds the lane until it has ended: no other run has its record.
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
        // Of a lost device nothing is to be waited for.
        self.device.context.activate().is_err() || self.end.has_happened()
    }

    fn fail(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
        // If it can't be written, the device has failed.
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
