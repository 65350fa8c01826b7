//! The error function by table lookup.

use super::math::ROUND;
use kiln_base::special;

/// The number of centres of [`ErfTable`].
const ERF_CENTRES: usize = 32;

/// The Taylor series of erf around points near 0, 1/8, .. 31/8. These points are chosen so that erf there is almost
/// exactly an f32 (S. Gal's accurate tables). Where erf is close to 1, its rounding is then the only one.
#[repr(C, align(64))]
pub struct ErfTable {
    centres: [f32; ERF_CENTRES],
    /// Entry `[n][i]` is the coefficient of `r^n` at centre `i`.
    series: [[f32; ERF_CENTRES]; 6],
}

impl ErfTable {
    /// Returns the table.
    pub fn get() -> &'static ErfTable {
        static TABLE: std::sync::LazyLock<ErfTable> = std::sync::LazyLock::new(ErfTable::new);
        &TABLE
    }

    fn new() -> ErfTable {
        let slope = |x: f64| std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp();
        let mut table = ErfTable {
            centres: [0.0; ERF_CENTRES],
            series: [[0.0; ERF_CENTRES]; 6],
        };
        for i in 0..ERF_CENTRES - 1 {
            let nominal = i as f64 / 8.0;
            let value = special::erf(nominal);
            // This is one step of Newton's method towards the point where erf equals its rounded value here.
            let centre = nominal + (value as f32 as f64 - value) / slope(nominal);
            let x = centre as f32 as f64;
            table.centres[i] = x as f32;
            table.series[0][i] = special::erf(x) as f32;
            // The derivatives of e^(-x²) are it times (-1)^n H_n(x); H_n = 2x H_(n-1) - 2(n-1) H_(n-2).
            let (mut previous, mut hermite, mut factor) = (0.0, 1.0, 1.0);
            for (n, row) in table.series.iter_mut().enumerate().skip(1) {
                factor /= n as f64;
                row[i] = (slope(x) * hermite * factor) as f32;
                factor = -factor;
                let next = 2.0 * x * hermite - 2.0 * (n as f64 - 1.0) * previous;
                (previous, hermite) = (hermite, next);
            }
        }
        // The last series rounds to 1 - 2^-24 below 3.9192 and to 1 above, as erf does.
        table.centres[ERF_CENTRES - 1] = 3.875;
        table.series[0][ERF_CENTRES - 1] = 1.0 - f32::EPSILON / 2.0;
        table.series[1][ERF_CENTRES - 1] = 3.4e-7;
        table.series[2][ERF_CENTRES - 1] = 7.6e-6;
        table
    }

    /// Returns the two halves of a row. Row 0 holds the centres, row n + 1 the coefficients of `r^n`.
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    pub fn row(&self, row: usize) -> [[u8; 64]; 2] {
        let row = match row {
            0 => &self.centres,
            n => &self.series[n - 1],
        };
        let byte = |i: usize| row[i / 4].to_le_bytes()[i % 4];
        [0, 64].map(|from| std::array::from_fn(|i| byte(from + i)))
    }

    /// Evaluates the error function by the Taylor series at the nearest centre.
    pub fn eval(&self, x: f32) -> f32 {
        // This preserves NaN.
        let t = if x.abs() > 3.93 { 3.93 } else { x.abs() };
        let i = t.mul_add(8.0, ROUND).to_bits() as usize % ERF_CENTRES;
        let r = t - self.centres[i];
        let rows = self.series.iter().rev().map(|row| row[i]);
        let y = rows.reduce(|y, c| y.mul_add(r, c)).unwrap_or(0.0);
        f32::from_bits(y.to_bits() | x.to_bits() & (-0.0f32).to_bits())
    }
}
