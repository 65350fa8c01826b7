//! One schedule after the other.

use super::{Schedule, SchedulerState, saved};
use kiln_formats::Value;

/// A sequence of schedules, each counting its epochs from its own beginning.
pub struct SequentialLR {
    /// The schedules.
    pub schedules: Vec<Box<dyn Schedule>>,
    /// The ascending epochs at which all but the first schedule begin.
    pub milestones: Vec<u64>,
}

impl SequentialLR {
    fn active(&self, epoch: u64) -> Option<(&dyn Schedule, u64)> {
        let index = self.milestones.iter().take_while(|m| **m <= epoch).count();
        let from = index.checked_sub(1).map_or(0, |i| self.milestones[i]);
        let schedule = self.schedules.get(index).or(self.schedules.last())?;
        Some((&**schedule, epoch - from))
    }
}

impl Schedule for SequentialLR {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        self.active(epoch)
            .map_or(base, |(s, epoch)| s.lr(base, epoch))
    }

    fn check(&self) -> Result<(), String> {
        let (schedules, milestones) = (self.schedules.len(), self.milestones.len());
        if schedules != milestones + 1 {
            let message =
                format!("{schedules} schedules can't follow each other at {milestones} epochs");
            return Err(format!(
                "{message}; there must be one more schedule than milestones"
            ));
        }
        self.schedules.iter().try_for_each(|s| s.check())
    }

    fn momentum(&self, epoch: u64) -> Option<f64> {
        self.active(epoch).and_then(|(s, epoch)| s.momentum(epoch))
    }

    fn saved(&self, state: &SchedulerState) -> Vec<(&'static str, Value)> {
        let inner = self.schedules.iter().enumerate().map(|(i, schedule)| {
            let milestone = |i: usize| self.milestones.get(i).map(|m| *m as i64);
            let from = i.checked_sub(1).map_or(Some(0), milestone).unwrap_or(0);
            // A schedule that has ended stays at its last epoch.
            let local_epoch = milestone(i).map_or(state.epoch as i64, |next| {
                (state.epoch as i64).min(next - 1)
            });
            saved::saved(&**schedule, state, (local_epoch - from).max(-1))
        });
        let milestones: Vec<u64> = self.milestones.clone();
        vec![
            ("_schedulers", inner.collect::<Vec<Value>>().into()),
            ("_milestones", milestones.into()),
        ]
    }

    fn in_groups(&self, base: f64) -> Vec<(&'static str, f64)> {
        self.schedules
            .iter()
            .flat_map(|s| s.in_groups(base))
            .collect()
    }
}
