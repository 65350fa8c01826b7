//! Runs: from recorded values to computed ones, and to new values of cells.
//!
//! [`read`] computes lazy values. Their program is gathered ([`gather`]), further values to compute are chosen
//! ([`wanted`]), a plan is found or compiled ([`cached`]) and run, and its results are committed ([`commit`]).
//! [`compiled`] functions are recorded once and run the same way. Errors are reported at the user's line ([`errors`],
//! [`place`]), even if they are known only later ([`outcome`]). [`boundary`] bounds the number of unrealised nodes of
//! a thread, [`transfer`] moves values between devices, [`mod@reference`] evaluates without an engine. [`anomaly`]
//! and [`profiler`] observe runs.

pub mod anomaly;
pub mod boundary;
pub mod cached;
pub mod commit;
pub mod compiled;
pub mod errors;
pub mod gather;
pub mod outcome;
pub mod place;
mod profile_page;
pub mod profiler;
pub mod read;
pub mod reference;
pub mod transfer;
pub mod wanted;
