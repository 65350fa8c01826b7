//! Optimisers, clipping and learning-rate schedules, with PyTorch's names, defaults and formulas.
//!
//! An [`Optimizer`] holds groups of parameters, each with a [`Rule`]: [`Sgd`], [`Adam`], [`AdamW`],
//! [`RmsProp`], [`Adagrad`], or your own.
//!
//! ```
//! use kiln_nn::optim::{Optimizer, Scheduler, Sgd, StepLr};
//! use kiln_tensor::{Tensor, Var};
//!
//! let w = Var::parameter(&Tensor::from_slice(&[3.0f32, -2.0], [2]))?;
//! let mut optimizer = Optimizer::new([&w], Sgd { lr: 0.1, momentum: 0.9, ..Sgd::default() })?;
//! let mut scheduler = Scheduler::new(&mut optimizer, StepLr { step_size: 30, gamma: 0.1 })?;
//! for _ in 0..100 {
//!     optimizer.zero_grad();
//!     let loss = w.get().square().sum(());
//!     loss.backward()?;
//!     optimizer.step()?;
//!     scheduler.step(&mut optimizer)?;
//! }
//! assert!(w.get().to_vec::<f32>()?.iter().all(|w| w.abs() < 0.1));
//! # Ok::<(), kiln_tensor::Error>(())
//! ```
//!
//! Without `compile`, forward, backward, clipping and update of a step run as one plan when
//! [`Optimizer::step`] is called, or as two if the loss is read before. Inside `compile` the update is
//! recorded and happens at each run. Numbers such as the learning rate are data in both cases:
//! changing them compiles nothing.

mod adagrad;
mod adam;
mod clip;
mod group;
mod optimizer;
mod rmsprop;
mod rule;
mod schedule;
mod sgd;
mod state_dict;

pub use adagrad::Adagrad;
pub use adam::{Adam, AdamW};
pub use clip::{ClipNorm, clip_grad_norm_, clip_grad_value_};
pub use group::Group;
pub use optimizer::Optimizer;
pub use rmsprop::RmsProp;
pub use rule::{Coefficients, Numbers, Rule};
pub use schedule::{
    Anneal, ConstantLr, CosineAnnealingLr, CosineAnnealingWarmRestarts, ExponentialLr, LambdaLr,
    LinearLr, MultiStepLr, OneCycleLr, PlateauMode, PlateauState, ReduceLrOnPlateau, Schedule,
    Scheduler, SchedulerState, SequentialLr, StepLr, ThresholdMode,
};
pub use sgd::Sgd;
pub use state_dict::{GroupDict, StateDict};
