//! Cosine annealing (Loshchilov and Hutter, 2016).

use super::{Schedule, positive};
use std::f64::consts::PI;

/// `eta_min + (base − eta_min) · (1 + cos(π · epoch / t_max)) / 2`.
#[derive(Clone, Debug)]
pub struct CosineAnnealingLr {
    /// Half the period.
    pub t_max: u64,
    /// The lowest rate; PyTorch's default is 0.
    pub eta_min: f64,
}

impl CosineAnnealingLr {
    fn height(&self, epoch: u64) -> f64 {
        1.0 + (PI * epoch as f64 / self.t_max.max(1) as f64).cos()
    }
}

impl Schedule for CosineAnnealingLr {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        self.eta_min + (base - self.eta_min) * self.height(epoch) / 2.0
    }

    fn chained(&self, current: f64, base: f64, epoch: u64) -> f64 {
        let t_max = self.t_max.max(1);
        if epoch == 0 {
            return current;
        }
        // Where the rate is lowest there is nothing to scale up from.
        if (epoch - 1) % (2 * t_max) == t_max {
            return current + (base - self.eta_min) * (1.0 - (PI / t_max as f64).cos()) / 2.0;
        }
        self.height(epoch) / self.height(epoch - 1) * (current - self.eta_min) + self.eta_min
    }
}

/// Cosine annealing that starts again after `t_0` epochs, then after `t_mult` times as many, and so on.
#[derive(Clone, Debug)]
pub struct CosineAnnealingWarmRestarts {
    /// Length of the first period.
    pub t_0: u64,
    /// How much longer each period is than the one before; PyTorch's default is 1.
    pub t_mult: u64,
    /// The lowest rate; PyTorch's default is 0.
    pub eta_min: f64,
}

impl Schedule for CosineAnnealingWarmRestarts {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        let (mut at, mut period) = (epoch, self.t_0.max(1));
        if self.t_mult <= 1 {
            at %= period;
        }
        while at >= period {
            at -= period;
            period = period.saturating_mul(self.t_mult);
        }
        let height = 1.0 + (PI * at as f64 / period as f64).cos();
        self.eta_min + (base - self.eta_min) * height / 2.0
    }

    fn check(&self) -> Result<(), String> {
        positive("t_0", self.t_0)?;
        positive("t_mult", self.t_mult)
    }
}
