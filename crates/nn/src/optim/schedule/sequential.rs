//! One schedule after the other.

use super::Schedule;

/// One schedule after the other, each counting its epochs from its own beginning.
pub struct SequentialLR {
    /// The schedules.
    pub schedules: Vec<Box<dyn Schedule>>,
    /// The ascending epochs at which all but the first begin.
    pub milestones: Vec<u64>,
}

impl SequentialLR {
    fn at(&self, epoch: u64) -> Option<(&dyn Schedule, u64)> {
        let begun = self.milestones.iter().take_while(|m| **m <= epoch).count();
        let from = begun.checked_sub(1).map_or(0, |i| self.milestones[i]);
        let schedule = self.schedules.get(begun).or(self.schedules.last())?;
        Some((&**schedule, epoch - from))
    }
}

impl Schedule for SequentialLR {
    fn lr(&self, base: f64, epoch: u64) -> f64 {
        self.at(epoch).map_or(base, |(s, epoch)| s.lr(base, epoch))
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
        self.at(epoch).and_then(|(s, epoch)| s.momentum(epoch))
    }
}
