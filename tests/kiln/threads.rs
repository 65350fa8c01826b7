//! Threads that read and write the same cells in any order all make progress.

use crate::vector;
use kiln::{DType, ErrorKind, Spec, Tensor, Var, compile, keep};
use std::sync::mpsc;
use std::time::Duration;

const THREADS: usize = 8;
const ROUNDS: usize = 150;

/// Runs `work` in several threads at a time, and fails if one of them has not ended within a minute.
#[track_caller]
fn all_end(threads: usize, work: impl Fn(usize) + Send + Sync + Clone + 'static) {
    let (done, ended) = mpsc::channel();
    let start = std::sync::Arc::new(std::sync::Barrier::new(threads));
    for t in 0..threads {
        let (work, done, start) = (work.clone(), done.clone(), start.clone());
        std::thread::spawn(move || {
            start.wait();
            work(t);
            // The receiver is gone if another thread was given up.
            let _ = done.send(t);
        });
    }
    drop(done);
    let mut missing: Vec<usize> = (0..threads).collect();
    while !missing.is_empty() {
        match ended.recv_timeout(Duration::from_secs(60)) {
            Ok(t) => missing.retain(|m| *m != t),
            Err(e) => panic!("threads {missing:?} of {threads}: {e}"),
        }
    }
}

fn cells() -> [Var; 2] {
    [(); 2].map(|()| Var::new(vector(&[1.0; 16])).unwrap())
}

/// The value of a cell, whose elements are all the same and finite.
#[track_caller]
fn whole(v: &Var) -> f32 {
    let values = v.get().to_vec::<f32>().unwrap();
    assert!(values.iter().all(|x| *x == values[0]), "torn: {values:?}");
    assert!(values[0].is_finite());
    values[0]
}

/// Several threads call backward into the same parameters: every gradient is in the sums. Integers add up exactly.
#[test]
fn gradients_of_all_threads_add_up() {
    let parameters = cells();
    for p in &parameters {
        p.requires_grad_(true).unwrap();
    }
    let all = parameters.clone();
    all_end(THREADS, move |t| {
        for round in 0..ROUNDS {
            let x = vector(&[(t * ROUNDS + round) as f32; 16]);
            let loss = (&x * &all[0]).sum(()) + (&x * &all[1]).sum(()) * 2.0;
            loss.backward().unwrap();
            if round % 8 == t {
                all[1].grad().expect("a gradient").realize().unwrap();
            }
        }
    });
    let passes = (THREADS * ROUNDS) as f32;
    let sum = passes * (passes - 1.0) / 2.0;
    let grad = |p: &Var| p.grad().expect("a gradient").to_vec::<f32>().unwrap();
    assert_eq!(grad(&parameters[0]), [sum; 16]);
    assert_eq!(grad(&parameters[1]), [2.0 * sum; 16]);
}

#[test]
fn lazy_assignments_in_opposite_orders_end() {
    let cells = cells();
    all_end(THREADS, move |t| {
        let [a, b] = &cells;
        let (a, b) = if t % 2 == 0 { (a, b) } else { (b, a) };
        for _ in 0..ROUNDS {
            a.assign(&(a.get() * 0.5 + b.get() * 0.5)).unwrap();
            b.assign(&(b.get() * 0.5 + a.get() * 0.5)).unwrap();
            assert_eq!(whole(if t % 3 == 0 { a } else { b }), 1.0);
        }
    });
}

#[test]
fn lazy_and_compiled_runs_with_swaps_and_failures_end() {
    let cells = cells();
    all_end(THREADS, move |t| {
        let [a, b] = &cells;
        let (a, b) = if t % 2 == 0 { (a, b) } else { (b, a) };
        let step = compile(Spec::new(DType::F32, [16]), |x| {
            a.assign(&(a.get() * 0.5 + b.get() * 0.5 + &x))?;
            b.assign(&(b.get() * 0.5 + a.get() * 0.5))?;
            Ok::<_, kiln::Error>(a.get())
        })
        .unwrap();
        let picks = Tensor::from_slice(&[0i64, 99], [2]);
        for round in 0..ROUNDS {
            let ended = match (t / 2 + round) % 5 {
                0 => step.run(vector(&[0.0; 16])).map(drop),
                1 => {
                    let (x, y) = (a.get(), b.get());
                    a.assign(&y).and(b.assign(&x))
                }
                2 => {
                    // The whole run fails, and its assignments are undone.
                    let bad = a.get().index_select(0, &picks).sum(keep([0]));
                    a.assign(&(a.get() * &bad))
                        .and(b.assign(&(b.get() * bad)))
                        .unwrap();
                    b.get().realize().map(drop)
                }
                3 => {
                    let held = a.get() + b.get();
                    b.assign(&(a.get() * 0.25 + &held * 0.25 + b.get() * 0.25))
                        .unwrap();
                    held.realize().map(drop)
                }
                _ => {
                    a.assign(&(a.get() * 0.5 + b.get() * 0.5)).unwrap();
                    a.get().realize().map(drop)
                }
            };
            // The error may come from its own run, or from another thread's run that this one joined.
            if let Err(e) = ended {
                assert_eq!(e.kind(), ErrorKind::Data, "{e}");
            }
        }
    });
}

/// Operations in any order: values held across rounds depend on cells that others overwrite.
#[test]
fn held_values_of_cells_that_others_assign_stay() {
    let cells = cells();
    all_end(THREADS, move |t| {
        let mut seed = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(t as u64 + 1);
        let mut held: Vec<Tensor> = vec![cells[0].get()];
        for _ in 0..ROUNDS {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let [a, b] = &cells;
            let (a, b) = if seed >> 40 & 1 == 0 { (a, b) } else { (b, a) };
            let h = held[(seed >> 32) as usize % held.len()].clone();
            match seed % 9 {
                0 => a.assign(&(a.get() * 0.5 + b.get() * 0.5)).unwrap(),
                1 => a.assign(&(a.get() * 0.5 + &h * 0.5)).unwrap(),
                2 => held.push(a.get() * 0.5 + h * 0.5),
                3 => held.push(h * 2.0 - b.get()),
                4 => drop(a.get().realize().unwrap()),
                5 => drop(h.realize().unwrap()),
                6 => a.assign(b.get()).unwrap(),
                7 => {
                    let mean = (a.get() + b.get()) * 0.5;
                    a.assign(&mean).unwrap();
                    b.assign(&(mean * 0.5 + 0.5)).unwrap();
                }
                _ => held.push(b.get()),
            }
            while held.len() > 4 {
                held.swap_remove((seed >> 20) as usize % held.len());
            }
        }
        for h in held {
            assert_eq!(h.to_vec::<f32>().unwrap(), [1.0; 16]);
        }
    });
}

/// A run makes progress while others assign without reading.
#[test]
fn a_compiled_run_gets_cells_that_are_always_pending() {
    let cells = cells();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    all_end(4, move |t| {
        let [a, b] = &cells;
        if t > 0 {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                a.assign(&(a.get() * 0.5 + b.get() * 0.5)).unwrap();
                b.assign(&(b.get() * 0.5 + a.get() * 0.5)).unwrap();
            }
            return;
        }
        let step = compile((), |()| {
            b.assign(&(b.get() * 0.5 + a.get() * 0.5))?;
            a.assign(&(a.get() * 0.5 + b.get() * 0.5))?;
            Ok::<_, kiln::Error>(Vec::<Tensor>::new())
        });
        let step = step.unwrap();
        for _ in 0..8 {
            step.run(()).unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(whole(a), 1.0);
    });
}

/// Runs `child` in a forked process and returns its exit code; `None` if it hung.
#[cfg(unix)]
fn forked(child: impl FnOnce() -> i32) -> Option<i32> {
    // SAFETY: the child ends in `_exit`, without unwinding or running what others left to run.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "the system can't fork");
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
        // SAFETY: ends the process.
        unsafe { libc::_exit(code) };
    }
    let (start, mut status) = (std::time::Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(30) {
        // SAFETY: waits for the child that was forked above.
        if unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == pid {
            return Some(libc::WEXITSTATUS(status)).filter(|_| libc::WIFEXITED(status));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    // SAFETY: as above; the child hangs.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, &raw mut status, 0);
    }
    None
}

/// Forks that depend on what other threads do, in a process of their own.
#[cfg(unix)]
#[test]
fn a_forked_child_computes_or_says_why_not() {
    use std::sync::atomic::{AtomicBool, Ordering};
    if std::env::var_os("KILN_ALONE").is_none() {
        let me = std::env::current_exe().unwrap();
        let name = "threads::a_forked_child_computes_or_says_why_not";
        let status = std::process::Command::new(me)
            .args([name, "--exact", "--quiet", "--test-threads", "1"])
            .env("KILN_ALONE", "1")
            .status();
        assert!(status.unwrap().success());
        return;
    }
    kiln::set_threads(4);
    let x = Tensor::ones([1 << 18], DType::F32);
    let compute = |n: i64| (&x * n).sum([0]).item::<f32>();
    assert_eq!(compute(2).unwrap(), 524288.0);
    // No other thread computes: the child starts threads of its own.
    for round in 0..5 {
        let code = forked(|| match compute(3 + round) {
            Ok(sum) if sum == ((3 + round) << 18) as f32 => 0,
            _ => 1,
        });
        assert_eq!(code, Some(0));
    }
    // Another thread computes most of the time.
    let stop = AtomicBool::new(false);
    let codes: Vec<Option<i32>> = std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                compute(5).unwrap();
            }
        });
        let child = || match compute(7) {
            Ok(sum) if sum == (7 << 18) as f32 => 0,
            Err(e)
                if e.message()
                    .contains("forked from one in which other threads") =>
            {
                2
            }
            _ => 1,
        };
        let codes = (0..60).map(|_| forked(child)).collect();
        stop.store(true, Ordering::Relaxed);
        codes
    });
    assert!(
        codes.iter().all(|c| [Some(0), Some(2)].contains(c)),
        "{codes:?}"
    );
    assert!(codes.contains(&Some(2)), "{codes:?}");
}
