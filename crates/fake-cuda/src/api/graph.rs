//! CUDA graphs.

use super::launch::kernel_node;
use crate::abi::{In, KernelNodeParams, Out};
use crate::driver::driver;
use crate::graph::{GraphNode, GraphRun};
use crate::status::{Failure, INVALID_HANDLE, INVALID_VALUE, failure};
use crate::work::{Node, Work};
use std::ffi::c_uint;
use std::mem::discriminant;
use std::sync::Arc;

/// Adds a node to a graph, after the nodes that it depends on.
fn add(
    out: Out<usize>,
    graph: usize,
    dependencies: In<usize>,
    count: usize,
    node: Node,
) -> Result<(), Failure> {
    let mut state = driver().state();
    let handle = state.new_handle();
    let graph = state.graphs.get_mut(&graph).ok_or(INVALID_HANDLE)?;
    // Handles ascend.
    let position = |target: usize| graph.binary_search_by_key(&target, |n| n.handle).ok();
    let after = dependencies.get_array(count)?.into_iter().map(position);
    let after: Option<Vec<usize>> = after.collect();
    let mut after = after.ok_or(INVALID_VALUE)?;
    after.sort_unstable();
    if after.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(failure(
            INVALID_VALUE,
            "a node that depends on another twice",
        ));
    }
    graph.push(GraphNode {
        handle,
        node,
        after,
    });
    out.set(handle)
}

/// Replaces a node of an executable graph by one of the same kind.
fn replace(executable: usize, handle: usize, new: Node) -> Result<(), Failure> {
    let mut state = driver().state();
    let nodes = state
        .executables
        .get_mut(&executable)
        .ok_or(INVALID_HANDLE)?;
    // Launches that are queued keep the old node.
    let nodes = Arc::make_mut(nodes);
    let old = nodes.iter_mut().find(|n| n.handle == handle);
    let node = &mut old.ok_or(INVALID_HANDLE)?.node;
    let alike = match (&*node, &new) {
        (Node::Graph(a), Node::Graph(b)) => same_shape(a, b),
        _ => discriminant(node) == discriminant(&new),
    };
    if !alike {
        return Err(INVALID_VALUE.into());
    }
    *node = new;
    Ok(())
}

/// True if graphs differ in the parameters of their nodes alone.
fn same_shape(a: &[GraphNode], b: &[GraphNode]) -> bool {
    let alike = |(a, b): (&GraphNode, &GraphNode)| {
        discriminant(&a.node) == discriminant(&b.node) && a.after == b.after
    };
    a.len() == b.len() && a.iter().zip(b).all(alike)
}

/// A node with a copy of a graph.
fn child_node(graph: usize) -> Result<Node, Failure> {
    let state = driver().state();
    let graph = state.graphs.get(&graph).ok_or(INVALID_HANDLE)?;
    Ok(Node::Graph(Arc::new(graph.clone())))
}

exports! {
    fn cuGraphCreate(graph: Out<usize>, _flags: c_uint) {
        let mut state = driver().state();
        let handle = state.new_handle();
        state.graphs.insert(handle, Vec::new());
        graph.set(handle)
    }

    fn cuGraphDestroy(graph: usize) {
        driver().state().graphs.remove(&graph).map(drop).ok_or_else(|| INVALID_HANDLE.into())
    }

    fn cuGraphAddKernelNode_v2(
        node: Out<usize>,
        graph: usize,
        dependencies: In<usize>,
        count: usize,
        params: In<KernelNodeParams>,
    ) {
        let kernel = kernel_node(&params.get()?)?;
        add(node, graph, dependencies, count, Node::Kernel(kernel))
    }

    fn cuGraphAddChildGraphNode(
        node: Out<usize>,
        graph: usize,
        dependencies: In<usize>,
        count: usize,
        child: usize,
    ) {
        let child = child_node(child)?;
        add(node, graph, dependencies, count, child)
    }

    fn cuGraphInstantiateWithFlags(executable: Out<usize>, graph: usize, _flags: u64) {
        let mut state = driver().state();
        let nodes = state.graphs.get(&graph).ok_or(INVALID_HANDLE)?.clone();
        let handle = state.new_handle();
        state.executables.insert(handle, Arc::new(nodes));
        executable.set(handle)
    }

    fn cuGraphLaunch(executable: usize, stream: usize) {
        let driver = driver();
        let stream = driver.stream(stream)?;
        let work = {
            let mut state = driver.state();
            let nodes = state.executables.get(&executable).ok_or(INVALID_HANDLE)?.clone();
            state.counters.graphs += 1;
            let seed = driver.config.options.seed ^ state.counters.graphs;
            let run = GraphRun::new(&nodes, seed);
            run.operations().for_each(|call| call.comm.uses(stream));
            Work::Graph(Arc::new(run))
        };
        driver.enqueue(stream, work)
    }

    fn cuGraphExecDestroy(executable: usize) {
        driver().state().executables.remove(&executable).map(drop).ok_or_else(|| INVALID_HANDLE.into())
    }

    fn cuGraphExecKernelNodeSetParams_v2(
        executable: usize,
        node: usize,
        params: In<KernelNodeParams>,
    ) {
        let kernel = kernel_node(&params.get()?)?;
        replace(executable, node, Node::Kernel(kernel))
    }

    fn cuGraphExecChildGraphNodeSetParams(executable: usize, node: usize, child: usize) {
        replace(executable, node, child_node(child)?)
    }
}
