//! CUDA graphs: what a bound plan launches, given to the device at once.

use super::driver::{Driver, Handle};
use super::launch::{Call, Words};
use super::stream::Stream;
use crate::error::{Error, Result};
use crate::lock::lock;
use smallvec::SmallVec;
use std::sync::Mutex;

/// Graphs of one bound plan, by the addresses it was run with.
///
/// Memory comes from a pool, so that the same addresses come back in a loop: a run with addresses of
/// an earlier one is a launch. Where others come, the graph that was not used for longest is given
/// them. The first run is launched kernel by kernel, since making a graph pays with the second.
#[derive(Default)]
pub(crate) struct Graphs(Mutex<List>);

#[derive(Default)]
struct List {
    /// Whether the plan was run.
    ran: bool,
    /// Most recently used last.
    made: Vec<Graph>,
}

/// Graphs kept of a bound plan.
const GRAPHS: usize = 4;

/// Gives the calls of a run, in order.
pub(super) type Calls<'a> = dyn Fn(&mut dyn FnMut(Call) -> Result<()>) -> Result<()> + 'a;

impl Graphs {
    /// Runs calls whose addresses all follow from those of `key`.
    pub(super) fn run(
        &self,
        driver: &'static Driver,
        stream: &Stream,
        key: Vec<u64>,
        calls: &Calls,
    ) -> Result<()> {
        let mut list = lock(&self.0);
        if !std::mem::replace(&mut list.ran, true) {
            drop(list);
            return calls(&mut |call| call.launch(driver, stream));
        }
        let known = list.made.iter().position(|g| g.key == key);
        let graph = match known {
            Some(at) => list.made.remove(at),
            None if list.made.len() < GRAPHS => Graph::new(driver, key, calls)?,
            None => {
                let mut graph = list.made.remove(0);
                graph.rebind(key, calls)?;
                graph
            }
        };
        let launched = graph.launch(stream);
        list.made.push(graph);
        launched
    }
}

/// A graph that can be launched: its kernels, each behind those that it waits for.
pub(crate) struct Graph {
    driver: &'static Driver,
    graph: Handle,
    executable: Handle,
    key: Vec<u64>,
    nodes: Vec<Node>,
}

struct Node {
    handle: Handle,
    words: Words,
}

impl Graph {
    pub(super) fn new(driver: &'static Driver, key: Vec<u64>, calls: &Calls) -> Result<Graph> {
        let f = &driver.functions;
        let mut made = Graph {
            driver,
            graph: Handle::NULL,
            executable: Handle::NULL,
            key,
            nodes: Vec::new(),
        };
        // SAFETY: the place is writable.
        let status = unsafe { (f.graph_create)(&mut made.graph, 0) };
        driver.check("cuGraphCreate", status)?;
        calls(&mut |call| made.add(&call))?;
        // SAFETY: the graph is alive and the place writable.
        let status = unsafe { (f.graph_instantiate)(&mut made.executable, made.graph, 0) };
        driver.check("cuGraphInstantiate", status)?;
        Ok(made)
    }

    /// Adds a launch behind those that it waits for.
    fn add(&mut self, call: &Call) -> Result<()> {
        let add = self.driver.functions.graph_add_kernel;
        let (graph, mut handle, mut words) = (self.graph, Handle::NULL, call.words());
        let mut after = call.after.clone();
        after.sort_unstable();
        after.dedup();
        let before = after.iter().map(|at| self.nodes[*at as usize].handle);
        let before: SmallVec<[Handle; 4]> = before.collect();
        let status = call.node(&mut words, |node| {
            // SAFETY: graph and nodes before are alive; the driver copies the parameters, which fit the
            // function as in a launch.
            unsafe { add(&mut handle, graph, before.as_ptr(), before.len(), node) }
        });
        self.driver.check("cuGraphAddKernelNode", status)?;
        self.nodes.push(Node { handle, words });
        Ok(())
    }

    /// Gives the graph's kernels the parameters of these calls, which differ in addresses alone.
    fn rebind(&mut self, key: Vec<u64>, calls: &Calls) -> Result<()> {
        let set = self.driver.functions.graph_set_kernel;
        let (driver, executable) = (self.driver, self.executable);
        let mut nodes = self.nodes.iter_mut();
        calls(&mut |call| {
            let node = nodes.next();
            let node = node.ok_or_else(|| Error::Internal("a run of more launches".into()))?;
            let words = call.words();
            if words == node.words {
                return Ok(());
            }
            node.words = words;
            let handle = node.handle;
            let status = call.node(&mut node.words, |node| {
                // SAFETY: as for adding; launches that are under way keep what they were given.
                unsafe { set(executable, handle, node) }
            });
            driver.check("cuGraphExecKernelNodeSetParams", status)
        })?;
        self.key = key;
        Ok(())
    }

    pub(super) fn launch(&self, stream: &Stream) -> Result<()> {
        let launch = self.driver.functions.graph_launch;
        // SAFETY: graph and stream are alive.
        let status = unsafe { launch(self.executable, stream.handle()) };
        self.driver.check("cuGraphLaunch", status)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let f = &self.driver.functions;
        // SAFETY: nobody holds the graph; launches that are under way go on.
        unsafe {
            if self.executable != Handle::NULL {
                (f.graph_exec_destroy)(self.executable);
            }
            if self.graph != Handle::NULL {
                (f.graph_destroy)(self.graph);
            }
        }
    }
}
