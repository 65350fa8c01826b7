//! Streams, events, and page-locked memory for copies.

use super::context::Context;
use super::driver::{Object, call, sys};
use kiln_kernel::error::Result;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A queue of work, which runs in order.
pub(super) struct Stream {
    pub(super) context: Context,
    handle: Object<sys::CUstream_st>,
    id: u64,
}

impl Stream {
    pub(super) fn new(context: Context) -> Result<Stream> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut handle = Object(null_mut());
        // SAFETY: the context is current and the pointer is to writable memory.
        unsafe {
            call!(cuStreamCreate(
                &mut handle.0,
                sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32
            ))
        }?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Stream {
            context,
            handle,
            id,
        })
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn handle(&self) -> sys::CUstream {
        self.handle.0
    }

    /// Waits, on the host, for all its work.
    pub(super) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        let status = unsafe { call!(cuStreamSynchronize(self.handle.0)) };
        status.map_err(|failure| failure.of("the GPU's work failed"))
    }

    /// Makes later work wait for an event of another stream.
    pub(super) fn wait(&self, event: &Event) -> Result<()> {
        if event.stream.id == self.id {
            return Ok(());
        }
        // SAFETY: both are alive.
        Ok(unsafe { call!(cuStreamWaitEvent(self.handle.0, event.handle.0, 0)) }?)
    }

    /// Captures the work that a function enqueues on the stream, which is otherwise idle.
    pub(super) fn capture(&self, work: impl FnOnce() -> Result<()>) -> Result<Captured> {
        // Other threads, NCCL's among them, may allocate meanwhile.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive.
        unsafe { call!(cuStreamBeginCapture_v2(self.handle.0, mode)) }?;
        let result = work();
        let mut captured = Captured(Object(null_mut()));
        // SAFETY: the stream captures, and the pointer is to writable memory.
        let status = unsafe { call!(cuStreamEndCapture(self.handle.0, &mut captured.0.0)) };
        result?;
        status?;
        Ok(captured)
    }

    /// An event that happens once all earlier work is done.
    pub(super) fn event(self: &Arc<Stream>) -> Result<Arc<Event>> {
        self.record(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// An event with a timestamp that happens once all earlier work is done.
    pub(super) fn timed_event(self: &Arc<Stream>) -> Result<Arc<Event>> {
        self.record(sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn record(self: &Arc<Stream>, flags: sys::CUevent_flags) -> Result<Arc<Event>> {
        let mut handle = Object(null_mut());
        // SAFETY: the context is current and the pointer is to writable memory.
        unsafe { call!(cuEventCreate(&mut handle.0, flags as u32)) }?;
        let stream = self.clone();
        let event = Event { handle, stream };
        // SAFETY: both are alive.
        unsafe { call!(cuEventRecord(event.handle.0, self.handle.0)) }?;
        Ok(Arc::new(event))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.context.with_current(|| {
            // SAFETY: nobody holds the stream any more; the driver finishes its work.
            let _ = unsafe { call!(cuStreamDestroy_v2(self.handle.0)) };
        });
    }
}

/// A graph of work that a stream captured.
pub(super) struct Captured(Object<sys::CUgraph_st>);

impl Captured {
    pub(super) fn graph(&self) -> *mut sys::CUgraph_st {
        self.0.0
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        if !self.0.0.is_null() {
            // SAFETY: nobody holds the graph; others have copies.
            let _ = unsafe { call!(cuGraphDestroy(self.0.0)) };
        }
    }
}

/// A point in a stream.
pub(super) struct Event {
    handle: Object<sys::CUevent_st>,
    pub(super) stream: Arc<Stream>,
}

impl Event {
    /// True if it has happened.
    pub(super) fn has_happened(&self) -> bool {
        // SAFETY: the event is alive.
        let status = unsafe { call!(cuEventQuery(self.handle.0)) };
        status.map_or_else(
            |f| f.status != sys::CUresult::CUDA_ERROR_NOT_READY,
            |()| true,
        )
    }

    /// The time from this timed event to another that has happened.
    pub(super) fn until(&self, end: &Event) -> Result<Duration> {
        let mut milliseconds = 0f32;
        // SAFETY: both events are alive and the pointer is to writable memory.
        unsafe {
            call!(cuEventElapsedTime(
                &mut milliseconds,
                self.handle.0,
                end.handle.0
            ))
        }?;
        Ok(Duration::from_secs_f64(
            f64::from(milliseconds.max(0.0)) / 1e3,
        ))
    }

    /// Waits for it on the host.
    pub(super) fn synchronize(&self) -> Result<()> {
        // SAFETY: the event is alive.
        let status = unsafe { call!(cuEventSynchronize(self.handle.0)) };
        status.map_err(|failure| failure.of("the GPU's work failed"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nobody holds the event any more; streams that wait for it still do.
        let _ = unsafe { call!(cuEventDestroy_v2(self.handle.0)) };
    }
}

/// Page-locked memory of the host, for copies to and from a device.
pub(super) struct Pinned {
    pub(super) ptr: *mut c_void,
}

// SAFETY: plain memory, of which each part has one owner.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(super) fn new(len: usize) -> Result<Pinned> {
        let mut ptr = null_mut();
        // SAFETY: a context is current and the pointer is to writable memory.
        unsafe { call!(cuMemHostAlloc(&mut ptr, len, 0)) }?;
        Ok(Pinned { ptr })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated by the driver, and no copy uses it any more.
        let _ = unsafe { call!(cuMemFreeHost(self.ptr)) };
    }
}

/// Page-locked memory, and the end of the copy that last used it.
pub(super) struct Staging {
    pub(super) memory: Pinned,
    pub(super) done: Option<Arc<Event>>,
}
