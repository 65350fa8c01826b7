//! The one-cycle policy (Smith and Topin, 2017).

use super::{Schedule, SchedulerState, check_positive, check_share, count};
use kiln_formats::Value;
use kiln_tensor::{Int, options};
use std::f64::consts::PI;

/// The curve from one value to another.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Anneal {
    /// Half a cosine.
    Cos,
    /// A line.
    Linear,
}

options! {
    /// Rises from `max_lr / div_factor` to `max_lr`, then falls to `max_lr / div_factor / final_div_factor`; the
    /// momentum (or β₁) goes the other way. The optimiser's own learning rate is not used.
    OneCycleLR (
        /// The highest rate.
        max_lr: f64,
        /// Length of the cycle; one more step is an error.
        total_steps: Int
    ) {
        /// The share of the cycle in which the rate rises.
        pct_start: f64 = 0.3,
        /// The curve.
        anneal_strategy: Anneal = Anneal::Cos,
        /// True if the momentum is changed.
        cycle_momentum: bool = true,
        /// The momentum where the rate is highest.
        base_momentum: f64 = 0.85,
        /// The momentum at both ends.
        max_momentum: f64 = 0.95,
        /// The ratio of the highest rate to the first.
        div_factor: f64 = 25.0,
        /// The ratio of the first rate to the last.
        final_div_factor: f64 = 1e4,
        /// True if there is a third phase, which lowers the rate to its end after a second phase that mirrors the
        /// first.
        three_phase: bool = false,
    }
}

impl OneCycleLR {
    /// The phases: the last step, and the start and end values of the rate and of the momentum.
    fn phases(&self) -> Vec<(f64, [f64; 2], [f64; 2])> {
        let (start, top) = (self.max_lr / self.div_factor, self.max_lr);
        let end = start / self.final_div_factor;
        let (low, high) = (self.base_momentum, self.max_momentum);
        let total = count(self.total_steps) as f64;
        let warmup_end = self.pct_start * total - 1.0;
        let up = (warmup_end, [start, top], [high, low]);
        match self.three_phase {
            true => vec![
                up,
                (2.0 * warmup_end, [top, start], [low, high]),
                (total - 1.0, [start, end], [high, high]),
            ],
            false => vec![up, (total - 1.0, [top, end], [low, high])],
        }
    }

    fn rate_and_momentum(&self, step: u64) -> (f64, f64) {
        // The step after the last update needs no rate. It keeps the last one, because a line would continue below
        // zero.
        let last = count(self.total_steps).saturating_sub(1);
        let (step, phases) = (step.min(last) as f64, self.phases());
        let mut from = 0.0;
        for (i, (to, lr, momentum)) in phases.iter().enumerate() {
            if step <= *to || i + 1 == phases.len() {
                let share = (step - from) / (to - from);
                let along = |[a, b]: [f64; 2]| match self.anneal_strategy {
                    Anneal::Cos => b + (a - b) / 2.0 * (1.0 + (PI * share).cos()),
                    Anneal::Linear => (b - a) * share + a,
                };
                return (along(*lr), along(*momentum));
            }
            from = *to;
        }
        (self.max_lr, self.base_momentum)
    }
}

impl Schedule for OneCycleLR {
    fn lr(&self, _: f64, epoch: u64) -> f64 {
        self.rate_and_momentum(epoch).0
    }

    fn momentum(&self, epoch: u64) -> Option<f64> {
        self.cycle_momentum.then(|| self.rate_and_momentum(epoch).1)
    }

    fn check(&self) -> Result<(), String> {
        check_positive("total_steps", self.total_steps)?;
        check_share("pct_start", self.pct_start)
    }

    fn saved(&self, state: &SchedulerState) -> Vec<(&'static str, Value)> {
        let rates = vec![self.max_lr / self.div_factor; state.base_lrs.len()];
        vec![("base_lrs", rates.into())]
    }

    fn in_groups(&self, _: f64) -> Vec<(&'static str, f64)> {
        let start = self.max_lr / self.div_factor;
        let end = start / self.final_div_factor;
        let mut numbers = vec![
            ("initial_lr", start),
            ("max_lr", self.max_lr),
            ("min_lr", end),
        ];
        if self.cycle_momentum {
            numbers.extend([
                ("base_momentum", self.base_momentum),
                ("max_momentum", self.max_momentum),
            ]);
        }
        numbers
    }

    fn last(&self) -> Option<u64> {
        Some(count(self.total_steps))
    }
}
