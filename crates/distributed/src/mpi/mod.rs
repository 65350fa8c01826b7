//! MPI through the standard ABI of MPI 5.

mod engine;
mod library;
mod operations;
mod port;
mod reduction;

use crate::transport::Transport;
use engine::{Engine, Membership};
use kiln_base::collective::{Call, Communicator, Request};
use library::Api;
use port::{Port, Reply};
use std::env;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use library::find;
pub use library::folder;

/// Variables by which launchers tell a process that it is one of several.
const LAUNCHERS: [&str; 4] = [
    "PMI_RANK",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "SLURM_PROCID",
];

/// Variables by which launchers tell a process how many there are: `mpiexec`'s, and then those of `srun`, which starts
/// the helpers of an `mpiexec` too.
const SIZES: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"];

/// True if `mpiexec` or `srun` started this process.
pub(crate) fn launched() -> bool {
    LAUNCHERS.iter().any(|name| env::var_os(name).is_some())
}

/// Initialises MPI; returns the world's group.
///
/// # Errors
/// If there is no fitting library, or the launcher's processes are no world of it.
pub(crate) fn init(timeout: Duration) -> Result<(Arc<dyn Communicator>, Mpi), String> {
    let api = Api::open(&find()?)?;
    let (port, world) = Engine::start(api, timeout)?;
    let started = SIZES.iter().find_map(|name| env::var(name).ok());
    if let Some(started) = started.and_then(|n| n.parse::<usize>().ok())
        && started != world.ranks
    {
        // The error below is the cause.
        let _ = port.close();
        return Err(format!(
            "the launcher started {started} processes, of which this MPI sees {}: start them with the `mpiexec` of {}, \
             or by `srun --mpi` with a PMI that it knows",
            world.ranks,
            find()?.display()
        ));
    }
    let mpi = Mpi { port: port.clone() };
    Ok((
        Arc::new(Member {
            port,
            member: world,
        }),
        mpi,
    ))
}

/// MPI, initialised.
pub(crate) struct Mpi {
    port: Port,
}

/// A communicator of MPI's.
struct Member {
    port: Port,
    member: Membership,
}

impl Transport for Mpi {
    fn subgroup(&self, ranks: &[usize], number: usize) -> Result<Arc<dyn Communicator>, String> {
        let ranks = ranks.to_vec();
        let member = self
            .port
            .ask(move |engine| engine.subgroup(&ranks, number))?;
        Ok(Arc::new(Member {
            port: self.port.clone(),
            member,
        }))
    }

    fn close(&self) -> Result<(), String> {
        self.port.close()
    }

    fn is_process(&self) -> bool {
        true
    }
}

impl Communicator for Member {
    fn rank(&self) -> usize {
        self.member.rank
    }

    fn ranks(&self) -> usize {
        self.member.ranks
    }

    fn start(&self, call: Call<'_>) -> Result<Box<dyn Request>, String> {
        let Call {
            kind,
            dtype,
            input,
            output,
        } = call;
        let group = self.member.group;
        // MPI works on memory of its own: after a fault it may still hold on to it.
        let input = input.to_vec();
        let reply =
            (self.port).post(move |engine| engine.run(group, kind, dtype, input, output))?;
        Ok(Box::new(reply))
    }
}

impl Request for Reply<Vec<u8>> {
    fn wait(self: Box<Self>, output: &mut [u8]) -> Result<(), String> {
        output.copy_from_slice(&Reply::wait(*self)?);
        Ok(())
    }
}
