//! NCCL: groups of ranks that compute on GPUs.
//!
//! An operation is enqueued on a stream and returns at once. So a thread of each group ([`watch`]) looks whether it
//! comes to its end: it tells the store which operations this rank has begun, and learns of those of the others. A rank
//! that does not come in time, that has ended, or that calls something else, is a fault. The runs with operations that
//! have not ended fail, and NCCL's communicator is aborted, so that the GPU goes on.

mod api;
mod watch;

use crate::rendezvous::{Assignment, Rendezvous};
use crate::transport::{Joined, MAX_TIMEOUT, Transport};
use api::{Api, UniqueId};
use kiln_base::collective::Communicator;
use kiln_runtime::cuda::{self, Device};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use watch::Member;

/// NCCL, with all ranks of the world connected.
pub(crate) struct Nccl {
    rendezvous: Arc<Rendezvous>,
    device: Arc<Device>,
    rank_and_size: (usize, usize),
    timeout: Duration,
    is_process: bool,
    /// The groups that were made.
    members: Mutex<Vec<Arc<Member>>>,
}

/// The only rank of a world on a GPU, which needs no library.
struct Alone(u32);

impl Communicator for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> usize {
        1
    }

    fn gpu(&self) -> Option<u32> {
        Some(self.0)
    }
}

impl Transport for Alone {
    fn subgroup(&self, _: &[usize], _: usize) -> Result<Arc<dyn Communicator>, String> {
        Ok(Arc::new(Alone(self.0)))
    }

    fn is_process(&self) -> bool {
        true
    }
}

/// Connects the ranks of a world; `gpu` is the number of this rank's device. Returns the world's group.
///
/// # Errors
/// If there is no such device or no NCCL, or a rank does not come.
pub(crate) fn init(
    assignment: &Assignment,
    gpu: Option<u32>,
    timeout: Duration,
    is_process: bool,
) -> Result<Joined, String> {
    let count = cuda::count().map_err(|e| e.to_string())?;
    let usual = match assignment.local {
        // Each process sees its own device alone.
        Some(_) if count == 1 => 0,
        Some(local) => local as u32,
        None => (assignment.rank % count.max(1) as usize) as u32,
    };
    let device = Device::get(gpu.unwrap_or(usual)).map_err(|e| e.to_string())?;
    if assignment.ranks == 1 {
        let alone = Arc::new(Alone(device.ordinal()));
        return Ok((alone.clone(), alone));
    }
    let timeout = timeout.min(MAX_TIMEOUT);
    let nccl = Nccl {
        // Who has no library says so before others wait.
        rendezvous: Api::get()
            .and_then(|_| assignment.meet(timeout))
            .map(Arc::new)?,
        device,
        rank_and_size: (assignment.rank, assignment.ranks),
        timeout,
        is_process,
        members: Mutex::default(),
    };
    let all_ranks: Vec<usize> = (0..assignment.ranks).collect();
    let world = nccl.subgroup(&all_ranks, 0)?;
    Ok((world, Arc::new(nccl)))
}

impl Transport for Nccl {
    fn subgroup(&self, ranks: &[usize], number: usize) -> Result<Arc<dyn Communicator>, String> {
        let this_rank = self.rank_and_size.0;
        let rank = ranks.iter().position(|r| *r == this_rank);
        let rank = rank.ok_or("this rank is not in the group")?;
        let (api, store) = (Api::get()?, &self.rendezvous.store);
        let key = format!("nccl {number}");
        // Inside of NCCL, waiting for the others has no timeout.
        store.meet(&format!("{key} begins"), ranks, self.timeout)?;
        let id = match rank {
            0 => {
                let id = api.unique_id()?;
                store.set(&key, &id.0)?;
                id
            }
            _ => {
                let id = store.get(&key, self.timeout)?;
                let id = id.and_then(|id| id.try_into().ok()).map(UniqueId);
                id.ok_or_else(|| format!("rank {} did not begin the group", ranks[0]))?
            }
        };
        self.device.activate().map_err(|e| e.to_string())?;
        let comm = api.join(id, ranks.len(), rank)?;
        let gpu = self.device.ordinal();
        let member = Member::new(
            api,
            comm,
            gpu,
            store.reconnect()?,
            (key, rank, ranks),
            self.timeout,
        )?;
        self.members().push(member.clone());
        Ok(member)
    }

    fn close(&self) -> Result<(), String> {
        let all_ranks: Vec<usize> = (0..self.rank_and_size.1).collect();
        let store = &self.rendezvous.store;
        store.meet("destroy_process_group", &all_ranks, self.timeout)?;
        let members = std::mem::take(&mut *self.members());
        let closed = members.iter().try_for_each(|member| member.close());
        closed.and(self.rendezvous.end())
    }

    fn is_process(&self) -> bool {
        self.is_process
    }
}

impl Nccl {
    fn members(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Member>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Nccl {
    /// Ends the threads.
    fn drop(&mut self) {
        self.members().iter().for_each(|member| member.stop());
    }
}
