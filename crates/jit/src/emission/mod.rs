//! Kernels printed as machine code: x86-64 with VEX (`Features::AVX2`) or EVEX (from `Features::AVX512` on).
//!
//! What a kernel does is described by a list of instructions of a tile program ([`lines::Lines`]), which is lowered to
//! vector code with as many registers as it likes ([`ir`]), and then given the machine's (`emit`). What is printed
//! computes the bits that the interpreter does.

#[cfg(feature = "testing")]
pub mod bugs;
pub mod cache;
mod cast;
mod emit;
pub mod ir;
pub mod lines;
mod located;
mod math;
mod memory;
mod native;
mod over;
mod places;
mod pressure;
mod primitive;
mod random;
pub mod stage;
mod step;
mod value;

use kiln_kernel::simd::Features;
use kiln_x86::Width;

/// What code is printed for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// EVEX, with 32 registers and masks, or VEX, with 16.
    pub evex: bool,
}

impl Target {
    /// The target of a level, if code is printed for it.
    pub fn of(level: Features) -> Option<Target> {
        match level.width() {
            Features::BASELINE => None,
            Features::AVX2 => Some(Target { evex: false }),
            _ => Some(Target { evex: true }),
        }
    }

    /// The widest vector.
    pub fn width(self) -> Width {
        if self.evex { Width::Z } else { Width::Y }
    }

    /// Elements that one group of lanes has: as many f32 as a vector holds.
    pub fn lanes(self) -> usize {
        self.width().bytes() / 4
    }
}
