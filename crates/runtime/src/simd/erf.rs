//! The error function by lookup.

use super::math::ROUND;
use kiln_base::special;

/// Centres of [`ErfTable`].
const ERF_CENTRES: usize = 32;

/// The Taylor series of erf around points near 0, 1/8, .. 31/8, chosen so that erf there is very
/// nearly an f32 (S. Gal's accurate tables); where erf is close to 1 its rounding is then the only one.
#[repr(C, align(64))]
pub(crate) struct ErfTable {
    centres: [f32; ERF_CENTRES],
    /// Entry `[n][i]` is the coefficient of `r^n` at centre `i`.
    series: [[f32; ERF_CENTRES]; 6],
}

impl ErfTable {
    /// The table.
    pub(crate) fn get() -> &'static ErfTable {
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
            let even = i as f64 / 8.0;
            let value = special::erf(even);
            // One step of Newton's method to where erf is what it rounds to here.
            let centre = even + (value as f32 as f64 - value) / slope(even);
            let x = centre as f32 as f64;
            table.centres[i] = x as f32;
            table.series[0][i] = special::erf(x) as f32;
            // The derivatives of e^(-x²) are it times (-1)^n H_n(x); H_n = 2x H_(n-1) - 2(n-1) H_(n-2).
            let (mut before, mut hermite, mut factor) = (0.0, 1.0, 1.0);
            for (n, row) in table.series.iter_mut().enumerate().skip(1) {
                factor /= n as f64;
                row[i] = (slope(x) * hermite * factor) as f32;
                factor = -factor;
                let next = 2.0 * x * hermite - 2.0 * (n as f64 - 1.0) * before;
                (before, hermite) = (hermite, next);
            }
        }
        // The last one rounds to 1 - 2^-24 below 3.9192 and to 1 above, as erf does.
        table.centres[ERF_CENTRES - 1] = 3.875;
        table.series[0][ERF_CENTRES - 1] = 1.0 - f32::EPSILON / 2.0;
        table.series[1][ERF_CENTRES - 1] = 3.4e-7;
        table.series[2][ERF_CENTRES - 1] = 7.6e-6;
        table
    }

    /// The two halves of a row: the centres, then the coefficients from that of `r^0` on.
    #[cfg(all(target_arch = "x86_64", unix))]
    pub(crate) fn row(&self, row: usize) -> [[u8; 64]; 2] {
        let row = match row {
            0 => &self.centres,
            n => &self.series[n - 1],
        };
        let byte = |i: usize| row[i / 4].to_le_bytes()[i % 4];
        [0, 64].map(|from| std::array::from_fn(|i| byte(from + i)))
    }

    /// The error function of 16 numbers: the Taylor series at the nearest centre.
    ///
    /// # Safety
    /// The machine has AVX-512 F and DQ.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) unsafe fn of(&self, x: std::arch::x86_64::__m512) -> std::arch::x86_64::__m512 {
        use std::arch::x86_64::*;
        // SAFETY: the machine has these instructions; rows of the table are 32 floats.
        unsafe {
            let sign = _mm512_set1_ps(-0.0);
            // The second operand goes through where one is NaN.
            let t = _mm512_min_ps(_mm512_set1_ps(3.93), _mm512_andnot_ps(sign, x));
            // Only the low five bits of an index count.
            let at = _mm512_fmadd_ps(t, _mm512_set1_ps(8.0), _mm512_set1_ps(ROUND));
            let at = _mm512_castps_si512(at);
            let look = |row: &[f32; ERF_CENTRES]| {
                let row = row.as_ptr();
                let (low, high) = (_mm512_load_ps(row), _mm512_load_ps(row.add(16)));
                _mm512_permutex2var_ps(low, at, high)
            };
            let r = _mm512_sub_ps(t, look(&self.centres));
            let mut y = look(&self.series[5]);
            for n in (0..5).rev() {
                y = _mm512_fmadd_ps(y, r, look(&self.series[n]));
            }
            _mm512_or_ps(y, _mm512_and_ps(sign, x))
        }
    }
}
