//! What tests of whole programs share: [`programs`] are random ones and their gradients, [`rules`] makes programs that
//! each rewrite applies to, an [`oracle`] runs a program on an engine and judges it by the reference, and [`sweep`] says
//! how much of all that a run of the tests takes.

pub mod oracle;
pub mod programs;
pub mod rules;
pub mod sweep;
