//! Runs: from recorded values to computed ones, and what cells hold afterwards.
//!
//! [`read`] computes lazy values: what they need is gathered ([`gather`]), what is computed besides is
//! decided ([`wanted`]), a plan is found or compiled ([`cached`]), run, and its results are committed
//! ([`commit`]). [`compiled`] functions are recorded once and run the same way. What went wrong is told at the user's line ([`errors`],
//! [`place`]), also where it is known only later ([`outcome`]). [`boundary`] bounds how much a thread holds
//! unrealised, [`transfer`] moves values between devices, [`mod@reference`] evaluates without an engine;
//! [`anomaly`] and [`profiler`] look on.

pub mod anomaly;
pub mod boundary;
pub mod cached;
pub mod commit;
pub mod compiled;
pub mod errors;
pub mod gather;
pub mod outcome;
pub mod place;
pub mod profiler;
pub mod read;
pub mod reference;
pub mod transfer;
pub mod wanted;
