//! A regular part of each axis.

use super::prelude::*;

/// A view of the elements `start, start + step, …` (`len` of them) of each axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slice {
    /// One entry for each axis of the operand.
    pub axes: Vec<SliceAxis>,
}

/// The slice of one axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SliceAxis {
    /// The first index, never negative.
    pub start: Dim,
    /// The number of elements.
    pub len: Dim,
    /// The distance between adjacent elements; negative steps walk backwards.
    pub step: i64,
}

impl SliceAxis {
    /// Returns the full axis.
    pub fn all(extent: &Dim) -> SliceAxis {
        SliceAxis {
            start: Dim::ZERO,
            len: extent.clone(),
            step: 1,
        }
    }
}

impl OpDef for Slice {
    const NAME: &'static str = "slice";
    const ARITY: RangeInclusive<usize> = 1..=1;
    const COST: Cost = Cost::View;
    const HAS_SIZES: bool = true;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let x = inputs[0];
        ensure!(
            self.axes.len() == x.rank(),
            "slices {} axes, but {x} has {}",
            self.axes.len(),
            x.rank()
        );
        for (axis, (s, extent)) in self.axes.iter().zip(&x.shape).enumerate() {
            ensure!(s.step != 0, "the step of axis {axis} is 0");
            check_range(axis, s, extent)?;
        }
        one_output(x.dtype, self.axes.iter().map(|s| s.len.clone()).collect())
    }

    fn needs(&self, inputs: &[&Fact]) -> Vec<Dim> {
        let axes = self.axes.iter().zip(&inputs[0].shape);
        let proper = axes.filter(|(s, extent)| !s.len.is(0) && **s != SliceAxis::all(extent));
        let needs = proper.map(|(s, extent)| {
            let (low, high) = match s.step > 0 {
                true => (s.start.clone(), s.last()),
                false => (s.last(), s.start.clone()),
            };
            [low, &(extent - &Dim::ONE) - &high]
        });
        needs.flatten().collect()
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        for a in &mut self.axes {
            f(&mut a.start);
            f(&mut a.len);
        }
    }

    fn offsets_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        self.axes.iter_mut().for_each(|a| f(&mut a.start));
    }
}

impl SliceAxis {
    /// The last index.
    fn last(&self) -> Dim {
        &self.start + &(&(&self.len - &Dim::ONE) * &Dim::Const(self.step))
    }
}

/// Checks known numbers. Those that depend on symbols are checked when these have values ([`OpDef::needs`]).
fn check_range(axis: usize, s: &SliceAxis, extent: &Dim) -> Result<(), OpError> {
    let inside = |index: &Dim| {
        let room = &(extent - &Dim::ONE) - index;
        let negative = |d: &Dim| d.as_const().is_some_and(|n| n < 0);
        !negative(index) && !negative(&room)
    };
    let legal = match s.len.as_const() {
        Some(n) if n < 0 => false,
        Some(0) => s.start.as_const().is_none_or(|i| i >= 0),
        // The last index must not overflow and wrap around to a legal one.
        Some(n) if n > 1 => {
            (n - 1).checked_mul(s.step).is_some() && inside(&s.start) && inside(&s.last())
        }
        _ => inside(&s.start) && inside(&s.last()),
    };
    ensure!(
        legal,
        "axis {axis} of size {extent} has no {} elements from {} in steps of {}",
        s.len,
        s.start,
        s.step
    );
    Ok(())
}
