//! CUDA graphs: the launches of a bound plan, given to the device at once.

use super::collective::Collective;
use super::collective_graph::CollectiveGraphs;
use super::cublaslt::LibraryLaunch;
use super::driver::{Object, call, sys};
use super::launch::{Launch, Words};
use super::stream::Stream;
use kiln_kernel::calls::LaunchCall;
use kiln_kernel::error::{Error, Result};
use kiln_kernel::lock::lock;
use smallvec::SmallVec;
use std::ptr::null_mut;
use std::sync::Mutex;

/// Graphs of one bound plan, by the addresses it was run with.
///
/// Memory comes from a pool, so the same addresses recur in a loop, and a run with addresses of an earlier one is a
/// graph replay. For other addresses, the least recently used graph is updated. The first run is launched kernel by
/// kernel, since building a graph pays from the second run on.
#[derive(Default)]
pub struct Graphs {
    list: Mutex<List>,
    /// The graphs of a plan with collective operations, instead of the list.
    pub(super) collective: CollectiveGraphs,
}

#[derive(Default)]
struct List {
    /// True if the plan has run.
    has_run: bool,
    /// Most recently used last.
    graphs: Vec<Graph>,
}

/// The maximum number of graphs that are kept for a bound plan.
pub(super) const GRAPHS: usize = 4;

/// Passes the calls of a run to a function, in order.
pub(super) type Calls<'a> = dyn Fn(&mut dyn FnMut(LaunchCall) -> Result<()>) -> Result<()> + 'a;

impl Graphs {
    /// Runs calls whose addresses are all determined by those of `key`.
    pub(super) fn run(&self, stream: &Stream, key: Vec<u64>, calls: &Calls) -> Result<()> {
        let mut list = lock(&self.list);
        if !std::mem::replace(&mut list.has_run, true) {
            drop(list);
            return calls(&mut |call| Launch::run(&call, stream));
        }
        let index = list.graphs.iter().position(|g| g.key == key);
        let graph = match index {
            Some(i) => list.graphs.remove(i),
            None if list.graphs.len() < GRAPHS => Graph::new(key, calls, None)?,
            None => {
                let mut graph = list.graphs.remove(0);
                graph.rebind(key, calls)?;
                graph
            }
        };
        let launched = graph.launch(stream);
        list.graphs.push(graph);
        launched
    }
}

/// The addresses of a library's call.
fn addresses(call: &LaunchCall) -> Words {
    call.args.iter().map(|p| *p as u64).collect()
}

/// A graph that can be launched: its kernels, each after those that it waits for.
pub struct Graph {
    graph: Object<sys::CUgraph_st>,
    executable: Object<sys::CUgraphExec_st>,
    pub(super) key: Vec<u64>,
    nodes: Vec<Node>,
}

struct Node {
    handle: Object<sys::CUgraphNode_st>,
    /// The parameters of a kernel.
    words: Words,
}

impl Graph {
    /// Builds a graph; its collective operations are captured on a stream that is otherwise idle.
    pub(super) fn new(key: Vec<u64>, calls: &Calls, stream: Option<&Stream>) -> Result<Graph> {
        let mut result = Graph {
            graph: Object(null_mut()),
            executable: Object(null_mut()),
            key,
            nodes: Vec::new(),
        };
        // SAFETY: the pointer is to writable memory.
        unsafe { call!(cuGraphCreate(&mut result.graph.0, 0)) }?;
        calls(&mut |call| result.add(&call, stream))?;
        // SAFETY: the graph is alive and the pointer is to writable memory.
        unsafe {
            call!(cuGraphInstantiateWithFlags(
                &mut result.executable.0,
                result.graph.0,
                0
            ))
        }?;
        Ok(result)
    }

    /// Adds a launch after those that it waits for.
    fn add(&mut self, call: &LaunchCall, stream: Option<&Stream>) -> Result<()> {
        let (graph, mut handle, mut words) = (self.graph.0, Object(null_mut()), Words::new());
        let mut after = call.after.clone();
        after.sort_unstable();
        after.dedup();
        let dependences = after.iter().map(|i| self.nodes[*i as usize].handle.0);
        let dependences: SmallVec<[sys::CUgraphNode; 4]> = dependences.collect();
        let (count, before) = (dependences.len(), dependences.as_ptr());
        let child = if let (Some(operation), Some(stream)) = (Collective::of_launch(call), stream) {
            Some(stream.capture(|| {
                let issued = operation.enqueue(call, stream, |group, call| group.capture(call));
                issued.map(drop).map_err(Error::Cuda)
            })?)
        } else if let Some(library) = LibraryLaunch::of_call(call) {
            words = addresses(call);
            Some(library.capture_graph(&call.args)?)
        } else {
            None
        };
        let out = &mut handle.0;
        if let Some(child) = child {
            let child = child.graph();
            // SAFETY: both graphs and the nodes before are alive; the driver copies the child.
            unsafe { call!(cuGraphAddChildGraphNode(out, graph, before, count, child)) }?;
        } else {
            let launch = Launch::of_call(call)?;
            words = launch.words(call)?;
            launch.node(&mut words, |node| {
                // SAFETY: the graph and the nodes before are alive; the driver copies the parameters, which fit the
                // function as in a launch.
                unsafe { call!(cuGraphAddKernelNode_v2(out, graph, before, count, node)) }
            })?;
        }
        self.nodes.push(Node { handle, words });
        Ok(())
    }

    /// Updates the parameters of the graph's kernels to those of these calls, which differ in addresses alone.
    /// Collective operations keep theirs.
    pub(super) fn rebind(&mut self, key: Vec<u64>, calls: &Calls) -> Result<()> {
        let executable = self.executable.0;
        let mut nodes = self.nodes.iter_mut();
        calls(&mut |call| {
            let node = nodes.next();
            let node = node.ok_or_else(|| Error::Internal("a run of more launches".into()))?;
            if Collective::of_launch(&call).is_some() {
                return Ok(());
            }
            if let Some(library) = LibraryLaunch::of_call(&call) {
                let (words, handle) = (addresses(&call), node.handle.0);
                if words == node.words {
                    return Ok(());
                }
                node.words = words;
                let child = library.capture_graph(&call.args)?;
                // SAFETY: all are alive, and the child's nodes are those of the one before.
                let set = unsafe {
                    call!(cuGraphExecChildGraphNodeSetParams(
                        executable,
                        handle,
                        child.graph()
                    ))
                };
                return Ok(set?);
            }
            let launch = Launch::of_call(&call)?;
            let words = launch.words(&call)?;
            if words == node.words {
                return Ok(());
            }
            node.words = words;
            let handle = node.handle.0;
            let set = launch.node(&mut node.words, |node| {
                // SAFETY: as for adding; launches in progress keep their parameters.
                unsafe { call!(cuGraphExecKernelNodeSetParams_v2(executable, handle, node)) }
            });
            Ok(set?)
        })?;
        self.key = key;
        Ok(())
    }

    pub(super) fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: graph and stream are alive.
        Ok(unsafe { call!(cuGraphLaunch(self.executable.0, stream.handle())) }?)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: nobody holds the graph; launches in progress continue.
        unsafe {
            if !self.executable.0.is_null() {
                let _ = call!(cuGraphExecDestroy(self.executable.0));
            }
            if !self.graph.0.is_null() {
                let _ = call!(cuGraphDestroy(self.graph.0));
            }
        }
    }
}
