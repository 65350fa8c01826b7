//! Runs: from recorded values to computed ones, and what cells hold afterwards.
//!
//! [`read`] computes lazy values: what they need is gathered ([`gather`]), what is computed besides is
//! decided ([`program`]), a plan is found or compiled ([`cached`]), run, and its results are committed
//! ([`commit`], as compiled functions do). What went wrong is told at the user's line ([`errors`],
//! [`place`]), also where it is known only later ([`outcome`]). [`boundary`] bounds how much a thread holds
//! unrealised, [`transfer`] moves values between devices, [`mod@reference`] evaluates without an engine;
//! [`anomaly`] and [`profiler`] look on.

pub mod anomaly;
pub mod boundary;
pub mod cached;
pub mod commit;
pub mod errors;
pub mod gather;
pub mod outcome;
pub mod place;
pub mod profiler;
pub mod program;
pub mod read;
pub mod reference;
pub mod transfer;
