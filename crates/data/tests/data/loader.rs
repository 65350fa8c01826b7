use crate::{message, numbers, values};
use kiln_data::{BatchSampler, DataLoader, Dataset, FnDataset, Rng, SequentialSampler, Stream};
use kiln_tensor::{DType, Error, ErrorKind, Result, Tensor, realize_all};
use std::collections::BTreeMap;
use std::time::Duration;

#[test]
fn an_iterable_of_two_rounds_comes_in_batches_that_cross_rounds() -> Result<()> {
    let stream = || -> Stream<i64> { Box::new((0..10).chain(0..10).map(Ok)) };
    for workers in [0, 1, 3] {
        let loader = DataLoader::from_iterable(stream)
            .batch_size(3)
            .workers(workers)
            .build()?;
        let want: [&[i64]; 7] = [
            &[0, 1, 2],
            &[3, 4, 5],
            &[6, 7, 8],
            &[9, 0, 1],
            &[2, 3, 4],
            &[5, 6, 7],
            &[8, 9],
        ];
        assert_eq!(values(&loader)?, want);
        assert_eq!(values(&loader)?, want, "a second pass starts over");
        assert_eq!(loader.len(), None);
    }
    let loader = DataLoader::from_iterable(stream)
        .batch_size(3)
        .drop_last(true)
        .build()?;
    assert_eq!(values(&loader)?.last(), Some(&vec![5, 6, 7]));
    Ok(())
}

#[test]
fn dict_samples_become_dicts_of_batches() -> Result<()> {
    let data = FnDataset::new(10, |i| {
        let i = i as i64;
        Ok(BTreeMap::from([("idx", i), ("data", 10 * i)]))
    });
    let loader = DataLoader::new(data).batch_size(3).build()?;
    let batches: Vec<_> = loader.iter().collect::<Result<_>>()?;
    assert_eq!((batches.len(), loader.len()), (4, Some(4)));
    assert_eq!(batches[3]["idx"].to_vec::<i64>()?, [9]);
    assert_eq!(batches[3]["data"].to_vec::<i64>()?, [90]);
    assert_eq!(batches[1]["data"].to_vec::<i64>()?, [30, 40, 50]);
    Ok(())
}

#[test]
fn each_pass_is_shuffled_anew_and_workers_change_nothing() -> Result<()> {
    let passes = |workers, seed| -> Result<_> {
        let loader = DataLoader::new(numbers(23)).batch_size(4).shuffle(true);
        let loader = loader.seed(seed).workers(workers).build()?;
        Ok([values(&loader)?, values(&loader)?])
    };
    let [first, second] = passes(0, 5)?;
    assert_ne!(first, second);
    for pass in [&first, &second] {
        let mut all = pass.concat();
        assert_ne!(all, Vec::from_iter(0..23));
        all.sort();
        assert_eq!(all, Vec::from_iter(0..23));
        assert_eq!(
            Vec::from_iter(pass.iter().map(Vec::len)),
            [4, 4, 4, 4, 4, 3]
        );
    }
    for workers in 1..4 {
        assert_eq!(passes(workers, 5)?, [first.clone(), second.clone()]);
    }
    assert_ne!(passes(0, 6)?[0], first);
    Ok(())
}

#[test]
fn random_samples_depend_on_seed_and_epoch_alone() -> Result<()> {
    let noise = || {
        FnDataset::new(9, |_| {
            Ok((Rng::from_default().unit(), Tensor::rand([2], DType::F64)))
        })
    };
    let pass = |loader: &DataLoader<(Tensor, Tensor)>| -> Result<Vec<f64>> {
        let mut all = Vec::new();
        for batch in loader {
            let (host, device) = batch?;
            all.extend(host.to_vec::<f64>()?);
            all.extend(device.to_vec::<f64>()?);
        }
        Ok(all)
    };
    let build = |workers| {
        DataLoader::new(noise())
            .batch_size(2)
            .seed(1)
            .workers(workers)
            .build()
    };
    let in_place = build(0)?;
    let (first, second) = (pass(&in_place)?, pass(&in_place)?);
    let mut distinct = [&first[..], &second[..]].concat();
    distinct.sort_by(f64::total_cmp);
    distinct.dedup();
    assert_eq!(distinct.len(), 2 * 27, "no number comes twice");
    let threaded = build(3)?;
    assert_eq!(
        (pass(&threaded)?, pass(&threaded)?),
        (first, second.clone())
    );
    let resumed = build(2)?;
    resumed.set_epoch(1);
    assert_eq!(pass(&resumed)?, second);
    Ok(())
}

#[test]
fn a_loader_without_a_seed_follows_the_default_generator() -> Result<()> {
    let pass = |seed| {
        kiln_tensor::with_seed(seed, || -> Result<_> {
            values(&DataLoader::new(numbers(30)).shuffle(true).build()?)
        })
    };
    assert_eq!(pass(3)?, pass(3)?);
    assert_ne!(pass(3)?, pass(4)?);
    Ok(())
}

#[test]
fn contradicting_settings_are_named() {
    let new = || DataLoader::new(numbers(4));
    let stream = || DataLoader::from_iterable(|| -> Stream<i64> { Box::new((0..4).map(Ok)) });
    let order = || SequentialSampler::new(4);
    let batches = || BatchSampler::new(order(), 2, false).unwrap();
    let second = Duration::from_secs(1);
    let wrong: [(Result<_>, &str); 15] = [
        (
            new().sampler(order()).shuffle(true).build(),
            "sampler decides the order of the samples; leave out shuffle",
        ),
        (
            new().batch_sampler(batches()).batch_size(2).build(),
            "leave out batch_size",
        ),
        (
            new().batch_sampler(batches()).shuffle(true).build(),
            "leave out shuffle",
        ),
        (
            new().batch_sampler(batches()).sampler(order()).build(),
            "leave out sampler",
        ),
        (
            new().batch_sampler(batches()).drop_last(true).build(),
            "leave out drop_last",
        ),
        (
            stream().shuffle(true).build(),
            "iterable dataset decides the order of its samples; leave out shuffle",
        ),
        (stream().sampler(order()).build(), "leave out sampler"),
        (
            stream().batch_sampler(batches()).build(),
            "leave out batch_sampler",
        ),
        (new().workers(usize::MAX).build(), "workers must be at most"),
        (new().batch_size(0).build(), "batch_size must be at least 1"),
        (
            new().timeout(second).build(),
            "set workers, or leave out timeout",
        ),
        (
            new().prefetch_factor(2).build(),
            "set workers, or leave out prefetch_factor",
        ),
        (
            new().workers(1).prefetch_factor(0).build(),
            "prefetch_factor must be at least 1",
        ),
        (
            new().workers(1).timeout(Duration::ZERO).build(),
            "timeout must not be zero",
        ),
        (
            new()
                .batch_size(2)
                .collate(|_| Ok(Tensor::scalar(0)))
                .batch_sampler(batches())
                .build(),
            "leave out batch_size",
        ),
    ];
    for (result, want) in wrong {
        let found = message(result);
        assert!(found.contains(want), "{found}\nlacks {want}");
        assert!(
            found.contains("loader.rs"),
            "{found}\nnames the user's line"
        );
    }
    let unbatched = message(new().unbatched().drop_last(true).batch_size(3).build());
    assert!(
        unbatched.contains("leave out batch_size, drop_last"),
        "{unbatched}"
    );
    // A setting that repeats the default is allowed.
    assert!(new().sampler(order()).shuffle(false).build().is_ok());
}

#[test]
fn samplers_and_batch_samplers_decide_the_batches() -> Result<()> {
    let loader = DataLoader::new(numbers(9)).batch_size(2);
    let loader = loader
        .sampler(kiln_data::SubsetRandomSampler::new([2, 4, 8]))
        .seed(0)
        .build()?;
    let mut batches = values(&loader)?;
    assert_eq!((batches[0].len(), batches[1].len()), (2, 1));
    batches.concat().sort();
    let mut all = batches.concat();
    all.sort();
    assert_eq!(all, [2, 4, 8]);
    batches.clear();

    let sampler = BatchSampler::new(SequentialSampler::new(9), 4, true)?;
    let loader = DataLoader::new(numbers(9)).batch_sampler(sampler).build()?;
    assert_eq!(loader.len(), Some(2));
    assert_eq!(values(&loader)?, [[0, 1, 2, 3], [4, 5, 6, 7]]);

    let beyond = DataLoader::new(numbers(3))
        .sampler(SequentialSampler::new(5))
        .build()?;
    let found = message(values(&beyond));
    assert!(
        found.contains("the sampler gave the index 3 of 3 samples"),
        "{found}"
    );
    Ok(())
}

#[test]
fn drop_last_and_odd_sizes() -> Result<()> {
    for (len, size) in [(0, 1), (0, 5), (1, 1), (1, 7), (6, 3), (7, 3), (11, 5)] {
        for workers in [0, 2] {
            let build = |drop| {
                let loader = DataLoader::new(numbers(len)).batch_size(size);
                loader.drop_last(drop).workers(workers).build()
            };
            let all = Vec::from_iter(0..len as i64);
            let kept: Vec<Vec<i64>> = all.chunks(size).map(Vec::from).collect();
            let whole: Vec<Vec<i64>> = all.chunks_exact(size).map(Vec::from).collect();
            assert_eq!(build(false)?.len(), Some(kept.len()));
            assert_eq!(build(true)?.len(), Some(whole.len()));
            assert_eq!(values(&build(false)?)?, kept);
            assert_eq!(values(&build(true)?)?, whole);
        }
    }
    Ok(())
}

#[test]
fn indices_come_beside_the_batch() -> Result<()> {
    let loader = DataLoader::new(numbers(7))
        .batch_size(3)
        .shuffle(true)
        .seed(2)
        .workers(2)
        .build()?;
    for batch in loader.with_indices() {
        let (indices, batch) = batch?;
        let indices: Vec<i64> = indices.into_iter().map(|i| i as i64).collect();
        assert_eq!(batch.to_vec::<i64>()?, indices);
    }
    let stream = || -> Stream<i64> { Box::new([5, 6, 7].into_iter().map(Ok)) };
    let loader = DataLoader::from_iterable(stream).batch_size(2).build()?;
    let indices: Result<Vec<_>> = loader.with_indices().map(|b| Ok(b?.0)).collect();
    assert_eq!(indices?, [vec![0, 1], vec![2]]);
    Ok(())
}

#[test]
fn samples_come_unbatched_and_batches_by_a_function() -> Result<()> {
    struct Custom(i64);
    let data = || FnDataset::new(5, |i| Ok(Custom(i as i64)));
    let loader = DataLoader::new(data()).unbatched().workers(1).build()?;
    let samples: Result<Vec<i64>> = loader.iter().map(|s| Ok(s?.0)).collect();
    assert_eq!(samples?, [0, 1, 2, 3, 4]);
    let sum = |samples: Vec<Custom>| Ok(samples.iter().map(|s| s.0).sum::<i64>());
    let loader = DataLoader::new(data()).batch_size(2).collate(sum).build()?;
    assert_eq!(loader.iter().collect::<Result<Vec<_>>>()?, [1, 5, 4]);
    Ok(())
}

#[test]
fn loaders_cycle_and_end_where_there_is_nothing() -> Result<()> {
    let loader = DataLoader::new(numbers(3)).batch_size(2).build()?;
    let first: Result<Vec<_>> = loader.cycle().take(5).map(|b| b?.to_vec::<i64>()).collect();
    assert_eq!(
        first?,
        [vec![0, 1], vec![2], vec![0, 1], vec![2], vec![0, 1]]
    );
    assert!(
        DataLoader::new(numbers(0))
            .build()?
            .cycle()
            .next()
            .is_none()
    );
    let endless = || -> Stream<i64> { Box::new((0..).map(Ok)) };
    let loader = DataLoader::from_iterable(endless)
        .batch_size(2)
        .workers(2)
        .build()?;
    let third = loader.iter().nth(2).transpose()?;
    assert_eq!(
        third.map(|t| t.to_vec::<i64>()).transpose()?,
        Some(vec![4, 5])
    );
    Ok(())
}

#[test]
fn next_computes_what_the_thread_holds_and_batches_come_computed() -> Result<()> {
    for workers in [0, 2] {
        let data = FnDataset::new(6, |i| Ok(Tensor::full([3], i as f64, DType::F32) * 2.0));
        let lazy = |samples: Vec<Tensor>| {
            Ok(kiln_tensor::stack(&samples.iter().collect::<Vec<_>>(), 0) + 1.0)
        };
        let loader = DataLoader::new(data)
            .batch_size(2)
            .collate(lazy)
            .workers(workers)
            .build()?;
        let mut total = Tensor::scalar(0.0f32);
        for batch in &loader {
            assert!(total.is_realized());
            let batch = batch?;
            assert!(batch.is_realized());
            total += batch.sum(());
            assert!(!total.is_realized());
        }
        // 18 elements of 2 i + 1, i in 0..6.
        assert_eq!(total.item::<f32>()?, 3.0 * 36.0);
    }
    realize_all()
}

#[test]
fn what_fails_elsewhere_is_not_the_loaders() -> Result<()> {
    let bad = Tensor::from([1.0f32]).gather(0, Tensor::from([7i64]));
    let loader = DataLoader::new(numbers(4)).batch_size(2).build()?;
    assert_eq!(values(&loader)?, [[0, 1], [2, 3]]);
    assert_eq!(
        bad.to_vec::<f32>().map_err(|e| e.kind()),
        Err(ErrorKind::Data)
    );
    Ok(())
}

#[test]
fn samples_of_unequal_size_are_named() -> Result<()> {
    for workers in [0, 1] {
        let data = FnDataset::new(5, |i| Ok(Tensor::ones([2, 3 + i / 4], DType::F32)));
        let loader = DataLoader::new(data)
            .batch_size(3)
            .workers(workers)
            .build()?;
        let batches: Vec<_> = loader.iter().collect();
        assert_eq!(batches.len(), 2);
        assert!(batches[0].is_ok());
        let found = message(batches.into_iter().nth(1).unwrap());
        assert!(
            found.contains("sample 0 is f32[2, 3], sample 1 is f32[2, 4]"),
            "{found}"
        );
        assert!(found.contains("collating the samples [3, 4]"), "{found}");
        assert!(found.contains("tests/data/loader.rs"), "{found}");
    }
    Ok(())
}

#[test]
fn a_failing_sample_is_named_and_the_next_batch_comes() -> Result<()> {
    let own = |i| {
        Error::new(
            ErrorKind::Value,
            "my_reader",
            "the image is torn",
            kiln_base::Loc::UNKNOWN,
        )
        .with_note(format!("{i}"))
    };
    for workers in [0, 2] {
        let data = numbers(6).map(move |i| if i == 3 { Err(own(i)) } else { Ok(i) });
        let loader = DataLoader::new(data)
            .batch_size(2)
            .workers(workers)
            .build()?;
        let batches: Vec<_> = loader
            .iter()
            .map(|b| b.and_then(|b| b.to_vec::<i64>()))
            .collect();
        assert_eq!(batches.len(), 3);
        assert_eq!(batches[0].as_ref().unwrap(), &[0, 1]);
        assert_eq!(batches[2].as_ref().unwrap(), &[4, 5]);
        let found = batches[1].as_ref().unwrap_err();
        assert_eq!(found.op(), "my_reader");
        assert!(found.to_string().contains("loading sample 3"), "{found}");
    }
    Ok(())
}
