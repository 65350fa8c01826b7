//! Lists of maps with equal keys.

use kiln_tensor::Tensor;
use std::sync::Arc;

/// A list of maps that have the same keys, such as the probabilities of classes.
#[derive(Clone, Debug)]
pub struct Maps {
    /// The keys.
    pub keys: Keys,
    /// The values `[n, keys]`: a row is a map, a column the values of a key.
    pub values: Tensor,
}

/// The keys of maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Integers.
    Integers(Arc<[i64]>),
    /// Texts.
    Texts(Arc<[String]>),
}

impl Keys {
    /// The number of keys.
    pub(crate) fn len(&self) -> usize {
        match self {
            Keys::Integers(list) => list.len(),
            Keys::Texts(list) => list.len(),
        }
    }
}
