//! CUDA graphs with collective operations.
//!
//! NCCL requires that all ranks capture an operation or none, and that they launch the graphs of one capture together.
//! Graphs depend on a rank's addresses and plans, so the ranks agree before each run: they launch graphs that they
//! captured together, capture new ones, or launch call by call.

use super::collective::{Collective, Group, Participant};
use super::context::Context;
use super::graph::{Calls, GRAPHS, Graph};
use super::stream::Stream;
use kiln_base::collective::{DeviceCall, DeviceGraph, Kind};
use kiln_kernel::error::{Error, Result};
use kiln_kernel::lock::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Graphs of one bound plan, by the addresses of its operations. Kernels take other addresses with each run.
#[derive(Default)]
pub(super) struct CollectiveGraphs(Mutex<List>);

#[derive(Default)]
struct List {
    /// True if the plan has run. In the first run NCCL connects the ranks, so it is launched call by call.
    has_run: bool,
    /// Most recently used last.
    graphs: Vec<Arc<CollectiveGraph>>,
    /// The number of disagreements in a row.
    disagreements: u32,
}

/// The number of disagreements in a row from which a plan is always launched call by call.
const MAX_DISAGREEMENTS: u32 = 8;

/// A run that may be launched as a graph.
pub(super) struct Run<'a> {
    pub(super) context: Context,
    pub(super) stream: &'a Stream,
    pub(super) key: Vec<u64>,
    pub(super) calls: &'a Calls<'a>,
    /// Converts the message of an operation at a site to an error.
    pub(super) failed: &'a dyn Fn(u32, String) -> Error,
}

/// The operations of a run.
struct Operations {
    group: Group,
    /// The site of the first one.
    site: u32,
    calls: Vec<DeviceCall>,
}

struct CollectiveGraph {
    context: Context,
    graph: Mutex<Option<Graph>>,
    released: AtomicBool,
    calls: Vec<DeviceCall>,
    /// The number of the agreement before the ranks captured it.
    number: u64,
}

impl CollectiveGraphs {
    /// Launches a run as a graph, if all ranks do, and returns the groups that take part.
    pub(super) fn run(&self, run: Run) -> Result<Option<Vec<Participant>>> {
        let mut list = lock(&self.0);
        let has_run = std::mem::replace(&mut list.has_run, true);
        if !has_run || list.disagreements >= MAX_DISAGREEMENTS {
            return Ok(None);
        }
        let Some(operations) = Operations::from_run(&run)? else {
            list.disagreements = MAX_DISAGREEMENTS;
            return Ok(None);
        };
        list.graphs.retain(|g| !g.released.load(Ordering::Relaxed));
        let index = list
            .graphs
            .iter()
            .rposition(|g| g.calls == operations.calls);
        let proposal = match index {
            Some(i) => format!("graph {}", list.graphs[i].number),
            None => format!("a graph of {} operations", operations.calls.len()),
        };
        let Some(number) = operations.agree(&proposal) else {
            list.disagreements += 1;
            return Ok(None);
        };
        list.disagreements = 0;
        let graph = match index {
            Some(i) => list.graphs.remove(i),
            None => {
                let captured = Stream::new(run.context)
                    .and_then(|idle| Graph::new(run.key.clone(), run.calls, Some(&idle)));
                let agreed = operations.agree(&format!("captured: {}", captured.is_ok()));
                let graph = match (captured, agreed) {
                    (Ok(graph), Some(_)) => graph,
                    (captured, _) => {
                        list.disagreements = MAX_DISAGREEMENTS;
                        let reason = captured.err().map(|e| e.to_string());
                        let reason = reason.unwrap_or_else(|| "another rank can't".into());
                        tracing::warn!("collective operations can't be captured: {reason}");
                        return Ok(None);
                    }
                };
                let excess = list.graphs.len().saturating_sub(GRAPHS - 1);
                list.graphs.drain(..excess);
                CollectiveGraph::new(&run, &operations, graph, number)
            }
        };
        list.graphs.push(graph.clone());
        graph.launch(run, operations).map(Some)
    }
}

impl Operations {
    /// The operations of a run; `None` if a graph can't contain them: messages between two ranks, operations of several
    /// groups, which would have to agree, and guarded ones, whose guards have addresses.
    fn from_run(run: &Run) -> Result<Option<Operations>> {
        let mut operations: Option<Operations> = None;
        let mut fits = true;
        (run.calls)(&mut |call| {
            let Some(operation) = Collective::of_launch(&call) else {
                return Ok(());
            };
            let site = call.sites.first().copied().unwrap_or_default();
            fits &= !call.guarded;
            let call = operation.device_call(&call, 0);
            let group = operation
                .group(&call)
                .map_err(|text| (run.failed)(site, text))?;
            fits &= !matches!(call.kind, Kind::Send(_) | Kind::Receive(_));
            let collected = operations.get_or_insert_with(|| Operations {
                group: group.clone(),
                site,
                calls: Vec::new(),
            });
            fits &= match (&collected.group, &group) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                (a, b) => a.is_none() && b.is_none(),
            };
            collected.calls.push(call);
            Ok(())
        })?;
        Ok(operations.filter(|_| fits))
    }

    /// Proposes to the other ranks. Returns the number of the agreement, if all propose the same.
    fn agree(&self, proposal: &str) -> Option<u64> {
        self.group.as_ref().map_or(Some(0), |g| g.agree(proposal))
    }
}

impl CollectiveGraph {
    fn new(run: &Run, operations: &Operations, graph: Graph, number: u64) -> Arc<CollectiveGraph> {
        let graph = Arc::new(CollectiveGraph {
            context: run.context,
            graph: Mutex::new(Some(graph)),
            released: AtomicBool::new(false),
            calls: operations.calls.clone(),
            number,
        });
        if let Some(group) = &operations.group {
            let device_graph: Arc<dyn DeviceGraph> = graph.clone();
            group.hold(Arc::downgrade(&device_graph));
        }
        graph
    }

    fn launch(&self, run: Run, operations: Operations) -> Result<Vec<Participant>> {
        let mut graph = lock(&self.graph);
        let mut launch = || {
            let graph = graph.as_mut().ok_or("communication has ended")?;
            if graph.key != run.key {
                graph
                    .rebind(run.key.clone(), run.calls)
                    .map_err(|e| e.to_string())?;
            }
            graph.launch(run.stream).map_err(|e| e.to_string())
        };
        let Operations { group, site, calls } = operations;
        let launched = match &group {
            Some(group) => group.replay(&calls, &mut launch),
            None => launch(),
        };
        if self.released.load(Ordering::SeqCst) {
            *graph = None;
        }
        launched.map_err(|text| (run.failed)(site, text))?;
        Ok(group.map(|group| (group, site)).into_iter().collect())
    }
}

impl DeviceGraph for CollectiveGraph {
    fn release(&self) {
        self.released.store(true, Ordering::SeqCst);
        let _ = self.context.activate();
        // Otherwise a launch in another thread destroys it.
        if let Ok(mut graph) = self.graph.try_lock() {
            *graph = None;
        }
    }
}
