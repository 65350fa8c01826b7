//! Precision and recall.

use crate::messages::value::Value as ValueContent;
use crate::messages::{PrCurvePluginData, TensorProto};
use crate::writer::{FLOAT, SummaryWriter, floats, or_invalid, plugin, shape};
use kiln_tensor::{AsTensor, MaybeInt, Result, options};
use prost::Message;

/// The smallest denominator, in place of 0.
const MIN_DENOMINATOR: f64 = 1e-7;
/// The maximum number of thresholds that TensorBoard accepts.
const MAX_THRESHOLDS: usize = 127;

options! {
    /// The options of [`SummaryWriter::add_pr_curve_with`].
    PrCurve () {
        /// The number of thresholds, at least 2 and at most 127.
        num_thresholds: usize = MAX_THRESHOLDS,
        ;
        /// A weight for each label.
        weights,
    }
}

impl SummaryWriter {
    /// Adds the curve of precision and recall of predictions between 0 and 1 for labels of 0 and 1.
    ///
    /// # Errors
    /// As all methods, or if there are not as many labels as predictions, or these lie outside of 0 to 1.
    #[track_caller]
    pub fn add_pr_curve(
        &self,
        tag: &str,
        labels: impl AsTensor,
        predictions: impl AsTensor,
        global_step: impl Into<MaybeInt>,
    ) -> Result<()> {
        self.add_pr_curve_with(tag, labels, predictions, global_step, PrCurve::new())
    }

    /// [`SummaryWriter::add_pr_curve`] with other thresholds, or weights.
    ///
    /// # Errors
    /// As [`SummaryWriter::add_pr_curve`].
    #[track_caller]
    pub fn add_pr_curve_with(
        &self,
        tag: &str,
        labels: impl AsTensor,
        predictions: impl AsTensor,
        global_step: impl Into<MaybeInt>,
        options: PrCurve,
    ) -> Result<()> {
        let labels = floats(&labels.as_tensor())?;
        let predictions = floats(&predictions.as_tensor())?;
        let weights = match &options.weights {
            Some(weights) => floats(weights)?,
            None => vec![1.0; labels.len()],
        };
        let n = options.num_thresholds.min(MAX_THRESHOLDS);
        let data = or_invalid("add_pr_curve", curve(&labels, &predictions, &weights, n))?;
        let values = data.iter().flatten().map(|v| *v as f32).collect();
        self.add_curve(tag, global_step.into(), values, n)
    }

    /// Adds a curve that has already been computed: for each threshold, from 0 to 1, the numbers of true positives,
    /// false positives, true negatives and false negatives, precision and recall.
    ///
    /// # Errors
    /// As all methods.
    #[track_caller]
    pub fn add_pr_curve_raw(
        &self,
        tag: &str,
        thresholds: &[[f32; 6]],
        global_step: impl Into<MaybeInt>,
    ) -> Result<()> {
        let n = thresholds.len();
        let values = (0..6).flat_map(|row| thresholds.iter().map(move |t| t[row]));
        self.add_curve(tag, global_step.into(), values.collect(), n)
    }

    #[track_caller]
    fn add_curve(&self, tag: &str, step: MaybeInt, values: Vec<f32>, n: usize) -> Result<()> {
        let tensor = TensorProto {
            dtype: FLOAT,
            tensor_shape: Some(shape(&[6, n as i64])),
            float_val: values,
            ..TensorProto::default()
        };
        let metadata = PrCurvePluginData {
            version: 0,
            num_thresholds: n as u32,
        };
        let plugin = plugin("pr_curves", metadata.encode_to_vec());
        self.add_value(
            "add_pr_curve",
            tag,
            step,
            ValueContent::Tensor(tensor),
            Some(plugin),
        )
    }
}

/// For each threshold `i / (n - 1)`: true positives, false positives, true negatives, false negatives, precision and
/// recall; or the reason why the arguments are invalid.
fn curve(
    labels: &[f64],
    predictions: &[f64],
    weights: &[f64],
    n: usize,
) -> Result<[Vec<f64>; 6], String> {
    if labels.len() != predictions.len() || labels.len() != weights.len() {
        let (a, b, c) = (labels.len(), predictions.len(), weights.len());
        return Err(format!(
            "there are {a} labels, {b} predictions and {c} weights"
        ));
    }
    if let Some(p) = predictions.iter().find(|p| !(0.0..=1.0).contains(*p)) {
        return Err(format!("predictions must lie between 0 and 1, not {p}"));
    }
    if n < 2 {
        return Err(format!("there must be at least 2 thresholds, not {n}"));
    }
    let (mut tp, mut fp) = (vec![0.0; n], vec![0.0; n]);
    for ((label, p), weight) in labels.iter().zip(predictions).zip(weights) {
        let bin = (p * (n - 1) as f64).floor() as usize;
        tp[bin] += label * weight;
        fp[bin] += (1.0 - label) * weight;
    }
    // Predictions above a threshold count at all thresholds below.
    for i in (0..n - 1).rev() {
        tp[i] += tp[i + 1];
        fp[i] += fp[i + 1];
    }
    let tn = fp.iter().map(|v| fp[0] - v).collect();
    let fn_: Vec<f64> = tp.iter().map(|v| tp[0] - v).collect();
    let ratio = |denominators: &[f64]| -> Vec<f64> {
        let pairs = tp.iter().zip(denominators);
        pairs
            .map(|(tp, other)| tp / (tp + other).max(MIN_DENOMINATOR))
            .collect()
    };
    let (precision, recall) = (ratio(&fp), ratio(&fn_));
    Ok([tp, fp, tn, fn_, precision, recall])
}
