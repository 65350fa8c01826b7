//! Schedules that multiply the rate.

use super::{Schedule, SchedulerState, check_positive, check_share, count};
use kiln_formats::Value;
use kiln_tensor::{Int, IntList, options};
use std::sync::{Mutex, PoisonError};

options! {
    /// Multiplies the rate by `gamma` every `step_size` epochs.
    StepLR (
        /// The number of epochs between two changes.
        step_size: Int
    ) {
        /// The factor.
        gamma: f64 = 0.1,
    }
}

impl Schedule for StepLR {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        base * power(self.gamma, epoch / count(self.step_size).max(1))
    }

    fn chained(&self, current: f64, _: f64, epoch: u64) -> f64 {
        let step = epoch > 0 && epoch.is_multiple_of(count(self.step_size).max(1));
        if step { current * self.gamma } else { current }
    }

    fn check(&self) -> Result<(), String> {
        check_positive("step_size", self.step_size)
    }
}

options! {
    /// Multiplies the rate by `gamma` at each milestone; a milestone that is listed twice counts twice.
    MultiStepLR (
        /// Epochs, in any order.
        milestones: IntList
    ) {
        /// The factor.
        gamma: f64 = 0.1,
    }
}

impl Schedule for MultiStepLR {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        let passed = self
            .milestones
            .0
            .iter()
            .filter(|m| **m <= epoch as i64)
            .count();
        base * power(self.gamma, passed as u64)
    }

    fn chained(&self, current: f64, _: f64, epoch: u64) -> f64 {
        let step = self
            .milestones
            .0
            .iter()
            .filter(|m| **m == epoch as i64)
            .count();
        current * power(self.gamma, step as u64)
    }
}

options! {
    /// Multiplies the rate by `gamma` every epoch.
    ExponentialLR (
        /// The factor.
        gamma: f64
    ) {}
}

impl Schedule for ExponentialLR {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        base * power(self.gamma, epoch)
    }

    fn chained(&self, current: f64, _: f64, epoch: u64) -> f64 {
        if epoch > 0 {
            current * self.gamma
        } else {
            current
        }
    }
}

options! {
    /// Multiplies the rate by `factor` for the first `total_iters` epochs.
    ConstantLR () {
        /// The factor.
        factor: f64 = 1.0 / 3.0,
        /// The number of epochs with the factor.
        total_iters: Int = 5,
    }
}

impl Schedule for ConstantLR {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        match epoch < count(self.total_iters) {
            true => base * self.factor,
            false => base,
        }
    }

    fn chained(&self, current: f64, _: f64, epoch: u64) -> f64 {
        match epoch {
            0 => current * self.factor,
            e if e == count(self.total_iters) => current / self.factor,
            _ => current,
        }
    }

    fn check(&self) -> Result<(), String> {
        check_share("factor", self.factor)
    }
}

options! {
    /// Multiplies the rate by a factor that goes linearly from `start_factor` to `end_factor` in `total_iters` epochs:
    /// a warm-up.
    LinearLR () {
        /// The factor at epoch 0.
        start_factor: f64 = 1.0 / 3.0,
        /// The factor from epoch `total_iters` on.
        end_factor: f64 = 1.0,
        /// The number of epochs between both factors.
        total_iters: Int = 5,
    }
}

impl LinearLR {
    fn factor(&self, epoch: u64) -> f64 {
        let rise = self.end_factor - self.start_factor;
        let (epoch, total) = (
            epoch.min(count(self.total_iters)),
            count(self.total_iters).max(1),
        );
        self.start_factor + rise * epoch as f64 / total as f64
    }
}

impl Schedule for LinearLR {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        base * self.factor(epoch)
    }

    fn chained(&self, current: f64, _: f64, epoch: u64) -> f64 {
        match epoch {
            0 => current * self.start_factor,
            e => current * (self.factor(e) / self.factor(e - 1)),
        }
    }

    fn check(&self) -> Result<(), String> {
        check_share("end_factor", self.end_factor)?;
        check_share("start_factor", self.start_factor)?;
        match self.start_factor {
            0.0 => Err("start_factor must not be 0".to_string()),
            _ => Ok(()),
        }
    }
}

options! {
    /// Multiplies the rate by `(1 − epoch / total_iters)^power`: 0 from `total_iters` on.
    PolynomialLR () {
        /// The number of epochs until the rate is 0.
        total_iters: Int = 5,
        /// The power.
        power: f64 = 1.0,
    }
}

impl PolynomialLR {
    /// The fraction of epochs that is left.
    fn left(&self, epoch: u64) -> f64 {
        let total = count(self.total_iters).max(1);
        1.0 - epoch.min(total) as f64 / total as f64
    }
}

impl Schedule for PolynomialLR {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        base * self.left(epoch).powf(self.power)
    }

    fn chained(&self, current: f64, _: f64, epoch: u64) -> f64 {
        match epoch == 0 || epoch > count(self.total_iters) {
            true => current,
            false => current * (self.left(epoch) / self.left(epoch - 1)).powf(self.power),
        }
    }

    fn check(&self) -> Result<(), String> {
        check_positive("total_iters", self.total_iters)
    }
}

/// Multiplies the rate by a function of the epoch.
pub struct LambdaLR<F>(F);

impl<F: Fn(u64) -> f64 + Send + Sync> LambdaLR<F> {
    /// Makes the schedule of this function.
    pub fn new(lr_lambda: F) -> LambdaLR<F> {
        LambdaLR(lr_lambda)
    }
}

impl<F: Fn(u64) -> f64 + Send + Sync> Schedule for LambdaLR<F> {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        base * (self.0)(epoch)
    }

    fn saved(&self, state: &SchedulerState) -> Vec<(&'static str, Value)> {
        placeholder_functions(state)
    }
}

/// Functions are not saved, but PyTorch keeps an entry for each group.
fn placeholder_functions(state: &SchedulerState) -> Vec<(&'static str, Value)> {
    let placeholders: Vec<Value> = state.base_lrs.iter().map(|_| Value::None).collect();
    vec![("lr_lambdas", placeholders.into())]
}

/// Multiplies the rate by a function of each epoch in turn, from epoch 1 on.
pub struct MultiplicativeLR<F> {
    factor: F,
    /// The product up to an epoch.
    known: Mutex<(u64, f64)>,
}

impl<F: Fn(u64) -> f64 + Send + Sync> MultiplicativeLR<F> {
    /// Makes the schedule of this function, which must always return the same value for an epoch.
    pub fn new(lr_lambda: F) -> MultiplicativeLR<F> {
        MultiplicativeLR {
            factor: lr_lambda,
            known: Mutex::new((0, 1.0)),
        }
    }
}

impl<F: Fn(u64) -> f64 + Send + Sync> Schedule for MultiplicativeLR<F> {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (from, product) = if known.0 <= epoch { *known } else { (0, 1.0) };
        let factors = (from + 1..=epoch).map(&self.factor);
        *known = (epoch, factors.fold(product, |product, f| product * f));
        base * known.1
    }

    fn chained(&self, current: f64, _: f64, epoch: u64) -> f64 {
        match epoch {
            0 => current,
            epoch => current * (self.factor)(epoch),
        }
    }

    fn saved(&self, state: &SchedulerState) -> Vec<(&'static str, Value)> {
        placeholder_functions(state)
    }
}

fn power(gamma: f64, n: u64) -> f64 {
    gamma.powi(n.min(i32::MAX as u64) as i32)
}
