//! Schedules with a warm-up, under the names of Hugging Face's `transformers`: the rate rises linearly from 0 in the
//! first `num_warmup_steps` steps.

use super::{Schedule, count};
use kiln_tensor::{Int, options};
use std::f64::consts::PI;

options! {
    /// Warm-up, then the optimiser's rate (`get_constant_schedule_with_warmup`; without the warm-up,
    /// `get_constant_schedule`).
    ConstantScheduleWithWarmup (
        /// The number of steps in which the rate rises.
        num_warmup_steps: Int
    ) {}
}

options! {
    /// Warm-up, then a line down to 0 at `num_training_steps` (`get_linear_schedule_with_warmup`).
    LinearScheduleWithWarmup (
        /// The number of training steps, warm-up included.
        num_training_steps: Int
    ) {
        /// The number of steps in which the rate rises.
        num_warmup_steps: Int = 0,
    }
}

options! {
    /// Warm-up, then a cosine, by default down to 0 at `num_training_steps` (`get_cosine_schedule_with_warmup`).
    CosineScheduleWithWarmup (
        /// The number of training steps, warm-up included.
        num_training_steps: Int
    ) {
        /// The number of steps in which the rate rises.
        num_warmup_steps: Int = 0,
        /// The number of waves; half a wave only falls.
        num_cycles: f64 = 0.5,
    }
}

impl Schedule for ConstantScheduleWithWarmup {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        base * warmup(self.num_warmup_steps, epoch).unwrap_or(1.0)
    }
}

impl Schedule for LinearScheduleWithWarmup {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        let done = || progress(self.num_warmup_steps, self.num_training_steps, epoch);
        base * warmup(self.num_warmup_steps, epoch).unwrap_or_else(|| (1.0 - done()).max(0.0))
    }
}

impl Schedule for CosineScheduleWithWarmup {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        let done = || progress(self.num_warmup_steps, self.num_training_steps, epoch);
        let wave = || 0.5 * (1.0 + (PI * self.num_cycles * 2.0 * done()).cos());
        base * warmup(self.num_warmup_steps, epoch).unwrap_or_else(wave)
    }
}

/// The factor while the rate rises.
fn warmup(steps: Int, epoch: u64) -> Option<f64> {
    let steps = count(steps);
    (epoch < steps).then(|| epoch as f64 / steps as f64)
}

/// Returns the fraction of the steps after the warm-up that is done: 1 at the end.
fn progress(warmup: Int, training: Int, epoch: u64) -> f64 {
    let (warmup, training) = (count(warmup), count(training));
    let decay_steps = training.saturating_sub(warmup).max(1);
    (epoch - warmup.min(epoch)) as f64 / decay_steps as f64
}
