//! A schedule that follows a metric.

use super::super::Optimizer;
use super::count;
use kiln_tensor::{Error, Int, Result, options};
use serde::{Deserialize, Serialize};

/// The direction in which a metric improves.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PlateauMode {
    /// Lower metrics are better.
    Min,
    /// Higher metrics are better.
    Max,
}

/// The meaning of a threshold.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ThresholdMode {
    /// A share of the best metric.
    Rel,
    /// A difference from the best metric.
    Abs,
}

options! {
    /// Multiplies the rate by `factor` when a metric has not improved for more than `patience` epochs.
    ReduceLROnPlateau () {
        /// The direction in which the metric improves.
        mode: PlateauMode = PlateauMode::Min,
        /// The factor.
        factor: f64 = 0.1,
        /// The number of epochs without improvement that are tolerated.
        patience: Int = 10,
        /// The smallest improvement that counts.
        threshold: f64 = 1e-4,
        /// The meaning of the threshold.
        threshold_mode: ThresholdMode = ThresholdMode::Rel,
        /// The number of epochs after a reduction that are not counted.
        cooldown: Int = 0,
        /// The lowest rate.
        min_lr: f64 = 0.0,
        /// Reductions smaller than this are left out.
        eps: f64 = 1e-8,
        /// The current state.
        state: PlateauState = PlateauState::default(),
    }
}

/// The saved state of [`ReduceLROnPlateau`].
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct PlateauState {
    /// The best metric so far.
    pub best: Option<f64>,
    /// Epochs without improvement since the best one.
    pub num_bad_epochs: u64,
    /// Epochs left that are not counted.
    pub cooldown_counter: u64,
}

impl ReduceLROnPlateau {
    /// Takes the metric of an epoch.
    ///
    /// # Errors
    /// If the factor is not below 1, or inside `compile`.
    #[track_caller]
    pub fn step(&mut self, optimizer: &mut Optimizer, metric: f64) -> Result<()> {
        if !(0.0..1.0).contains(&self.factor) {
            let message = format!("factor must be in [0, 1), but is {}", self.factor);
            return Err(Error::invalid("ReduceLROnPlateau", message));
        }
        if self.is_better(metric) {
            self.state.best = Some(metric);
            self.state.num_bad_epochs = 0;
        } else {
            self.state.num_bad_epochs += 1;
        }
        if self.state.cooldown_counter > 0 {
            self.state.cooldown_counter -= 1;
            self.state.num_bad_epochs = 0;
        }
        if self.state.num_bad_epochs > count(self.patience) {
            self.state.cooldown_counter = count(self.cooldown);
            self.state.num_bad_epochs = 0;
            for group in optimizer.groups_mut() {
                let old = group.number("lr").unwrap_or(0.0);
                let new = (old * self.factor).max(self.min_lr);
                if old - new > self.eps {
                    group.set_number("lr", new)?;
                }
            }
        }
        Ok(())
    }

    fn is_better(&self, metric: f64) -> bool {
        let Some(best) = self.state.best else {
            return !metric.is_nan();
        };
        let t = self.threshold;
        match (self.mode, self.threshold_mode) {
            (PlateauMode::Min, ThresholdMode::Rel) => metric < best * (1.0 - t),
            (PlateauMode::Min, ThresholdMode::Abs) => metric < best - t,
            (PlateauMode::Max, ThresholdMode::Rel) => metric > best * (t + 1.0),
            (PlateauMode::Max, ThresholdMode::Abs) => metric > best + t,
        }
    }
}
