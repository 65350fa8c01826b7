//! Calls of registered operators.

use crate::Array;
use serde::{Deserialize, Serialize};

/// A call of a registered operator; see [`crate::custom`]. Its failure is reported at the kernel's one
/// site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Custom {
    /// The name that it is registered under.
    pub name: String,
    /// The name of the kernel, where it is another than the operator's own.
    pub kernel: Option<String>,
    /// The operands, in order.
    pub operands: Vec<Array>,
    /// The result.
    pub out: Array,
}
