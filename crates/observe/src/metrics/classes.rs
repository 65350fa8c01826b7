//! Metrics of predicted classes.

use super::{ratio, zeros};
use crate::SOURCE;
use kiln_ir::Fact;
use kiln_lazy::Handle;
use kiln_tensor::{
    AsTensor, DType, Error, Result, Tensor, TopK, Var, on_behalf_of_caller, where_, with_error_note,
};

/// The number of targets of each class by the class that was predicted: `[classes, classes]`, a row for each target.
pub struct ConfusionMatrix {
    counts: Var,
    classes: Classes,
}

/// The classes of targets and predictions.
struct Classes {
    count: usize,
    ignore_index: Option<i64>,
}

/// The mean of a metric over classes; scikit-learn's `average`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Average {
    /// The metric of all elements together.
    Micro,
    /// The mean over the classes that occur as a target or a prediction.
    Macro,
    /// The mean weighted by the number of targets of each class.
    Weighted,
    /// No mean: the metric of each class, `[classes]`.
    None,
}

impl Classes {
    #[track_caller]
    fn new(count: usize) -> Result<Classes> {
        if count == 0 {
            let message = "needs at least one class";
            return Err(Error::invalid("ConfusionMatrix", message));
        }
        Ok(Classes {
            count,
            ignore_index: None,
        })
    }

    /// Returns 1 for each target that isn't ignored, and 0 for others.
    fn count_mask(&self, target: &Tensor) -> Tensor {
        match self.ignore_index {
            Some(class) => target.ne(class).to_dtype(DType::I64),
            None => target.ones_like(),
        }
    }

    #[track_caller]
    fn predicted(&self, preds: &Tensor, target: &Tensor) -> Result<Tensor> {
        let (p, t) = (preds.check()?.dims(), target.check()?.dims());
        let scores = p.len() == t.len() + 1
            && !t.is_empty()
            && p[0] == t[0]
            && p[2..] == t[1..]
            && p[1].is(self.count as i64);
        let preds = preds.detach();
        match (preds.dtype().is_float(), p == t) {
            (true, true) if self.count == 2 => Ok(preds.gt(0.5)),
            (true, false) if scores => Ok(preds.argmax(1)),
            (false, true) => Ok(preds),
            _ => {
                let message = format!(
                    "needs classes as the target's {}, or scores with {} classes in dim 1, not {}",
                    shown(target),
                    self.count,
                    shown(&preds)
                );
                Err(Error::invalid("update", message))
            }
        }
    }
}

impl ConfusionMatrix {
    /// A metric of this many classes.
    ///
    /// # Errors
    /// If there are no classes, or inside `compile`: make metrics before.
    #[track_caller]
    pub fn new(classes: usize) -> Result<ConfusionMatrix> {
        Ok(ConfusionMatrix {
            classes: Classes::new(classes)?,
            counts: zeros(&[classes * classes], DType::I64)?,
        })
    }

    /// Leaves out elements with this target.
    pub fn ignore_index(mut self, class: i64) -> ConfusionMatrix {
        self.classes.ignore_index = Some(class);
        self
    }

    /// Adds a batch. `target` holds classes, `[n, ..]`. `preds` holds classes of the same shape, or scores
    /// `[n, classes, ..]` whose largest counts, or for two classes probabilities, of which those above 0.5 count as 1.
    ///
    /// # Errors
    /// If the shapes don't fit. A class out of range is an error when a value is read.
    #[track_caller]
    pub fn update(&self, preds: impl AsTensor, target: impl AsTensor) -> Result<()> {
        let (preds, target) = (&*preds.as_tensor(), &*target.as_tensor());
        on_behalf_of_caller(SOURCE, || {
            let classes = self.classes.count as i64;
            let preds = self
                .classes
                .predicted(preds, target)?
                .flatten(())
                .to_dtype(DType::I64);
            let target = target.detach().flatten(()).to_dtype(DType::I64);
            let mask = self.classes.count_mask(&target);
            // Ignored elements add 0 to a valid index.
            let target = target.masked_fill(mask.eq(0), 0);
            // A class out of range has an index out of range.
            let is_class = preds.ge(0).logical_and(preds.lt(classes));
            let index = where_(is_class, &target * classes + &preds, classes * classes);
            let index = index.masked_fill(mask.eq(0), 0);
            let note = format!("a target or a prediction is not one of {classes} classes");
            let counts = with_error_note(note, || self.counts.get().scatter_add(0, index, mask));
            self.counts.assign(counts)
        })
    }

    /// Returns the counts, i64 `[classes, classes]`.
    #[track_caller]
    pub fn compute(&self) -> Tensor {
        let classes = self.classes.count;
        self.counts.get().reshape([classes, classes])
    }

    /// Forgets all batches.
    ///
    /// # Errors
    /// None outside of a run that fails.
    #[track_caller]
    pub fn reset(&self) -> Result<()> {
        self.counts.zero_()
    }

    /// Returns true positives, predictions and targets of each class, in f64.
    fn by_class(&self) -> [Tensor; 3] {
        let counts = self.compute().to_dtype(DType::F64);
        [counts.diagonal(), counts.sum(0), counts.sum(1)]
    }

    /// Returns the mean of a quotient of numbers of elements of each class.
    fn mean(
        &self,
        average: Average,
        figure: fn(&Tensor, &Tensor, &Tensor) -> (Tensor, Tensor),
    ) -> Tensor {
        let [correct, predicted, actual] = self.by_class();
        let (a, b) = figure(&correct, &predicted, &actual);
        let weights = match average {
            Average::Micro => return ratio(a.sum(()), &b.sum(())),
            Average::None => return ratio(a, &b),
            Average::Macro => (&predicted + &actual).gt(0).to_dtype(DType::F64),
            Average::Weighted => actual,
        };
        ratio((ratio(a, &b) * &weights).sum(()), &weights.sum(()))
    }
}

fn shown(t: &Tensor) -> &Fact {
    <Tensor as AsRef<Handle>>::as_ref(t).fact()
}

macro_rules! of_classes {
    ($($(#[$doc:meta])* $name:ident = $figure:expr;)*) => {$(
        $(#[$doc])*
        pub struct $name {
            matrix: ConfusionMatrix,
            average: Average,
        }

        impl $name {
            /// A metric of this many classes.
            ///
            /// # Errors
            /// As [`ConfusionMatrix::new`].
            #[track_caller]
            pub fn new(classes: usize, average: Average) -> Result<$name> {
                Ok($name { matrix: ConfusionMatrix::new(classes)?, average })
            }

            /// Leaves out elements with this target.
            pub fn ignore_index(mut self, class: i64) -> $name {
                self.matrix = self.matrix.ignore_index(class);
                self
            }

            /// Adds a batch; see [`ConfusionMatrix::update`].
            ///
            /// # Errors
            /// As [`ConfusionMatrix::update`].
            #[track_caller]
            pub fn update(&self, preds: impl AsTensor, target: impl AsTensor) -> Result<()> {
                self.matrix.update(preds, target)
            }

            /// Returns the metric in f64: one number, or one for each class without a mean. 0 stands for 0 / 0.
            #[track_caller]
            pub fn compute(&self) -> Tensor {
                on_behalf_of_caller(SOURCE, || self.matrix.mean(self.average, $figure))
            }

            /// Forgets all batches.
            ///
            /// # Errors
            /// As [`ConfusionMatrix::reset`].
            #[track_caller]
            pub fn reset(&self) -> Result<()> {
                self.matrix.reset()
            }
        }
    )*};
}
of_classes! {
    /// The share of predictions of a class that are right: scikit-learn's `precision_score`.
    Precision = |correct, predicted, _| (correct.clone(), predicted.clone());
    /// The share of targets of a class that are predicted: scikit-learn's `recall_score`.
    Recall = |correct, _, actual| (correct.clone(), actual.clone());
    /// The harmonic mean of precision and recall: scikit-learn's `f1_score`.
    F1Score = |correct, predicted, actual| (correct * 2.0, predicted + actual);
    /// Intersection over union, with [`Average::Macro`] the mean IoU: scikit-learn's `jaccard_score`.
    JaccardIndex = |correct, predicted, actual| (correct.clone(), predicted + actual - correct);
}

/// The share of elements whose class is predicted, or is among the `k` with the largest scores: scikit-learn's
/// `accuracy_score` and `top_k_accuracy_score`.
pub struct Accuracy {
    /// The number of right elements, and of all.
    counts: Var,
    classes: Classes,
    k: usize,
}

impl Accuracy {
    /// A metric of this many classes.
    ///
    /// # Errors
    /// As [`ConfusionMatrix::new`].
    #[track_caller]
    pub fn new(classes: usize) -> Result<Accuracy> {
        Ok(Accuracy {
            counts: zeros(&[2], DType::I64)?,
            classes: Classes::new(classes)?,
            k: 1,
        })
    }

    /// Counts a target that is among the `k` largest scores, which updates then need.
    pub fn top_k(mut self, k: usize) -> Accuracy {
        self.k = k;
        self
    }

    /// Leaves out elements with this target.
    pub fn ignore_index(mut self, class: i64) -> Accuracy {
        self.classes.ignore_index = Some(class);
        self
    }

    /// Adds a batch; see [`ConfusionMatrix::update`].
    ///
    /// # Errors
    /// If the shapes don't fit, or `k` is not a number of classes or there are no scores for it.
    #[track_caller]
    pub fn update(&self, preds: impl AsTensor, target: impl AsTensor) -> Result<()> {
        let (preds, target) = (&*preds.as_tensor(), &*target.as_tensor());
        on_behalf_of_caller(SOURCE, || {
            let target = target.detach().to_dtype(DType::I64);
            let is_right = match self.k {
                1 => self
                    .classes
                    .predicted(preds, &target)?
                    .to_dtype(DType::I64)
                    .eq(&target),
                k if preds.ndim() != target.ndim() + 1 || k == 0 || k > self.classes.count => {
                    let message = format!(
                        "the best {k} of {} classes need scores with classes in dim 1, not {}",
                        self.classes.count,
                        shown(preds)
                    );
                    return Err(Error::invalid("update", message));
                }
                k => {
                    self.classes.predicted(preds, &target)?;
                    let (_, best) = preds.detach().topk(TopK::new(k).dim(1));
                    best.eq(target.unsqueeze(1)).any(1)
                }
            };
            let mask = self.classes.count_mask(&target);
            let is_right = (is_right.to_dtype(DType::I64) * &mask).sum(());
            let new_counts = kiln_tensor::stack(&[is_right, mask.sum(())], 0);
            self.counts.assign(self.counts.get() + new_counts)
        })
    }

    /// Returns the share in f64; 0 without elements.
    #[track_caller]
    pub fn compute(&self) -> Tensor {
        let counts = self.counts.get().to_dtype(DType::F64);
        ratio(counts.select(0, 0), &counts.select(0, 1))
    }

    /// Forgets all batches.
    ///
    /// # Errors
    /// As [`ConfusionMatrix::reset`].
    #[track_caller]
    pub fn reset(&self) -> Result<()> {
        self.counts.zero_()
    }
}
