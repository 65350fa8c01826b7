//! Products with a vector: one pass over the matrix in memory order.

use kiln_jit::contraction::Matrix;
use kiln_kernel::simd::{Features, Isa, Vectorized, tree_reduce, vectorized};
use kiln_kernel::sums::Lane;

/// The rows, or columns, that are processed together.
const TOGETHER: usize = 4;
/// The partial sums of a row.
const LANES: usize = 16;

/// `dst[i] = Σ_j matrix[i, j] · vector[j]`.
struct MatrixVector<'a, T> {
    matrix: Matrix<'a, T>,
    vector: &'a [T],
    dst: &'a mut [T],
}

impl<T: Lane> Vectorized for MatrixVector<'_, T> {
    #[inline(always)]
    fn run<I: Isa>(self) {
        let ((x, row, col), rows) = (self.matrix, self.dst.len() as i64);
        if col == 1 {
            let last = rows - 1;
            for (first, dst) in (0..).step_by(TOGETHER).zip(self.dst.chunks_mut(TOGETHER)) {
                // Where there are fewer rows, the last one is read again.
                let line = |r: usize| {
                    let at = last.min(first + r as i64) * row;
                    x.slice(at, self.vector.len() as i64)
                };
                let sums = dots::<T, I>(std::array::from_fn(line), self.vector);
                dst.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum);
            }
        } else if row == 1 {
            let column = |j: usize| x.slice(j as i64 * col, rows);
            self.dst.fill(T::ZERO);
            let (whole, rest) = self.vector.as_chunks::<TOGETHER>();
            for (i, v) in whole.iter().enumerate() {
                let [a, b, c, d] = std::array::from_fn(|n| column(i * TOGETHER + n));
                let all = self.dst.iter_mut().zip(a).zip(b).zip(c).zip(d);
                for ((((to, a), b), c), d) in all {
                    let sum = b.mul_add::<I>(v[1], a.mul_add::<I>(v[0], *to));
                    *to = d.mul_add::<I>(v[3], c.mul_add::<I>(v[2], sum));
                }
            }
            for (j, v) in (whole.len() * TOGETHER..).zip(rest) {
                let all = self.dst.iter_mut().zip(column(j));
                all.for_each(|(to, x)| *to = x.mul_add::<I>(*v, *to));
            }
        } else {
            for (i, to) in (0..).zip(self.dst) {
                let terms = (0..).zip(self.vector);
                *to = terms.fold(T::ZERO, |sum, (j, v)| {
                    x.get(i * row + j * col).mul_add::<I>(*v, sum)
                });
            }
        }
    }
}

/// Returns the dot products of some rows with a vector.
#[inline(always)]
fn dots<T: Lane, I: Isa>(rows: [&[T]; TOGETHER], vector: &[T]) -> [T; TOGETHER] {
    let (whole, rest) = vector.as_chunks::<LANES>();
    let mut sums = [[T::ZERO; LANES]; TOGETHER];
    let [a, b, c, d] = rows.map(|row| row.as_chunks::<LANES>().0);
    for ((((v, a), b), c), d) in whole.iter().zip(a).zip(b).zip(c).zip(d) {
        for (sums, x) in sums.iter_mut().zip([a, b, c, d]) {
            (0..LANES).for_each(|i| sums[i] = x[i].mul_add::<I>(v[i], sums[i]));
        }
    }
    let from = vector.len() - rest.len();
    std::array::from_fn(|r| {
        let terms = rows[r][from..].iter().zip(rest);
        terms.fold(tree_reduce(sums[r], |a, b| a + b), |sum, (x, v)| {
            x.mul_add::<I>(*v, sum)
        })
    })
}

/// Computes `dst[i] = Σ_j matrix[i, j] · vector[j]` for all elements of the slices.
pub(super) fn matrix_vector<T: Lane>(
    level: Features,
    matrix: Matrix<T>,
    vector: &[T],
    dst: &mut [T],
) {
    let all = MatrixVector {
        matrix,
        vector,
        dst,
    };
    vectorized(level, all);
}
