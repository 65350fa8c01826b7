//! Executes the nodes of streams and graphs on the emulated device.

use crate::driver::Driver;
use crate::graph::{GraphNode, GraphRun, RunState, Set};
use crate::nccl::RankCall;
use crate::status::LAUNCH_FAILED;
use crate::work::{Broken, CopyEnd, KernelNode, Node, illegal};
use kiln_gpu_emulator::{Launch, Trail};
use std::sync::PoisonError;
use std::time::Instant;

impl Node {
    /// Runs the node on a device at the time `ready` or later. Returns its end time, or `None` if it must wait for
    /// other ranks. The caller holds the engine's lock.
    pub fn execute(
        &self,
        driver: &Driver,
        device: usize,
        ready: f64,
    ) -> Result<Option<f64>, Broken> {
        let name = match self {
            Node::Nccl(part) => return driver.meet(part, ready),
            Node::Kernel(node) => node.kernel.name(),
            Node::Copy { .. } => "copy",
            Node::Fill { .. } => "fill",
            Node::Product(_) => "cublaslt",
            Node::Graph(_) => "",
        };
        match self {
            Node::Kernel(node) => node.execute(driver, false).map(drop),
            Node::Copy { to, from, len } => copy(driver, to, from, *len),
            Node::Fill { to, value, count } => {
                let filled = driver.memory.fill(*to, &[*value], *count);
                filled.map_err(illegal)
            }
            Node::Product(product) => {
                driver.state().spent += driver.config.product_time;
                product.execute(&driver.memory).map_err(illegal)
            }
            // Graphs are expanded when they are launched.
            Node::Nccl(_) | Node::Graph(_) => Ok(()),
        }?;
        Ok(Some(match name {
            "" => ready,
            name => driver.spend(device, ready, name),
        }))
    }
}

impl KernelNode {
    /// Runs the kernel; returns its accesses to memory if `traced`.
    pub fn execute(&self, driver: &Driver, traced: bool) -> Result<Trail, Broken> {
        if !driver.config.executes {
            return Ok(Trail::default());
        }
        let launch = Launch {
            kernel: &self.kernel,
            grid: self.grid,
            block: self.block,
            dynamic_shared: self.shared,
            parameters: &self.parameters,
            options: driver.config.options,
        };
        let start = Instant::now();
        let ran = match traced {
            true => launch.traced(&driver.memory),
            false => launch.run(&driver.memory).map(|s| (s, Trail::default())),
        };
        let (statistics, trail) = ran.map_err(|fault| *fault)?;
        driver.count(&statistics);
        if driver.config.print_statistics {
            let seconds = start.elapsed().as_secs_f64();
            eprintln!(
                "[fake cuda] {} grid {:?} block {:?}: {} instructions, {:.1} M/s, {:.1} ms",
                self.kernel.name(),
                self.grid,
                self.block,
                statistics.instructions,
                statistics.instructions as f64 / seconds / 1e6,
                seconds * 1e3
            );
        }
        Ok(trail)
    }
}

fn copy(driver: &Driver, to: &CopyEnd, from: &CopyEnd, len: usize) -> Result<(), Broken> {
    if len == 0 {
        return Ok(());
    }
    for host in [to, from] {
        if let CopyEnd::Host(address) = host {
            driver.check_host(*address, len).map_err(illegal)?;
        }
    }
    // SAFETY: host memory stays valid until the copy is over, and no one writes it meanwhile, as CUDA requires of the
    // program. Pinned memory was checked above.
    let source = |address: usize| unsafe { std::slice::from_raw_parts(address as *const u8, len) };
    // SAFETY: as above; no one reads the destination meanwhile either.
    let host = |address: usize| unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) };
    match (to, from) {
        (CopyEnd::Device(to), CopyEnd::Device(from)) => driver.memory.copy(*to, *from, len),
        (CopyEnd::Device(to), CopyEnd::Host(from)) => driver.memory.write(*to, source(*from)),
        (CopyEnd::Device(to), CopyEnd::Bytes(from)) => driver.memory.write(*to, from),
        (CopyEnd::Host(to), CopyEnd::Device(from)) => driver.memory.read(*from, host(*to)),
        (CopyEnd::Host(to), CopyEnd::Host(from)) => {
            // SAFETY: as above; the ranges may overlap.
            unsafe { std::ptr::copy(*from as *const u8, *to as *mut u8, len) };
            Ok(())
        }
        (CopyEnd::Host(to), CopyEnd::Bytes(from)) => {
            host(*to).copy_from_slice(from);
            Ok(())
        }
        (CopyEnd::Bytes(_), _) => unreachable!("copies go to memory"),
    }
    .map_err(illegal)
}

impl GraphRun {
    /// Runs every ready node on a device, from the time `from` on. Returns the graph's end time, or `None` if the other
    /// nodes wait for other ranks. The caller holds the engine's lock.
    pub fn advance(
        &self,
        driver: &Driver,
        device: usize,
        from: f64,
    ) -> Result<Option<f64>, Broken> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        state.ready.append(&mut state.waiting);
        while !state.ready.is_empty() {
            let drawn = match driver.config.costs {
                Some(_) => self.earliest(state),
                None => state.draw(),
            };
            let index = state.ready.swap_remove(drawn);
            let (node, ready) = (&self.nodes[index].node, from.max(state.times[index]));
            let (end, trail) = match (node, &self.before) {
                (Node::Nccl(part), before) => {
                    if let (Some(before), false) = (before, part.has_begun()) {
                        self.check_order(index, part, before)?;
                    }
                    let Some(end_time) = driver.meet(part, ready)? else {
                        state.waiting.push(index);
                        // With simulated time, the end of this collective decides which node comes next.
                        if driver.config.costs.is_some() {
                            return Ok(None);
                        }
                        continue;
                    };
                    let trail = before.as_ref().map(|_| part.trail(&driver.memory));
                    (end_time, trail.unwrap_or_default())
                }
                (node, before) => {
                    let start = ready.max(state.free);
                    let (end, trail) = match (node, before) {
                        (Node::Kernel(kernel), Some(_)) => {
                            let trail = kernel.execute(driver, true)?;
                            (driver.spend(device, start, kernel.kernel.name()), trail)
                        }
                        _ => {
                            let end = node.execute(driver, device, start)?;
                            let trail = match (node, before) {
                                (Node::Product(product), Some(_)) => product.trail(&driver.memory),
                                _ => Trail::default(),
                            };
                            (end.unwrap_or(start), trail)
                        }
                    };
                    state.free = end;
                    (end, trail)
                }
            };
            if let Some(before) = &self.before {
                let trails = state.trails.iter();
                for (other, their) in trails.filter(|(other, _)| !before[index].contains(*other)) {
                    let conflict = trail.meets(their);
                    conflict.map_or(Ok(()), |conflict| {
                        Err(race(&self.nodes[index], &self.nodes[*other], &conflict))
                    })?;
                }
                state.trails.push((index, trail));
            }
            state.end = state.end.max(end);
            for &successor in &self.next[index] {
                state.times[successor] = state.times[successor].max(end);
                state.open[successor] -= 1;
                if state.open[successor] == 0 {
                    state.ready.push(successor);
                }
            }
        }
        Ok(state.waiting.is_empty().then_some(state.end.max(from)))
    }

    /// Returns the index into the ready nodes of an NCCL call, or else of the node that became ready first.
    fn earliest(&self, state: &RunState) -> usize {
        let key = |index: &usize| match &self.nodes[*index].node {
            Node::Nccl(_) => (-1.0, *index),
            _ => (state.times[*index], *index),
        };
        let positions = 0..state.ready.len();
        let earliest = positions.min_by(|a, b| {
            let (a, b) = (key(&state.ready[*a]), key(&state.ready[*b]));
            a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
        });
        earliest.unwrap_or_default()
    }

    /// A fault if an operation of the same communicator is not ordered with this one: ranks could run them in different
    /// orders.
    fn check_order(&self, index: usize, part: &RankCall, before: &[Set]) -> Result<(), Broken> {
        let unordered = |(other, node): &(usize, &GraphNode)| match &node.node {
            Node::Nccl(theirs) => {
                *other != index
                    && theirs.comm.is(&part.comm)
                    && !before[index].contains(*other)
                    && !before[*other].contains(index)
            }
            _ => false,
        };
        match self.nodes.iter().enumerate().find(unordered) {
            Some((_, other)) => Err(Broken {
                status: LAUNCH_FAILED,
                text: format!(
                    "the operations {} and {} of a graph are unordered",
                    name(&self.nodes[index]),
                    name(other)
                ),
            }),
            None => Ok(()),
        }
    }
}

fn name(of: &GraphNode) -> String {
    match &of.node {
        Node::Kernel(k) => k.kernel.name().to_string(),
        Node::Nccl(part) => part.to_string(),
        Node::Product(_) => "cublaslt".into(),
        _ => String::new(),
    }
}

fn race(a: &GraphNode, b: &GraphNode, conflict: &str) -> Broken {
    let (a, b) = (name(a), name(b));
    Broken {
        status: LAUNCH_FAILED,
        text: format!("{a} and {b} of a graph are unordered; {a} {conflict}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cublaslt::{Algorithm, Layout, Operation, Problem, Product};
    use crate::driver::driver;

    /// Runs two products of 2x2 matrices with a leading dimension of 3 in a graph: the first writes at `written`, the
    /// second reads at `read`.
    fn run(read: u64, written: u64, after: &[usize]) -> Result<Option<f64>, String> {
        let layout = Layout {
            kind: 0,
            rows: 2,
            columns: 2,
            leading: 3,
            count: 1,
            stride: 0,
        };
        let problem = Problem {
            operation: Operation {
                compute: 68,
                scale: 0,
                transposed: [false; 2],
            },
            layouts: [layout; 4],
        };
        let memory = &driver().memory;
        let own = memory.allocate(20);
        let product = |at: [u64; 2], after: &[usize]| GraphNode {
            handle: 0,
            node: Node::Product(Box::new(Product {
                problem,
                algorithm: Algorithm::default(),
                memory: [at[0], at[0], at[1], at[1]],
                workspace: 0,
            })),
            after: after.to_vec(),
        };
        let input = memory.allocate(20);
        memory.write(input, &[0; 20]).unwrap();
        let nodes = [product([input, written], &[]), product([read, own], after)];
        let ran = GraphRun::new(&nodes, 1).advance(driver(), 0, 0.0);
        ran.map_err(|broken| broken.text)
    }

    #[test]
    fn products_that_meet_are_a_fault_unless_one_depends_on_the_other() {
        let memory = &driver().memory;
        let shared = memory.allocate(64);
        memory.write(shared, &[0; 64]).unwrap();
        let error = run(shared, shared, &[]).unwrap_err();
        assert!(error.contains("cublaslt"), "{error}");
        assert!(error.contains("are unordered"), "{error}");
        assert_eq!(run(shared, shared, &[0]), Ok(Some(0.0)));
        // Disjoint; then interleaved: the first column read lies between the columns written.
        assert_eq!(run(shared + 20, shared, &[]), Ok(Some(0.0)));
        let between = run(shared + 8, shared, &[]).unwrap_err();
        assert!(between.contains("are unordered"), "{between}");
    }
}
