//! The schedule of stochastic weight averaging.

use super::{Anneal, Schedule, SchedulerState, count};
use kiln_formats::Value;
use kiln_tensor::{Int, options};
use std::f64::consts::PI;

options! {
    /// From the rate at the first step to `swa_lr`, where it stays (`torch.optim.swa_utils.SWALR`). It may be made
    /// beside another schedule, which is stepped before it.
    SWALR (
        /// The last rate.
        swa_lr: f64
    ) {
        /// The number of epochs until then (default 10).
        anneal_epochs: Int = 10,
        /// The curve (default a cosine).
        anneal_strategy: Anneal = Anneal::Cos,
    }
}

impl SWALR {
    /// The fraction of the annealing that is done.
    fn annealed(&self, epoch: u64) -> f64 {
        let epochs = count(self.anneal_epochs);
        let t = match epochs {
            0 => 1.0,
            epochs => epoch.min(epochs) as f64 / epochs as f64,
        };
        match self.anneal_strategy {
            Anneal::Cos => (1.0 - (PI * t).cos()) / 2.0,
            Anneal::Linear => t,
        }
    }
}

impl Schedule for SWALR {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        let share = self.annealed(epoch);
        self.swa_lr * share + base * (1.0 - share)
    }

    fn chained(&self, current: f64, _: f64, epoch: u64) -> f64 {
        let before = if epoch == 0 {
            0.0
        } else {
            self.annealed(epoch - 1)
        };
        let base = match before == 1.0 {
            true => self.swa_lr,
            false => (current - before * self.swa_lr) / (1.0 - before),
        };
        self.lr(base, epoch)
    }

    fn follows(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), String> {
        match self.anneal_epochs.0 {
            0.. => Ok(()),
            n => Err(format!("anneal_epochs can't be negative, but is {n}")),
        }
    }

    fn saved(&self, _: &SchedulerState) -> Vec<(&'static str, Value)> {
        let strategy = match self.anneal_strategy {
            Anneal::Cos => "cos",
            Anneal::Linear => "linear",
        };
        vec![
            ("anneal_epochs", self.anneal_epochs.0.into()),
            ("_anneal_strategy", strategy.into()),
        ]
    }

    fn in_groups(&self, base: f64) -> Vec<(&'static str, f64)> {
        vec![("initial_lr", base), ("swa_lr", self.swa_lr)]
    }
}
