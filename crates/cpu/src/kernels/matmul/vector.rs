//! Products of contiguous rows and a vector, for which a register tile would be mostly empty.

use kiln_kernel::simd::{Features, Isa, Vectorized, tree_reduce, vectorized};
use kiln_kernel::sums::Lane;
use kiln_kernel::view::View;

/// The number of rows that are processed at once.
const UNROLL: usize = 4;
/// The number of partial sums of a row.
const LANES: usize = 16;

/// Dot products of rows of this pitch and a vector.
struct Dots<'a, T> {
    rows: (View<'a, T>, i64),
    vector: &'a [T],
    dst: &'a mut [T],
}

impl<T: Lane> Vectorized for Dots<'_, T> {
    #[inline(always)]
    fn run<I: Isa>(self) {
        let ((x, pitch), last) = (self.rows, self.dst.len() as i64 - 1);
        for (first, dst) in (0..).step_by(UNROLL).zip(self.dst.chunks_mut(UNROLL)) {
            // Missing rows are replaced with the last one.
            let row = |r: usize| {
                let offset = last.min(first + r as i64) * pitch;
                x.slice(offset, self.vector.len() as i64)
            };
            let sums = dots::<T, I>(std::array::from_fn(row), self.vector);
            dst.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum);
        }
    }
}

/// Returns the dot products of some rows and a vector.
#[inline(always)]
fn dots<T: Lane, I: Isa>(rows: [&[T]; UNROLL], vector: &[T]) -> [T; UNROLL] {
    let (chunks, tail) = vector.as_chunks::<LANES>();
    let mut sums = [[T::ZERO; LANES]; UNROLL];
    let [a, b, c, d] = rows.map(|row| row.as_chunks::<LANES>().0);
    for ((((v, a), b), c), d) in chunks.iter().zip(a).zip(b).zip(c).zip(d) {
        for (sums, x) in sums.iter_mut().zip([a, b, c, d]) {
            (0..LANES).for_each(|i| sums[i] = x[i].mul_add::<I>(v[i], sums[i]));
        }
    }
    let even_len = vector.len() - tail.len();
    std::array::from_fn(|r| {
        let products = rows[r][even_len..].iter().zip(tail);
        products.fold(tree_reduce(sums[r], |a, b| a + b), |sum, (x, v)| {
            x.mul_add::<I>(*v, sum)
        })
    })
}

/// Computes the dot products of rows of this pitch and a vector, one for each element of `dst`.
pub(super) fn rows_by_vector<T: Lane>(
    level: Features,
    rows: (View<T>, i64),
    vector: &[T],
    dst: &mut [T],
) {
    vectorized(level, Dots { rows, vector, dst });
}
