//! Schedules that multiply the rate.

use super::{Schedule, share};

/// Times `gamma` every `step_size` epochs.
#[derive(Clone, Debug)]
pub struct StepLr {
    /// How many epochs a rate lasts.
    pub step_size: u64,
    /// The factor; PyTorch's default is 0.1.
    pub gamma: f64,
}

impl Schedule for StepLr {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        base * power(self.gamma, epoch / self.step_size.max(1))
    }

    fn chained(&self, current: f64, _: f64, epoch: u64) -> f64 {
        let now = epoch > 0 && epoch.is_multiple_of(self.step_size.max(1));
        if now { current * self.gamma } else { current }
    }
}

/// Times `gamma` at each milestone; one that is listed twice counts twice.
#[derive(Clone, Debug)]
pub struct MultiStepLr {
    /// Epochs, in any order.
    pub milestones: Vec<u64>,
    /// The factor; PyTorch's default is 0.1.
    pub gamma: f64,
}

impl Schedule for MultiStepLr {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        let passed = self.milestones.iter().filter(|m| **m <= epoch).count();
        base * power(self.gamma, passed as u64)
    }

    fn chained(&self, current: f64, _: f64, epoch: u64) -> f64 {
        let now = self.milestones.iter().filter(|m| **m == epoch).count();
        current * power(self.gamma, now as u64)
    }
}

/// Times `gamma` every epoch.
#[derive(Clone, Debug)]
pub struct ExponentialLr {
    /// The factor.
    pub gamma: f64,
}

impl Schedule for ExponentialLr {
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

/// Times `factor` for the first `total_iters` epochs.
#[derive(Clone, Debug)]
pub struct ConstantLr {
    /// The factor.
    pub factor: f64,
    /// How long it lasts.
    pub total_iters: u64,
}

impl Default for ConstantLr {
    fn default() -> ConstantLr {
        ConstantLr {
            factor: 1.0 / 3.0,
            total_iters: 5,
        }
    }
}

impl Schedule for ConstantLr {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        match epoch < self.total_iters {
            true => base * self.factor,
            false => base,
        }
    }

    fn chained(&self, current: f64, _: f64, epoch: u64) -> f64 {
        match epoch {
            0 => current * self.factor,
            e if e == self.total_iters => current / self.factor,
            _ => current,
        }
    }

    fn check(&self) -> Result<(), String> {
        share("factor", self.factor)
    }
}

/// Times a factor that goes linearly from `start_factor` to `end_factor` in `total_iters` epochs: a
/// warm-up.
#[derive(Clone, Debug)]
pub struct LinearLr {
    /// The factor at epoch 0.
    pub start_factor: f64,
    /// The factor from epoch `total_iters` on.
    pub end_factor: f64,
    /// How many epochs lie between.
    pub total_iters: u64,
}

impl Default for LinearLr {
    fn default() -> LinearLr {
        LinearLr {
            start_factor: 1.0 / 3.0,
            end_factor: 1.0,
            total_iters: 5,
        }
    }
}

impl LinearLr {
    fn factor(&self, epoch: u64) -> f64 {
        let rise = self.end_factor - self.start_factor;
        let (epoch, total) = (epoch.min(self.total_iters), self.total_iters.max(1));
        self.start_factor + rise * epoch as f64 / total as f64
    }
}

impl Schedule for LinearLr {
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
        share("end_factor", self.end_factor)?;
        share("start_factor", self.start_factor)?;
        match self.start_factor {
            0.0 => Err("start_factor must not be 0".to_string()),
            _ => Ok(()),
        }
    }
}

/// Times what a function of the epoch gives.
pub struct LambdaLr<F>(pub F);

impl<F: Fn(u64) -> f64 + Send + Sync> Schedule for LambdaLr<F> {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        base * (self.0)(epoch)
    }
}

fn power(gamma: f64, n: u64) -> f64 {
    gamma.powi(n.min(i32::MAX as u64) as i32)
}
