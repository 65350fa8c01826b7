//! Cosine annealing (Loshchilov and Hutter, 2016).

use super::{Schedule, SchedulerState, check_positive, count};
use kiln_formats::Value;
use kiln_tensor::{Int, options};
use std::f64::consts::PI;

options! {
    /// `eta_min + (base − eta_min) · (1 + cos(π · epoch / t_max)) / 2`.
    CosineAnnealingLR (
        /// Half the period.
        t_max: Int
    ) {
        /// The lowest rate.
        eta_min: f64 = 0.0,
    }
}

impl CosineAnnealingLR {
    fn height(&self, epoch: u64) -> f64 {
        1.0 + (PI * epoch as f64 / count(self.t_max).max(1) as f64).cos()
    }
}

impl Schedule for CosineAnnealingLR {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        self.eta_min + (base - self.eta_min) * self.height(epoch) / 2.0
    }

    fn chained(&self, current: f64, base: f64, epoch: u64) -> f64 {
        let t_max = count(self.t_max).max(1);
        if epoch == 0 {
            return current;
        }
        // Where the rate is lowest there is nothing to scale up from.
        if (epoch - 1) % (2 * t_max) == t_max {
            return current + (base - self.eta_min) * (1.0 - (PI / t_max as f64).cos()) / 2.0;
        }
        self.height(epoch) / self.height(epoch - 1) * (current - self.eta_min) + self.eta_min
    }

    fn check(&self) -> Result<(), String> {
        check_positive("t_max", self.t_max)
    }
}

options! {
    /// Cosine annealing that starts again after `t_0` epochs, then after `t_mult` times as many, and so on.
    CosineAnnealingWarmRestarts (
        /// Length of the first period.
        t_0: Int
    ) {
        /// The ratio of each period to the one before.
        t_mult: Int = 1,
        /// The lowest rate.
        eta_min: f64 = 0.0,
    }
}

impl CosineAnnealingWarmRestarts {
    /// Returns an epoch's position in its period, and the period's length.
    fn position_in_period(&self, epoch: u64) -> (u64, u64) {
        let (mut at, mut period) = (epoch, count(self.t_0).max(1));
        let times = count(self.t_mult);
        if times <= 1 {
            at %= period;
        }
        while at >= period {
            at -= period;
            period = period.saturating_mul(times);
        }
        (at, period)
    }
}

impl Schedule for CosineAnnealingWarmRestarts {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        let (position, period) = self.position_in_period(epoch);
        let height = 1.0 + (PI * position as f64 / period as f64).cos();
        self.eta_min + (base - self.eta_min) * height / 2.0
    }

    fn saved(&self, state: &SchedulerState) -> Vec<(&'static str, Value)> {
        let (position, period) = self.position_in_period(state.epoch);
        vec![("T_cur", position.into()), ("T_i", period.into())]
    }

    fn check(&self) -> Result<(), String> {
        check_positive("t_0", self.t_0)?;
        check_positive("t_mult", self.t_mult)
    }
}
