//! Tests of runs of parts on threads.

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
        // Jobs of no runs, one and two; the code around the runs executes in order.
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
        pool.run_concurrently(&mut jobs);
        drop(jobs);
        assert!(lock(&order).iter().copied().eq(0..sizes.len()));
        for (j, (hits, parts)) in hits.iter().zip(sizes).enumerate() {
            assert_eq!(hits.load(Ordering::Relaxed), j % 3 * parts * (parts + 1));
        }
    }
    let panics = catch_unwind(AssertUnwindSafe(|| {
        pool.run_concurrently(&mut [Box::new(|| pool.run(4, |i| assert!(i != 2, "part two")))]);
    }));
    assert!(panics.is_err());
    let sum = AtomicUsize::new(0);
    pool.run(3, |i| {
        sum.fetch_add(i, Ordering::Relaxed);
    });
    assert_eq!(sum.into_inner(), 3);
}

#[test]
fn a_pool_whose_run_never_ends_is_replaced() {
    let threads = Pool::global().threads();
    Pool::abandon();
    let started = Arc::new(AtomicBool::new(false));
    let flag = started.clone();
    std::thread::spawn(move || {
        Pool::global().run(2, |_| {
            flag.store(true, Ordering::SeqCst);
            loop {
                std::thread::park();
            }
        });
    });
    while !started.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    let abandoned: *const Pool = Pool::global();
    Pool::abandon();
    assert!(!std::ptr::eq(abandoned, Pool::global()));
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
fn meet_returns_false_while_a_thread_is_busy() {
    assert!(Pool::new(1).meet());
    let pool = Pool::new(2);
    pool.run(2, |_| assert!(!pool.meet()));
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_stays_usable() {
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
fn the_number_of_threads_is_limited() {
    let pool = Pool::new(1);
    pool.set_threads(usize::MAX);
    assert!(pool.threads() <= MAX_THREADS);
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
