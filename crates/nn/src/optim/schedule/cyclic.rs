//! Cyclical learning rates (Smith, 2015).

use super::{Schedule, SchedulerState, check_positive, count};
use kiln_formats::Value;
use kiln_tensor::{Int, MaybeInt, options};

/// The amplitude of the cycles of a [`CyclicLR`].
#[derive(Copy, Clone, Debug)]
pub enum CyclicMode {
    /// Constant.
    Triangular,
    /// Halved after each cycle.
    Triangular2,
    /// Multiplied by `gamma` in each step.
    ExpRange,
    /// Multiplied by this function of the cycle, counted from 1 (PyTorch's `scale_fn`).
    OfCycle(fn(f64) -> f64),
    /// Multiplied by this function of the step, counted from 0.
    OfIterations(fn(f64) -> f64),
}

options! {
    /// Rises linearly from `base_lr` to `max_lr` and falls again; the momentum (or β₁) goes the other way. The
    /// optimiser's own learning rate is not used. Both rates must be given.
    CyclicLR () {
        /// The lowest rate.
        base_lr: f64 = f64::NAN,
        /// The highest.
        max_lr: f64 = f64::NAN,
        /// Steps on the way up.
        step_size_up: Int = 2000,
        /// Steps on the way down; as on the way up if it is `None`.
        step_size_down: MaybeInt = MaybeInt(None),
        /// The amplitude of the cycles.
        mode: CyclicMode = CyclicMode::Triangular,
        /// The factor of [`CyclicMode::ExpRange`].
        gamma: f64 = 1.0,
        /// True if the momentum is changed.
        cycle_momentum: bool = true,
        /// The lowest momentum, where the rate is highest.
        base_momentum: f64 = 0.8,
        /// The highest.
        max_momentum: f64 = 0.9,
    }
}

impl CyclicLR {
    /// Returns the rate at a step as a fraction of the way from the lowest to the highest rate.
    fn fraction(&self, step: u64) -> f64 {
        let up = count(self.step_size_up);
        let down = self.step_size_down.0.map_or(up, |down| count(Int(down)));
        let (step, period) = (step as f64, (up + down) as f64);
        let peak = up as f64 / period;
        let cycle = (1.0 + step / period).floor();
        let x = 1.0 + step / period - cycle;
        let fraction = match x <= peak {
            true => x / peak,
            false => (x - 1.0) / (peak - 1.0),
        };
        fraction
            * match self.mode {
                CyclicMode::Triangular => 1.0,
                CyclicMode::Triangular2 => 0.5f64.powf(cycle - 1.0),
                CyclicMode::ExpRange => self.gamma.powf(step),
                CyclicMode::OfCycle(scale) => scale(cycle),
                CyclicMode::OfIterations(scale) => scale(step),
            }
    }
}

impl Schedule for CyclicLR {
    fn lr(&self, _: f64, epoch: u64) -> f64 {
        self.base_lr + (self.max_lr - self.base_lr) * self.fraction(epoch)
    }

    fn momentum(&self, epoch: u64) -> Option<f64> {
        let range = self.max_momentum - self.base_momentum;
        let momentum_now = self.max_momentum - range * self.fraction(epoch);
        self.cycle_momentum.then_some(momentum_now)
    }

    fn saved(&self, state: &SchedulerState) -> Vec<(&'static str, Value)> {
        let rates = vec![self.base_lr; state.base_lrs.len()];
        vec![
            ("base_lrs", rates.into()),
            ("_scale_fn_custom", Value::None),
        ]
    }

    fn in_groups(&self, _: f64) -> Vec<(&'static str, f64)> {
        vec![("initial_lr", self.base_lr)]
    }

    fn check(&self) -> Result<(), String> {
        for (name, lr) in [("base_lr", self.base_lr), ("max_lr", self.max_lr)] {
            if lr.is_nan() {
                return Err(format!("{name} must be given"));
            }
        }
        check_positive("step_size_up", self.step_size_up)?;
        match self.step_size_down.0 {
            Some(down) if down < 0 => Err(format!(
                "step_size_down must not be negative, but is {down}"
            )),
            _ => Ok(()),
        }
    }
}
