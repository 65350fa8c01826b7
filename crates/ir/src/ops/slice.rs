//! A regular part of each axis.

use super::prelude::*;

/// A view of the elements `start, start + step, …` (`len` of them) of each axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slice {
    /// One entry for each axis of the operand.
    pub axes: Vec<SliceAxis>,
}

/// What is taken of one axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SliceAxis {
    /// The first index, never negative.
    pub start: Dim,
    /// How many.
    pub len: Dim,
    /// Distance between two; negative steps walk backwards.
    pub step: i64,
}

impl SliceAxis {
    /// The whole of an axis.
    pub fn all(extent: &Dim) -> SliceAxis {
        SliceAxis {
            start: Dim::ZERO,
            len: extent.clone(),
            step: 1,
        }
    }
}

impl OpDef for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

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
            check_range(axis, s, extent, true)?;
        }
        one(x.dtype, self.axes.iter().map(|s| s.len.clone()).collect())
    }

    fn cost(&self) -> Cost {
        Cost::View
    }

    fn has_sizes(&self) -> bool {
        true
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

impl Slice {
    /// Whether what is taken of the symbolic axes is inside them whatever values symbols have. Inference
    /// refuses only what is known to be outside: a program that was recorded with known sizes is right
    /// for them, also where its sizes became symbols later.
    ///
    /// # Errors
    /// Names the axis that may be left.
    pub fn check(&self, x: &Fact) -> Result<(), OpError> {
        let mut axes = self.axes.iter().zip(&x.shape).enumerate();
        axes.try_for_each(|(axis, (s, extent))| check_range(axis, s, extent, false))
    }
}

/// Known numbers are checked. Of symbolic ones `start + (len − 1) · step` must lie a known distance inside
/// the extent, unless what isn't known `may` be so.
fn check_range(axis: usize, s: &SliceAxis, extent: &Dim, may: bool) -> Result<(), OpError> {
    let last = &s.start + &(&(&s.len - &Dim::ONE) * &Dim::Const(s.step));
    let inside = |index: &Dim| match (index.as_const(), extent.as_const()) {
        (Some(i), Some(e)) => 0 <= i && i < e,
        (Some(i), None) => 0 <= i && (may || i < 2),
        (None, _) => (extent - index).as_const().map_or(may, |gap| gap >= 1),
    };
    let legal = match s.len.as_const() {
        Some(n) if n < 0 => false,
        Some(0) => s.start.as_const().is_none_or(|i| i >= 0),
        // A step that leaves the axis at once must not come back by wrapping.
        Some(n) if n > 1 => {
            (n - 1).checked_mul(s.step).is_some() && inside(&s.start) && inside(&last)
        }
        _ => inside(&s.start) && inside(&last),
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
