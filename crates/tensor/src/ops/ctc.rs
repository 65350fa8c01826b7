//! The CTC loss: for sequences that are not aligned with their labels.

use super::args::{check_float, known};
use super::host::{or_poisoned, values, vector};
use super::index::{check_index_range, where_};
use super::join::stack;
use super::loss::reduce_loss;
use super::pad::PadMode;
use crate::operand::AsTensor;
use crate::options::{Settings, options};
use crate::record::{SOURCE, compose};
use crate::{DType, Int, Reduction, Tensor, scan, set_device};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, ensure};
use kiln_lazy::caller::on_behalf_of_caller;

options! {
    /// The options of [`Tensor::ctc_loss`].
    Ctc () {
        /// The class that represents no label (default 0).
        blank: Int = 0,
        /// True if an infinite loss, as of an input too short for its target, counts as 0 and has no gradient
        /// (default false).
        zero_infinity: bool = false,
        /// The reduction of the sequences (default their mean, for which each loss is divided by its target's
        /// length).
        reduction: Reduction = Reduction::Mean,
    }
}

#[on_cells]
impl Tensor {
    /// The negative log likelihood of label sequences given log probabilities `[t, n, c]` (or `[t, c]`), over all
    /// alignments (Graves et al., "Connectionist Temporal Classification", 2006): `−log Σ Π p` over all paths of t
    /// classes that give the target when repeated classes are merged and blanks (class 0) are dropped. It is infinite
    /// if there is no such path.
    ///
    /// The targets are i64 classes: rows `[n, s]`, of which the first `target_lengths` (i64, `[n]`) elements count,
    /// or a vector of all targets one after the other. The first `input_lengths` (i64, `[n]`) steps count. Without n,
    /// the lengths are numbers. A length or class out of range is a data error.
    ///
    /// The gradient is that of this function. PyTorch's adds `exp(log_probs)`, which the gradient of the log softmax
    /// that computed them subtracts again.
    ///
    /// ```
    /// use kiln_tensor::Tensor;
    /// // Two steps, each with even chances of a blank and of the one label: 3 of 4 paths.
    /// let log_probs = Tensor::from([[0.5f32, 0.5], [0.5, 0.5]]).log();
    /// let loss = log_probs.ctc_loss(Tensor::from([1i64]), Tensor::from(2i64), Tensor::from(1i64));
    /// assert!((loss.item::<f32>()? + 0.75f32.ln()).abs() < 1e-6);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn ctc_loss(
        &self,
        targets: impl AsTensor,
        input_lengths: impl AsTensor,
        target_lengths: impl AsTensor,
    ) -> Tensor {
        self.ctc_loss_with(targets, input_lengths, target_lengths, Ctc::new())
    }

    /// [`Tensor::ctc_loss`] with another blank or reduction, or with zeros for infinite losses.
    #[autocast]
    pub fn ctc_loss_with(
        &self,
        targets: impl AsTensor,
        input_lengths: impl AsTensor,
        target_lengths: impl AsTensor,
        options: Ctc,
    ) -> Tensor {
        let operands = [self, targets, input_lengths, target_lengths];
        on_behalf_of_caller(SOURCE, || {
            let x = compose("ctc_loss", &operands, |b| {
                check(operands, &options)?;
                let x = b.widen(self)?;
                if x.ndim() == 2 {
                    b.unsqueeze(&x, 1)
                } else {
                    Ok(x)
                }
            });
            if x.error().is_some() {
                return x;
            }
            let targets = targets.to_dtype(DType::I64);
            let lengths =
                [input_lengths, target_lengths].map(|l| l.to_dtype(DType::I64).reshape(-1));
            let targets = match (self.ndim(), targets.ndim()) {
                (2, _) => targets.unsqueeze(0),
                (_, 1) => targets_as_rows(&targets, &lengths[1]),
                _ => targets,
            };
            if targets.error().is_some() {
                return targets;
            }
            let operands = [&x, &targets, &lengths[0], &lengths[1]];
            let lengths = check_lengths(operands);
            let losses = sequence_losses(&x, &targets, lengths, options.blank.0);
            let losses = if self.ndim() == 2 {
                losses.squeeze(0)
            } else {
                losses
            };
            compose("ctc_loss", &[&losses, target_lengths], |b| {
                let mut losses = losses.clone();
                if options.zero_infinity {
                    let infinite = b.with(Pw::Eq, &losses, f64::INFINITY)?;
                    losses = b.fill_where(&infinite, 0.0, &losses)?;
                }
                if options.reduction == Reduction::Mean {
                    let length = b.cast(target_lengths, losses.dtype())?;
                    let length = b.with(Pw::Maximum, &length, 1.0)?;
                    let length = b.reshape(&length, losses.dims())?;
                    losses = b.binary(Pw::Div, &losses, &length)?;
                }
                let loss = reduce_loss(b, &losses, options.reduction)?;
                b.cast(&loss, self.dtype())
            })
        })
    }
}

impl Settings for Ctc {
    fn check(&self) -> Result<(), OpError> {
        let blank = self.blank.0;
        ensure!(blank >= 0, "the blank must not be negative, but is {blank}");
        Ok(())
    }
}

fn check(operands: [&Tensor; 4], options: &Ctc) -> Result<(), OpError> {
    let [x, targets, input_lengths, target_lengths] = operands;
    check_float(x, "input")?;
    options.check()?;
    ensure!(
        (2..=3).contains(&x.ndim()),
        "the log probabilities must be [t, n, c] or [t, c], not {}",
        x.fact()
    );
    for (t, name) in [
        (targets, "targets"),
        (input_lengths, "input_lengths"),
        (target_lengths, "target_lengths"),
    ] {
        ensure!(
            t.dtype().is_int(),
            "{name} must be integers, not {}",
            t.fact()
        );
    }
    let batched = x.ndim() == 3;
    let fits = match targets.ndim() {
        1 => true,
        2 => batched && targets.dims()[0] == x.dims()[1],
        _ => false,
    };
    ensure!(
        fits,
        "the targets must be [n, s] or a vector, for {}, not {}",
        x.fact(),
        targets.fact()
    );
    for (t, name) in [
        (input_lengths, "input_lengths"),
        (target_lengths, "target_lengths"),
    ] {
        let fits = match batched {
            true => t.dims() == &x.dims()[1..2],
            false => t.fact().numel().is(1) && t.ndim() < 2,
        };
        ensure!(
            fits,
            "{name} must hold one number for each sequence of {}, not {}",
            x.fact(),
            t.fact()
        );
    }
    known(targets, targets.ndim() - 1)?;
    let classes = known(x, x.ndim() - 1)?;
    let blank = options.blank.0;
    ensure!(
        (0..classes).contains(&blank),
        "the blank must be one of {classes} classes, not {blank}"
    );
    Ok(())
}

/// Arranges concatenated targets as rows, as long as the longest target.
#[track_caller]
fn targets_as_rows(targets: &Tensor, lengths: &Tensor) -> Tensor {
    let read = || {
        let array = values(lengths)?;
        let lengths = array.ints().unwrap_or_default();
        let (longest, sum) = (
            lengths.iter().max().copied().unwrap_or(0),
            lengths.iter().sum::<i64>(),
        );
        let checked = compose("ctc_loss", &[targets], |_| {
            let shortest = lengths.iter().min().copied().unwrap_or(0);
            ensure!(
                shortest >= 0,
                "target_lengths must not be negative, but one is {shortest}"
            );
            ensure!(
                targets.dims()[0].is(sum),
                "the targets are {sum} by their lengths, not {}",
                targets.fact()
            );
            Ok(targets.clone())
        });
        let mut positions = Vec::new();
        let mut start = 0;
        for n in lengths {
            // Elements after the end of a row are ignored.
            positions.extend((start..start + longest).map(|i| i.min(sum - 1)));
            start += n;
        }
        let positions = vector(&positions, targets.device());
        Ok(checked
            .index_select(0, positions)
            .reshape([lengths.len() as i64, longest]))
    };
    or_poisoned(read())
}

/// Returns both lengths, or data errors where they are out of range.
#[track_caller]
fn check_lengths([x, targets, input_lengths, target_lengths]: [&Tensor; 4]) -> [Tensor; 2] {
    let in_range = |lengths: &Tensor, padded: &Tensor, axis: usize, text: &'static str| {
        let lengths = &lengths.to(x.device());
        compose("ctc_loss", &[lengths, padded], |b| {
            let largest = b.count(padded, &[axis], DType::I64)?;
            let (low, high) = (
                b.with(Pw::Ge, lengths, 0i64)?,
                b.binary(Pw::Le, lengths, &largest)?,
            );
            let fine = b.binary(Pw::And, &low, &high)?;
            b.require(&fine, lengths, text)
        })
    };
    [
        in_range(
            input_lengths,
            x,
            0,
            "input_lengths must lie between 0 and the number of steps",
        ),
        in_range(
            target_lengths,
            targets,
            1,
            "target_lengths must lie between 0 and the number of targets",
        ),
    ]
}

/// The loss of each sequence, from log probabilities `[t, n, c]` and targets `[n, s]`.
///
/// States are the labels, with blanks around each. A step reaches a state from itself, from the state before it, and,
/// skipping a blank, from the previous label if it differs.
#[track_caller]
fn sequence_losses(x: &Tensor, targets: &Tensor, lengths: [Tensor; 2], blank: i64) -> Tensor {
    let _here = set_device(x.device());
    let [input_lengths, target_lengths] = lengths.map(|l| l.unsqueeze(1));
    let count = 2 * targets.dims()[1].as_const().unwrap_or(0) + 1;
    let state_numbers = Tensor::arange(0, count / 2, 1);
    let labels = where_(state_numbers.lt(&target_lengths), targets, blank);
    let labels = compose("ctc_loss", &[&labels], |b| {
        b.indexed_by("targets", targets);
        let classes = b.reshape(&labels, &[labels.fact().numel()])?;
        let classes = check_index_range(b, &classes, &x.dims()[2])?;
        b.reshape(&classes, labels.dims())
    });
    let blanks = PadMode::Constant(blank.into());
    let states = stack([&labels.full_like(blank), &labels], 2)
        .flatten((1, 2))
        .pad([0, 1], blanks);
    let before = states.pad([2, 0], blanks).narrow(1, 0, count);
    let jumps = states.ne(blank).logical_and(states.ne(before));
    // Before the first step, all paths are in the first state.
    let chances = where_(Tensor::arange(0, count, 1).eq(0), 0.0, f64::NEG_INFINITY);
    let chances = chances.to_dtype(x.dtype()) + states.zeros_like().to_dtype(x.dtype());
    let steps = Tensor::arange(0, x.dims()[0].clone(), 1).to(x.device());
    let (chances, ()) = scan(chances, (x, steps), |chances, (x, step)| {
        let never = PadMode::Constant(f64::NEG_INFINITY.into());
        let moved = chances.pad([2, 0], never);
        let jumped = where_(&jumps, moved.narrow(1, 0, count), f64::NEG_INFINITY);
        let reached =
            log_sum_exp([&chances, &moved.narrow(1, 1, count), &jumped]) + x.gather(1, &states);
        (where_(input_lengths.gt(step), reached, chances), ())
    });
    let last = &target_lengths * 2;
    let in_label = where_(
        last.gt(0),
        chances.gather(1, (&last - 1).clamp_min(0)),
        f64::NEG_INFINITY,
    );
    -log_sum_exp([&chances.gather(1, &last), &in_label]).squeeze(1)
}

/// `log Σ e^x`, with a gradient of zero where all terms are zero.
#[track_caller]
fn log_sum_exp<const N: usize>(logs: [&Tensor; N]) -> Tensor {
    let largest = logs[1..]
        .iter()
        .fold(logs[0].detach(), |largest, x| largest.maximum(x.detach()));
    let none = largest.eq(f64::NEG_INFINITY);
    let base = largest.masked_fill(&none, 0.0);
    let sum = logs
        .map(|x| (x - &base).exp())
        .into_iter()
        .reduce(|a, b| a + b)
        .unwrap_or_else(|| base.clone());
    where_(
        &none,
        f64::NEG_INFINITY,
        sum.masked_fill(&none, 1.0).log() + base,
    )
}
