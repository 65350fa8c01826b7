//! A persistent fork-join pool: workers spin for a moment, then park.
//!
//! Parts of a run are handed out in order to whoever is free. Nothing else depends on the number of
//! threads, so results cannot either.

mod apart;

use crate::fork;
use crate::lock::lock;
use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Spins of a worker before it parks: some tens of microseconds.
const SPINS: u32 = 4000;

/// Threads that run at the same time have met after so long.
const TOGETHER: Duration = Duration::from_micros(30);
/// How long they are waited for.
const PATIENCE: Duration = Duration::from_millis(5);

/// A job is open to workers.
const OPEN: usize = 1;
/// One worker inside a job.
const ONE: usize = 2;

#[derive(Copy, Clone)]
struct Job {
    call: unsafe fn(*const (), usize),
    data: *const (),
    parts: usize,
}

struct Shared {
    /// Counts jobs, so that a spinning worker notices a new one.
    epoch: AtomicUsize,
    /// [`OPEN`] plus [`ONE`] for every worker inside.
    state: AtomicUsize,
    /// The next part to hand out.
    next: AtomicUsize,
    /// The processor of the thread that woke workers last.
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
    /// The process that its threads are of.
    generation: usize,
    shared: Arc<Shared>,
    /// Held while a job runs.
    workers: Mutex<Vec<Worker>>,
}

/// The pool that took the place of the first, if one did.
static CURRENT: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());

/// The parts of a run.
type Parts<'a> = dyn Fn(usize) + Sync + 'a;
/// What a run gives its parts to in place of the pool.
type Gather<'a> = dyn FnMut(usize, &Parts<'_>) + 'a;

thread_local! {
    /// What the next run on this thread gives its parts to.
    static GATHER: Cell<Option<NonNull<Gather<'static>>>> = const { Cell::new(None) };
}

impl Pool {
    /// The pool of the process, with as many threads as the machine offers.
    pub fn global() -> &'static Pool {
        static FIRST: OnceLock<Pool> = OnceLock::new();
        // SAFETY: it is null or points to a pool that was leaked.
        let current = unsafe { CURRENT.load(Ordering::Acquire).as_ref() };
        let current = current.unwrap_or_else(|| {
            let threads = || std::thread::available_parallelism().map_or(1, |n| n.get());
            FIRST.get_or_init(|| Pool::new(threads()))
        });
        match current.generation == fork::generation() {
            true => current,
            false => current.renewed(),
        }
    }

    /// A pool with as many threads, in place of this one, whose threads stayed in the parent process.
    #[cold]
    fn renewed(&self) -> &'static Pool {
        let fresh: &Pool = Box::leak(Box::new(Pool::new(self.threads())));
        CURRENT.store(std::ptr::from_ref(fresh).cast_mut(), Ordering::Release);
        fresh
    }

    /// Leaves the pool of the process, with its threads, to whoever never gives it back: what runs from now on
    /// has one of its own, with as many threads. Does nothing while the pool is free.
    pub fn abandon() {
        let held = Pool::global();
        if matches!(held.workers.try_lock(), Err(TryLockError::WouldBlock)) {
            let fresh = Box::leak(Box::new(Pool::new(held.threads())));
            CURRENT.store(fresh, Ordering::Release);
        }
    }

    fn new(threads: usize) -> Pool {
        unsafe fn nothing(_: *const (), _: usize) {}
        let pool = Pool {
            generation: fork::generation(),
            shared: Arc::new(Shared {
                epoch: AtomicUsize::new(0),
                state: AtomicUsize::new(0),
                waker: AtomicUsize::new(usize::MAX),
                next: AtomicUsize::new(0),
                limit: AtomicUsize::new(0),
                job: UnsafeCell::new(Job {
                    call: nothing,
                    data: std::ptr::null(),
                    parts: 0,
                }),
                panic: Mutex::new(None),
            }),
            workers: Mutex::new(Vec::new()),
        };
        pool.set_threads(threads);
        pool
    }

    /// The number of threads that share the work, the caller's among them.
    pub fn threads(&self) -> usize {
        self.shared.limit.load(Ordering::Relaxed) + 1
    }

    /// Sets how many threads share the work, the caller's among them; at least 1.
    pub fn set_threads(&self, threads: usize) {
        let mut workers = lock(&self.workers);
        let wanted = threads.max(1) - 1;
        while workers.len() < wanted {
            let shared = self.shared.clone();
            let number = workers.len();
            let parked = Arc::new(AtomicBool::new(false));
            let flag = parked.clone();
            let spawned = std::thread::Builder::new()
                .name(format!("kiln-{}", number + 1))
                .spawn(move || work(&shared, number, &flag));
            match spawned {
                Ok(handle) => workers.push(Worker {
                    thread: handle.thread().clone(),
                    parked,
                }),
                Err(_) => break, // the system has no more threads; fewer give the same results
            }
        }
        let limit = wanted.min(workers.len());
        self.shared.limit.store(limit, Ordering::Relaxed);
    }

    /// Calls `part` with every number below `parts`, on any threads, and returns when all are done.
    ///
    /// While another run has the pool, or from within a part, everything happens on this thread.
    ///
    /// # Panics
    /// If a part does, after the others have ended.
    pub fn run<F: Fn(usize) + Sync>(&self, parts: usize, part: F) {
        if let Some(mut gather) = GATHER.take() {
            // SAFETY: it belongs to a call of `gathered` further up on this thread's stack.
            return unsafe { gather.as_mut()(parts, &part) };
        }
        if parts <= 1 || self.threads() == 1 {
            return (0..parts).for_each(part);
        }
        let workers = match self.workers.try_lock() {
            Ok(workers) => workers,
            Err(TryLockError::Poisoned(p)) => p.into_inner(),
            Err(TryLockError::WouldBlock) => return (0..parts).for_each(part),
        };
        unsafe fn call<F: Fn(usize)>(data: *const (), i: usize) {
            // SAFETY: `data` is the `part` of the run below, which waits for every worker inside.
            unsafe { (*data.cast::<F>())(i) }
        }
        let s = &*self.shared;
        let job = Job {
            call: call::<F>,
            data: (&raw const part).cast(),
            parts,
        };
        // SAFETY: the lock is ours and the previous run left only when no worker was inside.
        unsafe { *s.job.get() = job };
        s.next.store(0, Ordering::Relaxed);
        s.state.store(OPEN, Ordering::Release);
        s.epoch.fetch_add(1, Ordering::SeqCst);
        let helpers = (parts - 1).min(s.limit.load(Ordering::Relaxed));
        for w in &workers[..helpers] {
            if w.parked.load(Ordering::SeqCst) {
                s.waker.store(apart::here(), Ordering::Relaxed);
                w.thread.unpark();
            }
        }
        s.take_parts(job);
        s.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0u32;
        while s.state.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins.is_multiple_of(1 << 12) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        let panic = lock(&s.panic).take();
        drop(workers);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Pool {
    /// Waits, some milliseconds at most, until all threads of the pool run at the same time; whether they do.
    /// After this thread has slept it often shares a core with a worker, until the system moves one of them:
    /// who takes times of short runs begins here.
    pub fn meet(&self) -> bool {
        let (start, threads) = (Instant::now(), self.threads());
        while start.elapsed() < PATIENCE {
            let (begin, here) = (Instant::now(), AtomicUsize::new(0));
            self.run(threads, |_| {
                here.fetch_add(1, Ordering::AcqRel);
                while here.load(Ordering::Acquire) < threads && begin.elapsed() < TOGETHER {
                    std::hint::spin_loop();
                }
            });
            if begin.elapsed() < TOGETHER {
                return true;
            }
        }
        false
    }

    /// Does jobs that each end in a run at the same time: the parts of the first run of each are parts of
    /// one run. What a job does in front of its first run happens before that, one job after the
    /// other, and what it does behind it afterwards.
    ///
    /// # Panics
    /// If a job or a part does.
    pub fn together(&self, jobs: &mut [Box<dyn FnMut() + '_>]) {
        self.gathered(jobs, 0, &|_| {});
    }

    /// Does jobs together with parts that were gathered already.
    fn gathered(&self, jobs: &mut [Box<dyn FnMut() + '_>], count: usize, ahead: &Parts<'_>) {
        struct Restore;
        impl Drop for Restore {
            fn drop(&mut self) {
                GATHER.set(None);
            }
        }
        let Some((job, rest)) = jobs.split_first_mut() else {
            return self.run(count, ahead);
        };
        let mut ran = false;
        let mut gather = |parts: usize, part: &Parts<'_>| {
            ran = true;
            let all = |i: usize| match i.checked_sub(count) {
                None => ahead(i),
                Some(i) => part(i),
            };
            self.gathered(rest, count + parts, &all);
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
        if !ran {
            self.gathered(rest, count, ahead);
        }
    }
}

impl Shared {
    fn take_parts(&self, job: Job) {
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= job.parts {
                return;
            }
            // SAFETY: the run that owns the data waits until this thread is done.
            let done = catch_unwind(AssertUnwindSafe(|| unsafe { (job.call)(job.data, i) }));
            if let Err(panic) = done {
                lock(&self.panic).get_or_insert(panic);
            }
        }
    }

    /// Enters the open job, if there is one.
    fn enter(&self) -> bool {
        let mut state = self.state.load(Ordering::Relaxed);
        while state & OPEN != 0 {
            let entered = self.state.compare_exchange_weak(
                state,
                state + ONE,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            match entered {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }
}

fn work(shared: &Shared, number: usize, parked: &AtomicBool) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while shared.epoch.load(Ordering::Acquire) == seen {
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
                continue;
            }
            parked.store(true, Ordering::SeqCst);
            // The epoch is read again after the flag is set: either the run sees the flag and
            // unparks, or this thread sees the run.
            if shared.epoch.load(Ordering::SeqCst) == seen {
                std::thread::park();
                apart::keep_from(shared.waker.load(Ordering::Relaxed));
            }
            parked.store(false, Ordering::SeqCst);
        }
        seen = shared.epoch.load(Ordering::Acquire);
        if number < shared.limit.load(Ordering::Relaxed) && shared.enter() {
            // SAFETY: the job stays as it is while this worker is inside.
            let job = unsafe { *shared.job.get() };
            shared.take_parts(job);
            shared.state.fetch_sub(ONE, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_runs_once_from_many_threads_and_nested() {
        let pool = Pool::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for parts in [0, 1, 2, 7, 100] {
                        let hits: Vec<AtomicUsize> = (0..parts).map(|_| 0.into()).collect();
                        pool.run(parts, |i| {
                            pool.run(2, |_| {
                                hits[i].fetch_add(1, Ordering::Relaxed);
                            });
                        });
                        assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 2));
                    }
                });
            }
        });
    }

    #[test]
    fn jobs_share_their_first_run() {
        let pool = Pool::new(3);
        for sizes in [&[][..], &[0], &[5], &[3, 0, 4], &[1, 1, 1, 9]] {
            // Jobs of no runs, one and two; what is around the runs is in order.
            let hits: Vec<AtomicUsize> = sizes.iter().map(|_| 0.into()).collect();
            let order = Mutex::new(Vec::new());
            let mut jobs: Vec<Box<dyn FnMut() + '_>> = Vec::new();
            for (j, parts) in sizes.iter().enumerate() {
                let (hits, order, pool) = (&hits, &order, &pool);
                jobs.push(Box::new(move || {
                    lock(order).push(j);
                    for _ in 0..j % 3 {
                        pool.run(*parts, |i| {
                            pool.run(2, |_| {
                                hits[j].fetch_add(i + 1, Ordering::Relaxed);
                            });
                        });
                    }
                }));
            }
            pool.together(&mut jobs);
            drop(jobs);
            assert!(lock(&order).iter().copied().eq(0..sizes.len()));
            for (j, (hits, parts)) in hits.iter().zip(sizes).enumerate() {
                assert_eq!(hits.load(Ordering::Relaxed), j % 3 * parts * (parts + 1));
            }
        }
        let panics = catch_unwind(AssertUnwindSafe(|| {
            pool.together(&mut [Box::new(|| pool.run(4, |i| assert!(i != 2, "part two")))]);
        }));
        assert!(panics.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(3, |i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 3);
    }

    #[test]
    fn a_pool_that_is_never_given_back_is_replaced() {
        let threads = Pool::global().threads();
        Pool::abandon();
        let began = Arc::new(AtomicBool::new(false));
        let begin = began.clone();
        std::thread::spawn(move || {
            Pool::global().run(2, |_| {
                begin.store(true, Ordering::SeqCst);
                loop {
                    std::thread::park();
                }
            });
        });
        while !began.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let held: *const Pool = Pool::global();
        Pool::abandon();
        assert!(!std::ptr::eq(held, Pool::global()));
        Pool::global().set_threads(2);
        // Both parts wait for the other one.
        let inside = AtomicUsize::new(0);
        Pool::global().run(2, |_| {
            inside.fetch_add(1, Ordering::SeqCst);
            while inside.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
        });
        Pool::global().set_threads(threads);
    }

    #[test]
    fn threads_meet_but_for_one_that_has_another_job() {
        assert!(Pool::new(1).meet());
        let pool = Pool::new(2);
        pool.run(2, |_| assert!(!pool.meet()));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3);
        for _ in 0..20 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(10, |i| assert!(i != 5, "part five"));
            }));
            assert!(result.is_err());
            let sum = AtomicUsize::new(0);
            pool.run(10, |i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 45);
        }
    }

    #[test]
    fn the_number_of_threads_can_change() {
        let pool = Pool::new(1);
        for threads in [1, 3, 2, 0, 4] {
            pool.set_threads(threads);
            assert_eq!(pool.threads(), threads.max(1));
            let sum = AtomicUsize::new(0);
            pool.run(50, |i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 1225);
        }
    }
}
