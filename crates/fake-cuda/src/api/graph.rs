//! CUDA graphs.

use super::launch::kernel_node;
use crate::abi::{Arguments, In, KernelNodeParams, Memcpy3d, MemcpySide, MemsetNodeParams, Out};
use crate::driver::{Graph, driver};
use crate::graph::{GraphNode, GraphRun};
use crate::status::{Failure, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, failure};
use crate::work::{CopyEnd, Node, Work};
use std::ffi::{c_int, c_uint, c_void};
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
    let position = |of: usize| graph.nodes.binary_search_by_key(&of, |n| n.handle).ok();
    let after = dependencies.several(count)?.into_iter().map(position);
    let after: Option<Vec<usize>> = after.collect();
    let mut after = after.ok_or(INVALID_VALUE)?;
    after.sort_unstable();
    if after.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(failure(
            INVALID_VALUE,
            "a node that depends on another twice",
        ));
    }
    graph.nodes.push(GraphNode {
        handle,
        node,
        after,
    });
    out.set(handle)
}

/// Calls `with` on the node of any graph that has this handle.
fn with_node<T>(
    handle: usize,
    with: impl FnOnce(&mut Node) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut state = driver().state();
    let nodes = state.graphs.values_mut().flat_map(|g| &mut g.nodes);
    let found = nodes.into_iter().find(|n| n.handle == handle);
    with(&mut found.ok_or(INVALID_HANDLE)?.node)
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
    let found = nodes.iter_mut().find(|n| n.handle == handle);
    let node = &mut found.ok_or(INVALID_HANDLE)?.node;
    let alike = match (&*node, &new) {
        (Node::Graph(a), Node::Graph(b)) => same_shape(a, b),
        _ => kind(node) == kind(&new),
    };
    if !alike {
        return Err(INVALID_VALUE.into());
    }
    *node = new;
    Ok(())
}

/// True if graphs differ in the parameters of their nodes alone.
fn same_shape(a: &[GraphNode], b: &[GraphNode]) -> bool {
    let alike =
        |(a, b): (&GraphNode, &GraphNode)| kind(&a.node) == kind(&b.node) && a.after == b.after;
    a.len() == b.len() && a.iter().zip(b).all(alike)
}

/// The node's `CUgraphNodeType`.
fn kind(node: &Node) -> c_int {
    match node {
        Node::Kernel(_) => 0,
        Node::Copy { .. } => 1,
        Node::Fill { .. } => 2,
        Node::Host(_) => 3,
        Node::Graph(_) => 4,
        // A kernel of the library's own, whose parameters nobody knows.
        Node::Product(_) => 0,
        Node::Empty => 5,
        // A kernel of NCCL's.
        Node::Nccl(_) => 0,
    }
}

/// A node with a copy of a graph.
fn child_node(graph: usize) -> Result<Node, Failure> {
    let state = driver().state();
    let graph = state.graphs.get(&graph).ok_or(INVALID_HANDLE)?;
    Ok(Node::Graph(Arc::new(graph.nodes.clone())))
}

fn fill(params: In<MemsetNodeParams>) -> Result<Node, Failure> {
    let p = params.get()?;
    if p.height > 1 || !matches!(p.element, 1 | 2 | 4) {
        return Err(failure(NOT_SUPPORTED, "memset nodes of more than one row"));
    }
    Ok(Node::Fill {
        to: p.dst,
        value: p.value,
        element: p.element as usize,
        count: p.width,
    })
}

fn copy(params: In<Memcpy3d>) -> Result<Node, Failure> {
    let p = params.get()?;
    if p.height > 1 || p.depth > 1 {
        return Err(failure(NOT_SUPPORTED, "memcpy nodes of more than one row"));
    }
    let end = |side: &MemcpySide| match side.kind {
        1 => Ok(CopyEnd::Host(side.host + side.x)),
        2 => Ok(CopyEnd::Device(side.device + side.x as u64)),
        4 => Ok(CopyEnd::Device(side.device + side.x as u64)),
        _ => Err(failure(NOT_SUPPORTED, "memcpy nodes of arrays")),
    };
    Ok(Node::Copy {
        to: end(&p.dst)?,
        from: end(&p.src)?,
        len: p.width,
    })
}

fn instantiate(out: Out<usize>, graph: usize) -> Result<(), Failure> {
    let mut state = driver().state();
    let nodes = state
        .graphs
        .get(&graph)
        .ok_or(INVALID_HANDLE)?
        .nodes
        .clone();
    let handle = state.new_handle();
    state.executables.insert(handle, Arc::new(nodes));
    out.set(handle)
}

exports! {
    fn cuGraphCreate(graph: Out<usize>, _flags: c_uint) {
        let mut state = driver().state();
        let handle = state.new_handle();
        state.graphs.insert(handle, Graph::default());
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

    fn cuGraphAddMemcpyNode(
        node: Out<usize>,
        graph: usize,
        dependencies: In<usize>,
        count: usize,
        params: In<Memcpy3d>,
        _context: usize,
    ) {
        add(node, graph, dependencies, count, copy(params)?)
    }

    fn cuGraphAddMemsetNode(
        node: Out<usize>,
        graph: usize,
        dependencies: In<usize>,
        count: usize,
        params: In<MemsetNodeParams>,
        _context: usize,
    ) {
        add(node, graph, dependencies, count, fill(params)?)
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

    fn cuGraphAddEmptyNode(
        node: Out<usize>,
        graph: usize,
        dependencies: In<usize>,
        count: usize,
    ) {
        add(node, graph, dependencies, count, Node::Empty)
    }

    fn cuGraphGetNodes(graph: usize, nodes: Out<usize>, count: Out<usize>) {
        let state = driver().state();
        let graph = state.graphs.get(&graph).ok_or(INVALID_HANDLE)?;
        if nodes.pointer().is_null() {
            return count.set(graph.nodes.len());
        }
        // SAFETY: the caller passes room for the number of nodes in `count`.
        let room = unsafe { count.pointer().read() };
        let written = room.min(graph.nodes.len());
        for (i, node) in graph.nodes.iter().take(written).enumerate() {
            // SAFETY: as above.
            unsafe { nodes.pointer().add(i).write(node.handle) };
        }
        count.set(written)
    }

    fn cuGraphNodeGetType(node: usize, out: Out<c_int>) {
        let kind = with_node(node, |node| Ok(kind(node)))?;
        out.set(kind)
    }

    fn cuGraphKernelNodeGetParams_v2(node: usize, out: Out<KernelNodeParams>) {
        let params = with_node(node, |node| match node {
            Node::Kernel(k) => Ok(KernelNodeParams {
                func: k.function,
                grid: k.grid,
                block: k.block,
                shared: k.shared,
                // The arguments are bytes here, without an array of pointers to them.
                params: Arguments(std::ptr::null_mut()),
                extra: std::ptr::null_mut(),
                kern: 0,
                ctx: 0,
            }),
            _ => Err(INVALID_VALUE.into()),
        })?;
        out.set(params)
    }

    fn cuGraphKernelNodeSetParams_v2(node: usize, params: In<KernelNodeParams>) {
        let kernel = kernel_node(&params.get()?)?;
        with_node(node, |node| {
            if kind(node) != 0 {
                return Err(INVALID_VALUE.into());
            }
            *node = Node::Kernel(kernel);
            Ok(())
        })
    }

    fn cuGraphInstantiateWithFlags(executable: Out<usize>, graph: usize, _flags: u64) {
        instantiate(executable, graph)
    }

    fn cuGraphInstantiateWithParams(executable: Out<usize>, graph: usize, _params: *mut c_void) {
        instantiate(executable, graph)
    }

    fn cuGraphUpload(executable: usize, _stream: usize) {
        let state = driver().state();
        state.executables.get(&executable).map(drop).ok_or_else(|| INVALID_HANDLE.into())
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
            run.operations().for_each(|part| part.comm.uses(stream));
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

    fn cuGraphExecMemcpyNodeSetParams(
        executable: usize,
        node: usize,
        params: In<Memcpy3d>,
        _context: usize,
    ) {
        replace(executable, node, copy(params)?)
    }

    fn cuGraphExecMemsetNodeSetParams(
        executable: usize,
        node: usize,
        params: In<MemsetNodeParams>,
        _context: usize,
    ) {
        replace(executable, node, fill(params)?)
    }

    fn cuGraphExecUpdate_v2(executable: usize, graph: usize, _result: *mut c_void) {
        let mut state = driver().state();
        let nodes = state.graphs.get(&graph).ok_or(INVALID_HANDLE)?.nodes.clone();
        let old = state.executables.get_mut(&executable).ok_or(INVALID_HANDLE)?;
        if !same_shape(old, &nodes) {
            // CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
            return Err(910.into());
        }
        // The executable keeps the handles of the graph that it was instantiated from.
        let kept = old.iter().map(|n| n.handle);
        *old = Arc::new(nodes.into_iter().zip(kept).map(|(n, handle)| GraphNode { handle, ..n }).collect());
        Ok(())
    }
}
