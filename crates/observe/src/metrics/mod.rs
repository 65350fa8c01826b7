//! Metrics over batches, under torchmetrics' names and with scikit-learn's values.
//!
//! A metric adds each batch to cells, and computes its value from them. Both are recorded, not run: the work joins the
//! next run, such as an optimiser's step, and a value is read when it is logged. Inside `compile`, an update is part
//! of the program. Cells are on the default device at the time when the metric is made.
//!
//! ```
//! use kiln_observe::metrics::{Accuracy, Average, F1Score};
//! use kiln_tensor::Tensor;
//!
//! let (accuracy, f1) = (Accuracy::new(3)?, F1Score::new(3, Average::Macro)?);
//! for (scores, labels) in [
//!     ([[0.9f32, 0.1, 0.0], [0.2, 0.3, 0.5]], [0i64, 2]),
//!     ([[0.1, 0.8, 0.1], [0.6, 0.3, 0.1]], [1, 2]),
//! ] {
//!     accuracy.update(Tensor::from(scores), Tensor::from(labels))?;
//!     f1.update(Tensor::from(scores), Tensor::from(labels))?;
//! }
//! assert_eq!(accuracy.compute().item::<f64>()?, 0.75);
//! assert!((f1.compute().item::<f64>()? - 7.0 / 9.0).abs() < 1e-15);
//! accuracy.reset()?;
//! # Ok::<(), kiln_tensor::Error>(())
//! ```

mod auroc;
mod classes;
mod means;

pub use auroc::AUROC;
pub use classes::{Accuracy, Average, ConfusionMatrix, F1Score, JaccardIndex, Precision, Recall};
pub use means::{MeanMetric, Perplexity, RunningMean};

use kiln_tensor::{DType, Result, Tensor, Var};

/// Makes a cell of zeros.
#[track_caller]
fn zeros(shape: &[usize], dtype: DType) -> Result<Var> {
    Var::new(Tensor::zeros(shape, dtype))
}

/// Returns a quotient, and 0 where both are 0.
#[track_caller]
fn ratio(a: Tensor, b: &Tensor) -> Tensor {
    (a / b).masked_fill(b.eq(0), 0.0)
}
