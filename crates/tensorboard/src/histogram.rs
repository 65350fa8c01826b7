//! Histograms, counted as `numpy.histogram` and PyTorch do.

use crate::messages::HistogramProto;
use kiln_tensor::options;

/// The bins of a histogram.
#[derive(Clone, Debug, PartialEq)]
pub enum Bins {
    /// TensorBoard's: from 1e-12 to 1e20, each edge 1.1 times the one before, and the same below 0.
    Tensorflow,
    /// This number of bins of equal width, from the smallest to the largest element.
    Count(usize),
    /// Bins between these ascending edges. The last bin contains its upper edge.
    Edges(Vec<f64>),
}

options! {
    /// The options of [`SummaryWriter::add_histogram_with`](crate::SummaryWriter::add_histogram_with).
    Histogram () {
        /// The bins.
        bins: Bins = Bins::Tensorflow,
        /// The maximum number of bins; neighbouring bins are merged where there are more.
        max_bins: Option<usize> = None,
    }
}

/// A histogram that has already been counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawHistogram {
    /// The smallest element.
    pub min: f64,
    /// The largest element.
    pub max: f64,
    /// The number of elements.
    pub num: f64,
    /// Their sum.
    pub sum: f64,
    /// The sum of their squares.
    pub sum_squares: f64,
    /// The upper edge of each bin.
    pub bucket_limits: Vec<f64>,
    /// The number of elements in each bin.
    pub bucket_counts: Vec<f64>,
}

impl RawHistogram {
    /// Its message, or the reason why it is invalid.
    pub(crate) fn message(self) -> Result<HistogramProto, String> {
        let (limits, counts) = (self.bucket_limits.len(), self.bucket_counts.len());
        if limits != counts {
            return Err(format!(
                "bucket_limits and bucket_counts differ: there are {limits} limits and {counts} counts"
            ));
        }
        Ok(HistogramProto {
            min: self.min,
            max: self.max,
            num: self.num,
            sum: self.sum,
            sum_squares: self.sum_squares,
            bucket_limit: self.bucket_limits,
            bucket: self.bucket_counts,
        })
    }
}

/// The histogram of some values.
pub(crate) fn histogram(values: &[f64], options: &Histogram) -> Result<HistogramProto, String> {
    if values.is_empty() {
        return Err("values has no element".into());
    }
    let fold = |f: fn(f64, f64) -> f64| {
        let example = values[0];
        // NaN is the result if there is one, as in NumPy.
        let pick = |a: f64, b: &f64| {
            if a.is_nan() || b.is_nan() {
                f64::NAN
            } else {
                f(a, *b)
            }
        };
        values.iter().fold(example, pick)
    };
    let (min, max) = (fold(f64::min), fold(f64::max));
    let mut edges = edges(&options.bins, min, max)?;
    let mut counts = bin_counts(values, &edges);
    if let Some(max_bins) = options.max_bins.filter(|max| counts.len() > *max) {
        if max_bins == 0 {
            return Err("max_bins must be at least 1".into());
        }
        let merged = counts.len() / max_bins;
        let last = edges[edges.len() - 1];
        edges = edges[..counts.len()]
            .iter()
            .copied()
            .step_by(merged)
            .collect();
        edges.push(last);
        counts = counts.chunks(merged).map(|c| c.iter().sum()).collect();
    }
    let is_filled = |c: &f64| *c > 0.0;
    let first_filled = counts.iter().position(is_filled);
    let (Some(start), Some(end)) = (first_filled, counts.iter().rposition(is_filled)) else {
        return Err("no element lies in a bin: all are NaN or outside the edges".into());
    };
    // Only upper edges are stored: an empty bin before the first one holds its lower edge.
    let mut bucket = vec![0.0];
    bucket.extend(&counts[start..=end]);
    Ok(HistogramProto {
        min,
        max,
        num: values.len() as f64,
        sum: values.iter().sum(),
        sum_squares: values.iter().map(|v| v * v).sum(),
        bucket_limit: edges[start..=end + 1].to_vec(),
        bucket,
    })
}

fn edges(bins: &Bins, min: f64, max: f64) -> Result<Vec<f64>, String> {
    match bins {
        Bins::Tensorflow => {
            let above = std::iter::successors(Some(1e-12), |v| Some(v * 1.1));
            let above: Vec<f64> = above.take_while(|v| *v < 1e20).collect();
            let below = above.iter().rev().map(|v| -v);
            Ok(below.chain([0.0]).chain(above.iter().copied()).collect())
        }
        Bins::Count(0) => Err("Bins::Count must be at least 1".into()),
        Bins::Count(n) => {
            let (low, high) = if min == max {
                (min - 0.5, max + 0.5)
            } else {
                (min, max)
            };
            if !(high - low).is_finite() {
                return Err(format!(
                    "no bins of equal width fit between {min} and {max}"
                ));
            }
            let width = (high - low) / *n as f64;
            let inner = (0..*n).map(|i| low + i as f64 * width);
            Ok(inner.chain([high]).collect())
        }
        Bins::Edges(edges) => match edges.len() > 1 && edges.is_sorted() {
            true => Ok(edges.clone()),
            false => Err("Bins::Edges must be at least 2 edges, ascending".into()),
        },
    }
}

/// The number of values in each bin.
fn bin_counts(values: &[f64], edges: &[f64]) -> Vec<f64> {
    let mut counts = vec![0.0; edges.len() - 1];
    let last = edges[edges.len() - 1];
    for v in values {
        let bin = match *v == last {
            true => counts.len(),
            false => edges.partition_point(|e| e <= v),
        };
        // 0 is below all edges; NaN compares with none of them.
        if let Some(count) = bin.checked_sub(1).and_then(|i| counts.get_mut(i)) {
            *count += 1.0;
        }
    }
    counts
}
