//! Streams, events, and page-locked memory for copies.

use super::device::Device;
use super::driver::{Address, Driver, Handle, NOT_READY};
use super::memory::Memory;
use super::outcome::Slot;
use crate::error::Result;
use crate::lock::lock;
use kiln_plan::cuda::ErrorRecord;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A queue of work: what is given to it happens in order.
pub(super) struct Stream {
    driver: &'static Driver,
    context: Handle,
    handle: Handle,
    id: u64,
}

const NON_BLOCKING: u32 = 1;
const DISABLE_TIMING: u32 = 2;

impl Stream {
    pub(super) fn new(driver: &'static Driver, context: Handle) -> Result<Stream> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut handle = Handle::NULL;
        // SAFETY: the context is current and the place writable.
        let status = unsafe { (driver.functions.stream_create)(&mut handle, NON_BLOCKING) };
        driver.check("cuStreamCreate", status)?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Stream {
            driver,
            context,
            handle,
            id,
        })
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    /// Waits, on the host, for everything that was given to it.
    pub(super) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        let status = unsafe { (self.driver.functions.stream_synchronize)(self.handle) };
        self.driver.check("the GPU's work failed", status)
    }

    /// Makes what follows wait for an event of another stream.
    pub(super) fn wait(&self, event: &Event) -> Result<()> {
        if event.stream.id == self.id {
            return Ok(());
        }
        // SAFETY: both are alive.
        let status = unsafe { (self.driver.functions.stream_wait)(self.handle, event.handle, 0) };
        self.driver.check("cuStreamWaitEvent", status)
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
        let f = &self.driver.functions;
        let mut handle = Handle::NULL;
        // SAFETY: the context is current and the place writable.
        let status = unsafe { (f.event_create)(&mut handle, flags) };
        self.driver.check("cuEventCreate", status)?;
        let event = Event {
            driver: self.driver,
            handle,
            stream: self.clone(),
        };
        // SAFETY: both are alive.
        let status = unsafe { (f.event_record)(event.handle, self.handle) };
        self.driver.check("cuEventRecord", status)?;
        Ok(Arc::new(event))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: nobody holds the stream any more; the driver finishes what was given to it.
        unsafe {
            (self.driver.functions.context_set)(self.context);
            (self.driver.functions.stream_destroy)(self.handle);
        }
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

/// What a run works through: a stream, and the record of data errors that its kernels write to. The
/// record is zero while no run holds the lane.
pub(super) struct Lane {
    pub(super) stream: Arc<Stream>,
    driver: &'static Driver,
    record: Memory,
}

impl Device {
    /// A lane that nobody holds, with the context current.
    pub(super) fn lane(self: &Arc<Device>) -> Result<Lane> {
        self.activate()?;
        if let Some(lane) = lock(&self.lanes).pop() {
            return Ok(lane);
        }
        let stream = Arc::new(Stream::new(self.driver, self.context())?);
        let size = size_of::<ErrorRecord>();
        let lane = Lane {
            record: Memory::new(self, size, &stream, &"an error record".into())?,
            driver: self.driver,
            stream,
        };
        lane.clear()?;
        Ok(lane)
    }
}

impl Lane {
    pub(super) fn record(&self) -> Address {
        self.record.address()
    }

    /// Makes the record zero again.
    pub(super) fn clear(&self) -> Result<()> {
        let driver = self.driver;
        let (at, len) = (self.record(), size_of::<ErrorRecord>());
        // SAFETY: the record has that many bytes.
        let status = unsafe { (driver.functions.fill)(at, 0, len, self.stream.handle()) };
        driver.check("cuMemsetD8Async", status)
    }

    /// Copies what was recorded so far to a place of the host, and makes the record zero again.
    pub(super) fn hand_over(&self, slot: &Slot) -> Result<()> {
        let (at, len) = (self.record(), size_of::<ErrorRecord>());
        let (driver, stream) = (self.driver, self.stream.handle());
        // SAFETY: both sides have that many bytes, and the place is nobody else's until the copy is done.
        let status = unsafe { (driver.functions.download)(slot.ptr().cast(), at, len, stream) };
        driver.check("cuMemcpyDtoHAsync", status)?;
        self.clear()
    }
}
