use crate::{message, numbers};
use kiln_data::{
    Dataset, FnDataset, Rng, SplitSizes, Subset, k_fold, random_split, stratified_k_fold,
    stratified_split,
};
use kiln_tensor::Result;
use std::sync::Arc;

fn lengths<D: Dataset>(parts: &[Subset<D>]) -> Vec<usize> {
    parts.iter().map(Dataset::len).collect()
}

fn union<D: Dataset>(parts: &[Subset<Arc<D>>]) -> Vec<usize> {
    let mut all: Vec<usize> = parts.iter().flat_map(|p| p.indices().to_vec()).collect();
    all.sort();
    all
}

#[test]
fn parts_share_no_sample_and_miss_none() -> Result<()> {
    let cases: [(usize, SplitSizes, &[usize]); 6] = [
        (10, [7, 3].into(), &[7, 3]),
        (10, [0.8, 0.2].into(), &[8, 2]),
        (11, [0.5, 0.25, 0.25].into(), &[6, 3, 2]),
        (0, [0.5, 0.5].into(), &[0, 0]),
        (1, [0.5, 0.5].into(), &[1, 0]),
        (5, vec![5, 0].into(), &[5, 0]),
    ];
    for (len, parts, want) in cases {
        let split = random_split(numbers(len), parts.clone(), 0)?;
        assert_eq!(lengths(&split), want);
        assert_eq!(union(&split), Vec::from_iter(0..len));
        let labels: Vec<usize> = (0..len).map(|i| i % 2).collect();
        let split = stratified_split(numbers(len), &labels, parts, 0)?;
        assert_eq!(lengths(&split), want);
        assert_eq!(union(&split), Vec::from_iter(0..len));
    }
    Ok(())
}

#[test]
fn the_seed_decides_the_split() -> Result<()> {
    let split = |seed| -> Result<Vec<usize>> {
        Ok(random_split(numbers(50), [0.5, 0.5], seed)?[0]
            .indices()
            .to_vec())
    };
    assert_eq!(split(1)?, split(1)?);
    assert_ne!(split(1)?, split(2)?);
    let labels = vec![(); 50];
    let strata = |seed| -> Result<Vec<usize>> {
        Ok(stratified_split(numbers(50), &labels, [25, 25], seed)?[0]
            .indices()
            .to_vec())
    };
    assert_eq!(strata(1)?, strata(1)?);
    assert_ne!(strata(1)?, strata(2)?);
    Ok(())
}

#[test]
fn each_label_is_shared_in_proportion() -> Result<()> {
    let mut rng = Rng::new(3);
    for round in 0..50 {
        let len = 20 + rng.below(200);
        let labels: Vec<usize> = (0..len).map(|_| rng.below(4) * rng.below(2)).collect();
        let fractions = [0.6, 0.25, 0.15];
        let parts = stratified_split(numbers(len), &labels, fractions, round)?;
        assert_eq!(union(&parts), Vec::from_iter(0..len));
        for label in 0..4 {
            let all = labels.iter().filter(|l| **l == label).count() as f64;
            for part in &parts {
                let share = all * part.len() as f64 / len as f64;
                let found = part
                    .indices()
                    .iter()
                    .filter(|i| labels[**i] == label)
                    .count() as f64;
                assert!((found - share).abs() < 2.0, "{found} of {share}");
            }
        }
    }
    Ok(())
}

#[test]
fn parts_that_do_not_sum_up_are_errors() {
    let split = |parts: SplitSizes| message(random_split(numbers(10), parts, 0));
    assert!(split([5, 4].into()).contains("the lengths [5, 4] don't sum to 10 samples"));
    assert!(split([usize::MAX, 11].into()).contains("don't sum to 10 samples"));
    assert!(split([0.5, 0.4].into()).contains("the fractions [0.5, 0.4] sum to 0.9, not to 1"));
    assert!(split([1.5, -0.5].into()).contains("don't lie in 0..=1"));
    assert!(split([f64::NAN, 1.0].into()).contains("don't lie in 0..=1"));
    assert!(split(SplitSizes::Fractions(vec![])).contains("sum to 0, not to 1"));
    let labels = message(stratified_split(numbers(10), &[1, 2], [5, 5], 0));
    assert!(
        labels.contains("there are 2 labels for 10 samples"),
        "{labels}"
    );
}

#[test]
fn each_fold_validates_on_a_part_of_its_own() -> Result<()> {
    for (len, k, sizes) in [(10, 3, &[4, 3, 3][..]), (6, 6, &[1; 6]), (7, 2, &[4, 3])] {
        let labels: Vec<usize> = (0..len).map(|i| i % 2).collect();
        for folds in [
            k_fold(numbers(len), k, None)?,
            k_fold(numbers(len), k, Some(5))?,
            stratified_k_fold(numbers(len), &labels, k, 5)?,
        ] {
            let validated: Vec<usize> = folds.iter().map(|(_, v)| v.len()).collect();
            assert_eq!(validated, sizes);
            let mut all: Vec<usize> = folds
                .iter()
                .flat_map(|(_, v)| v.indices().to_vec())
                .collect();
            all.sort();
            assert_eq!(all, Vec::from_iter(0..len));
            for (train, validate) in &folds {
                let mut both = [train.indices(), validate.indices()].concat();
                both.sort();
                assert_eq!(both, Vec::from_iter(0..len));
            }
        }
    }
    let parts = |seed| -> Result<Vec<Vec<usize>>> {
        let folds = k_fold(numbers(20), 4, seed)?;
        Ok(folds.iter().map(|(_, v)| v.indices().to_vec()).collect())
    };
    assert_eq!(parts(None)?[1], [5, 6, 7, 8, 9]);
    assert_eq!(parts(Some(3))?, parts(Some(3))?);
    assert_ne!(parts(Some(3))?, parts(Some(4))?);
    assert!(parts(Some(3))?.iter().all(|p| p.is_sorted()));
    let labels: Vec<usize> = (0..30).map(|i| usize::from(i < 10)).collect();
    for (train, validate) in stratified_k_fold(numbers(30), &labels, 5, 0)? {
        let ones = |part: &Subset<_>| part.indices().iter().filter(|i| labels[**i] == 1).count();
        assert_eq!((ones(&train), ones(&validate)), (8, 2));
    }
    for k in [0, 1, 11] {
        assert!(
            message(k_fold(numbers(10), k, None))
                .contains(&format!("10 samples make no {k} folds"))
        );
    }
    assert!(message(stratified_k_fold(numbers(3), &[1, 2], 2, 0)).contains("2 labels for 3"));
    let huge = || FnDataset::new(1 << 62, |_| Ok(0i64));
    for (k, seed) in [(2, None), (2, Some(1)), (1 << 40, None), (1 << 62, None)] {
        assert!(message(k_fold(huge(), k, seed)).contains("no memory for the indices"));
    }
    Ok(())
}
