//! Event files for [TensorBoard](https://www.tensorflow.org/tensorboard), under the names of PyTorch's
//! `torch.utils.tensorboard`.
//!
//! ```
//! use kiln_tensor::Tensor;
//! use kiln_tensorboard::SummaryWriter;
//!
//! # let folder = std::env::temp_dir().join(format!("kiln-tensorboard-doc-{}", std::process::id()));
//! # std::fs::remove_dir_all(&folder).ok();
//! let writer = SummaryWriter::new(&folder)?; // then: tensorboard --logdir FOLDER
//! for step in 0..10 {
//!     writer.add_scalar("loss", 1.0 / (step + 1) as f64, step)?;
//! }
//! writer.add_histogram("weights", Tensor::from([0.5f32, -1.0, 2.0]), 9)?;
//! writer.add_text("notes", "The first run.  \nIts learning rate is 0.1.", None)?;
//! writer.close()?;
//! # std::fs::remove_dir_all(&folder).unwrap();
//! # Ok::<(), kiln_tensor::Error>(())
//! ```
//!
//! # Files
//! A writer appends to a file of its own, whose name no other writer has. Flushed events stay readable, whatever
//! happens to the process. Events are flushed when `max_queue` events wait, after `flush_secs`, and by
//! [`SummaryWriter::flush`], [`SummaryWriter::close`] and dropping the writer.

mod audio;
mod embedding;
mod file;
mod graph;
mod histogram;
mod hparams;
mod image;
mod layout;
#[allow(
    missing_docs,
    clippy::enum_variant_names,
    reason = "generated from messages.proto"
)]
mod messages;
mod pr_curve;
mod record;
#[cfg(feature = "svg")]
mod svg;
#[cfg(feature = "video")]
mod video;
mod writer;

pub use embedding::Embedding;
pub use histogram::{Bins, Histogram, RawHistogram};
pub use hparams::{HParam, HParams};
pub use image::Figure;
pub use layout::Chart;
pub use pr_curve::PrCurve;
pub use writer::{ScalarStyle, SummaryWriter, WriterOptions};
