//! Instructions that compute each lane of the result from the same lanes of the operands.

use crate::cpu::Cpu;
use crate::fault::Outcome;
use crate::step::Step;
use crate::vector::{Lane, Vector};

impl Cpu<'_, '_> {
    /// The number of lanes that both an operand of `A` lanes and the result of `R` lanes have.
    fn count<A: Lane, R: Lane>(&self, step: &Step, operand: usize) -> usize {
        (step.bytes(0) / R::SIZE).min(step.bytes(operand) / A::SIZE)
    }

    /// `operand 0 = f(operand 1)`.
    pub fn map<A: Lane, R: Lane>(&mut self, step: &Step, f: impl Fn(A) -> R) -> Outcome<()> {
        let count = self.count::<A, R>(step, 1);
        let a = self.lanes::<A>(step, 1, self.active(step))?;
        let result = Vector::from(count, |i| f(a.get(i)));
        self.set_lanes::<R>(step, &result, count)
    }

    /// `operand 0 = f(operand 1, operand 2)`.
    pub fn zip<A: Lane, R: Lane>(&mut self, step: &Step, f: impl Fn(A, A) -> R) -> Outcome<()> {
        self.zip_indexed(step, |_, a, b| f(a, b))
    }

    /// `zip` with the lane's number as an argument of `f`.
    pub fn zip_indexed<A: Lane, R: Lane>(
        &mut self,
        step: &Step,
        f: impl Fn(usize, A, A) -> R,
    ) -> Outcome<()> {
        let count = self.count::<A, R>(step, 2);
        let active = self.active(step);
        let (a, b) = (
            self.lanes::<A>(step, 1, active)?,
            self.lanes::<A>(step, 2, active)?,
        );
        let result = Vector::from(count, |i| f(i, a.get(i), b.get(i)));
        self.set_lanes::<R>(step, &result, count)
    }

    /// `operand 0 = f(operand 0, operand 1, operand 2)`.
    pub fn zip3<A: Lane>(&mut self, step: &Step, f: impl Fn(A, A, A) -> A) -> Outcome<()> {
        let count = self.count::<A, A>(step, 2);
        let active = self.active(step);
        let d = self.lanes::<A>(step, 0, active)?;
        let (a, b) = (
            self.lanes::<A>(step, 1, active)?,
            self.lanes::<A>(step, 2, active)?,
        );
        let result = Vector::from(count, |i| f(d.get(i), a.get(i), b.get(i)));
        self.set_lanes::<A>(step, &result, count)
    }

    /// `zip` for the lowest lane only; the rest up to 128 bits is operand 1's.
    pub fn first<A: Lane>(&mut self, step: &Step, f: impl Fn(A, A) -> A) -> Outcome<()> {
        let active = self.active(step) & 1;
        let (a, b) = (self.vector(step, 1)?, self.lanes::<A>(step, 2, active)?);
        let mut result = a;
        result.set(0, f(a.get(0), b.get(0)));
        self.set_lanes_masked::<A>(step, &result, 16 / A::SIZE, active | !1)
    }

    /// `zip3` for the lowest lane only; the rest up to 128 bits stays.
    pub fn first3<A: Lane>(&mut self, step: &Step, f: impl Fn(A, A, A) -> A) -> Outcome<()> {
        let active = self.active(step) & 1;
        let mut result = self.vector(step, 0)?;
        let (a, b) = (self.vector(step, 1)?, self.lanes::<A>(step, 2, active)?);
        result.set(0, f(result.get(0), a.get(0), b.get(0)));
        self.set_lanes_masked::<A>(step, &result, 16 / A::SIZE, active | !1)
    }
}
