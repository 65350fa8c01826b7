//! Kernels with known sizes, and launching them: one by one, or as a graph that was captured before.

use super::device::{Device, lock};
use super::driver::{Address, Driver, Handle};
use super::memory::Memory;
use super::stream::{Lane, Stream};
use crate::error::{Error, Result, damaged};
use crate::memory::Storage;
use kiln_base::cuda::{CudaKernel, ErrorRecord};
use kiln_base::plan::{Kernel, Plan};
use smallvec::SmallVec;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

/// A kernel with known sizes.
pub(crate) struct Launch {
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    scalars: Vec<i64>,
    sites: usize,
    writes: Vec<bool>,
}

/// The most blocks along x, y and z.
const GRID: [i64; 3] = [i32::MAX as i64, 65535, 65535];

impl Launch {
    fn new(kernel: &CudaKernel, function: Handle, values: &[i64]) -> Result<Launch> {
        let mut grid = [0; 3];
        for (i, blocks) in kernel.grid.iter().enumerate() {
            let points = blocks.points.eval_checked(values).filter(|p| *p >= 0);
            let count = points.map(|p| (p as u64).div_ceil(u64::from(blocks.each.max(1))) as i64);
            let count = count.filter(|n| *n <= GRID[i]);
            grid[i] =
                count.ok_or_else(|| damaged!("{}: a grid of too many blocks", kernel.name))? as u32;
        }
        let scalars = kernel.scalars.iter().map(|d| {
            let value = d.eval_checked(values);
            value.ok_or_else(|| damaged!("{}: {d} has no value", kernel.name))
        });
        Ok(Launch {
            function,
            grid,
            block: kernel.block,
            shared: kernel.shared,
            sites: kernel.sites as usize,
            writes: kernel.args.iter().map(|a| a.written).collect(),
            scalars: scalars.collect::<Result<_>>()?,
        })
    }

    /// Which arguments it writes.
    pub(crate) fn writes(&self) -> impl Iterator<Item = bool> {
        self.writes.iter().copied()
    }

    /// Every kernel of a plan, linked for these sizes.
    pub(crate) fn all(device: &Device, plan: &Plan, values: &[i64]) -> Result<Vec<Arc<Launch>>> {
        let kernels = cuda_kernels(plan)?;
        let linked = kernels.iter().zip(device.functions(&kernels)?);
        linked
            .map(|(k, f)| Ok(Arc::new(Launch::new(k, f, values)?)))
            .collect()
    }
}

fn cuda_kernels(plan: &Plan) -> Result<Vec<&CudaKernel>> {
    let kernels = plan.kernels.iter().map(|k| match k {
        Kernel::Cuda(k) => Ok(k),
        other => Err(damaged!(
            "{} is a CPU kernel in a plan for a GPU",
            other.name()
        )),
    });
    kernels.collect()
}

impl Device {
    /// Compiles or loads every kernel of a plan.
    pub(crate) fn prepare(&self, plan: &Plan) -> Result<()> {
        self.functions(&cuda_kernels(plan)?).map(drop)
    }
}

/// A launch and what it is called with.
pub(crate) struct Call<'a> {
    pub(crate) launch: &'a Launch,
    pub(crate) args: SmallVec<[*mut u8; 12]>,
    /// The plan's numbers of its sites, at least as many as the kernel has.
    pub(crate) sites: &'a [u32],
    /// Whether an error before leaves out its effect.
    pub(crate) guarded: bool,
}

impl Call<'_> {
    /// Gives the launch to a stream.
    fn launch(&self, driver: &Driver, stream: &Stream, record: Address) -> Result<()> {
        let l = self.launch;
        if l.grid.contains(&0) {
            return Ok(());
        }
        // Every parameter in 8 bytes; the narrow ones are read from the low end.
        let mut words: SmallVec<[u64; 24]> = SmallVec::new();
        words.extend(self.args.iter().map(|p| *p as u64));
        words.extend(l.scalars.iter().map(|s| *s as u64));
        words.extend(self.sites[..l.sites].iter().map(|s| u64::from(*s)));
        words.push(record);
        words.push(u64::from(self.guarded));
        let mut parameters: SmallVec<[*mut c_void; 24]> =
            words.iter_mut().map(|w| (&raw mut *w).cast()).collect();
        let ([gx, gy, gz], [bx, by, bz]) = (l.grid, l.block);
        // SAFETY: the function is loaded and takes these parameters, which the driver copies; the
        // plan's check and its binding say that the memory behind the pointers is large enough.
        let status = unsafe {
            (driver.functions.launch)(
                l.function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                l.shared,
                stream.handle(),
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        driver.check("cuLaunchKernel", status)
    }
}

/// Graphs of one bound plan, by the addresses it was run with. Memory comes from a pool, so that the
/// same addresses come back in a loop; a graph is captured when they do.
#[derive(Default)]
pub(crate) struct Graphs(Mutex<GraphList>);

#[derive(Default)]
struct GraphList {
    /// Most recently used last.
    captured: Vec<(Vec<u64>, Graph)>,
    /// Addresses of earlier runs without a graph.
    seen: Vec<Vec<u64>>,
}

/// Graphs kept of a bound plan.
const GRAPHS: usize = 4;
/// Addresses remembered of a bound plan.
const SEEN: usize = 8;
const CAPTURE_THREAD_LOCAL: i32 = 1;

/// A graph that can be launched.
struct Graph {
    driver: &'static Driver,
    handle: Handle,
}

impl Graph {
    fn capture(device: &Device, lane: &Lane, calls: &[Call]) -> Result<Graph> {
        let (driver, stream) = (device.driver, &lane.stream);
        let f = &driver.functions;
        let (mut graph, mut handle) = (Handle::NULL, Handle::NULL);
        // SAFETY: the stream is alive; what this thread gives to it until the end is only recorded.
        let status = unsafe { (f.stream_capture)(stream.handle(), CAPTURE_THREAD_LOCAL) };
        driver.check("cuStreamBeginCapture", status)?;
        let launched = calls
            .iter()
            .try_for_each(|c| c.launch(driver, stream, lane.record()));
        // SAFETY: the capture began above, and the place is writable.
        let status = unsafe { (f.stream_captured)(stream.handle(), &mut graph) };
        launched?;
        driver.check("cuStreamEndCapture", status)?;
        // SAFETY: the graph was just captured and is not used after.
        let status = unsafe {
            let status = (f.graph_instantiate)(&mut handle, graph, 0);
            (f.graph_destroy)(graph);
            status
        };
        driver.check("cuGraphInstantiate", status)?;
        Ok(Graph { driver, handle })
    }

    fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: graph and stream are alive.
        let status = unsafe { (self.driver.functions.graph_launch)(self.handle, stream.handle()) };
        self.driver.check("cuGraphLaunch", status)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: nobody holds the graph; launches that are under way go on.
        unsafe { (self.driver.functions.graph_exec_destroy)(self.handle) };
    }
}

/// A part of a plan being run on a device.
pub(crate) struct Session {
    device: Arc<Device>,
    lane: Option<Lane>,
}

impl Session {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Session> {
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
    pub(crate) fn allocate(&self, bytes: usize, what: &Arc<str>) -> Result<Storage> {
        let memory = Memory::new(&self.device, bytes, &self.lane()?.stream, what)?;
        Ok(Storage::on_gpu(memory, bytes))
    }

    /// Runs calls that read and write this memory. Those that can fail are waited for, and give the
    /// data error they recorded.
    pub(crate) fn run(
        mut self,
        calls: &[Call],
        graphs: Option<&Graphs>,
        read: &[&Storage],
        written: &[&Storage],
    ) -> Result<Option<ErrorRecord>> {
        let enqueued = self.enqueue(calls, graphs, read, written);
        let can_fail = calls.iter().any(|c| c.launch.sites > 0);
        let lane = self.lane()?;
        if let Err(e) = enqueued {
            // Nothing of this run may go on behind the caller's back. The lane is not used again.
            let _ = lane.stream.synchronize();
            self.lane = None;
            return Err(e);
        }
        fn memories<'a>(list: &'a [&Storage]) -> impl Iterator<Item = &'a Memory> {
            list.iter().filter_map(|s| s.gpu())
        }
        if can_fail {
            let failure = lane.failure()?;
            memories(read)
                .chain(memories(written))
                .for_each(|m| m.settled(&lane.stream));
            return Ok(failure);
        }
        let event = lane.stream.event()?;
        memories(read).for_each(|m| m.used(&event, false));
        memories(written).for_each(|m| m.used(&event, true));
        Ok(None)
    }

    fn enqueue(
        &self,
        calls: &[Call],
        graphs: Option<&Graphs>,
        read: &[&Storage],
        written: &[&Storage],
    ) -> Result<()> {
        let lane = self.lane()?;
        for memory in read.iter().filter_map(|s| s.gpu()) {
            memory.before_reading(&lane.stream)?;
        }
        for memory in written.iter().filter_map(|s| s.gpu()) {
            memory.before_writing(&lane.stream)?;
        }
        let one_by_one = || {
            calls
                .iter()
                .try_for_each(|c| c.launch(self.device.driver, &lane.stream, lane.record()))
        };
        match graphs.filter(|_| self.device.graphs() && calls.len() > 1) {
            Some(graphs) => graphs.run(&self.device, lane, calls, one_by_one),
            None => one_by_one(),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take() {
            lock(&self.device.lanes).push(lane);
        }
    }
}

impl Graphs {
    fn run(
        &self,
        device: &Device,
        lane: &Lane,
        calls: &[Call],
        one_by_one: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let addresses = calls.iter().flat_map(|c| c.args.iter().map(|p| *p as u64));
        let addresses: Vec<u64> = addresses.chain([lane.record()]).collect();
        let mut list = lock(&self.0);
        if let Some(at) = list.captured.iter().position(|(a, _)| *a == addresses) {
            let entry = list.captured.remove(at);
            let launched = entry.1.launch(&lane.stream);
            list.captured.push(entry);
            return launched;
        }
        let Some(at) = list.seen.iter().position(|a| *a == addresses) else {
            if list.seen.len() >= SEEN {
                list.seen.remove(0);
            }
            list.seen.push(addresses);
            drop(list);
            return one_by_one();
        };
        list.seen.remove(at);
        let graph = Graph::capture(device, lane, calls)?;
        let launched = graph.launch(&lane.stream);
        if list.captured.len() >= GRAPHS {
            list.captured.remove(0);
        }
        list.captured.push((addresses, graph));
        launched
    }
}
