//! Learning-rate schedules.
//!
//! A [`Schedule`] gives the learning rate at each epoch from that of epoch 0; a [`Scheduler`] applies one
//! to an [`Optimizer`]. [`ReduceLROnPlateau`] looks at a metric instead.

mod cosine;
mod cyclic;
mod one_cycle;
mod plateau;
mod saved;
mod sequential;
mod steps;
mod swa;
mod warmup;

pub use cosine::{CosineAnnealingLR, CosineAnnealingWarmRestarts};
pub use cyclic::{CyclicLR, CyclicMode};
pub use one_cycle::{Anneal, OneCycleLR};
pub use plateau::{PlateauMode, PlateauState, ReduceLROnPlateau, ThresholdMode};
pub use sequential::SequentialLR;
pub use steps::{
    ConstantLR, ExponentialLR, LambdaLR, LinearLR, MultiStepLR, MultiplicativeLR, PolynomialLR,
    StepLR,
};
pub use swa::SWALR;
pub use warmup::{ConstantScheduleWithWarmup, CosineScheduleWithWarmup, LinearScheduleWithWarmup};

use super::Optimizer;
use kiln_formats::Value;
use kiln_tensor::{Error, Int, Result};
use serde::{Deserialize, Serialize};

/// The learning rate as a function of the epoch.
pub trait Schedule: Send + Sync {
    /// Returns the rate at an epoch, from the optimiser's rate when the schedule began.
    fn lr(&self, base: f64, epoch: u64) -> f64;

    /// Returns the rate at an epoch from that of the epoch before, which other schedules may have changed; for
    /// [`Scheduler::chained`]. A schedule that has no such form ignores the others.
    fn chained(&self, current: f64, base: f64, epoch: u64) -> f64 {
        let _ = current;
        self.lr(base, epoch)
    }

    /// True if each rate follows from the optimiser's rate of the moment, by [`Schedule::chained`].
    fn follows(&self) -> bool {
        false
    }

    /// Returns the momentum (or β₁) at an epoch, where the schedule changes it.
    fn momentum(&self, epoch: u64) -> Option<f64> {
        let _ = epoch;
        None
    }

    /// Checks the schedule's numbers; called when it begins.
    ///
    /// # Errors
    /// A message that names the number.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// The last epoch, where the schedule has one.
    fn last(&self) -> Option<u64> {
        None
    }

    /// Returns the state of PyTorch's scheduler of this class, besides the epoch and the rates.
    fn saved(&self, state: &SchedulerState) -> Vec<(&'static str, Value)> {
        let _ = state;
        Vec::new()
    }

    /// Returns the numbers that PyTorch's scheduler of this class keeps in the optimiser's groups. `base` is the rate
    /// that a group began with.
    fn in_groups(&self, base: f64) -> Vec<(&'static str, f64)> {
        vec![("initial_lr", base)]
    }
}

/// Applies a schedule, or several at once, to every group of an optimiser.
pub struct Scheduler {
    schedules: Vec<Box<dyn Schedule>>,
    epoch: u64,
    base: Vec<f64>,
    current: Vec<f64>,
}

/// The saved state of a [`Scheduler`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchedulerState {
    /// PyTorch's `last_epoch`.
    pub epoch: u64,
    /// The learning rate each group began with.
    pub base_lrs: Vec<f64>,
    /// The learning rate of each group now.
    pub last_lr: Vec<f64>,
}

impl Scheduler {
    /// Begins at epoch 0 and sets the learning rates of that epoch.
    ///
    /// # Errors
    /// If a number of the schedule or a rate is out of range, or inside `compile`.
    #[track_caller]
    pub fn new(optimizer: &mut Optimizer, schedule: impl Schedule + 'static) -> Result<Scheduler> {
        Scheduler::chained(optimizer, vec![Box::new(schedule)])
    }

    /// Applies several schedules at once, each to the rates that the schedules before it gave: PyTorch's
    /// `ChainedScheduler`.
    ///
    /// # Errors
    /// As [`Scheduler::new`].
    #[track_caller]
    pub fn chained(
        optimizer: &mut Optimizer,
        schedules: Vec<Box<dyn Schedule>>,
    ) -> Result<Scheduler> {
        if let Some(Err(message)) = schedules.iter().map(|s| s.check()).find(Result::is_err) {
            return Err(Error::invalid("Scheduler", message));
        }
        let base = optimizer.lr();
        let mut scheduler = Scheduler {
            schedules,
            epoch: 0,
            current: base.clone(),
            base,
        };
        scheduler.go_to(0, optimizer)?;
        for (group, base) in optimizer.groups_mut().iter_mut().zip(&scheduler.base) {
            let numbers = scheduler.schedules.iter().flat_map(|s| s.in_groups(*base));
            group.schedule_numbers.extend(numbers);
        }
        Ok(scheduler)
    }

    /// Goes to the next epoch and sets its learning rates.
    ///
    /// # Errors
    /// If the schedule has ended, a rate is out of range or the number of groups has changed, which
    /// leaves everything as it is, or inside `compile`.
    #[track_caller]
    pub fn step(&mut self, optimizer: &mut Optimizer) -> Result<()> {
        let last = self.schedules.iter().filter_map(|s| s.last()).min();
        if let Some(last) = last.filter(|last| self.epoch >= *last) {
            let message = format!("the schedule ends at step {last}");
            return Err(Error::invalid("Scheduler::step", message));
        }
        self.go_to(self.epoch + 1, optimizer)
    }

    /// The learning rates that were set last.
    pub fn last_lr(&self) -> &[f64] {
        &self.current
    }

    /// Returns the state that is needed to resume training, without the schedule itself. PyTorch's scheduler of the
    /// same class loads `Value::from(&scheduler)`, and `SchedulerState::try_from` reads the state that such a scheduler
    /// saved.
    pub fn state_dict(&self) -> SchedulerState {
        SchedulerState {
            epoch: self.epoch,
            base_lrs: self.base.clone(),
            last_lr: self.current.clone(),
        }
    }

    /// Goes on from a saved state. The optimiser's own state holds the learning rates.
    pub fn load_state_dict(&mut self, state: &SchedulerState) {
        self.epoch = state.epoch;
        self.base = state.base_lrs.clone();
        self.current = state.last_lr.clone();
    }

    /// Sets the numbers that the schedules give for an epoch, for every group or, on an error, for none.
    #[track_caller]
    fn go_to(&mut self, epoch: u64, optimizer: &mut Optimizer) -> Result<()> {
        let current = optimizer.lr();
        let groups = optimizer.groups_mut();
        if groups.len() != self.base.len() {
            let (group_count, base_count) = (groups.len(), self.base.len());
            let message = format!(
                "the optimiser has {group_count} groups, the schedule began with {base_count}"
            );
            return Err(Error::invalid("Scheduler::step", message));
        }
        let momentum = self.schedules.iter().find_map(|s| s.momentum(epoch));
        let mut numbers = Vec::new();
        for (i, group) in groups.iter().enumerate() {
            numbers.push((i, "lr", self.rate(i, current[i], epoch)));
            let mut name = ["momentum", "beta1"].into_iter();
            let name = name.find(|n| group.number(n).is_some());
            numbers.extend(momentum.zip(name).map(|(value, name)| (i, name, value)));
        }
        for (i, name, value) in &numbers {
            if let Err(message) = groups[*i].check_value(name, *value) {
                let message = format!("at epoch {epoch}: {message}");
                return Err(Error::invalid("Scheduler::step", message));
            }
        }
        for (i, name, value) in numbers {
            groups[i].set_number(name, value)?;
            if name == "lr" {
                self.current[i] = value;
            }
        }
        self.epoch = epoch;
        Ok(())
    }

    /// The learning rate of a group at an epoch.
    fn rate(&self, group: usize, rate_now: f64, epoch: u64) -> f64 {
        let (base, current) = (self.base[group], self.current[group]);
        match &self.schedules[..] {
            [one] if one.follows() => one.chained(rate_now, base, epoch),
            [one] => one.lr(base, epoch),
            many => many
                .iter()
                .fold(current, |lr, s| s.chained(lr, base, epoch)),
        }
    }
}

/// Checks that a number lies in 0..=1.
fn check_share(name: &str, value: f64) -> Result<(), String> {
    match (0.0..=1.0).contains(&value) {
        true => Ok(()),
        false => Err(format!("{name} must lie in 0..=1, but is {value}")),
    }
}

/// Checks that a count is positive.
fn check_positive(name: &str, value: Int) -> Result<(), String> {
    match value.0 {
        ..=0 => Err(format!("{name} must be at least 1, but is {}", value.0)),
        _ => Ok(()),
    }
}

/// A count of epochs; 0 for a negative number.
fn count(value: Int) -> u64 {
    value.0.max(0) as u64
}
