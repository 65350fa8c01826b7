//! The gradient of a convolution's input as the result of another: where a filter doesn't step, it is the gradient of
//! the result convolved with the filters, input and output channels exchanged and taps turned round. That multiplies
//! weights with the zeros around the gradient, which the gradient of the input does not: where a weight is not finite,
//! columns are added up after all.

use super::Conv;
use crate::error::{Result, damaged};
use crate::kernels::matmul::{Args, split};
use crate::memory::room;
use crate::sums::Lane;
use crate::tile::Failures;
use kiln_plan::ConvRole;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, Ordering};

impl Conv {
    /// Elements of the weights.
    pub(super) fn filters(&self) -> i64 {
        self.groups * self.cin * self.cout * self.geometry.kernels()
    }

    /// Makes a gradient of the images without steps the result of a convolution, by the same algorithm.
    pub(super) fn turn(&mut self) -> Result<()> {
        let geometry = self.geometry.turned();
        let mut conv = Conv {
            role: ConvRole::Result,
            cin: self.cout,
            cout: self.cin,
            geometry: geometry.ok_or_else(|| damaged!("a gradient with too much padding"))?,
            cut: None,
            fft: None,
            dense: None,
            each: None,
            winograd: None,
            turned: None,
            made: None,
            epilogue: self.epilogue.take(),
            ..*self
        };
        conv.prepare(|| None)?;
        self.turned = Some(Box::new(conv));
        Ok(())
    }

    /// Runs a gradient as `conv`.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn turned<T: Lane>(
        &self,
        conv: &Conv,
        args: &[*mut u8],
        parallel: bool,
        failures: &Failures,
    ) {
        let mut storage = None;
        let to = match room::<T>(&mut storage, self.filters()) {
            Ok(to) => to,
            Err(e) => return failures.broken(e),
        };
        let (cin, cout, taps) = (self.cin, self.cout, self.geometry.kernels());
        let weights = self.operands[1];
        let pair = [args[weights], to.cast()];
        let pair = Args(&pair);
        let finite = AtomicBool::new(true);
        split(self.groups * cin, cout * taps, parallel, |from, until| {
            let (pair, mut all) = (&pair, true);
            let (filters, to) = (pair.0[0].cast::<T>(), pair.0[1].cast::<T>());
            for row in from..until {
                let (group, i) = (row / cin, row % cin);
                for o in 0..cout {
                    let first = ((group * cout + o) * cin + i) * taps;
                    for tap in 0..taps {
                        let at = (row * cout + o) * taps + taps - 1 - tap;
                        // SAFETY: linking checked the weights' length; each row is written by one part.
                        unsafe {
                            let weight = *filters.offset((first + tap) as isize);
                            all &= weight.is_finite();
                            *to.offset(at as isize) = weight;
                        }
                    }
                }
            }
            finite.fetch_and(all, Ordering::Relaxed);
        });
        if !finite.into_inner() {
            // SAFETY: the caller's.
            return unsafe { self.input::<T>(args, parallel, failures) };
        }
        let mut args: SmallVec<[*mut u8; 12]> = SmallVec::from_slice(args);
        // Nothing else reads the weights.
        args[weights] = to.cast();
        // SAFETY: the caller's; the filters are as many.
        unsafe { conv.run(&args, None, parallel, failures) }
    }
}
