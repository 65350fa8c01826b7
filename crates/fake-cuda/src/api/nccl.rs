//! NCCL, in the same library: a test names it by `KILN_NCCL`.

use crate::abi::Out;
use crate::driver::driver;
use crate::graph::{GraphNode, expand};
use crate::nccl::{
    Call, Comm, Elements, INVALID_ARGUMENT, INVALID_USAGE, Kind, Message, RankCall, op,
};
use crate::status::{Failure, failure};
use crate::work::Node;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::sync::atomic::{AtomicU64, Ordering};

/// `ncclUniqueId`
#[repr(C)]
pub struct UniqueId {
    id: u64,
    rest: [u8; 120],
}

/// Messages between `ncclGroupStart` and `ncclGroupEnd`.
#[derive(Default)]
struct Group {
    depth: usize,
    parts: Vec<(RankCall, usize)>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
    /// The text that `ncclGetLastError` has returned.
    static LAST: RefCell<CString> = RefCell::default();
}

fn enqueue(mut call: RankCall, stream: usize) -> Result<(), Failure> {
    let driver = driver();
    let stream = driver.stream(stream)?;
    let captures = driver.state().stream(stream)?.capture.is_some();
    if captures && driver.config.no_capture == Some(call.comm.rank) {
        return Err(failure(INVALID_USAGE, "operations can't be captured"));
    }
    match captures {
        true => call.captured = Some(call.comm.capture()),
        false => call.comm.uses(stream),
    }
    driver.submit(stream, Node::Nccl(call))
}

/// Ends a communicator, unless graphs hold its operations: NCCL would wait for their end.
fn end(handle: usize, abort: bool) -> Result<(), Failure> {
    let comm = Comm::find(handle)?;
    let state = driver().state();
    let mut graphs =
        (state.graphs.values()).chain(state.executables.values().map(|nodes| &**nodes));
    let holds = |node: &GraphNode| matches!(&node.node, Node::Nccl(call) if call.comm.is(&comm));
    if graphs.any(|nodes| expand(nodes).iter().any(holds)) {
        return Err(failure(INVALID_USAGE, "graphs hold its operations"));
    }
    drop(state);
    Comm::end(handle, abort)
}

fn collective(
    kind: Kind,
    elements: Result<Elements, Failure>,
    [input, output]: [u64; 2],
    comm: usize,
    stream: usize,
) -> Result<(), Failure> {
    let comm = Comm::find(comm)?;
    if let Kind::Reduce(_, root) | Kind::Broadcast(root) = kind
        && root >= comm.ranks()
    {
        return Err(failure(INVALID_ARGUMENT, format!("root {root}")));
    }
    let elements = elements?;
    enqueue(
        RankCall {
            comm,
            call: Call::Collective {
                kind,
                of: elements,
                input,
                output,
            },
            captured: None,
        },
        stream,
    )
}

fn message(
    address: u64,
    elements: Result<Elements, Failure>,
    peer: c_int,
    (comm, stream): (usize, usize),
    sends: bool,
) -> Result<(), Failure> {
    let comm = Comm::find(comm)?;
    let peer = usize::try_from(peer).ok().filter(|p| *p < comm.ranks());
    let message = Message {
        peer: peer.ok_or(INVALID_ARGUMENT)?,
        at: address,
        of: elements?,
    };
    let (sent, received) = match sends {
        true => (vec![message], Vec::new()),
        false => (Vec::new(), vec![message]),
    };
    let rank_call = RankCall {
        comm,
        call: Call::Messages { sent, received },
        captured: None,
    };
    let alone = GROUP.with_borrow_mut(|group| match group.depth {
        0 => Some(rank_call),
        _ => {
            group.parts.push((rank_call, stream));
            None
        }
    });
    alone.map_or(Ok(()), |rank_call| enqueue(rank_call, stream))
}

exports! {
    fn ncclGetVersion(version: Out<c_int>) {
        version.set(22_800)
    }

    fn ncclGetUniqueId(id: Out<UniqueId>) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        id.set(UniqueId { id: NEXT.fetch_add(1, Ordering::Relaxed), rest: [0; 120] })
    }

    fn ncclCommInitRank(comm: Out<usize>, ranks: c_int, id: UniqueId, rank: c_int) {
        let device = driver().current_device()?;
        comm.set(Comm::join(id.id, ranks as usize, rank as usize, device)?)
    }

    fn ncclCommDestroy(comm: usize) {
        end(comm, false)
    }

    fn ncclCommAbort(comm: usize) {
        end(comm, true)
    }

    fn ncclCommGetAsyncError(comm: usize, status: Out<c_int>) {
        status.set(if Comm::find(comm)?.error().is_some() { INVALID_USAGE } else { 0 })
    }

    fn ncclAllReduce(input: u64, output: u64, count: usize, dtype: c_int, reduction: c_int, comm: usize, stream: usize) {
        collective(Kind::AllReduce(op(reduction)?), Elements::new(count, dtype), [input, output], comm, stream)
    }

    fn ncclReduce(input: u64, output: u64, count: usize, dtype: c_int, reduction: c_int, root: c_int, comm: usize, stream: usize) {
        let kind = Kind::Reduce(op(reduction)?, root as usize);
        collective(kind, Elements::new(count, dtype), [input, output], comm, stream)
    }

    fn ncclReduceScatter(input: u64, output: u64, count: usize, dtype: c_int, reduction: c_int, comm: usize, stream: usize) {
        collective(Kind::ReduceScatter(op(reduction)?), Elements::new(count, dtype), [input, output], comm, stream)
    }

    fn ncclBroadcast(input: u64, output: u64, count: usize, dtype: c_int, root: c_int, comm: usize, stream: usize) {
        collective(Kind::Broadcast(root as usize), Elements::new(count, dtype), [input, output], comm, stream)
    }

    fn ncclAllGather(input: u64, output: u64, count: usize, dtype: c_int, comm: usize, stream: usize) {
        collective(Kind::AllGather, Elements::new(count, dtype), [input, output], comm, stream)
    }

    fn ncclSend(input: u64, count: usize, dtype: c_int, peer: c_int, comm: usize, stream: usize) {
        message(input, Elements::new(count, dtype), peer, (comm, stream), true)
    }

    fn ncclRecv(output: u64, count: usize, dtype: c_int, peer: c_int, comm: usize, stream: usize) {
        message(output, Elements::new(count, dtype), peer, (comm, stream), false)
    }

    fn ncclGroupStart() {
        GROUP.with_borrow_mut(|group| group.depth += 1);
        Ok(())
    }

    fn ncclGroupEnd() {
        let calls = GROUP.with_borrow_mut(|group| {
            group.depth = group.depth.checked_sub(1).ok_or(INVALID_USAGE)?;
            match group.depth {
                0 => Ok(std::mem::take(&mut group.parts)),
                _ => Ok::<_, Failure>(Vec::new()),
            }
        })?;
        // The messages of a group are of one communicator and stream.
        let mut calls = calls.into_iter();
        let Some((mut all, stream)) = calls.next() else {
            return Ok(());
        };
        for (call, _) in calls {
            let (Call::Messages { sent, received }, Call::Messages { sent: more, received: others }) =
                (&mut all.call, call.call)
            else {
                return Err(INVALID_USAGE.into());
            };
            sent.extend(more);
            received.extend(others);
        }
        enqueue(all, stream)
    }
}

/// The text of the last error of a communicator.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(comm: usize) -> *const c_char {
    let text = Comm::find(comm)
        .ok()
        .and_then(|c| c.error())
        .unwrap_or_default();
    LAST.with_borrow_mut(|last| {
        *last = CString::new(text).unwrap_or_default();
        last.as_ptr()
    })
}

/// The name of a status.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(status: c_int) -> *const c_char {
    let text = match status {
        0 => c"no error",
        1 => c"unhandled cuda error",
        2 => c"unhandled system error",
        3 => c"internal error",
        4 => c"invalid argument",
        5 => c"invalid usage",
        _ => c"unknown result code",
    };
    text.as_ptr()
}
