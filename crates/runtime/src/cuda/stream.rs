//! Streams, events, and page-locked memory for copies.

use super::context::Context;
use super::driver::{Driver, Handle, NOT_READY};
use crate::error::Result;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A queue of work: what is given to it happens in order.
pub(super) struct Stream {
    context: Context,
    handle: Handle,
    id: u64,
}

const NON_BLOCKING: u32 = 1;
const DISABLE_TIMING: u32 = 2;

impl Stream {
    pub(super) fn new(context: Context) -> Result<Stream> {
        let driver = context.driver;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut handle = Handle::NULL;
        // SAFETY: the context is current and the place writable.
        let status = unsafe { (driver.functions.stream_create)(&mut handle, NON_BLOCKING) };
        driver.check("cuStreamCreate", status)?;
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

    pub(super) fn context(&self) -> Context {
        self.context
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    /// Waits, on the host, for everything that was given to it.
    pub(super) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        let status = unsafe { (self.context.driver.functions.stream_synchronize)(self.handle) };
        self.context.driver.check("the GPU's work failed", status)
    }

    /// Makes what follows wait for an event of another stream.
    pub(super) fn wait(&self, event: &Event) -> Result<()> {
        if event.stream.id == self.id {
            return Ok(());
        }
        // SAFETY: both are alive.
        let status =
            unsafe { (self.context.driver.functions.stream_wait)(self.handle, event.handle, 0) };
        self.context.driver.check("cuStreamWaitEvent", status)
    }

    /// An event that happens once everything given so far is done.
    pub(super) fn event(self: &Arc<Stream>) -> Result<Arc<Event>> {
        self.record(DISABLE_TIMING)
    }

    /// The same, that knows when it happens.
    pub(super) fn timed_event(self: &Arc<Stream>) -> Result<Arc<Event>> {
        self.record(0)
    }

    fn record(self: &Arc<Stream>, flags: u32) -> Result<Arc<Event>> {
        let f = &self.context.driver.functions;
        let mut handle = Handle::NULL;
        // SAFETY: the context is current and the place writable.
        let status = unsafe { (f.event_create)(&mut handle, flags) };
        self.context.driver.check("cuEventCreate", status)?;
        let event = Event {
            driver: self.context.driver,
            handle,
            stream: self.clone(),
        };
        // SAFETY: both are alive.
        let status = unsafe { (f.event_record)(event.handle, self.handle) };
        self.context.driver.check("cuEventRecord", status)?;
        Ok(Arc::new(event))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.context.activate();
        // SAFETY: nobody holds the stream any more; the driver finishes what was given to it.
        unsafe { (self.context.driver.functions.stream_destroy)(self.handle) };
    }
}

/// A point in a stream.
pub(super) struct Event {
    driver: &'static Driver,
    handle: Handle,
    pub(super) stream: Arc<Stream>,
}

impl Event {
    /// Whether it has happened.
    pub(super) fn happened(&self) -> bool {
        // SAFETY: the event is alive.
        unsafe { (self.driver.functions.event_query)(self.handle) != NOT_READY }
    }

    /// The time from this timed event to another that has happened.
    pub(super) fn until(&self, end: &Event) -> Result<Duration> {
        let mut milliseconds = 0.0;
        let elapsed = self.driver.functions.event_elapsed;
        // SAFETY: both events are alive and the place is writable.
        let status = unsafe { elapsed(&mut milliseconds, self.handle, end.handle) };
        self.driver.check("cuEventElapsedTime", status)?;
        Ok(Duration::from_secs_f64(
            f64::from(milliseconds.max(0.0)) / 1e3,
        ))
    }

    /// Waits for it on the host.
    pub(super) fn synchronize(&self) -> Result<()> {
        // SAFETY: the event is alive.
        let status = unsafe { (self.driver.functions.event_synchronize)(self.handle) };
        self.driver.check("the GPU's work failed", status)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nobody holds the event any more; waits that were given to streams stay.
        unsafe { (self.driver.functions.event_destroy)(self.handle) };
    }
}

/// Page-locked memory of the host, which copies to and from a device go through.
pub(super) struct Pinned {
    driver: &'static Driver,
    pub(super) ptr: *mut c_void,
}

// SAFETY: plain memory, of which each part has one owner.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(super) fn new(driver: &'static Driver, len: usize) -> Result<Pinned> {
        let mut ptr = std::ptr::null_mut();
        // SAFETY: a context is current and the place writable.
        let status = unsafe { (driver.functions.host_alloc)(&mut ptr, len, 0) };
        driver.check("cuMemHostAlloc", status)?;
        Ok(Pinned { driver, ptr })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated by the driver, and no copy uses it any more.
        unsafe { (self.driver.functions.host_free)(self.ptr) };
    }
}

/// Page-locked memory, and the end of the copy that last used it.
pub(super) struct Staging {
    pub(super) memory: Pinned,
    pub(super) done: Option<Arc<Event>>,
}
