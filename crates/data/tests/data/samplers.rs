use crate::{message, numbers, values};
use kiln_data::{
    BatchSampler, DataLoader, DistributedSampler, FnSampler, Pass, RandomSampler, Sampler,
    SequentialSampler, SubsetRandomSampler, WeightedRandomSampler,
};
use kiln_tensor::Result;
use std::sync::Arc;

fn drawn<S: Sampler>(sampler: &S, epoch: u64) -> Vec<S::Item> {
    sampler.order(Pass { seed: 9, epoch }).collect()
}

fn sorted(mut indices: Vec<usize>) -> Vec<usize> {
    indices.sort();
    indices
}

#[test]
fn random_orders_are_permutations_that_differ_by_epoch() {
    for len in [0, 1, 2, 17] {
        let sampler = RandomSampler::new(len);
        assert_eq!(sampler.len(), Some(len));
        assert_eq!(sorted(drawn(&sampler, 0)), Vec::from_iter(0..len));
        assert_eq!(drawn(&sampler, 3), drawn(&sampler, 3));
    }
    let sampler = RandomSampler::new(17);
    assert_ne!(drawn(&sampler, 0), drawn(&sampler, 1));
    let subset = SubsetRandomSampler::new([5, 3, 9]);
    assert_eq!(sorted(drawn(&subset, 0)), [3, 5, 9]);
}

#[test]
fn every_order_is_as_likely() {
    let mut counts = std::collections::BTreeMap::new();
    for epoch in 0..6000 {
        *counts
            .entry(drawn(&RandomSampler::new(3), epoch))
            .or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 6);
    // 1000 each; the standard deviation is below 29.
    assert!(
        counts.values().all(|c| (850..1150).contains(c)),
        "{counts:?}"
    );
}

#[test]
fn more_or_fewer_samples_than_there_are() {
    let rounds = RandomSampler::new(4).num_samples(10);
    assert_eq!(rounds.len(), Some(10));
    let order = drawn(&rounds, 0);
    assert_eq!(order.len(), 10);
    assert_eq!(sorted(order[..4].to_vec()), [0, 1, 2, 3]);
    assert_eq!(sorted(order[4..8].to_vec()), [0, 1, 2, 3]);
    let few = sorted(drawn(&RandomSampler::new(40).num_samples(5), 0));
    assert!(
        few.len() == 5 && few.windows(2).all(|w| w[0] < w[1]),
        "{few:?}"
    );
    let replaced = drawn(&RandomSampler::new(40).replacement(true), 0);
    assert!(replaced.len() == 40 && replaced.iter().all(|i| *i < 40));
    assert_ne!(sorted(replaced), Vec::from_iter(0..40), "some come twice");
    assert!(drawn(&RandomSampler::new(0).num_samples(3), 0).is_empty());
}

#[test]
fn weights_decide_how_often_an_index_comes() -> Result<()> {
    let sampler = WeightedRandomSampler::new([0.0, 1.0, 3.0, 0.0], 4000, true)?;
    let order = drawn(&sampler, 0);
    let ones = order.iter().filter(|i| **i == 1).count();
    assert!(order.iter().all(|i| [1, 2].contains(i)));
    // 1000; the standard deviation is below 28.
    assert!((850..1150).contains(&ones), "{ones}");

    let sampler = WeightedRandomSampler::new([1.0, 0.0, 2.0, 1.0], 3, false)?;
    let mut first = [0; 4];
    for epoch in 0..4000 {
        let order = drawn(&sampler, epoch);
        first[order[0]] += 1;
        assert_eq!(sorted(order), [0, 2, 3]);
    }
    // 1000, 0, 2000, 1000; the standard deviations are below 32.
    assert!(
        first[1] == 0 && (1850..2150).contains(&first[2]),
        "{first:?}"
    );
    assert!((850..1150).contains(&first[0]), "{first:?}");

    let huge = WeightedRandomSampler::new([f64::MAX, f64::MAX, f64::MIN_POSITIVE], 100, true)?;
    assert_eq!(drawn(&huge, 0).iter().filter(|i| **i == 2).count(), 0);
    assert!(drawn(&huge, 0).contains(&1));
    Ok(())
}

#[test]
fn weights_that_make_no_sense_are_errors() {
    let new = |weights: &[f64], n, replacement| {
        message(WeightedRandomSampler::new(weights, n, replacement))
    };
    assert!(new(&[1.0, -0.5], 1, true).contains("weight 1 is -0.5"));
    assert!(new(&[f64::NAN], 1, true).contains("weight 0 is NaN"));
    assert!(new(&[0.0, 0.0], 1, true).contains("0 of 2 weights are positive"));
    assert!(new(&[], 1, true).contains("0 of 0 weights are positive"));
    assert!(new(&[1.0, 0.0], 2, false).contains("2 samples can't be drawn without replacement"));
}

#[test]
fn batches_of_indices() -> Result<()> {
    let kept = BatchSampler::new(SequentialSampler::new(5), 2, false)?;
    assert_eq!(drawn(&kept, 0), [vec![0, 1], vec![2, 3], vec![4]]);
    let dropped = BatchSampler::new(SequentialSampler::new(5), 2, true)?;
    assert_eq!(drawn(&dropped, 0), [[0, 1], [2, 3]]);
    let zero = message(BatchSampler::new(SequentialSampler::new(5), 0, true));
    assert!(zero.contains("batch_size must be at least 1"));
    Ok(())
}

#[test]
fn processes_share_the_samples() -> Result<()> {
    for (len, replicas) in [(10, 2), (11, 3), (2, 5), (1, 4), (0, 3)] {
        let shares = |drop, epoch| -> Result<Vec<Vec<usize>>> {
            let share = |rank| {
                let sampler = DistributedSampler::new(len, replicas, rank)?.drop_last(drop);
                let order = drawn(&sampler, epoch);
                assert_eq!(sampler.len(), Some(order.len()));
                Ok(order)
            };
            (0..replicas).map(share).collect()
        };
        let padded = shares(false, 0)?;
        assert!(padded.iter().all(|s| s.len() == len.div_ceil(replicas)));
        let mut all = sorted(padded.concat());
        all.dedup();
        assert_eq!(all, Vec::from_iter(0..len), "each comes at least once");
        let dropped = sorted(shares(true, 0)?.concat());
        assert_eq!(dropped.len(), len / replicas * replicas);
        assert!(dropped.windows(2).all(|w| w[0] < w[1]), "none comes twice");
    }
    let plain = DistributedSampler::new(5, 2, 1)?.shuffle(false);
    assert_eq!(drawn(&plain, 0), [1, 3, 0]);
    let wrong = message(DistributedSampler::new(4, 2, 2));
    assert!(wrong.contains("the rank is 2, of 2 processes"), "{wrong}");
    Ok(())
}

#[test]
fn distributed_orders_follow_the_epoch_and_their_own_seed() -> Result<()> {
    let sampler = Arc::new(DistributedSampler::new(40, 2, 0)?);
    let loader = |seed| {
        let loader = DataLoader::new(numbers(40)).batch_size(20);
        loader.sampler(sampler.clone()).seed(seed).build()
    };
    let (a, b) = (loader(1)?, loader(2)?);
    let first = values(&a)?;
    assert_eq!(first, values(&b)?, "the loaders' seeds may differ");
    let second = values(&a)?;
    assert_ne!(first, second);
    sampler.set_epoch(0);
    assert_eq!(values(&a)?, first);
    sampler.set_epoch(1);
    assert_eq!(values(&a)?, second);
    let other = DistributedSampler::new(40, 2, 0)?.seed(1);
    assert_ne!(
        drawn(&other, 0),
        drawn(&DistributedSampler::new(40, 2, 0)?, 0)
    );
    Ok(())
}

#[test]
fn orders_of_more_samples_than_memory_holds() {
    for len in [1 << 40, usize::MAX] {
        let sampler = RandomSampler::new(len);
        let first = || sampler.order(Pass { seed: 1, epoch: 0 }).take(1000);
        let mut drawn: Vec<usize> = first().collect();
        assert!(drawn.iter().all(|i| *i < len) && first().eq(drawn.iter().copied()));
        drawn.sort();
        drawn.dedup();
        assert_eq!(drawn.len(), 1000);
        let middle = drawn[500] as f64 / len as f64;
        assert!((0.4..0.6).contains(&middle), "{middle}");
        for shuffle in [true, false] {
            let shared = DistributedSampler::new(len, 3, 2).unwrap().shuffle(shuffle);
            let order = shared.order(Pass { seed: 1, epoch: 0 });
            assert_eq!(order.take(10).filter(|i| *i < len).count(), 10);
        }
        let dataset = kiln_data::FnDataset::new(len, Ok);
        let split = kiln_data::random_split(dataset, [0.5, 0.5], 0);
        assert!(message(split.map(drop)).contains("no memory"));
    }
}

#[test]
fn lists_and_functions_are_samplers() -> Result<()> {
    let list = vec![4usize, 0, 4];
    assert_eq!(
        (Sampler::len(&list), drawn(&list, 1)),
        (Some(3), vec![4, 0, 4])
    );
    let loader = DataLoader::new(numbers(5)).batch_sampler(vec![vec![1usize, 3], vec![0]]);
    let loader = loader.build()?;
    assert_eq!(loader.len(), Some(2));
    assert_eq!(values(&loader)?, [vec![1, 3], vec![0]]);
    let random = FnSampler::with_len(3, |pass: Pass| {
        let mut rng = pass.rng();
        (0..).map(move |_| rng.below(5))
    });
    let loader = DataLoader::new(numbers(5))
        .sampler(random)
        .workers(2)
        .build()?;
    assert_eq!(loader.len(), Some(3));
    let (first, second) = (values(&loader)?, values(&loader)?);
    loader.set_epoch(0);
    assert_eq!((first.len(), &first), (3, &values(&loader)?));
    assert_ne!(first, second);
    assert_eq!(FnSampler::new(|_| [1usize]).len(), None);
    let beyond = DataLoader::new(numbers(5)).sampler(vec![5usize]).build()?;
    assert!(message(values(&beyond)).contains('5'));
    Ok(())
}

#[test]
fn a_pass_says_how_many_batches_are_left() -> Result<()> {
    let loader = DataLoader::new(numbers(5)).batch_size(2).build()?;
    let mut pass = loader.iter();
    assert_eq!(pass.size_hint(), (0, Some(3)));
    pass.next().unwrap()?;
    assert_eq!(pass.size_hint(), (0, Some(2)));
    assert_eq!(pass.by_ref().count(), 2);
    assert_eq!(pass.size_hint(), (0, Some(0)));
    assert_eq!(pass.size_hint(), (0, Some(0)));
    Ok(())
}
