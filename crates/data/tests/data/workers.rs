use crate::{message, numbers, values};
use kiln_data::{DataLoader, Dataset, FnDataset, Order, Pass, Sampler, Stream};
use kiln_tensor::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Silences the panics of this binary's datasets.
fn quiet() {
    std::panic::set_hook(Box::new(|info| {
        let text = info.payload().downcast_ref::<&str>().copied().unwrap_or("");
        if text != "torn page" {
            eprintln!("{info}");
        }
    }));
}

#[test]
fn a_panic_in_a_sample_is_an_error_that_names_the_index() -> Result<()> {
    quiet();
    for workers in [0, 1, 3] {
        let data = numbers(6).map(|i| if i == 2 { panic!("torn page") } else { Ok(i) });
        let loader = DataLoader::new(data)
            .batch_size(2)
            .workers(workers)
            .build()?;
        let batches: Vec<_> = loader
            .iter()
            .map(|b| b.and_then(|b| b.to_vec::<i64>()))
            .collect();
        assert_eq!(batches.len(), 3);
        assert_eq!(batches[2].as_ref().unwrap(), &[4, 5]);
        let found = message(batches.into_iter().nth(1).unwrap());
        assert!(found.contains("sample 2 panicked: torn page"), "{found}");
    }
    Ok(())
}

#[test]
fn panics_of_collation_streams_and_samplers_are_errors() -> Result<()> {
    quiet();
    struct Torn;
    impl Sampler for Torn {
        type Item = usize;
        fn len(&self) -> Option<usize> {
            Some(4)
        }
        fn order(&self, _: Pass) -> Order<usize> {
            Box::new((0..4).map(|i| if i == 1 { panic!("torn page") } else { i }))
        }
    }
    for workers in [0, 2] {
        let torn = |_: Vec<i64>| -> Result<()> { panic!("torn page") };
        let loader = DataLoader::new(numbers(2))
            .collate(torn)
            .workers(workers)
            .build()?;
        let found = message(loader.iter().collect::<Result<Vec<_>>>());
        assert!(
            found.contains("collating the samples [0] panicked: torn page"),
            "{found}"
        );

        let stream = || -> Stream<i64> {
            Box::new((0..4).map(|i| if i == 1 { panic!("torn page") } else { Ok(i) }))
        };
        let loader = DataLoader::from_iterable(stream).workers(workers).build()?;
        let batches: Vec<_> = loader.iter().collect();
        assert_eq!(batches.len(), 2, "a stream that panicked is not read again");
        let found = message(batches.into_iter().nth(1).unwrap());
        assert!(
            found.contains("sample 1 of the iterable dataset panicked"),
            "{found}"
        );

        let loader = DataLoader::new(numbers(4))
            .sampler(Torn)
            .workers(workers)
            .build()?;
        let found = message(values(&loader));
        assert!(found.contains("the sampler panicked: torn page"), "{found}");

        let none = || -> Stream<i64> { panic!("torn page") };
        let loader = DataLoader::from_iterable(none).workers(workers).build()?;
        let found = message(values(&loader));
        assert!(found.contains("the iterable dataset panicked"), "{found}");
    }
    Ok(())
}

#[test]
fn a_worker_that_hangs_is_an_error_that_names_its_sample() -> Result<()> {
    let (stuck, free) = (
        Arc::new(AtomicBool::new(true)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (gate, freed) = (stuck.clone(), free.clone());
    let data = FnDataset::new(8, move |i| {
        while i == 5 && gate.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        freed.fetch_add(usize::from(i == 5), Ordering::SeqCst);
        Ok(i)
    });
    let timeout = Duration::from_millis(100);
    let loader = DataLoader::new(data)
        .batch_size(2)
        .workers(2)
        .timeout(timeout)
        .build()?;
    let start = Instant::now();
    let mut batches = loader.iter();
    assert!(batches.next().unwrap().is_ok());
    assert!(batches.next().unwrap().is_ok());
    let found = message(batches.next().unwrap());
    assert!(
        found.contains("no batch came within 100ms: worker"),
        "{found}"
    );
    assert!(found.contains("is at sample 5"), "{found}");
    assert!(batches.next().is_none());
    drop(batches);
    assert!(start.elapsed() < Duration::from_secs(5));
    stuck.store(false, Ordering::SeqCst);
    while free.load(Ordering::SeqCst) == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

#[test]
fn leaving_a_pass_early_ends_its_workers() -> Result<()> {
    let running = Arc::new(());
    for taken in 0..4 {
        let held = running.clone();
        let data = FnDataset::new(1000, move |i| {
            let _held = &held;
            thread::sleep(Duration::from_micros(200));
            Ok(i)
        });
        let loader = DataLoader::new(data).workers(3).build()?;
        assert_eq!(loader.iter().take(taken).count(), taken);
        drop(loader);
        // Workers hold the dataset, so a count of 1 shows that they have ended.
        assert_eq!(Arc::strong_count(&running), 1);
    }
    Ok(())
}

#[test]
fn workers_load_no_more_than_the_prefetch_ahead() -> Result<()> {
    let loaded = Arc::new(AtomicUsize::new(0));
    let count = loaded.clone();
    let data = FnDataset::new(100, move |i| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(i)
    });
    let loader = DataLoader::new(data)
        .batch_size(2)
        .workers(2)
        .prefetch_factor(3)
        .build()?;
    let mut batches = loader.iter();
    for taken in 0..3 {
        let full = 2 * (6 + taken);
        while loaded.load(Ordering::SeqCst) < full {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(10));
        assert_eq!(loaded.load(Ordering::SeqCst), full);
        batches.next().transpose()?;
    }
    Ok(())
}

#[test]
fn workers_really_work_at_the_same_time() -> Result<()> {
    let meeting = Arc::new(std::sync::Barrier::new(2));
    let data = FnDataset::new(2, move |i| {
        // Two samples wait for each other: a single worker would hang.
        meeting.wait();
        Ok(i)
    });
    let timeout = Duration::from_secs(10);
    let loader = DataLoader::new(data).workers(2).timeout(timeout).build()?;
    assert_eq!(values(&loader)?, [[0], [1]]);
    Ok(())
}

#[test]
fn worker_init_runs_in_each_worker_with_its_own_random_numbers() -> Result<()> {
    let drawn = Arc::new(Mutex::new(Vec::new()));
    let (seen, all) = (drawn.clone(), Arc::new(std::sync::Barrier::new(3)));
    let init = move |id| {
        let number = kiln_data::Rng::from_default().bits();
        seen.lock().unwrap().push((id, number));
        all.wait();
        Ok(())
    };
    let loader = DataLoader::new(numbers(5))
        .seed(4)
        .workers(3)
        .worker_init_fn(init)
        .build()?;
    let pass = || -> Result<_> {
        values(&loader)?;
        let mut drawn = std::mem::take(&mut *drawn.lock().unwrap());
        drawn.sort();
        Ok(drawn)
    };
    let (first, second) = (pass()?, pass()?);
    assert_eq!(Vec::from_iter(first.iter().map(|d| d.0)), [0, 1, 2]);
    let mut numbers: Vec<u64> = first.iter().chain(&second).map(|d| d.1).collect();
    numbers.sort();
    numbers.dedup();
    assert_eq!(numbers.len(), 6);
    loader.set_epoch(0);
    assert_eq!(pass()?, first);
    Ok(())
}

#[test]
fn a_worker_that_cannot_start_ends_the_pass() -> Result<()> {
    quiet();
    let fails = |id| match id {
        1 => Err(Error::new(
            ErrorKind::Io,
            "open",
            "no such file",
            kiln_base::Loc::UNKNOWN,
        )),
        _ => Ok(()),
    };
    let loader = DataLoader::new(numbers(1000))
        .workers(2)
        .worker_init_fn(fails)
        .build()?;
    let last = loader.iter().last().unwrap();
    assert!(message(last).contains("no such file"));
    let panics = |_| panic!("torn page");
    let loader = DataLoader::new(numbers(4))
        .workers(2)
        .worker_init_fn(panics)
        .build()?;
    let found = message(values(&loader));
    assert!(found.contains("worker_init_fn of worker"), "{found}");
    Ok(())
}

#[test]
fn passes_of_one_loader_run_side_by_side() -> Result<()> {
    let loader = DataLoader::new(numbers(50))
        .batch_size(7)
        .workers(2)
        .build()?;
    let total = |loader: &DataLoader<_>| values(loader).map(|v| v.concat().iter().sum::<i64>());
    thread::scope(|s| {
        let passes: Vec<_> = (0..4).map(|_| s.spawn(|| total(&loader))).collect();
        for pass in passes {
            assert_eq!(pass.join().unwrap()?, 49 * 25);
        }
        Ok(())
    })
}
