//! Shared parts of tests of whole programs. [`programs`] checks random programs and their gradients, [`rules`] makes
//! programs that each rewrite applies to, an [`oracle`] runs a program on an engine and compares it with the
//! reference, and [`sweep`] selects the share of all programs for one run of the tests.

pub mod oracle;
pub mod programs;
pub mod rules;
pub mod sweep;
