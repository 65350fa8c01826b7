//! The functions of NCCL, opened at run time.

use kiln_base::DType;
use kiln_base::collective::{DeviceCall, Kind, Reducer};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// `ncclComm_t`
pub(super) type Handle = *mut c_void;
type Stream = *mut c_void;
/// An address in a GPU's memory.
type Address = u64;
/// `ncclResult_t`; 0 is success.
type Status = c_int;

/// The number by which ranks find each other (`ncclUniqueId`).
#[repr(C)]
#[derive(Copy, Clone)]
pub(super) struct UniqueId(pub [u8; 128]);

/// `ncclInt8`, as which elements of one byte are moved.
const BYTE: c_int = 0;

kiln_runtime::cuda::symbols! {
    /// The functions of the open library, as NVIDIA documents them for NCCL 2.
    pub(super) struct Api {
        ncclGetUniqueId: fn(*mut UniqueId) -> Status,
        ncclCommInitRank: fn(*mut Handle, c_int, UniqueId, c_int) -> Status,
        ncclCommDestroy: fn(Handle) -> Status,
        ncclCommAbort: fn(Handle) -> Status,
        ncclCommGetAsyncError: fn(Handle, *mut Status) -> Status,
        ncclGetLastError: fn(Handle) -> *const c_char,
        ncclGetErrorString: fn(Status) -> *const c_char,
        ncclAllReduce: fn(Address, Address, usize, c_int, c_int, Handle, Stream) -> Status,
        ncclReduce: fn(Address, Address, usize, c_int, c_int, c_int, Handle, Stream) -> Status,
        ncclReduceScatter: fn(Address, Address, usize, c_int, c_int, Handle, Stream) -> Status,
        ncclBroadcast: fn(Address, Address, usize, c_int, c_int, Handle, Stream) -> Status,
        ncclAllGather: fn(Address, Address, usize, c_int, Handle, Stream) -> Status,
        ncclSend: fn(Address, usize, c_int, c_int, Handle, Stream) -> Status,
        ncclRecv: fn(Address, usize, c_int, c_int, Handle, Stream) -> Status,
        ncclGroupStart: fn() -> Status,
        ncclGroupEnd: fn() -> Status,
    }
}

/// A communicator of NCCL's: this rank's end of a group.
#[derive(Copy, Clone, PartialEq)]
pub(super) struct Comm(Handle);

// SAFETY: NCCL's communicators may be used from any thread, one call at a time, and aborted during a call.
unsafe impl Send for Comm {}

impl Api {
    /// The functions of the library of this machine.
    ///
    /// # Errors
    /// If there is none, or it lacks a function.
    pub fn get() -> Result<&'static Api, String> {
        static OPEN: OnceLock<Result<Api, String>> = OnceLock::new();
        let open = OPEN.get_or_init(|| {
            let (library, path) = kiln_runtime::cuda::nccl().map_err(|e| e.to_string())?;
            let missing = |name| format!("{} has no {name}: install a newer NCCL", path.display());
            Api::of(library).map_err(missing)
        });
        open.as_ref().map_err(Clone::clone)
    }

    /// Returns a status as a result.
    fn check(&self, called: &str, comm: Handle, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        let text = |message: *const c_char| {
            if message.is_null() {
                return String::new();
            }
            // SAFETY: NCCL's texts end in zero, and live until its next error.
            let text = unsafe { CStr::from_ptr(message) };
            text.to_string_lossy().trim().to_string()
        };
        // SAFETY: both functions take any status or communicator.
        let (name, last) = unsafe {
            (
                text((self.ncclGetErrorString)(status)),
                text((self.ncclGetLastError)(comm)),
            )
        };
        Err(match last.is_empty() {
            true => format!("{called}: {name}"),
            false => format!("{called}: {name}: {last}"),
        })
    }

    /// Makes the number for a new group.
    ///
    /// # Errors
    /// NCCL's.
    pub fn unique_id(&self) -> Result<UniqueId, String> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the pointer is to writable memory.
        let status = unsafe { (self.ncclGetUniqueId)(&mut id) };
        self.check("ncclGetUniqueId", null_mut(), status)
            .map(|()| id)
    }

    /// Joins a group, on the current device of this thread, once all its ranks are there.
    ///
    /// # Errors
    /// NCCL's.
    pub fn join(&self, id: UniqueId, ranks: usize, rank: usize) -> Result<Comm, String> {
        let mut comm = null_mut();
        // SAFETY: the pointer is to writable memory, and the number is one that NCCL has made.
        let status =
            unsafe { (self.ncclCommInitRank)(&mut comm, ranks as c_int, id, rank as c_int) };
        self.check("ncclCommInitRank", null_mut(), status)
            .map(|()| Comm(comm))
    }

    /// The error that operations have met.
    ///
    /// # Errors
    /// It.
    pub fn state(&self, Comm(comm): Comm) -> Result<(), String> {
        let mut error = 0;
        // SAFETY: the communicator is alive and the pointer is to writable memory.
        let status = unsafe { (self.ncclCommGetAsyncError)(comm, &mut error) };
        // `ncclInProgress` is none.
        let error = if error == 7 { 0 } else { error };
        let asked = self.check("ncclCommGetAsyncError", comm, status);
        asked.and_then(|()| self.check("NCCL", comm, error))
    }

    /// Ends a communicator; with `abort` its operations end too.
    ///
    /// # Errors
    /// NCCL's.
    pub fn end(&self, Comm(comm): Comm, abort: bool) -> Result<(), String> {
        let end = match abort {
            true => self.ncclCommAbort,
            false => self.ncclCommDestroy,
        };
        // SAFETY: the communicator is alive, and nobody has it afterwards.
        let status = unsafe { end(comm) };
        self.check("the end of a communicator", null_mut(), status)
    }

    /// Enqueues an operation of a rank.
    ///
    /// # Errors
    /// NCCL's.
    pub fn enqueue(
        &self,
        Comm(comm): Comm,
        (rank, ranks): (usize, usize),
        call: &DeviceCall,
    ) -> Result<(), String> {
        let &DeviceCall {
            kind,
            dtype,
            input: (x, given),
            output: (y, made),
            stream,
        } = call;
        let stream: Stream = std::ptr::with_exposed_provenance_mut(stream);
        // Values that are only moved are bytes.
        let (operand, op, size) = match kind.reducer() {
            Some(reducer) => (dtype_code(dtype)?, op_code(reducer), dtype.size()),
            None => (BYTE, 0, 1),
        };
        let (given, made) = (given / size, made / size);
        let done = |status| self.check(kind.name(), comm, status);
        let part = |base: Address, count: usize, rank: usize| base + (count / ranks * rank) as u64;
        // SAFETY: operand and result have these bytes in the memory of the communicator's device, and are not freed
        // before the stream has done the work. Every rank makes the same calls.
        unsafe {
            let send = |address, count, to| {
                done((self.ncclSend)(
                    address,
                    count,
                    BYTE,
                    to as c_int,
                    comm,
                    stream,
                ))
            };
            let receive = |address, count, from| {
                done((self.ncclRecv)(
                    address,
                    count,
                    BYTE,
                    from as c_int,
                    comm,
                    stream,
                ))
            };
            match kind {
                _ if given == 0 && made == 0 => Ok(()),
                Kind::AllReduce(_) => {
                    done((self.ncclAllReduce)(x, y, given, operand, op, comm, stream))
                }
                Kind::Reduce(_, root) => done((self.ncclReduce)(
                    x,
                    y,
                    given,
                    operand,
                    op,
                    root as c_int,
                    comm,
                    stream,
                )),
                Kind::ReduceScatter(_) => done((self.ncclReduceScatter)(
                    x, y, made, operand, op, comm, stream,
                )),
                Kind::Broadcast(root) => done((self.ncclBroadcast)(
                    x,
                    y,
                    given,
                    operand,
                    root as c_int,
                    comm,
                    stream,
                )),
                Kind::AllGather => done((self.ncclAllGather)(x, y, given, operand, comm, stream)),
                Kind::Barrier => done((self.ncclAllReduce)(
                    x,
                    y,
                    given,
                    operand,
                    op_code(Reducer::Max),
                    comm,
                    stream,
                )),
                Kind::Send(to) => send(x, given, to as usize),
                Kind::Receive(from) => receive(y, made, from as usize),
                Kind::Gather { root, .. } => self.exchange(|| {
                    send(x, given, root as usize)?;
                    let from = (0..ranks).filter(|_| root as usize == rank);
                    from.into_iter()
                        .try_for_each(|r| receive(part(y, made, r), given, r))
                }),
                Kind::Scatter { root, .. } => self.exchange(|| {
                    let to = (0..ranks).filter(|_| root as usize == rank);
                    to.into_iter()
                        .try_for_each(|r| send(part(x, given, r), made, r))?;
                    receive(y, made, root as usize)
                }),
                Kind::AllToAll => self.exchange(|| {
                    (0..ranks).try_for_each(|r| {
                        send(part(x, given, r), given / ranks, r)?;
                        receive(part(y, made, r), made / ranks, r)
                    })
                }),
            }
        }
    }

    /// Enqueues messages that are exchanged together.
    fn exchange(&self, messages: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        // SAFETY: it has no preconditions.
        let begun = unsafe { (self.ncclGroupStart)() };
        self.check("ncclGroupStart", null_mut(), begun)?;
        let sent = messages();
        // SAFETY: a group has begun.
        let ended = unsafe { (self.ncclGroupEnd)() };
        sent.and(self.check("ncclGroupEnd", null_mut(), ended))
    }
}

/// The number of a dtype that is computed in.
fn dtype_code(dtype: DType) -> Result<c_int, String> {
    Ok(match dtype {
        DType::I8 => 0,
        DType::Bool | DType::U8 => 1,
        DType::I32 => 2,
        DType::U32 => 3,
        DType::I64 => 4,
        DType::U64 => 5,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        _ => return Err(format!("NCCL does not reduce {dtype}")),
    })
}

/// The number of a reduction.
fn op_code(reducer: Reducer) -> c_int {
    match reducer {
        Reducer::Sum => 0,
        Reducer::Product => 1,
        Reducer::Max => 2,
        Reducer::Min => 3,
        Reducer::Mean => 4,
    }
}
