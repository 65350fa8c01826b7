//! Losses.

use super::args::needs_float;
use super::index::{checked_index, needs_index};
use super::record::Recorded;
use crate::record::{Recorder, compose};
use crate::{DType, Tensor, promote};
use kiln_ir::{Builder, OpError, Pw, Shape, ensure};

/// What a loss makes of its elements.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Nothing: one number an element.
    None,
    /// Their mean, weighted where the loss has weights of classes.
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

impl std::str::FromStr for Reduction {
    type Err = OpError;

    fn from_str(name: &str) -> Result<Reduction, OpError> {
        Ok(match name {
            "none" => Reduction::None,
            "mean" => Reduction::Mean,
            "sum" => Reduction::Sum,
            _ => {
                return Err(OpError(format!(
                    "{name:?} is not a reduction: none, mean or sum"
                )));
            }
        })
    }
}

pub(super) fn reduced(b: &mut Recorder, loss: &Tensor, reduction: Reduction) -> Recorded {
    let all: Vec<usize> = (0..loss.ndim()).collect();
    match reduction {
        Reduction::None => Ok(loss.clone()),
        Reduction::Mean => b.mean(loss, &all, false),
        Reduction::Sum => b.sum(loss, &all, false),
    }
}

/// A loss of two promoted float tensors that broadcast, computed wide and rounded once.
#[track_caller]
fn elementwise(
    called: &'static str,
    input: &Tensor,
    target: &Tensor,
    reduction: Reduction,
    f: impl FnOnce(&mut Recorder, &Tensor, &Tensor) -> Recorded,
) -> Tensor {
    compose(called, &[input, target], |b| {
        let (x, y) = b.promoted(input, target)?;
        needs_float(&x, "input")?;
        let dtype = x.dtype();
        let (x, y) = (b.widened(&x)?, b.widened(&y)?);
        let loss = f(b, &x, &y)?;
        let loss = reduced(b, &loss, reduction)?;
        b.cast(&loss, dtype)
    })
}

/// The float dtype that tensors promote to, and the tensors in its wide form.
pub(super) fn floats(
    b: &mut Recorder,
    tensors: &[&Tensor],
) -> Result<(DType, Vec<Tensor>), OpError> {
    let dtype = promote::to_float(promote::common(tensors)?);
    let wide = super::record::wide(dtype);
    let tensors = tensors.iter().map(|t| b.cast(t, wide));
    Ok((dtype, tensors.collect::<Result<_, _>>()?))
}

fn distance(b: &mut Recorder, x: &Tensor, y: &Tensor) -> Recorded {
    let difference = b.binary(Pw::Sub, x, y)?;
    b.unary(Pw::Abs, &difference)
}

impl Tensor {
    /// (input − target)².
    #[track_caller]
    pub fn mse_loss(&self, target: &Tensor, reduction: Reduction) -> Tensor {
        elementwise("mse_loss", self, target, reduction, |b, x, y| {
            let difference = b.binary(Pw::Sub, x, y)?;
            b.unary(Pw::Square, &difference)
        })
    }

    /// |input − target|.
    #[track_caller]
    pub fn l1_loss(&self, target: &Tensor, reduction: Reduction) -> Tensor {
        elementwise("l1_loss", self, target, reduction, distance)
    }

    /// `½ d² / beta` where d = |input − target| is below beta, `d − ½ beta` elsewhere.
    #[track_caller]
    pub fn smooth_l1_loss(&self, target: &Tensor, reduction: Reduction, beta: f64) -> Tensor {
        elementwise("smooth_l1_loss", self, target, reduction, |b, x, y| {
            ensure!(beta >= 0.0, "beta must not be negative, but is {beta}");
            let d = distance(b, x, y)?;
            if beta == 0.0 {
                return Ok(d);
            }
            huber(b, &d, beta, 1.0 / beta)
        })
    }

    /// `½ d²` where d = |input − target| is at most delta, `delta · (d − ½ delta)` elsewhere.
    #[track_caller]
    pub fn huber_loss(&self, target: &Tensor, reduction: Reduction, delta: f64) -> Tensor {
        elementwise("huber_loss", self, target, reduction, |b, x, y| {
            ensure!(delta > 0.0, "delta must be positive, but is {delta}");
            let d = distance(b, x, y)?;
            huber(b, &d, delta, 1.0)
        })
    }

    /// The divergence D(target ‖ input), elementwise `target · (log target − input)`, of an input in
    /// log space; the target is too with `log_target`. Its mean is over all elements.
    #[track_caller]
    pub fn kl_div(&self, target: &Tensor, reduction: Reduction, log_target: bool) -> Tensor {
        elementwise("kl_div", self, target, reduction, |b, x, y| {
            if log_target {
                let p = b.unary(Pw::Exp, y)?;
                let difference = b.binary(Pw::Sub, y, x)?;
                return b.binary(Pw::Mul, &p, &difference);
            }
            // 0 · log 0 is 0.
            let log = b.unary(Pw::Log, y)?;
            let entropy = b.binary(Pw::Mul, y, &log)?;
            let zero = b.with(Pw::Eq, y, 0.0)?;
            let entropy = b.fill_where(&zero, 0.0, &entropy)?;
            let cross = b.binary(Pw::Mul, y, x)?;
            b.binary(Pw::Sub, &entropy, &cross)
        })
    }

    /// `−weight · (target · log input + (1 − target) · log(1 − input))` of probabilities, with
    /// logarithms of at least −100. An input or target outside 0..=1 is a data error.
    #[track_caller]
    pub fn binary_cross_entropy(
        &self,
        target: &Tensor,
        weight: Option<&Tensor>,
        reduction: Reduction,
    ) -> Tensor {
        let mut operands = vec![self, target];
        operands.extend(weight);
        compose("binary_cross_entropy", &operands, |b| {
            let (probability, y) = probabilities(b, self, target)?;
            let text = "all elements of input should be between 0 and 1";
            let probability = within_0_and_1(b, &probability, text)?;
            let y = within_0_and_1(b, &y, "all elements of target should be between 0 and 1")?;
            // The logarithms are cut off and their slopes are not: the gradient is a formula of its own.
            let x = probability.detach();
            let one = b.scalar_like(1.0, &x)?;
            let clamped_log = |b: &mut Recorder, p: &Tensor| {
                let log = b.unary(Pw::Log, p)?;
                b.with(Pw::Maximum, &log, -100.0)
            };
            let rest = b.binary(Pw::Sub, &one, &x)?;
            let (log, log_rest) = (clamped_log(b, &x)?, clamped_log(b, &rest)?);
            let y_rest = b.binary(Pw::Sub, &y, &one)?;
            let no = b.binary(Pw::Mul, &y_rest, &log_rest)?;
            let yes = b.binary(Pw::Mul, &y, &log)?;
            let loss = b.binary(Pw::Sub, &no, &yes)?;
            let slope = cross_entropy_slope(b, &probability, &y)?;
            let nothing = b.binary(Pw::Sub, &probability, &x)?;
            let nothing = b.binary(Pw::Mul, &nothing, &slope)?;
            let loss = b.binary(Pw::Add, &loss, &nothing)?;
            weighted(b, &loss, weight, reduction, self.dtype())
        })
    }

    /// [`Tensor::binary_cross_entropy`] of `sigmoid(input)`, stable for large inputs. `pos_weight`
    /// weights the positive class.
    #[track_caller]
    pub fn binary_cross_entropy_with_logits(
        &self,
        target: &Tensor,
        weight: Option<&Tensor>,
        reduction: Reduction,
        pos_weight: Option<&Tensor>,
    ) -> Tensor {
        let mut operands = vec![self, target];
        operands.extend(weight.into_iter().chain(pos_weight));
        compose("binary_cross_entropy_with_logits", &operands, |b| {
            let (x, y) = probabilities(b, self, target)?;
            // (1 − y) · x − w · log sigmoid(x) with w = 1 + (pos_weight − 1) · y.
            let one = b.scalar_like(1.0, &x)?;
            let rest = b.binary(Pw::Sub, &one, &y)?;
            let linear = b.binary(Pw::Mul, &rest, &x)?;
            let mut log = b.unary(Pw::LogSigmoid, &x)?;
            if let Some(p) = pos_weight {
                let p = b.cast(p, x.dtype())?;
                let extra = b.binary(Pw::Sub, &p, &one)?;
                let extra = b.binary(Pw::Mul, &extra, &y)?;
                let factor = b.binary(Pw::Add, &extra, &one)?;
                log = b.binary(Pw::Mul, &log, &factor)?;
            }
            let loss = b.binary(Pw::Sub, &linear, &log)?;
            weighted(b, &loss, weight, reduction, self.dtype())
        })
    }

    /// The negative log likelihood of log probabilities `[n, c, ..]` (or `[c]`) for i64 classes
    /// `[n, ..]`: `−weight[class] · input[class]`. Targets equal to `ignore_index` count nothing. The
    /// mean divides by the weights of the targets. A class outside `0..c` is a data error.
    #[track_caller]
    pub fn nll_loss(
        &self,
        target: &Tensor,
        weight: Option<&Tensor>,
        ignore_index: i64,
        reduction: Reduction,
    ) -> Tensor {
        let mut operands = vec![self, target];
        operands.extend(weight);
        compose("nll_loss", &operands, |b| {
            needs_float(self, "input")?;
            let x = b.widened(self)?;
            let loss = class_loss(b, &x, target, weight, ignore_index, reduction, 0.0)?;
            b.cast(&loss, self.dtype())
        })
    }

    /// [`Tensor::nll_loss`] of the log softmax of logits `[n, c, ..]` (or `[c]`). The target holds i64
    /// classes, or probabilities in the input's shape. `label_smoothing` spreads that part of each
    /// target evenly over the classes.
    #[track_caller]
    pub fn cross_entropy(
        &self,
        target: &Tensor,
        weight: Option<&Tensor>,
        ignore_index: i64,
        reduction: Reduction,
        label_smoothing: f64,
    ) -> Tensor {
        let mut operands = vec![self, target];
        operands.extend(weight);
        compose("cross_entropy", &operands, |b| {
            needs_float(self, "input")?;
            ensure!(self.ndim() > 0, "the input must have a class dim");
            ensure!(
                (0.0..=1.0).contains(&label_smoothing),
                "label_smoothing must lie in 0..=1, not {label_smoothing}"
            );
            let dim = (self.ndim() > 1) as i64;
            let x = b.widened(self)?;
            let log = super::activation::softmax(b, &x, dim, true)?;
            let loss = if target.dtype().is_float() {
                probability_loss(b, &log, target, weight, reduction, label_smoothing)?
            } else {
                class_loss(
                    b,
                    &log,
                    target,
                    weight,
                    ignore_index,
                    reduction,
                    label_smoothing,
                )?
            };
            b.cast(&loss, self.dtype())
        })
    }

    /// `max(0, −target · (input1 − input2) + margin)`.
    #[track_caller]
    pub fn margin_ranking_loss(
        &self,
        input2: &Tensor,
        target: &Tensor,
        margin: f64,
        reduction: Reduction,
    ) -> Tensor {
        compose("margin_ranking_loss", &[self, input2, target], |b| {
            let dtype = promote::common(&[self, input2, target])?;
            let dtype = promote::to_float(dtype);
            let wide = super::record::wide(dtype);
            let (x, y) = (b.cast(self, wide)?, b.cast(input2, wide)?);
            let t = b.cast(target, wide)?;
            let difference = b.binary(Pw::Sub, &y, &x)?;
            let product = b.binary(Pw::Mul, &t, &difference)?;
            let loss = b.with(Pw::Add, &product, margin)?;
            let loss = b.unary(Pw::Relu, &loss)?;
            let loss = reduced(b, &loss, reduction)?;
            b.cast(&loss, dtype)
        })
    }

    /// `log(1 + e^(−target · input))`.
    #[track_caller]
    pub fn soft_margin_loss(&self, target: &Tensor, reduction: Reduction) -> Tensor {
        elementwise("soft_margin_loss", self, target, reduction, |b, x, y| {
            let product = b.binary(Pw::Mul, x, y)?;
            let minus = b.unary(Pw::Neg, &product)?;
            b.unary(Pw::Softplus, &minus)
        })
    }
}

/// `scale · ½ d²` up to an edge, then linear with the slope of the edge.
fn huber(b: &mut Recorder, d: &Tensor, edge: f64, scale: f64) -> Recorded {
    let square = b.unary(Pw::Square, d)?;
    let near = b.with(Pw::Mul, &square, 0.5 * scale)?;
    let far = b.with(Pw::Sub, d, 0.5 * edge)?;
    let far = b.with(Pw::Mul, &far, edge * scale)?;
    let inside = b.with(Pw::Lt, d, edge)?;
    b.select(&inside, &near, &far)
}

/// `(p − t) / (p (1 − p))`, of which the divisor is at least 1e-12.
fn cross_entropy_slope(b: &mut Recorder, p: &Tensor, target: &Tensor) -> Recorded {
    let one = b.scalar_like(1.0, p)?;
    let rest = b.binary(Pw::Sub, &one, p)?;
    let divisor = b.binary(Pw::Mul, &rest, p)?;
    let (low, high) = (b.scalar_like(1e-12, p)?, b.scalar_like(f64::INFINITY, p)?);
    let divisor = b.pointwise(Pw::Clip, &[divisor, low, high])?;
    let difference = b.binary(Pw::Sub, p, &target.detach())?;
    b.binary(Pw::Div, &difference, &divisor)
}

/// Input and target of a binary cross-entropy, wide; they must agree in shape.
fn probabilities(b: &mut Recorder, x: &Tensor, y: &Tensor) -> Result<(Tensor, Tensor), OpError> {
    needs_float(x, "input")?;
    ensure!(
        x.dims() == y.dims(),
        "the input {} and the target {} must have one shape",
        x.fact(),
        y.fact()
    );
    let x = b.widened(x)?;
    let y = b.cast(y, x.dtype())?;
    Ok((x, y))
}

/// The tensor, or a data error if any element is not a probability.
pub(super) fn within_0_and_1(b: &mut Recorder, x: &Tensor, what: &'static str) -> Recorded {
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
        let w = b.cast(w, loss.dtype())?;
        loss = b.binary(Pw::Mul, &loss, &w)?;
    }
    let loss = reduced(b, &loss, reduction)?;
    b.cast(&loss, dtype)
}

fn class_axis(x: &Tensor) -> Result<usize, OpError> {
    ensure!(x.ndim() > 0, "the input must have a class dim");
    Ok((x.ndim() > 1) as usize)
}

/// A weight of classes, in the dtype of x.
pub(super) fn class_weight(b: &mut Recorder, x: &Tensor, axis: usize, weight: &Tensor) -> Recorded {
    ensure!(
        weight.ndim() == 1 && weight.dims()[0] == x.dims()[axis],
        "the weight must hold one number for each of {} classes, not {}",
        x.dims()[axis],
        weight.fact()
    );
    b.cast(weight, x.dtype())
}

/// The loss of log probabilities for class indices.
fn class_loss(
    b: &mut Recorder,
    log: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    ignore_index: i64,
    reduction: Reduction,
    smoothing: f64,
) -> Recorded {
    let axis = class_axis(log)?;
    let mut off = Shape::from(log.dims());
    let classes = off.remove(axis);
    ensure!(
        target.dims() == &off[..],
        "the target must hold one class for each {}, in the shape {:?}, not {}",
        if log.ndim() == 1 { "row" } else { "sample" },
        off,
        target.fact()
    );
    b.indexed_by("target", target);
    let target = if target.dtype() == DType::U8 {
        b.cast(target, DType::I64)?
    } else {
        target.clone()
    };
    needs_index(&target, "target")?;
    let ignored = b.with(Pw::Eq, &target, ignore_index)?;
    let safe = b.fill_where(&ignored, 0i64, &target)?;
    let index = b.unsqueeze(&safe, axis)?;
    let picked = b.gather(log, axis, &index)?;
    let picked = b.reshape(&picked, &off)?;
    // The weight of each target; 0 where it is ignored.
    let ones = match weight {
        Some(w) => {
            let w = class_weight(b, log, axis, w)?;
            let flat = b.reshape(&safe, &[safe.fact().numel()])?;
            let flat = checked_index(b, &flat, &classes)?;
            let w = b.gather(&w, 0, &flat)?;
            b.reshape(&w, &off)?
        }
        None => b.full(1.0, log.dtype(), &off)?,
    };
    let share = b.fill_where(&ignored, 0.0, &ones)?;
    let minus = b.unary(Pw::Neg, &picked)?;
    let loss = b.binary(Pw::Mul, &minus, &ones)?;
    let mut loss = b.fill_where(&ignored, 0.0, &loss)?;
    if smoothing > 0.0 {
        let mut all = log.clone();
        if let Some(w) = weight {
            let w = class_weight(b, log, axis, w)?;
            let w = b.along(&w, axis, log.ndim())?;
            all = b.binary(Pw::Mul, log, &w)?;
        }
        let sum = b.sum(&all, &[axis], false)?;
        let even = b.fill_where(&ignored, 0.0, &sum)?;
        let count = b.count(log, &[axis], log.dtype())?;
        let even = b.binary(Pw::Div, &even, &count)?;
        let even = b.with(Pw::Mul, &even, smoothing)?;
        let rest = b.with(Pw::Mul, &loss, 1.0 - smoothing)?;
        loss = b.binary(Pw::Sub, &rest, &even)?;
    }
    if reduction != Reduction::Mean {
        return reduced(b, &loss, reduction);
    }
    let sum = reduced(b, &loss, Reduction::Sum)?;
    let total = reduced(b, &share, Reduction::Sum)?;
    b.binary(Pw::Div, &sum, &total)
}

/// The loss of log probabilities for probabilities of the same shape; its mean is over the samples.
fn probability_loss(
    b: &mut Recorder,
    log: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    reduction: Reduction,
    smoothing: f64,
) -> Recorded {
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
        let w = b.along(&w, axis, log.ndim())?;
        term = b.binary(Pw::Mul, &term, &w)?;
    }
    let sum = b.sum(&term, &[axis], false)?;
    let loss = b.unary(Pw::Neg, &sum)?;
    if reduction != Reduction::Mean {
        return reduced(b, &loss, reduction);
    }
    let sum = reduced(b, &loss, Reduction::Sum)?;
    let samples: Vec<usize> = (0..log.ndim()).filter(|a| *a != axis).collect();
    let count = b.count(log, &samples, log.dtype())?;
    b.binary(Pw::Div, &sum, &count)
}
