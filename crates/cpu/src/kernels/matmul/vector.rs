//! Products of contiguous rows with a vector, which would leave most columns of a register tile empty.

use kiln_kernel::simd::{Features, Isa, Vectorized, tree_reduce, vectorized};
use kiln_kernel::sums::Lane;
use kiln_kernel::view::View;

/// The rows that are processed together.
const TOGETHER: usize = 4;
/// The partial sums of a row.
const LANES: usize = 16;

/// Dot products of rows that are so far apart with a vector.
struct Dots<'a, T> {
    rows: (View<'a, T>, i64),
    vector: &'a [T],
    dst: &'a mut [T],
}

impl<T: Lane> Vectorized for Dots<'_, T> {
    #[inline(always)]
    fn run<I: Isa>(self) {
        let ((x, apart), last) = (self.rows, self.dst.len() as i64 - 1);
        for (first, dst) in (0..).step_by(TOGETHER).zip(self.dst.chunks_mut(TOGETHER)) {
            // Where there are fewer rows, the last one is read again.
            let line = |r: usize| {
                let at = last.min(first + r as i64) * apart;
                x.slice(at, self.vector.len() as i64)
            };
            let sums = dots::<T, I>(std::array::from_fn(line), self.vector);
            dst.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum);
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

/// Computes the dot products of rows that are so far apart with a vector, one for each element of `dst`.
pub(super) fn rows_by_vector<T: Lane>(
    level: Features,
    rows: (View<T>, i64),
    vector: &[T],
    dst: &mut [T],
) {
    vectorized(level, Dots { rows, vector, dst });
}
