//! The matrices of Winograd's convolutions.

use crate::Algorithm;

/// The rows of a matrix.
pub type Rows = [&'static [f64]];

/// Winograd's convolution F(m×m, 3×3), with the matrices of Lavin and Gray, "Fast Algorithms for Convolutional Neural
/// Networks" (arXiv:1509.09308), section 4. A square of m + 2 inputs per side gives m × m results, `Y = A [(G g Gᵀ) ∘
/// (B d Bᵀ)] Aᵀ`.
#[derive(Debug)]
pub struct Winograd {
    /// B, of m + 2 rows: the matrix that a square of inputs is multiplied by.
    pub inputs: &'static Rows,
    /// G, of m + 2 rows: the matrix for a filter.
    pub weights: &'static Rows,
    /// A, of m rows: the matrix for products of both.
    pub results: &'static Rows,
}

/// F(2×2, 3×3).
static TWO: Winograd = Winograd {
    inputs: &[
        &[1., 0., -1., 0.],
        &[0., 1., 1., 0.],
        &[0., -1., 1., 0.],
        &[0., 1., 0., -1.],
    ],
    weights: &[&[1., 0., 0.], &[0.5; 3], &[0.5, -0.5, 0.5], &[0., 0., 1.]],
    results: &[&[1., 1., 1., 0.], &[0., 1., -1., -1.]],
};

/// F(4×4, 3×3).
static FOUR: Winograd = Winograd {
    inputs: &[
        &[4., 0., -5., 0., 1., 0.],
        &[0., -4., -4., 1., 1., 0.],
        &[0., 4., -4., -1., 1., 0.],
        &[0., -2., -1., 2., 1., 0.],
        &[0., 2., -1., -2., 1., 0.],
        &[0., 4., 0., -5., 0., 1.],
    ],
    weights: &[
        &[0.25, 0., 0.],
        &[-1. / 6.; 3],
        &[-1. / 6., 1. / 6., -1. / 6.],
        &[1. / 24., 1. / 12., 1. / 6.],
        &[1. / 24., -1. / 12., 1. / 6.],
        &[0., 0., 1.],
    ],
    results: &[
        &[1., 1., 1., 1., 1., 0.],
        &[0., 1., -1., 2., -2., 0.],
        &[0., 1., 1., 4., 4., 0.],
        &[0., 1., -1., 8., -8., 1.],
    ],
};

impl Winograd {
    /// Returns the matrices of an algorithm, if it is one of these.
    pub fn of(algorithm: Algorithm) -> Option<&'static Winograd> {
        match algorithm {
            Algorithm::Winograd2 => Some(&TWO),
            Algorithm::Winograd4 => Some(&FOUR),
            _ => None,
        }
    }

    /// Returns the number of inputs per side of a tile.
    pub fn side(&self) -> i64 {
        self.inputs.len() as i64
    }

    /// Returns the number of results per side of a tile.
    pub fn step(&self) -> i64 {
        self.results.len() as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the largest row of (|A| (|G| 1 ∘ |B| 1) / 3)².
    fn growth(w: &Winograd) -> f64 {
        let sum = |row: &[f64]| row.iter().map(|v| v.abs()).sum::<f64>();
        let row = |row: &&[f64]| {
            let terms = row.iter().zip(w.weights.iter().zip(w.inputs));
            let sum: f64 = terms.map(|(a, (g, b))| a.abs() * sum(g) * sum(b)).sum();
            (sum / 3.0).powi(2)
        };
        w.results.iter().map(row).fold(0.0, f64::max)
    }

    #[test]
    fn the_growth_of_the_error_follows_from_the_matrices() {
        assert_eq!(Algorithm::Winograd2.error_growth(), growth(&TWO));
        let four = growth(&FOUR);
        let close = (Algorithm::Winograd4.error_growth() / four - 1.0).abs() < 1e-9;
        assert!(close, "{four}");
    }

    #[test]
    fn the_matrices_convolve() {
        let (x, g) = ([3., -1., 4., 1., -5., 9.], [2., -6., 5.]);
        let times = |m: &[f64], x: &[f64]| m.iter().zip(x).map(|(a, b)| a * b).sum::<f64>();
        for w in [&TWO, &FOUR] {
            let products: Vec<f64> = (w.weights.iter().zip(w.inputs))
                .map(|(f, i)| times(f, &g) * times(i, &x))
                .collect();
            for (i, row) in w.results.iter().enumerate() {
                let want = times(&g, &x[i..]);
                assert!((times(row, &products) - want).abs() < 1e-9);
            }
        }
    }
}
