//! Splitting a dataset at random.

use crate::dataset::{Dataset, Subset};
use crate::fault::invalid;
use crate::rng::Rng;
use kiln_tensor::Result;
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::Arc;

/// The sizes of the parts of a split: `[80, 20]` samples, or the fractions `[0.8, 0.2]`.
#[derive(Clone, Debug)]
pub enum SplitSizes {
    /// Numbers of samples, which sum to the dataset's.
    Lengths(Vec<usize>),
    /// Fractions, which sum to 1. Each part gets its share, rounded down to whole samples; the first parts get one of
    /// the remaining samples each.
    Fractions(Vec<f64>),
}

macro_rules! parts {
    ($($from:ty, ($($n:tt)*), $kind:ident;)*) => {$(
        impl<$($n)*> From<$from> for SplitSizes {
            fn from(parts: $from) -> SplitSizes {
                SplitSizes::$kind(parts.into())
            }
        }
    )*};
}
parts! {
    [usize; N], (const N: usize), Lengths;
    [f64; N], (const N: usize), Fractions;
    Vec<usize>, (), Lengths;
    Vec<f64>, (), Fractions;
    &[usize], (), Lengths;
    &[f64], (), Fractions;
}

impl SplitSizes {
    fn lengths(self, len: usize) -> Result<Vec<usize>, String> {
        match self {
            SplitSizes::Lengths(lengths) => {
                let sum = lengths
                    .iter()
                    .try_fold(0usize, |sum, n| sum.checked_add(*n));
                match sum == Some(len) {
                    true => Ok(lengths),
                    false => Err(format!(
                        "the lengths {lengths:?} don't sum to {len} samples"
                    )),
                }
            }
            SplitSizes::Fractions(fractions) => {
                if fractions.iter().any(|f| !(0.0..=1.0).contains(f)) {
                    return Err(format!("the fractions {fractions:?} don't lie in 0..=1"));
                }
                let sum = fractions.iter().fold(0.0, |sum, f| sum + f);
                if (sum - 1.0).abs() > 1e-9 {
                    return Err(format!(
                        "the fractions {fractions:?} sum to {sum}, not to 1"
                    ));
                }
                Ok(round_shares(&fractions, len))
            }
        }
    }
}

/// The share of each fraction, rounded down, plus one of the remaining samples for each of the first parts.
fn round_shares(fractions: &[f64], len: usize) -> Vec<usize> {
    let mut left = len;
    let rounded_down = fractions.iter().map(|f| {
        let share = ((f * len as f64).floor() as usize).min(left);
        left -= share;
        share
    });
    let mut lengths: Vec<usize> = rounded_down.collect();
    let count = lengths.len();
    for n in 0..left {
        lengths[n % count] += 1;
    }
    lengths
}

/// Splits a dataset at random into parts that share no sample. The same seed gives the same split.
///
/// ```
/// use kiln_data::{Dataset, FnDataset, random_split};
/// let parts = random_split(FnDataset::new(10, Ok), [0.7, 0.3], 0)?;
/// assert_eq!((parts[0].len(), parts[1].len()), (7, 3));
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If the lengths don't sum to the dataset's, or the fractions to 1.
#[track_caller]
pub fn random_split<D: Dataset>(
    dataset: D,
    parts: impl Into<SplitSizes>,
    seed: u64,
) -> Result<Vec<Subset<Arc<D>>>> {
    let loc = Location::caller();
    let wrong = |message| invalid("random_split", message, loc);
    let lengths = parts.into().lengths(dataset.len()).map_err(wrong)?;
    let order = Rng::new(seed).try_permutation(dataset.len());
    let full = || wrong(format!("there is no memory for {} indices", dataset.len()));
    let order = order.ok_or_else(full)?;
    let mut start = 0;
    let part = |length: usize| {
        let indices = order[start..start + length].to_vec();
        start += length;
        indices
    };
    subsets(dataset, lengths.into_iter().map(part).collect())
}

/// Splits a dataset at random into parts with the label frequencies of the whole dataset, as far as whole samples
/// allow. `labels` are the samples' labels in order.
///
/// ```
/// use kiln_data::{FnDataset, stratified_split};
/// let labels = ["cat", "dog", "cat", "cat", "dog", "cat"];
/// let parts = stratified_split(FnDataset::new(6, Ok), &labels, [0.5, 0.5], 0)?;
/// for part in &parts {
///     let dogs = part.indices().iter().filter(|i| labels[**i] == "dog");
///     assert_eq!(dogs.count(), 1);
/// }
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`random_split`], or if there aren't as many labels as samples.
#[track_caller]
pub fn stratified_split<D: Dataset, L: Ord>(
    dataset: D,
    labels: &[L],
    parts: impl Into<SplitSizes>,
    seed: u64,
) -> Result<Vec<Subset<Arc<D>>>> {
    let (loc, len) = (Location::caller(), dataset.len());
    let wrong = |message| invalid("stratified_split", message, loc);
    if labels.len() != len {
        let message = format!("there are {} labels for {len} samples", labels.len());
        return Err(wrong(message));
    }
    let lengths = parts.into().lengths(len).map_err(wrong)?;
    let mut rng = Rng::new(seed);
    let mut classes: BTreeMap<&L, Vec<usize>> = BTreeMap::new();
    for i in rng.permutation(len) {
        classes.entry(&labels[i]).or_default().push(i);
    }
    let mut parts = deal(classes.into_values().flatten(), &lengths);
    parts.iter_mut().for_each(|part| rng.shuffle(part));
    subsets(dataset, parts)
}

/// The training and the validation samples of a fold.
pub type Fold<D> = (Subset<Arc<D>>, Subset<Arc<D>>);

/// Splits the dataset into `k` parts whose sizes differ by one at most: scikit-learn's `KFold`. Each of the `k` folds
/// is validated on one part and trained on the others, in the order of the dataset. With a seed, samples are assigned
/// to parts at random; without, in order.
///
/// ```
/// use kiln_data::{Dataset, FnDataset, k_fold};
/// for (train, validate) in k_fold(FnDataset::new(10, Ok), 3, None)? {
///     assert_eq!(train.len() + validate.len(), 10);
/// }
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If `k` is less than 2 or more than there are samples, or memory is short for `k` indices of each sample.
#[track_caller]
pub fn k_fold<D: Dataset>(dataset: D, k: usize, seed: Option<u64>) -> Result<Vec<Fold<D>>> {
    let (loc, len) = (Location::caller(), dataset.len());
    let lengths = fold_lengths("k_fold", k, len, loc)?;
    let order = match seed {
        Some(seed) => Rng::new(seed).try_permutation(len),
        None => Some((0..len).collect()),
    };
    let full = || {
        invalid(
            "k_fold",
            format!("there is no memory for {len} indices"),
            loc,
        )
    };
    let mut order = order.ok_or_else(full)?.into_iter();
    let part = |length: &usize| order.by_ref().take(*length).collect();
    make_folds(dataset, lengths.iter().map(part).collect())
}

/// [`k_fold`] with the label frequencies of the whole dataset in each part, as far as whole samples allow:
/// scikit-learn's `StratifiedKFold` with `shuffle`. `labels` are the samples' labels in order.
///
/// # Errors
/// As [`k_fold`], or if there aren't as many labels as samples.
#[track_caller]
pub fn stratified_k_fold<D: Dataset, L: Ord>(
    dataset: D,
    labels: &[L],
    k: usize,
    seed: u64,
) -> Result<Vec<Fold<D>>> {
    let (loc, len) = (Location::caller(), dataset.len());
    if labels.len() != len {
        let message = format!("there are {} labels for {len} samples", labels.len());
        return Err(invalid("stratified_k_fold", message, loc));
    }
    let lengths = fold_lengths("stratified_k_fold", k, len, loc)?;
    let mut classes: BTreeMap<&L, Vec<usize>> = BTreeMap::new();
    for i in Rng::new(seed).permutation(len) {
        classes.entry(&labels[i]).or_default().push(i);
    }
    make_folds(dataset, deal(classes.into_values().flatten(), &lengths))
}

fn fold_lengths(
    op: &str,
    k: usize,
    len: usize,
    loc: &'static Location<'static>,
) -> Result<Vec<usize>> {
    if !(2..=len).contains(&k) {
        let message = format!("{len} samples make no {k} folds; there are at least 2");
        return Err(invalid(op, message, loc));
    }
    let indices = k.checked_mul(len);
    if indices.is_none_or(|n| Vec::<usize>::new().try_reserve_exact(n).is_err()) {
        let message = format!("there is no memory for the indices of {len} samples in {k} folds");
        return Err(invalid(op, message, loc));
    }
    Ok((0..k).map(|i| len / k + usize::from(i < len % k)).collect())
}

/// The fold of each part: all other parts, and the part, in the order of the dataset.
#[track_caller]
fn make_folds<D: Dataset>(dataset: D, parts: Vec<Vec<usize>>) -> Result<Vec<Fold<D>>> {
    let dataset = Arc::new(dataset);
    let mut part_of = vec![0; dataset.len()];
    for (p, part) in parts.iter().enumerate() {
        part.iter().for_each(|i| part_of[*i] = p);
    }
    let fold = |p: usize| {
        let (validate, train): (Vec<usize>, Vec<usize>) =
            (0..part_of.len()).partition(|i| part_of[*i] == p);
        let train = Subset::new(dataset.clone(), train)?;
        Ok((train, Subset::new(dataset.clone(), validate)?))
    };
    (0..parts.len()).map(fold).collect()
}

/// Deals the samples to parts of these lengths, so that every run of them is shared in proportion: each goes to the
/// part that is furthest behind its share of the samples so far.
fn deal(samples: impl Iterator<Item = usize>, lengths: &[usize]) -> Vec<Vec<usize>> {
    let len: usize = lengths.iter().sum();
    let mut parts = vec![Vec::new(); lengths.len()];
    for (dealt, sample) in samples.enumerate() {
        let lag = |p: &usize| {
            let due = lengths[*p] as i128 * (dealt as i128 + 1);
            due - parts[*p].len() as i128 * len as i128
        };
        let open = (0..lengths.len()).filter(|p| parts[*p].len() < lengths[*p]);
        if let Some(part) = open.rev().max_by_key(lag) {
            parts[part].push(sample);
        }
    }
    parts
}

#[track_caller]
fn subsets<D: Dataset>(dataset: D, parts: Vec<Vec<usize>>) -> Result<Vec<Subset<Arc<D>>>> {
    let dataset = Arc::new(dataset);
    let subset = |indices| Subset::new(dataset.clone(), indices);
    parts.into_iter().map(subset).collect()
}
