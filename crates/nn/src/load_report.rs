//! The report of a load.

/// The names that were on one side only, or differ in shape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Parameters and buffers of the module for which no value was given; they keep theirs.
    pub missing: Vec<String>,
    /// Names of values that the module does not have.
    pub unexpected: Vec<String>,
    /// Parameters and buffers whose shape differs from that of the value; they keep theirs.
    pub mismatched: Vec<String>,
}
