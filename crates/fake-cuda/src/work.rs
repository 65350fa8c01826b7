//! The work that streams and graphs execute.

use crate::cublaslt::Product;
use crate::driver::Driver;
use crate::graph::{GraphRun, Nodes};
use crate::nccl::RankCall;
use crate::status::{ILLEGAL_ADDRESS, LAUNCH_FAILED, LAUNCH_TIMEOUT, MISALIGNED_ADDRESS, Status};
use kiln_gpu_emulator::{Fault, FaultKind, Kernel, Launch, Program, Trail};
use std::sync::Arc;
use std::time::Instant;

/// A kernel with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct KernelNode {
    pub kernel: Arc<Kernel>,
    /// Keeps the global variables alive.
    pub _program: Arc<Program>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub parameters: Vec<u8>,
}

/// One end of a copy.
#[derive(Clone, Debug)]
pub(crate) enum CopyEnd {
    Device(u64),
    Host(usize),
    /// The contents of pageable memory when the copy was submitted.
    Bytes(Arc<[u8]>),
}

/// An operation that a stream or a graph may hold.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    Kernel(KernelNode),
    Copy {
        to: CopyEnd,
        from: CopyEnd,
        len: usize,
    },
    Fill {
        to: u64,
        value: u8,
        count: usize,
    },
    /// A rank's part in an operation of NCCL.
    Nccl(RankCall),
    /// A graph within a graph.
    Graph(Nodes),
    /// A product of cuBLASLt.
    Product(Box<Product>),
}

/// An item of a stream's queue.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Node(Node),
    Graph(Arc<GraphRun>),
    Free(u64),
    /// An event and the number of its recording.
    Record(usize, u64),
    Wait(usize, u64),
}

/// A fault: the status that the driver reports, and a description.
pub(crate) struct Broken {
    pub status: Status,
    pub text: String,
}

impl From<Fault> for Broken {
    fn from(fault: Fault) -> Broken {
        let status = match fault.kind {
            FaultKind::OutOfBounds => ILLEGAL_ADDRESS,
            FaultKind::Misaligned => MISALIGNED_ADDRESS,
            FaultKind::Endless | FaultKind::Deadlock => LAUNCH_TIMEOUT,
            _ => LAUNCH_FAILED,
        };
        Broken {
            status,
            text: fault.to_string(),
        }
    }
}

pub(crate) fn illegal(text: impl ToString) -> Broken {
    Broken {
        status: ILLEGAL_ADDRESS,
        text: text.to_string(),
    }
}

impl Node {
    /// Executes the operation on a device. Returns the time at which it ends, if it is ready at this one; `None` if it
    /// is to be tried again, since it waits for other ranks. The caller holds the engine's lock.
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
    // SAFETY: memory of the host that a program passes stays valid until the copy is over; pinned memory was
    // checked above.
    let host = |address: usize| unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) };
    match (to, from) {
        (CopyEnd::Device(to), CopyEnd::Device(from)) => driver.memory.copy(*to, *from, len),
        (CopyEnd::Device(to), CopyEnd::Host(from)) => driver.memory.write(*to, host(*from)),
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
