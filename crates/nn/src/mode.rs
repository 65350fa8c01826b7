//! The mode of a layer: training or evaluation.

use std::sync::atomic::{AtomicU8, Ordering};

/// The mode of the layer that holds it: training or evaluation. All layers start in training;
/// [`Module::train`](crate::Module::train) and [`Module::eval`](crate::Module::eval) switch them. A field of this type
/// makes your own layer switch with them.
#[derive(Debug)]
pub struct Mode {
    state: AtomicU8,
    /// True if freezing pins it to evaluation.
    statistics: bool,
}

const TRAINING: u8 = 0;
const EVALUATION: u8 = 1;
/// Evaluation that `train` does not end.
const FROZEN: u8 = 2;

impl Mode {
    /// Training.
    pub const fn new() -> Mode {
        Mode {
            state: AtomicU8::new(TRAINING),
            statistics: false,
        }
    }

    /// Training, for a layer that updates statistics: [`Module::freeze`](crate::Module::freeze) puts it into evaluation
    /// until it is unfrozen.
    pub const fn with_statistics() -> Mode {
        Mode {
            state: AtomicU8::new(TRAINING),
            statistics: true,
        }
    }

    /// True if the layer trains.
    pub fn is_training(&self) -> bool {
        self.state.load(Ordering::Relaxed) == TRAINING
    }

    /// True if the layer stays in evaluation until it is unfrozen.
    pub fn is_frozen(&self) -> bool {
        self.state.load(Ordering::Relaxed) == FROZEN
    }

    pub(crate) fn set_training(&self, training: bool) {
        if !self.is_frozen() {
            let state = if training { TRAINING } else { EVALUATION };
            self.state.store(state, Ordering::Relaxed);
        }
    }

    pub(crate) fn freeze(&self) {
        if self.statistics {
            self.state.store(FROZEN, Ordering::Relaxed);
        }
    }

    /// Returns to training, as a layer that was never frozen.
    pub(crate) fn unfreeze(&self) {
        if self.is_frozen() {
            self.state.store(TRAINING, Ordering::Relaxed);
        }
    }
}

impl Clone for Mode {
    fn clone(&self) -> Mode {
        Mode {
            state: AtomicU8::new(self.state.load(Ordering::Relaxed)),
            statistics: self.statistics,
        }
    }
}

impl Default for Mode {
    fn default() -> Mode {
        Mode::new()
    }
}
