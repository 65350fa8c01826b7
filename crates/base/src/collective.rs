//! Collective operations between the processes of a group, and the registry of groups.
//!
//! A plan holds a group's name, so a plan that communicates runs wherever a [`Communicator`] is registered under it.

use crate::DType;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, Weak};

/// A reduction of the values of all ranks.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reducer {
    /// The sum.
    Sum,
    /// The sum divided by the number of ranks, of floats.
    Mean,
    /// The largest; NaN if one is NaN. For bools, true if one is true.
    Max,
    /// The smallest; NaN if one is NaN. For bools, true if all are true.
    Min,
    /// The product.
    Product,
}

/// A collective operation. Ranks are those of its group.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// The reduction, on every rank.
    AllReduce(Reducer),
    /// The reduction on the root, and each other rank's own operand.
    Reduce(Reducer, u32),
    /// The n-th part of the reduction along the first axis, on rank n.
    ReduceScatter(Reducer),
    /// The operand of the root, on every rank.
    Broadcast(u32),
    /// The operands of all ranks, concatenated along the first axis, on every rank.
    AllGather,
    /// [`Kind::AllGather`] on the root, and nothing elsewhere.
    Gather {
        /// The root.
        root: u32,
        /// True on the root.
        here: bool,
    },
    /// The n-th part of the root's operand along the first axis, on rank n. Elsewhere the operand gives the shape.
    Scatter {
        /// The root.
        root: u32,
        /// True on the root.
        here: bool,
    },
    /// The n-th parts of all operands along the first axis, concatenated, on rank n.
    AllToAll,
    /// Passes the operand to a rank; the result is empty. It does not wait for the receiver.
    Send(u32),
    /// The message of a rank; the operand gives dtype and shape.
    Receive(u32),
    /// The operand, once every rank is here.
    Barrier,
}

impl Kind {
    /// Returns PyTorch's name.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::AllReduce(_) => "all_reduce",
            Kind::Reduce(..) => "reduce",
            Kind::ReduceScatter(_) => "reduce_scatter",
            Kind::Broadcast(_) => "broadcast",
            Kind::AllGather => "all_gather",
            Kind::Gather { .. } => "gather",
            Kind::Scatter { .. } => "scatter",
            Kind::AllToAll => "all_to_all",
            Kind::Send(_) => "send",
            Kind::Receive(_) => "recv",
            Kind::Barrier => "barrier",
        }
    }

    /// Returns the reduction in it.
    pub fn reducer(&self) -> Option<Reducer> {
        match self {
            Kind::AllReduce(r) | Kind::Reduce(r, _) | Kind::ReduceScatter(r) => Some(*r),
            _ => None,
        }
    }

    /// Returns the other rank, or the root, that it names.
    pub fn peer(&self) -> Option<u32> {
        match *self {
            Kind::Reduce(_, rank) | Kind::Broadcast(rank) => Some(rank),
            Kind::Gather { root, .. } | Kind::Scatter { root, .. } => Some(root),
            Kind::Send(rank) | Kind::Receive(rank) => Some(rank),
            _ => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match (self.reducer(), self.peer()) {
            (Some(r), Some(root)) => write!(f, "({r:?}, rank {root})"),
            (Some(r), None) => write!(f, "({r:?})"),
            (None, Some(rank)) => write!(f, "(rank {rank})"),
            (None, None) => Ok(()),
        }
    }
}

impl Reducer {
    /// Returns the reduction of contiguous operands of equal length. Sums of floats are rounded once.
    pub fn reduce(self, dtype: DType, operands: &[&[u8]]) -> Vec<u8> {
        if dtype.is_float() {
            let floats = fold(operands.iter().map(|x| dtype.floats(x)), |a, b| {
                self.float(a, b)
            });
            let scale = match self {
                Reducer::Mean => operands.len() as f64,
                _ => 1.0,
            };
            let scaled: Vec<f64> = floats.iter().map(|x| x / scale).collect();
            return dtype.float_bytes(&scaled);
        }
        let ints = fold(operands.iter().map(|x| dtype.ints(x)), |a, b| {
            self.int(a, b)
        });
        dtype.int_bytes(&ints)
    }

    fn float(self, a: f64, b: f64) -> f64 {
        match self {
            Reducer::Sum | Reducer::Mean => a + b,
            Reducer::Product => a * b,
            Reducer::Max | Reducer::Min if a.is_nan() || b.is_nan() => f64::NAN,
            Reducer::Max => a.max(b),
            Reducer::Min => a.min(b),
        }
    }

    fn int(self, a: i64, b: i64) -> i64 {
        match self {
            Reducer::Sum | Reducer::Mean => a.wrapping_add(b),
            Reducer::Product => a.wrapping_mul(b),
            Reducer::Max => a.max(b),
            Reducer::Min => a.min(b),
        }
    }
}

/// Combines equally long vectors element by element.
fn fold<T: Copy>(vectors: impl Iterator<Item = Vec<T>>, f: impl Fn(T, T) -> T) -> Vec<T> {
    let combined = vectors.reduce(|mut a, b| {
        a.iter_mut().zip(b).for_each(|(a, b)| *a = f(*a, b));
        a
    });
    combined.unwrap_or_default()
}

/// One rank's part in a collective operation.
#[derive(Debug)]
pub struct Call<'a> {
    /// The operation.
    pub kind: Kind,
    /// The dtype of operand and result.
    pub dtype: DType,
    /// The contiguous operand.
    pub input: &'a [u8],
    /// The number of bytes of the contiguous result.
    pub output: usize,
}

/// An operation that goes on until its result is waited for. Results are waited for in the order of starting.
pub trait Request: Send {
    /// Waits for the result and writes it to `output`, which has the size that the call named.
    ///
    /// # Errors
    /// Names the ranks that did not come, or that came with another operation.
    fn wait(self: Box<Self>, output: &mut [u8]) -> Result<(), String>;
}

/// One rank's part in a collective operation on a GPU. Operand and result are contiguous, in the GPU's memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DeviceCall {
    /// The operation.
    pub kind: Kind,
    /// The dtype of operand and result.
    pub dtype: DType,
    /// The address of the operand, and its bytes.
    pub input: (u64, usize),
    /// The address of the result, and its bytes.
    pub output: (u64, usize),
    /// The handle of the stream that it is enqueued on.
    pub stream: usize,
}

/// A run on a GPU that takes part in collective operations.
pub trait DeviceRun: Send + Sync {
    /// True if its work has ended.
    fn has_ended(&self) -> bool;

    /// Makes it a failed run: it ends with an error, and changes no parameter.
    fn fail(&self);
}

/// A graph of a GPU's work, with captured operations.
pub trait DeviceGraph: Send + Sync {
    /// Destroys it. Launches in progress continue.
    fn release(&self);
}

/// A group of ranks, seen from one of them. Its calls come in the same order on every rank. A group on the CPU has
/// [`Communicator::start`], one on GPUs [`Communicator::enqueue`].
pub trait Communicator: Send + Sync {
    /// Returns this process's rank in the group.
    fn rank(&self) -> usize;

    /// Returns the number of ranks.
    fn ranks(&self) -> usize;

    /// Starts this rank's part in a collective operation. The operand is read before this returns.
    ///
    /// # Errors
    /// If communication has ended.
    fn start(&self, call: Call<'_>) -> Result<Box<dyn Request>, String> {
        Err(format!(
            "{}: the group communicates between GPUs, and the operand is on the CPU",
            call.kind
        ))
    }

    /// Returns the number of the GPU that the rank computes on; `None` if it is the CPU.
    fn gpu(&self) -> Option<u32> {
        None
    }

    /// Enqueues this rank's part in a collective operation. The GPU's context is current.
    ///
    /// # Errors
    /// If communication has ended.
    fn enqueue(&self, call: &DeviceCall) -> Result<(), String> {
        Err(format!(
            "{}: the group communicates on the CPU, and the operand is on a GPU",
            call.kind
        ))
    }

    /// Proposes how all ranks issue the operations that follow. If all of them make the same proposal before the same
    /// operation, returns the number of that operation.
    fn agree(&self, proposal: &str) -> Option<u64> {
        let _ = proposal;
        None
    }

    /// Adds this rank's part in a collective operation to the graph that the stream captures.
    ///
    /// # Errors
    /// If communication has ended, or operations can't be captured.
    fn capture(&self, call: &DeviceCall) -> Result<(), String> {
        Err(format!("{}: the group has no graphs", call.kind))
    }

    /// Begins captured operations; `launch` launches their graph.
    ///
    /// # Errors
    /// If communication has ended, and the error of `launch`.
    fn replay(
        &self,
        calls: &[DeviceCall],
        launch: &mut dyn FnMut() -> Result<(), String>,
    ) -> Result<(), String> {
        let _ = calls;
        launch()
    }

    /// Lets the group release a graph with its operations before communication ends.
    fn hold(&self, graph: Weak<dyn DeviceGraph>) {
        let _ = graph;
    }

    /// Watches over a run that has enqueued operations: if they fail, the run does.
    fn watch(&self, run: Arc<dyn DeviceRun>) {
        let _ = run;
    }

    /// Returns the fault that has ended communication.
    fn fault(&self) -> Option<String> {
        None
    }
}

static GROUPS: RwLock<BTreeMap<String, Arc<dyn Communicator>>> = RwLock::new(BTreeMap::new());

/// Registers a group, or replaces the group of the same name.
pub fn register(name: &str, group: Arc<dyn Communicator>) {
    let mut groups = GROUPS.write().unwrap_or_else(PoisonError::into_inner);
    groups.insert(name.into(), group);
}

/// Removes a group.
pub fn unregister(name: &str) {
    let mut groups = GROUPS.write().unwrap_or_else(PoisonError::into_inner);
    groups.remove(name);
}

/// Returns the group of this name.
///
/// # Errors
/// If there is none.
pub fn find(name: &str) -> Result<Arc<dyn Communicator>, String> {
    let groups = GROUPS.read().unwrap_or_else(PoisonError::into_inner);
    groups.get(name).cloned().ok_or_else(|| {
        format!("there is no process group `{name}`; call `init_process_group` first")
    })
}

/// Starts a collective operation of a group that must have so many ranks.
///
/// # Errors
/// As [`find`] and [`Communicator::start`], or if sizes or ranks are not those of the kind.
pub fn start(name: &str, ranks: u32, call: Call<'_>) -> Result<Box<dyn Request>, String> {
    let group = find(name)?;
    check(
        &*group,
        name,
        ranks,
        call.kind,
        call.input.len(),
        call.output,
    )?;
    group.start(call)
}

/// Returns the group of a collective operation on a GPU; it must have so many ranks.
///
/// # Errors
/// As [`find`], or if sizes or ranks are not those of the kind.
pub fn group_of(
    name: &str,
    ranks: u32,
    call: &DeviceCall,
) -> Result<Arc<dyn Communicator>, String> {
    let group = find(name)?;
    check(&*group, name, ranks, call.kind, call.input.1, call.output.1)?;
    Ok(group)
}

/// Checks that the operands and results of a call have sizes that are legal in this group.
fn check(
    group: &dyn Communicator,
    name: &str,
    ranks: u32,
    kind: Kind,
    operand: usize,
    result: usize,
) -> Result<(), String> {
    if group.ranks() != ranks as usize {
        return Err(format!(
            "the program was recorded for {ranks} ranks, and the group `{name}` has {}",
            group.ranks()
        ));
    }
    let n = group.ranks();
    let fits = match kind {
        Kind::AllGather | Kind::Gather { here: true, .. } => operand.checked_mul(n) == Some(result),
        Kind::ReduceScatter(_) | Kind::Scatter { here: true, .. } => {
            result.checked_mul(n) == Some(operand)
        }
        Kind::AllToAll => result == operand && operand.is_multiple_of(n),
        Kind::Gather { here: false, .. } | Kind::Send(_) => result == 0,
        _ => result == operand,
    };
    let is_placed = match kind {
        Kind::Gather { root, here } | Kind::Scatter { root, here } => {
            here == (root as usize == group.rank())
        }
        _ => true,
    };
    if !fits || !is_placed || kind.peer().is_some_and(|peer| peer >= ranks) {
        return Err(format!(
            "{kind} was recorded for another rank or for other sizes"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rank 1 of 2.
    struct Second;
    impl Communicator for Second {
        fn rank(&self) -> usize {
            1
        }

        fn ranks(&self) -> usize {
            2
        }

        fn start(&self, _: Call<'_>) -> Result<Box<dyn Request>, String> {
            Ok(Box::new(Second))
        }
    }
    impl Request for Second {
        fn wait(self: Box<Self>, _: &mut [u8]) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn calls_of_other_ranks_or_sizes_are_refused() {
        register("second", Arc::new(Second));
        let fits = |kind, input: usize, output: usize| {
            let call = Call {
                kind,
                dtype: DType::F32,
                input: &vec![0; input],
                output,
            };
            start("second", 2, call).is_ok()
        };
        let gather = |here| Kind::Gather { root: 1, here };
        assert!(fits(Kind::AllReduce(Reducer::Sum), 8, 8));
        assert!(!fits(Kind::AllReduce(Reducer::Sum), 8, 4));
        assert!(fits(Kind::AllGather, 8, 16) && !fits(Kind::AllGather, 8, 8));
        assert!(fits(gather(true), 8, 16) && !fits(gather(false), 8, 0));
        assert!(fits(Kind::Broadcast(1), 8, 8) && !fits(Kind::Broadcast(2), 8, 8));
        assert!(!fits(Kind::AllToAll, 9, 9));
        unregister("second");
    }
}
