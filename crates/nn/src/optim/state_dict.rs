//! What an optimiser saves.

use kiln_tensor::Tensor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The state of an [`Optimizer`](super::Optimizer), laid out as PyTorch's.
#[derive(Clone, Debug, Default)]
pub struct StateDict {
    /// For each parameter that has made a step, by its number: `step` (rank 0, f32) and the moments under
    /// PyTorch's names.
    pub state: BTreeMap<usize, BTreeMap<String, Tensor>>,
    /// The groups.
    pub param_groups: Vec<GroupDict>,
}

/// The hyperparameters of a group and the numbers of its parameters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupDict {
    /// `lr`, `momentum`, `beta1`, …
    pub numbers: BTreeMap<String, f64>,
    /// `nesterov`, `amsgrad`, …
    pub flags: BTreeMap<String, bool>,
    /// Keys of [`StateDict::state`].
    pub params: Vec<usize>,
}
