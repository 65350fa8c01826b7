//! The legal algorithms of products and convolutions on the CPU, their costs, and the defaults.
//!
//! A kernel's legal algorithms follow from exact facts ([`Kernel::algorithms`]). The default without tuning is a table
//! with guards ([`Kernel::by_default`]). A compiler evaluates it as far as sizes are known, and writes it into the plan
//! as its [`Decision`]. The table is the same for known sizes and for symbols, so a program is computed alike in both
//! cases. Costs are counted in multiply-adds ([`Kernel::cost`]).

mod conv;
mod decision;
pub mod geometry;
mod product;
mod schedules;
#[cfg(test)]
mod tests;

pub use decision::Decision;
pub use product::{ProductEpilogue, block, whole_rows};

use crate::schedule::Cpu;
use crate::{Algorithm, ConvRole, Dims, Kernel, Winograd};

/// The multiply-adds that take as long as packing or gathering an element.
const MOVE: f64 = 8.0;

impl Kernel {
    /// Returns the decision, if there are several algorithms.
    pub fn decision(&self) -> Option<&Decision> {
        let decision = match self {
            Kernel::MatMul(m) => &m.algorithm,
            Kernel::Conv(c) => &c.algorithm,
            _ => return None,
        };
        decision.names().next().map(|_| decision)
    }

    /// Sets the decision, if there are several algorithms.
    pub fn decide(&mut self, decision: impl Into<Decision>) {
        match self {
            Kernel::MatMul(m) => m.algorithm = decision.into(),
            Kernel::Conv(c) => c.algorithm = decision.into(),
            _ => {}
        }
    }

    /// Returns the kernel with this decision.
    pub fn by(mut self, decision: impl Into<Decision>) -> Kernel {
        self.decide(decision);
        self
    }

    /// Returns every algorithm that can compute it if symbols have these values; none for a kernel without a choice, or
    /// whose sizes have no values.
    pub fn algorithms(&self, values: &[i64]) -> Vec<Algorithm> {
        match self {
            Kernel::MatMul(m) => m.algorithms(values),
            Kernel::Conv(c) => c.algorithms(values),
            _ => Vec::new(),
        }
    }

    /// Returns the default decision without tuning, as far as sizes are known. `packs` is true if its weights, or its
    /// B, depend on parameters only and are packed once for all runs. `exact` is true if sums must be
    /// computed as sums of products.
    pub fn by_default(&self, packs: bool, exact: bool) -> Decision {
        match self {
            Kernel::MatMul(m) => m.by_default(packs),
            Kernel::Conv(c) => c.by_default(packs && !exact),
            _ => Decision::default(),
        }
    }

    /// Returns the schedule that it names if symbols have these values.
    pub fn schedule(&self, values: &[i64]) -> Option<Cpu> {
        match self {
            Kernel::MatMul(m) => m.schedule(values),
            Kernel::Conv(c) => c.schedule(values),
            _ => None,
        }
    }

    /// Returns the algorithm of its schedule.
    pub fn computed_by(&self, values: &[i64]) -> Option<Algorithm> {
        Some(self.schedule(values)?.algorithm)
    }

    /// Returns the cost of an algorithm in multiply-adds. `packs` as for [`Kernel::by_default`].
    pub fn cost(&self, by: Algorithm, values: &[i64], packs: bool) -> Option<f64> {
        match self {
            Kernel::MatMul(m) => m.cost(by, values, packs),
            Kernel::Conv(c) => c.cost(by, values),
            _ => None,
        }
    }

    /// True if the packed form of its weights depends on symbols.
    pub fn packs_by_symbols(&self) -> bool {
        match self {
            Kernel::MatMul(m) => {
                !m.packs_alike() && m.algorithm.names().any(|a| a == Algorithm::Packed)
            }
            Kernel::Conv(c) => {
                let is_known = |d: &kiln_base::Dim| d.as_const().is_some();
                let is_fixed = c.algorithm.one().is_some();
                // The images' sizes decide if weights are transformed. In a gradient of images, the number of parts
                // depends on the filter's steps within them.
                let by_sizes = |a| a == Algorithm::Fft || !is_fixed && Winograd::of(a).is_some();
                let axes = || c.input.iter().chain(&c.output);
                let steps = c.role == ConvRole::Input && !axes().all(is_known);
                !self.all_dims(&mut |d| is_known(d)) && (steps || c.algorithm.names().any(by_sizes))
            }
            _ => false,
        }
    }
}
