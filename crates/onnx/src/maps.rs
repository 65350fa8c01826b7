//! Maps with equal keys.

use crate::fault::invalid;
use kiln_base::Dim;
use kiln_tensor::{Fact, Result, Tensor};
use std::sync::Arc;

/// Maps that have the same keys, such as the probabilities of classes. An input that is a map is one of them.
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

impl Maps {
    /// Checks that there is a column for each key.
    pub(crate) fn check(&self) -> Result<()> {
        self.values.check()?;
        let (dims, count) = (self.values.dims(), self.keys.len());
        match dims {
            [_, columns] if *columns == Dim::Const(count as i64) => Ok(()),
            _ => {
                let actual = Fact::new(self.values.dtype(), dims.iter().cloned());
                Err(invalid(format!(
                    "the values of maps with {count} keys must be [n, {count}], not {actual}"
                )))
            }
        }
    }
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
