//! Cross-entropy losses.

use super::args::{check_float, check_same_device};
use super::index::{check_index, check_index_range};
use super::loss::reduce_loss;
use crate::operand::AsTensor;
use crate::options::{Settings, options};
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Reduction, Tensor};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, Shape, ensure};

options! {
    /// The options of [`Tensor::binary_cross_entropy`].
    BinaryCrossEntropy () {
        /// The reduction of the elements (default their mean).
        reduction: Reduction = Reduction::Mean,
        ;
        /// A factor for each element.
        weight,
    }
}

options! {
    /// The options of [`Tensor::binary_cross_entropy_with_logits`].
    BinaryCrossEntropyWithLogits () {
        /// The reduction of the elements (default their mean).
        reduction: Reduction = Reduction::Mean,
        ;
        /// A factor for each element.
        weight,
        /// A factor for the positives of each class.
        pos_weight,
    }
}

options! {
    /// The options of [`Tensor::nll_loss`].
    Nll () {
        /// The target that is ignored (default −100).
        ignore_index: i64 = -100,
        /// The reduction of the samples (default their mean, which divides by the weights of the targets).
        reduction: Reduction = Reduction::Mean,
        ;
        /// A factor for each class, `[c]`.
        weight,
    }
}

options! {
    /// The options of [`Tensor::cross_entropy`].
    CrossEntropy () {
        /// The target class that is ignored (default −100).
        ignore_index: i64 = -100,
        /// The fraction of each target that is spread evenly over the classes, 0..=1 (default 0).
        label_smoothing: f64 = 0.0,
        /// The reduction of the samples (default their mean, which divides by the weights of the targets).
        reduction: Reduction = Reduction::Mean,
        ;
        /// A factor for each class, `[c]`.
        weight,
    }
}

impl Settings for CrossEntropy {
    fn check(&self) -> Result<(), OpError> {
        let smoothing = self.label_smoothing;
        ensure!(
            (0.0..=1.0).contains(&smoothing),
            "label_smoothing must lie in 0..=1, not {smoothing}"
        );
        Ok(())
    }
}

impl Settings for BinaryCrossEntropy {}
impl Settings for BinaryCrossEntropyWithLogits {}
impl Settings for Nll {}

#[on_cells]
impl Tensor {
    /// `−(target · log input + (1 − target) · log(1 − input))` of probabilities, with logarithms clamped to at least
    /// −100. An input or target outside 0..=1 is a data error.
    pub fn binary_cross_entropy(&self, target: impl AsTensor) -> Tensor {
        self.binary_cross_entropy_with(target, BinaryCrossEntropy::new())
    }

    /// [`Tensor::binary_cross_entropy`] with weights or another reduction.
    #[autocast(options)]
    pub fn binary_cross_entropy_with(
        &self,
        target: impl AsTensor,
        options: BinaryCrossEntropy,
    ) -> Tensor {
        let weight = options.weight.as_ref();
        let mut operands = vec![self, target];
        operands.extend(weight);
        compose("binary_cross_entropy", &operands, |b| {
            let (probability, y) = widen_probabilities(b, self, target)?;
            let text = "all elements of input should be between 0 and 1";
            let probability = check_probabilities(b, &probability, text)?;
            let y = check_probabilities(b, &y, "all elements of target should be between 0 and 1")?;
            let loss = b.binary(Pw::BinaryCrossEntropy, &probability, &y)?;
            weighted(b, &loss, weight, options.reduction, self.dtype())
        })
    }

    /// [`Tensor::binary_cross_entropy`] of `sigmoid(input)`, stable for large inputs.
    pub fn binary_cross_entropy_with_logits(&self, target: impl AsTensor) -> Tensor {
        self.binary_cross_entropy_with_logits_with(target, BinaryCrossEntropyWithLogits::new())
    }

    /// [`Tensor::binary_cross_entropy_with_logits`] with weights or another reduction.
    #[autocast(options)]
    pub fn binary_cross_entropy_with_logits_with(
        &self,
        target: impl AsTensor,
        options: BinaryCrossEntropyWithLogits,
    ) -> Tensor {
        let (weight, pos_weight) = (options.weight.as_ref(), options.pos_weight.as_ref());
        let mut operands = vec![self, target];
        operands.extend(weight.into_iter().chain(pos_weight));
        compose("binary_cross_entropy_with_logits", &operands, |b| {
            let (x, y) = widen_probabilities(b, self, target)?;
            // (1 − y) · x − w · log sigmoid(x) with w = 1 + (pos_weight − 1) · y.
            let unit = b.scalar_like(1.0, &x)?;
            let complement = b.binary(Pw::Sub, &unit, &y)?;
            let linear = b.binary(Pw::Mul, &complement, &x)?;
            let mut log = b.unary(Pw::LogSigmoid, &x)?;
            if let Some(p) = pos_weight {
                let p = b.cast(p, x.dtype())?;
                let extra = b.binary(Pw::Sub, &p, &unit)?;
                let extra = b.binary(Pw::Mul, &extra, &y)?;
                let factor = b.binary(Pw::Add, &extra, &unit)?;
                log = b.binary(Pw::Mul, &log, &factor)?;
            }
            let loss = b.binary(Pw::Sub, &linear, &log)?;
            weighted(b, &loss, weight, options.reduction, self.dtype())
        })
    }

    /// The negative log likelihood of log probabilities `[n, c, ..]` (or `[c]`) for i64 classes `[n, ..]`:
    /// `−input[class]`, ignoring targets of −100. A class outside `0..c` is a data error.
    pub fn nll_loss(&self, target: impl AsTensor) -> Tensor {
        self.nll_loss_with(target, Nll::new())
    }

    /// [`Tensor::nll_loss`] with weights of classes, another ignored target or another reduction.
    #[autocast(options)]
    pub fn nll_loss_with(&self, target: impl AsTensor, options: Nll) -> Tensor {
        let options = CrossEntropy {
            ignore_index: options.ignore_index,
            label_smoothing: 0.0,
            reduction: options.reduction,
            weight: options.weight,
        };
        let mut operands = vec![self, target];
        operands.extend(&options.weight);
        compose("nll_loss", &operands, |b| {
            check_float(self, "input")?;
            let x = b.widen(self)?;
            let loss = class_loss(b, &x, target, &options)?;
            b.cast(&loss, self.dtype())
        })
    }

    /// [`Tensor::nll_loss`] of the log softmax of logits `[n, c, ..]` (or `[c]`). The target holds i64
    /// classes, or probabilities in the input's shape.
    ///
    /// ```
    /// use kiln_tensor::{CrossEntropy, DType, Tensor};
    /// let (logits, labels) = (Tensor::zeros([2, 4], DType::F32), Tensor::from([3i64, -1]));
    /// let options = CrossEntropy::new().label_smoothing(0.1).ignore_index(-1);
    /// let loss = logits.cross_entropy_with(&labels, options);
    /// assert!((loss.item::<f32>()? - 4f32.ln()).abs() < 1e-6);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn cross_entropy(&self, target: impl AsTensor) -> Tensor {
        self.cross_entropy_with(target, CrossEntropy::new())
    }

    /// [`Tensor::cross_entropy`] with further options, such as weights of classes or smoothed targets.
    #[autocast(options)]
    pub fn cross_entropy_with(&self, target: impl AsTensor, options: CrossEntropy) -> Tensor {
        let mut operands = vec![self, target];
        operands.extend(&options.weight);
        compose("cross_entropy", &operands, |b| {
            check_float(self, "input")?;
            ensure!(self.ndim() > 0, "the input must have a class dim");
            options.check()?;
            let dim = (self.ndim() > 1) as i64;
            let x = b.widen(self)?;
            let log = super::activation::softmax(b, &x, dim, true)?;
            let loss = match target.dtype().is_float() {
                true => probability_loss(b, &log, target, &options)?,
                false => class_loss(b, &log, target, &options)?,
            };
            b.cast(&loss, self.dtype())
        })
    }
}

/// Widens the input and target of a binary cross-entropy, which must have the same shape.
fn widen_probabilities(
    b: &mut Recorder,
    x: &Tensor,
    y: &Tensor,
) -> Result<(Tensor, Tensor), OpError> {
    check_float(x, "input")?;
    check_same_device(x, "input", y, "target")?;
    ensure!(
        x.dims() == y.dims(),
        "the input {} and the target {} must have one shape",
        x.fact(),
        y.fact()
    );
    let x = b.widen(x)?;
    let y = b.cast(y, x.dtype())?;
    Ok((x, y))
}

/// Returns the tensor, with a data error if any element is not a probability.
pub(super) fn check_probabilities(b: &mut Recorder, x: &Tensor, what: &'static str) -> Recorded {
    let (low, high) = (b.with(Pw::Ge, x, 0.0)?, b.with(Pw::Le, x, 1.0)?);
    let fine = b.binary(Pw::And, &low, &high)?;
    b.require(&fine, x, what)
}

pub(super) fn weighted(
    b: &mut Recorder,
    loss: &Tensor,
    weight: Option<&Tensor>,
    reduction: Reduction,
    dtype: DType,
) -> Recorded {
    let mut loss = loss.clone();
    if let Some(w) = weight {
        check_same_device(&loss, "input", w, "weight")?;
        let w = b.cast(w, loss.dtype())?;
        loss = b.binary(Pw::Mul, &loss, &w)?;
    }
    let loss = reduce_loss(b, &loss, reduction)?;
    b.cast(&loss, dtype)
}

fn class_axis(x: &Tensor) -> Result<usize, OpError> {
    ensure!(x.ndim() > 0, "the input must have a class dim");
    Ok((x.ndim() > 1) as usize)
}

/// A weight of classes, in the dtype of x.
pub(super) fn class_weight(b: &mut Recorder, x: &Tensor, axis: usize, weight: &Tensor) -> Recorded {
    check_same_device(x, "input", weight, "weight")?;
    ensure!(
        weight.ndim() == 1 && weight.dims()[0] == x.dims()[axis],
        "the weight must hold one number for each of {} classes, not {}",
        x.dims()[axis],
        weight.fact()
    );
    b.cast(weight, x.dtype())
}

/// The loss of log probabilities for class indices.
fn class_loss(b: &mut Recorder, log: &Tensor, target: &Tensor, options: &CrossEntropy) -> Recorded {
    let (weight, smoothing) = (options.weight.as_ref(), options.label_smoothing);
    check_same_device(log, "input", target, "target")?;
    let axis = class_axis(log)?;
    let mut off = Shape::from(log.dims());
    let classes = off.remove(axis);
    ensure!(
        target.dims() == &off[..],
        "the target must hold one class for each {}, in the shape {:?}, not {}{}",
        if log.ndim() == 1 { "row" } else { "sample" },
        off,
        target.fact(),
        match target.dims() == &log.dims()[..log.ndim() - 1] {
            true =>
                "; the classes are dim 1 of the input: input.movedim(-1, 1) brings the last there",
            false => "",
        }
    );
    b.indexed_by("target", target);
    let target = if target.dtype() == DType::U8 {
        b.cast(target, DType::I64)?
    } else {
        target.clone()
    };
    check_index(&target, "target")?;
    let ignored = b.with(Pw::Eq, &target, options.ignore_index)?;
    let safe = b.fill_where(&ignored, 0i64, &target)?;
    let index = b.unsqueeze(&safe, axis)?;
    let picked = b.gather(log, axis, &index)?;
    let picked = b.reshape(&picked, &off)?;
    // The weight of each target; 0 where the target is ignored.
    let row_weights = match weight {
        Some(w) => {
            let w = class_weight(b, log, axis, w)?;
            let flat = b.reshape(&safe, &[safe.fact().numel()])?;
            let flat = check_index_range(b, &flat, &classes)?;
            let w = b.gather(&w, 0, &flat)?;
            b.reshape(&w, &off)?
        }
        None => b.full(1.0, log.dtype(), &off)?,
    };
    let share = b.fill_where(&ignored, 0.0, &row_weights)?;
    let minus = b.unary(Pw::Neg, &picked)?;
    let loss = b.binary(Pw::Mul, &minus, &row_weights)?;
    let mut loss = b.fill_where(&ignored, 0.0, &loss)?;
    if smoothing > 0.0 {
        let mut class_scores = log.clone();
        if let Some(w) = weight {
            let w = class_weight(b, log, axis, w)?;
            let w = b.reshape_along(&w, axis, log.ndim())?;
            class_scores = b.binary(Pw::Mul, log, &w)?;
        }
        let sum = b.sum(&class_scores, &[axis], false)?;
        let even = b.fill_where(&ignored, 0.0, &sum)?;
        let count = b.count(log, &[axis], log.dtype())?;
        let even = b.binary(Pw::Div, &even, &count)?;
        let even = b.with(Pw::Mul, &even, smoothing)?;
        let label_loss = b.with(Pw::Mul, &loss, 1.0 - smoothing)?;
        loss = b.binary(Pw::Sub, &label_loss, &even)?;
    }
    if options.reduction != Reduction::Mean {
        return reduce_loss(b, &loss, options.reduction);
    }
    let sum = reduce_loss(b, &loss, Reduction::Sum)?;
    let total = reduce_loss(b, &share, Reduction::Sum)?;
    b.binary(Pw::Div, &sum, &total)
}

/// The loss of log probabilities for probabilities of the same shape; its mean is over the samples.
fn probability_loss(
    b: &mut Recorder,
    log: &Tensor,
    target: &Tensor,
    options: &CrossEntropy,
) -> Recorded {
    let (weight, smoothing) = (options.weight.as_ref(), options.label_smoothing);
    check_same_device(log, "input", target, "target")?;
    let axis = class_axis(log)?;
    ensure!(
        target.dims() == log.dims(),
        "a target of probabilities must have the input's shape, not {}",
        target.fact()
    );
    let mut p = b.cast(target, log.dtype())?;
    if smoothing > 0.0 {
        let count = b.count(log, &[axis], log.dtype())?;
        let even = b.full(smoothing, log.dtype(), &[])?;
        let even = b.binary(Pw::Div, &even, &count)?;
        let kept = b.with(Pw::Mul, &p, 1.0 - smoothing)?;
        p = b.binary(Pw::Add, &kept, &even)?;
    }
    let mut term = b.binary(Pw::Mul, log, &p)?;
    if let Some(w) = weight {
        let w = class_weight(b, log, axis, w)?;
        let w = b.reshape_along(&w, axis, log.ndim())?;
        term = b.binary(Pw::Mul, &term, &w)?;
    }
    let sum = b.sum(&term, &[axis], false)?;
    let loss = b.unary(Pw::Neg, &sum)?;
    if options.reduction != Reduction::Mean {
        return reduce_loss(b, &loss, options.reduction);
    }
    let sum = reduce_loss(b, &loss, Reduction::Sum)?;
    let samples: Vec<usize> = (0..log.ndim()).filter(|a| *a != axis).collect();
    let count = b.count(log, &samples, log.dtype())?;
    b.binary(Pw::Div, &sum, &count)
}
