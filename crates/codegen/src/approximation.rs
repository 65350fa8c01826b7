//! Candidates that give up some precision.

use kiln_plan::Algorithm;
use kiln_plan::schedule::{self, Multiply};
use std::fmt;

/// The precision that a candidate gives up against the others, which differ only in the order of sums. The name of such
/// a candidate begins with it, as in `tf32 tile=64x64x16 part=32x32 ..` or `fast math: ..`.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Approximation {
    /// Products of f32 by tensor cores, of operands rounded to TF32.
    ///
    /// TF32 has 11 significant bits. A number is off by at most 2⁻¹¹ of itself, and a product of two by 2⁻¹⁰ + 2⁻²².
    /// Exponents are those of f32: infinities and NaN stay, and numbers from (1 − 2⁻¹²) · 2¹²⁸ on become infinite.
    Tf32,
    /// Products of f32 by tensor cores, each as three products of TF32 numbers. Each operand x has a high part `h`,
    /// which is x rounded to TF32, and a low part `l`, which is x − h rounded to TF32. The product x · y is h · h′ + h
    /// · l′ + l · h′.
    ///
    /// The part of x and of y outside `h + l` is at most 2⁻²² of them, and so is l · l′: 3 · 2⁻²² of the product in
    /// all. Tensor cores truncate in additions (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA
    /// tensor cores", 2021). Eight products are two sums of five numbers. Each number and each sum loses at most 2⁻²³
    /// of the eight's absolute values: 6 · 2⁻²² in all; those with low parts lose 2⁻¹⁰ of that. So a product is off by
    /// less than 2⁻¹⁸ of itself. Sums of eight are then added as f32, which is within the bound of a plain sum. An
    /// infinite operand gives NaN, because its low part is NaN.
    Tf32x3,
    /// Functions of f32 as CUDA's intrinsics. The value is the sum of their errors, each relative to its result; for
    /// logarithms, relative to 1 where that is more.
    ///
    /// | function | error at most | source |
    /// |---|---|---|
    /// | `exp`, and functions computed from it | 2⁻¹⁶: 2 + 1.173 · abs(x) units of 2⁻²³, where the result is normal |
    /// `__expf` |
    /// | `log`, `log2`, `log10` | 3 units of 2⁻²³, between 1/2 and 2 an absolute 2⁻²¹ | `__logf`, `__log2f`, `__log10f`
    /// |
    /// | division, reciprocal | 2 units of 2⁻²³ | `div.full.f32` |
    /// | `sqrt` | 1 unit of 2⁻²³ | `sqrt.approx.f32` |
    /// | `tanh` | 2⁻¹¹ | `tanh.approx.f32` |
    ///
    /// The sources are tables of the CUDA C++ Programming Guide and of the PTX manual. NaN, infinities and zeros give
    /// the same results as without fast math. `sin`, `cos`, `tan` and `pow` are excluded: their intrinsics have no
    /// bound for large arguments.
    FastMath(f64),
    /// A convolution by an algorithm with a larger bound.
    Algorithm(Algorithm),
}

impl Approximation {
    /// Returns the precision that an instruction gives up.
    pub(crate) fn of(multiply: Multiply) -> Option<Approximation> {
        match multiply {
            Multiply::Fma | Multiply::Mma | Multiply::Wgmma => None,
            Multiply::Tf32 | Multiply::WgmmaTf32 => Some(Approximation::Tf32),
            Multiply::Tf32x3 => Some(Approximation::Tf32x3),
        }
    }

    /// Returns the precision that a candidate's or an algorithm's name says it gives up. A name does not contain the
    /// error of fast math.
    pub fn named(name: &str) -> Option<Approximation> {
        if let Ok(schedule) = name.parse::<schedule::Gpu>() {
            return Approximation::of(schedule.multiply);
        }
        match name.split_once(": ").map_or(name, |(class, _)| class) {
            "fast math" => Some(Approximation::FastMath(0.0)),
            // The name of a library's candidate.
            "tf32" => Some(Approximation::Tf32),
            class => {
                let schedule = class.parse::<schedule::Cpu>().ok()?;
                Some(Approximation::Algorithm(schedule.algorithm))
            }
        }
    }

    /// Returns the relative error bound of a product of two numbers, apart from the rounding of f32; for
    /// [`Approximation::FastMath`], that of a function's result.
    pub fn error(self) -> f64 {
        match self {
            Approximation::Tf32 => f64::powi(2.0, -10) + f64::powi(2.0, -22),
            Approximation::Tf32x3 => f64::powi(2.0, -18),
            Approximation::FastMath(error) => error,
            Approximation::Algorithm(_) => 0.0,
        }
    }

    /// Returns the factor by which the bound of a sum's rounding exceeds that of a plain sum. Where tensor cores add
    /// four products, they truncate each of five numbers and their sum: twice the rounding of six additions.
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
