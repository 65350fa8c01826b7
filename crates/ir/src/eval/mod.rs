//! Reference evaluation.
