//! A persistent fork-join pool: workers spin for a moment, then park.
//!
//! Each thread starts with its own range of a run's parts, whose data stays in its caches from run to run, and then
//! takes remaining parts of other ranges. The parts themselves do not depend on the number of threads, so results don't
//! either.

#[cfg(test)]
mod tests;

use crate::fork;
use crate::lock::lock;
use crate::system;
use kiln_base::DefaultThreads;
use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The spins of a worker before it parks: some tens of microseconds.
const SPINS: u32 = 4000;

/// The maximum time between the starts of threads that run concurrently.
const MAX_START_GAP: Duration = Duration::from_micros(30);
/// The maximum time that [`Pool::meet`] waits.
const MAX_WAIT: Duration = Duration::from_millis(5);

/// The state bit of a job that is open to workers.
const OPEN: usize = 1;
/// The state increment for one worker inside a job.
const WORKER: usize = 2;
/// The maximum number of ranges of parts; further threads share them.
const RANGES: usize = 64;
/// The maximum number of threads of a pool.
pub const MAX_THREADS: usize = 1024;

#[derive(Copy, Clone)]
struct Job {
    /// Valid during the run, which waits for every worker inside.
    part: *const RunParts<'static>,
    parts: usize,
    ranges: usize,
}

/// The next part of a range to hand out, in a separate cache line.
#[repr(align(64))]
struct Next(AtomicUsize);

struct Shared {
    /// The number of jobs so far, which spinning workers watch.
    epoch: AtomicUsize,
    /// [`OPEN`] plus [`WORKER`] for every worker inside.
    state: AtomicUsize,
    next: [Next; RANGES],
    /// The processor of the thread that last woke workers.
    waker: AtomicUsize,
    /// Workers with this number or a higher one take no parts.
    limit: AtomicUsize,
    /// Written only while `state` is 0, read only between entering and leaving.
    job: UnsafeCell<Job>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written only by the owner of the pool's lock while no worker is inside, and its
// pointer is used only inside, during which the run that owns the data waits.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

struct Worker {
    thread: Thread,
    parked: Arc<AtomicBool>,
}

/// The pool; see the [module](self).
pub struct Pool {
    /// The generation of the process that its threads belong to.
    generation: usize,
    shared: Arc<Shared>,
    /// Held while a job runs.
    workers: Mutex<Vec<Worker>>,
}

/// The pool that replaced the first one, or null.
static CURRENT: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());

/// The parts of a run.
type RunParts<'a> = dyn Fn(usize) + Sync + 'a;
/// A function that receives the parts of a run instead of the pool.
type Gather<'a> = dyn FnMut(usize, &RunParts<'_>) + 'a;

thread_local! {
    /// The receiver of the parts of the next run on this thread.
    static GATHER: Cell<Option<NonNull<Gather<'static>>>> = const { Cell::new(None) };
}

impl Pool {
    /// Returns the pool of the process, with the [default number of threads](DefaultThreads).
    #[inline]
    pub fn global() -> &'static Pool {
        static FIRST: OnceLock<Pool> = OnceLock::new();
        // SAFETY: it is null or points to a pool that was leaked.
        let current = unsafe { CURRENT.load(Ordering::Acquire).as_ref() };
        let current = current
            .unwrap_or_else(|| FIRST.get_or_init(|| Pool::new(DefaultThreads::find().count)));
        match current.generation == fork::generation() {
            true => current,
            false => current.replace(),
        }
    }

    /// Replaces the pool of the process with one of equal size. The threads of the old pool are no longer available:
    /// they stayed in the parent process, or belong to a run that does not end.
    #[cold]
    fn replace(&self) -> &'static Pool {
        let pool: &Pool = Box::leak(Box::new(Pool::new(self.threads())));
        CURRENT.store(std::ptr::from_ref(pool).cast_mut(), Ordering::Release);
        pool
    }

    /// Leaves the pool of the process to a run that never ends. Later runs use a new pool of equal size. Does nothing
    /// if the pool is free.
    pub fn abandon() {
        let pool = Pool::global();
        if matches!(pool.workers.try_lock(), Err(TryLockError::WouldBlock)) {
            pool.replace();
        }
    }

    fn new(threads: usize) -> Pool {
        let pool = Pool {
            generation: fork::generation(),
            shared: Arc::new(Shared {
                epoch: AtomicUsize::new(0),
                state: AtomicUsize::new(0),
                waker: AtomicUsize::new(usize::MAX),
                next: std::array::from_fn(|_| Next(AtomicUsize::new(0))),
                limit: AtomicUsize::new(0),
                job: UnsafeCell::new(Job {
                    part: &raw const *(&(|_: usize| {}) as &RunParts<'static>),
                    parts: 0,
                    ranges: 0,
                }),
                panic: Mutex::new(None),
            }),
            workers: Mutex::new(Vec::new()),
        };
        pool.set_threads(threads);
        pool
    }

    /// Returns the number of threads that share the work, including the caller's.
    #[inline]
    pub fn threads(&self) -> usize {
        self.shared.limit.load(Ordering::Relaxed) + 1
    }

    /// Sets the number of threads that share the work, including the caller's: at least 1, at most [`MAX_THREADS`].
    pub fn set_threads(&self, threads: usize) {
        let mut workers = lock(&self.workers);
        let workers_wanted = threads.clamp(1, MAX_THREADS) - 1;
        while workers.len() < workers_wanted {
            let shared = self.shared.clone();
            let number = workers.len();
            let parked = Arc::new(AtomicBool::new(false));
            let flag = parked.clone();
            let spawned = std::thread::Builder::new()
                .name(format!("kiln-{}", number + 1))
                .spawn(move || run_worker(&shared, number, &flag));
            match spawned {
                Ok(handle) => workers.push(Worker {
                    thread: handle.thread().clone(),
                    parked,
                }),
                Err(_) => break, // the system has no more threads; fewer give the same results
            }
        }
        let limit = workers_wanted.min(workers.len());
        self.shared.limit.store(limit, Ordering::Relaxed);
    }

    /// Calls `part` with every index below `parts` on the threads of the pool, and returns when all calls have ended.
    ///
    /// If another run uses the pool, or from within a part, all calls run on this thread.
    ///
    /// # Panics
    /// If a part panics, after all parts have ended.
    pub fn run(&self, parts: usize, part: impl Fn(usize) + Sync) {
        self.run_parts(parts, &part);
    }

    /// As [`Pool::run`], without a generic parameter.
    fn run_parts(&self, parts: usize, part: &RunParts<'_>) {
        if let Some(mut gather) = GATHER.take() {
            // SAFETY: it belongs to a call of `run_jobs` further up on this thread's stack.
            return unsafe { gather.as_mut()(parts, part) };
        }
        #[cfg(feature = "testing")]
        if crate::interpreted::is_interpreting() {
            return (0..parts).for_each(part);
        }
        if parts <= 1 || self.threads() == 1 {
            return (0..parts).for_each(part);
        }
        let workers = match self.workers.try_lock() {
            Ok(workers) => workers,
            Err(TryLockError::Poisoned(p)) => p.into_inner(),
            Err(TryLockError::WouldBlock) => return (0..parts).for_each(part),
        };
        // SAFETY: only the lifetime changes; this run waits for every worker inside.
        let part = unsafe { std::mem::transmute::<&RunParts<'_>, &RunParts<'static>>(part) };
        let shared = &*self.shared;
        let job = Job {
            part,
            parts,
            ranges: parts.min(self.threads()).min(RANGES),
        };
        // SAFETY: this thread holds the lock, and the previous run ended when no worker was inside.
        unsafe { *shared.job.get() = job };
        for (range, next) in shared.next[..job.ranges].iter().enumerate() {
            next.0.store(job.range_start(range), Ordering::Relaxed);
        }
        shared.state.store(OPEN, Ordering::Release);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        let helpers = (parts - 1).min(shared.limit.load(Ordering::Relaxed));
        for worker in &workers[..helpers] {
            if worker.parked.load(Ordering::SeqCst) {
                shared.waker.store(system::processor(), Ordering::Relaxed);
                worker.thread.unpark();
            }
        }
        shared.run_remaining_parts(job, 0);
        shared.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0u32;
        while shared.state.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins.is_multiple_of(1 << 12) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        let panic = lock(&shared.panic).take();
        drop(workers);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Pool {
    /// Waits a few milliseconds at most until all threads of the pool run concurrently, and returns true if they do. A
    /// thread that slept often shares a core with a worker, until the system moves one of them. Call this before timing
    /// short runs.
    pub fn meet(&self) -> bool {
        let (start, threads) = (Instant::now(), self.threads());
        while start.elapsed() < MAX_WAIT {
            let (begin, arrived) = (Instant::now(), AtomicUsize::new(0));
            self.run(threads, |_| {
                arrived.fetch_add(1, Ordering::AcqRel);
                while arrived.load(Ordering::Acquire) < threads && begin.elapsed() < MAX_START_GAP {
                    std::hint::spin_loop();
                }
            });
            if begin.elapsed() < MAX_START_GAP {
                return true;
            }
        }
        false
    }

    /// Runs jobs concurrently, by merging the first run of each job into one common run. The code of the jobs before
    /// their first run executes before the common run, one job after the other, and the remaining code after it.
    ///
    /// # Panics
    /// If a job or a part panics.
    pub fn run_concurrently(&self, jobs: &mut [Box<dyn FnMut() + '_>]) {
        self.run_jobs(jobs, 0, &|_| {});
    }

    /// Runs jobs together with `count` parts that are gathered already.
    fn run_jobs(&self, jobs: &mut [Box<dyn FnMut() + '_>], count: usize, early: &RunParts<'_>) {
        struct Restore;
        impl Drop for Restore {
            fn drop(&mut self) {
                GATHER.set(None);
            }
        }
        let Some((job, other_jobs)) = jobs.split_first_mut() else {
            return self.run(count, early);
        };
        let mut has_run = false;
        let mut gather = |parts: usize, part: &RunParts<'_>| {
            has_run = true;
            let all_parts = |i: usize| match i.checked_sub(count) {
                None => early(i),
                Some(i) => part(i),
            };
            self.run_jobs(other_jobs, count + parts, &all_parts);
        };
        let gather: NonNull<Gather<'_>> = NonNull::from(&mut gather);
        // SAFETY: only the lifetime changes; the guard takes the pointer away before `gather` ends.
        let gather =
            unsafe { std::mem::transmute::<NonNull<Gather<'_>>, NonNull<Gather<'static>>>(gather) };
        {
            let _restore = Restore;
            GATHER.set(Some(gather));
            job();
        }
        if !has_run {
            self.run_jobs(other_jobs, count, early);
        }
    }
}

impl Job {
    /// Returns the index of the first part of a range.
    fn range_start(&self, range: usize) -> usize {
        (self.parts as u128 * range as u128 / self.ranges as u128) as usize
    }
}

impl Shared {
    /// Runs parts until none are left, those of this thread's range first.
    fn run_remaining_parts(&self, job: Job, thread: usize) {
        for range in (0..job.ranges).map(|i| (thread + i) % job.ranges) {
            let end = job.range_start(range + 1);
            loop {
                let i = self.next[range].0.fetch_add(1, Ordering::Relaxed);
                if i >= end {
                    break;
                }
                // SAFETY: the run that owns the data waits until this thread is done.
                let result = catch_unwind(AssertUnwindSafe(|| unsafe { (*job.part)(i) }));
                if let Err(panic) = result {
                    lock(&self.panic).get_or_insert(panic);
                }
            }
        }
    }

    /// Enters the open job, if there is one, and returns true if it did.
    fn enter(&self) -> bool {
        let mut state = self.state.load(Ordering::Relaxed);
        while state & OPEN != 0 {
            let entered = self.state.compare_exchange_weak(
                state,
                state + WORKER,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            match entered {
                Ok(_) => return true,
                Err(current) => state = current,
            }
        }
        false
    }
}

fn run_worker(shared: &Shared, index: usize, parked: &AtomicBool) {
    fork::exclude_thread();
    let mut epoch = 0;
    loop {
        let mut spins = 0;
        while shared.epoch.load(Ordering::Acquire) == epoch {
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
                continue;
            }
            parked.store(true, Ordering::SeqCst);
            // The epoch is read again after the flag is set: either the run sees the flag and
            // unparks, or this thread sees the run.
            if shared.epoch.load(Ordering::SeqCst) == epoch {
                std::thread::park();
                system::leave_processor(shared.waker.load(Ordering::Relaxed));
            }
            parked.store(false, Ordering::SeqCst);
        }
        epoch = shared.epoch.load(Ordering::Acquire);
        if index < shared.limit.load(Ordering::Relaxed) && shared.enter() {
            // SAFETY: the job does not change while this worker is inside.
            let job = unsafe { *shared.job.get() };
            shared.run_remaining_parts(job, index + 1);
            shared.state.fetch_sub(WORKER, Ordering::Release);
        }
    }
}
