//! Apex's names for rules that have others here: every update is one kernel, and so is every norm.

pub use crate::{LayerNorm as FusedLayerNorm, RMSNorm as FusedRMSNorm};

use crate::optim::{AdamW, SGD};

/// [`AdamW`] with Apex's defaults.
pub struct FusedAdam;

impl FusedAdam {
    /// Returns the rule with a learning rate of 1e-3 and no decay; decay is decoupled.
    #[allow(clippy::new_ret_no_self)] // the rule that it names
    pub fn new() -> AdamW {
        AdamW::new().weight_decay(0.0)
    }
}

/// [`SGD`] under Apex's name.
pub struct FusedSGD;

impl FusedSGD {
    /// Returns SGD with a learning rate.
    #[allow(clippy::new_ret_no_self)] // the rule that it names
    pub fn new(lr: f64) -> SGD {
        SGD::new().lr(lr)
    }
}
