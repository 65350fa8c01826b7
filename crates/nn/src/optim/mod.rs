//! Optimisers, clipping and learning-rate schedules, with PyTorch's names, defaults and formulas.
//!
//! An [`Optimizer`] holds groups of parameters, each with a [`Rule`]: [`SGD`], [`Adam`], [`AdamW`] or another of this
//! module, or your own. A rule is a formula and the names of its inputs.
//!
//! ```
//! use kiln_nn::optim::{Optimizer, SGD, Scheduler, StepLR};
//! use kiln_tensor::{Tensor, Var};
//!
//! let w = Var::parameter(&Tensor::from_slice(&[3.0f32, -2.0], [2]))?;
//! let mut optimizer = Optimizer::new(&w, SGD::new().lr(0.1).momentum(0.9))?;
//! let mut scheduler = Scheduler::new(&mut optimizer, StepLR::new(30))?;
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
//! Without `compile`, forward, backward, clipping and update of a step run as one plan when [`Optimizer::step`] is
//! called, or as two if the loss is read before. Inside `compile` the update is recorded and happens at each run.
//! Numbers such as the learning rate are data in both cases: changing them compiles nothing. Parameters may be on
//! several devices: a step is then one plan per device.

mod adadelta;
mod adafactor;
mod adagrad;
mod adam;
mod adamax;
mod amp_status;
mod asgd;
mod clip;
mod group;
mod lbfgs;
mod master;
mod nadam;
mod named;
mod optimizer;
mod precision;
mod radam;
mod rmsprop;
mod rprop;
mod rule;
mod scalars;
mod schedule;
mod search;
mod sgd;
mod state_dict;
mod stochastic;

pub use adadelta::Adadelta;
pub use adafactor::Adafactor;
pub use adagrad::Adagrad;
pub use adam::{Adam, AdamW};
pub use adamax::Adamax;
pub use asgd::ASGD;
pub use clip::{ClipNorm, clip_grad_norm_, clip_grad_norm_with, clip_grad_value_};
pub use group::Group;
pub use lbfgs::{LBFGS, LineSearch};
pub use nadam::NAdam;
pub use named::NamedState;
pub use optimizer::Optimizer;
pub use radam::RAdam;
pub use rmsprop::RMSprop;
pub use rprop::Rprop;
pub use rule::{Description, Rule};
pub use scalars::{Scalars, Update};
pub use schedule::{
    Anneal, ConstantLR, ConstantScheduleWithWarmup, CosineAnnealingLR, CosineAnnealingWarmRestarts,
    CosineScheduleWithWarmup, CyclicLR, CyclicMode, ExponentialLR, LambdaLR, LinearLR,
    LinearScheduleWithWarmup, MultiStepLR, MultiplicativeLR, OneCycleLR, PlateauMode, PlateauState,
    PolynomialLR, ReduceLROnPlateau, SWALR, Schedule, Scheduler, SchedulerState, SequentialLR,
    StepLR, ThresholdMode,
};
pub use search::Search;
pub use sgd::SGD;
pub use state_dict::{GroupDict, OptimizerState};
