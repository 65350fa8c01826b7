//! Emission of kernels as machine code: x86-64 with VEX (`Features::AVX2`) or EVEX (from `Features::AVX512` on).
//!
//! A list of instructions of a tile program ([`lines::Lines`]) is lowered to vector code with virtual registers
//! ([`ir`]), and then to machine registers (`emit`). Emitted code computes the same bits as the interpreter.

#[cfg(feature = "testing")]
pub mod bugs;
pub mod cache;
mod cast;
mod emit;
mod float8;
pub mod ir;
pub mod lines;
mod located;
mod locations;
mod math;
mod memory;
mod native;
mod pressure;
mod primitive;
mod random;
pub mod stage;
mod step;
mod tied;
mod value;

use kiln_kernel::simd::Features;
use kiln_x86::Width;

/// The target of emission.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// True for EVEX, with 32 registers and masks; false for VEX, with 16 registers.
    pub evex: bool,
}

impl Target {
    /// Returns the target of a level, or `None` if it has no emitter.
    pub fn of(level: Features) -> Option<Target> {
        match level.width() {
            Features::BASELINE => None,
            Features::AVX2 => Some(Target { evex: false }),
            _ => Some(Target { evex: true }),
        }
    }

    /// Returns the widest vector.
    pub fn width(self) -> Width {
        if self.evex { Width::Z } else { Width::Y }
    }

    /// Returns the number of lanes of a group: the f32 of a vector.
    pub fn lanes(self) -> usize {
        self.width().bytes() / 4
    }
}
