//! How the CPU may compute products and convolutions, what that costs, and how it does by default.
//!
//! A kernel's legal algorithms follow from exact facts ([`Kernel::algorithms`]). Which of them is taken without
//! tuning is a table with guards ([`Kernel::by_default`]), which a compiler settles as far as sizes are known and
//! writes into the plan as its [`Decision`]; for known sizes and for symbols it is the same table, so a program is
//! computed alike whichever it was compiled for. What it costs is counted in multiply-adds ([`Kernel::cost`]).

mod conv;
mod decision;
pub mod geometry;
mod product;
mod schedules;
#[cfg(test)]
mod tests;

pub use decision::Decision;
pub use product::{Behind, block, whole_rows};

use crate::schedule::Cpu;
use crate::{Algorithm, ConvRole, Kernel, Winograd};

/// Multiply-adds that take as long as packing or gathering an element does.
const MOVE: f64 = 8.0;

impl Kernel {
    /// How it is computed, where there are several ways.
    pub fn decision(&self) -> Option<&Decision> {
        let decision = match self {
            Kernel::MatMul(m) => &m.algorithm,
            Kernel::Conv(c) => &c.algorithm,
            _ => return None,
        };
        decision.names().next().map(|_| decision)
    }

    /// Says how it is computed, where there are several ways.
    pub fn decide(&mut self, decision: impl Into<Decision>) {
        match self {
            Kernel::MatMul(m) => m.algorithm = decision.into(),
            Kernel::Conv(c) => c.algorithm = decision.into(),
            _ => {}
        }
    }

    /// The kernel, computed so.
    pub fn by(mut self, decision: impl Into<Decision>) -> Kernel {
        self.decide(decision);
        self
    }

    /// Every algorithm that can compute it where symbols have these values; none for a kernel that has
    /// no choice, or whose sizes have no value.
    pub fn algorithms(&self, values: &[i64]) -> Vec<Algorithm> {
        match self {
            Kernel::MatMul(m) => m.algorithms(values),
            Kernel::Conv(c) => c.algorithms(values),
            _ => Vec::new(),
        }
    }

    /// How it is computed unless a tuner knows better, as far as sizes are known. `packs` says whether its weights,
    /// or its right matrix, depend on parameters alone and are packed once for all runs, `exact` whether sums are to
    /// be sums of products.
    pub fn by_default(&self, packs: bool, exact: bool) -> Decision {
        match self {
            Kernel::MatMul(m) => m.by_default(packs),
            Kernel::Conv(c) => c.by_default(packs && !exact),
            _ => Decision::default(),
        }
    }

    /// The schedule that it names where symbols have these values.
    pub fn schedule(&self, values: &[i64]) -> Option<Cpu> {
        match self {
            Kernel::MatMul(m) => m.schedule(values),
            Kernel::Conv(c) => c.schedule(values),
            _ => None,
        }
    }

    /// The algorithm of its schedule.
    pub fn computed_by(&self, values: &[i64]) -> Option<Algorithm> {
        Some(self.schedule(values)?.algorithm)
    }

    /// What an algorithm costs in multiply-adds. `packs` as for [`Kernel::by_default`].
    pub fn cost(&self, by: Algorithm, values: &[i64], packs: bool) -> Option<f64> {
        match self {
            Kernel::MatMul(m) => m.cost(by, values, packs),
            Kernel::Conv(c) => c.cost(by, values),
            _ => None,
        }
    }

    /// Whether what its weights are packed into depends on symbols.
    pub fn packs_by_symbols(&self) -> bool {
        match self {
            Kernel::MatMul(m) => {
                !m.packs_alike() && m.algorithm.names().any(|a| a == Algorithm::Packed)
            }
            Kernel::Conv(c) => {
                let is_known = |d: &kiln_base::Dim| d.as_const().is_some();
                let one = c.algorithm.one().is_some();
                // Weights are transformed or not as the images' sizes want it; of a gradient of images there are as
                // many parts as the filter takes steps within them.
                let by_sizes = |a| a == Algorithm::Fft || !one && Winograd::of(a).is_some();
                let axes = || c.input.iter().chain(&c.output);
                let steps = c.role == ConvRole::Input && !axes().all(is_known);
                !self.all_dims(is_known) && (steps || c.algorithm.names().any(by_sizes))
            }
            _ => false,
        }
    }
}
