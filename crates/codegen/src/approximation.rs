//! Ways that give up some precision.

use kiln_plan::Algorithm;
use kiln_plan::schedule::{self, Multiply};
use std::fmt;

/// What a way to compute some work gives up against the others, which differ in the order of sums alone. A
/// way's name begins with it, as in `tf32 tile=64x64x16 part=32x32 ..` or `fast math: ..`.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Approximation {
    /// Products of f32 by tensor cores, of operands rounded to TF32.
    ///
    /// That has 11 significant bits, so a number is off by 2⁻¹¹ of itself at most and a product of two by
    /// 2⁻¹⁰ + 2⁻²². Exponents are those of f32, so infinities stay, NaN stays NaN, and numbers from
    /// (1 − 2⁻¹²) · 2¹²⁸ on become infinite.
    Tf32,
    /// Products of f32 by tensor cores, each of three products of TF32 numbers: x is its high part `h`, which is x
    /// rounded to TF32, and its low part `l`, which is x − h rounded to TF32, and x · y is h · h′ + h · l′ + l · h′.
    ///
    /// What `h + l` leaves of x and of y is 2⁻²² of them at most, and so is l · l′: 3 · 2⁻²² of the product in all.
    /// Tensor cores truncate where they add (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA
    /// tensor cores", 2021). Eight products are two sums of five numbers, each of which, and the sum, loses 2⁻²³
    /// of the eight's absolute values at most: 6 · 2⁻²² in all; those with low parts lose 2⁻¹⁰ of that. So a
    /// product is off by less than 2⁻¹⁸ of itself. Sums of eight are then added as f32, which is within the bound
    /// of a plain sum. An infinite operand gives NaN: its low part is one.
    Tf32x3,
    /// Functions of f32 in the forms that CUDA calls intrinsic; the sum of their errors, each as a part of its
    /// result, or for logarithms of 1 where that is more.
    ///
    /// | function | error at most | source |
    /// |---|---|---|
    /// | `exp`, and what is made of it | 2⁻¹⁶: 2 + 1.173 · abs(x) units of 2⁻²³, where the result is normal | `__expf` |
    /// | `log`, `log2`, `log10` | 3 units of 2⁻²³, between 1/2 and 2 an absolute 2⁻²¹ | `__logf`, `__log2f`, `__log10f` |
    /// | division, reciprocal | 2 units of 2⁻²³ | `div.full.f32` |
    /// | `sqrt` | 1 unit of 2⁻²³ | `sqrt.approx.f32` |
    /// | `tanh` | 2⁻¹¹ | `tanh.approx.f32` |
    ///
    /// The sources are tables of the CUDA C++ Programming Guide and of the PTX manual. NaN, infinities and zeros give
    /// what they do otherwise. `sin`, `cos`, `tan` and `pow` are not among them: their intrinsic forms have no bound
    /// for large arguments.
    FastMath(f64),
    /// A convolution by an algorithm with a larger bound.
    Algorithm(Algorithm),
}

impl Approximation {
    /// What an instruction gives up.
    pub(crate) fn of(multiply: Multiply) -> Option<Approximation> {
        match multiply {
            Multiply::Fma | Multiply::Mma => None,
            Multiply::Tf32 => Some(Approximation::Tf32),
            Multiply::Tf32x3 => Some(Approximation::Tf32x3),
        }
    }

    /// What the name of a way or of an algorithm says that it gives up. The error of fast math it does not say.
    pub fn named(name: &str) -> Option<Approximation> {
        if let Ok(schedule) = name.parse::<schedule::Gpu>() {
            return Approximation::of(schedule.multiply);
        }
        match name.split_once(": ").map_or(name, |(class, _)| class) {
            "fast math" => Some(Approximation::FastMath(0.0)),
            class => {
                let schedule = class.parse::<schedule::Cpu>().ok()?;
                Some(Approximation::Algorithm(schedule.algorithm))
            }
        }
    }

    /// By how much a product of two numbers may be off, as a part of it, beside the rounding of f32; for
    /// [`Approximation::FastMath`] a function's result.
    pub fn error(self) -> f64 {
        match self {
            Approximation::Tf32 => f64::powi(2.0, -10) + f64::powi(2.0, -22),
            Approximation::Tf32x3 => f64::powi(2.0, -18),
            Approximation::FastMath(error) => error,
            Approximation::Algorithm(_) => 0.0,
        }
    }

    /// By how much the bound of a sum's rounding exceeds that of a plain sum. Tensor cores truncate each of five
    /// numbers, and their sum, where they add four products: twice the rounding of six additions.
    pub fn growth(self) -> f64 {
        match self {
            Approximation::Tf32 => 3.0,
            Approximation::Tf32x3 | Approximation::FastMath(_) => 1.0,
            Approximation::Algorithm(algorithm) => algorithm.error_growth(),
        }
    }
}

impl fmt::Display for Approximation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Approximation::Tf32 => f.write_str("tf32"),
            Approximation::Tf32x3 => f.write_str("tf32x3"),
            Approximation::FastMath(_) => f.write_str("fast math"),
            Approximation::Algorithm(algorithm) => algorithm.fmt(f),
        }
    }
}
