//! Runs: from recorded tensors to values, and what cells hold afterwards.
//!
//! [`read`] computes lazy values: what they need is gathered ([`gather`]), what is computed besides is
//! decided ([`program`]), a plan is found or compiled ([`cached`]), run, and its results are committed
//! ([`commit`], as compiled functions do). What went wrong is told at the user's line ([`errors`]), also
//! where it is known only later ([`outcome`]). [`boundary`] bounds how much a thread holds unrealised.

pub(crate) mod boundary;
pub(crate) mod cached;
pub(crate) mod commit;
pub(crate) mod errors;
pub(crate) mod gather;
pub(crate) mod outcome;
mod program;
pub(crate) mod read;

pub(crate) use program::is_cheap;
