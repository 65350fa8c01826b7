//! The products of the `gemm` crates.

use gemm_common::Parallelism;

/// A matrix product of the `gemm` crates: sizes; pointer, column stride and row stride of the result,
/// of which the rows lie closer together; whether it is read; the same of both operands; both factors.
type Gemm<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

/// A type that products exist for.
pub(crate) trait Number: Copy + PartialEq + 'static {
    const ZERO: Self;
    const ONE: Self;

    /// `dst = alpha · dst + beta · lhs · rhs` for the instruction set of this machine.
    fn gemm() -> Gemm<Self>;
}
impl Number for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;

    fn gemm() -> Gemm<f32> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}
impl Number for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;

    fn gemm() -> Gemm<f64> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }
}

/// `dst = lhs · rhs` for matrices given as pointer, row stride and column stride.
///
/// # Safety
/// All elements exist, and those of `dst` are nobody else's.
pub(crate) unsafe fn product_of<T: Number>(
    sizes: (i64, i64, i64),
    dst: (*mut T, i64, i64),
    lhs: (*const T, i64, i64),
    rhs: (*const T, i64, i64),
) {
    // SAFETY: the caller's.
    unsafe { add_product_of(sizes, dst, lhs, rhs, false) }
}

/// As [`product_of`]; with `add`, the product is added to what `dst` holds.
///
/// # Safety
/// As [`product_of`].
pub(crate) unsafe fn add_product_of<T: Number>(
    (m, n, k): (i64, i64, i64),
    (dst, dst_row, dst_col): (*mut T, i64, i64),
    (lhs, lhs_row, lhs_col): (*const T, i64, i64),
    (rhs, rhs_row, rhs_col): (*const T, i64, i64),
    add: bool,
) {
    // SAFETY: the caller's.
    unsafe {
        if k == 0 && !add {
            for i in 0..m {
                for j in 0..n {
                    *dst.offset((i * dst_row + j * dst_col) as isize) = T::ZERO;
                }
            }
            return;
        }
        // The result lies in columns there; where it lies in rows, its transpose does.
        let (left, right) = ((m, lhs, lhs_col, lhs_row), (n, rhs, rhs_col, rhs_row));
        let transpose = |(n, from, col, row)| (n, from, row, col);
        let ((m, lhs, lhs_col, lhs_row), (n, rhs, rhs_col, rhs_row), dst_col, dst_row) =
            if dst_col < dst_row {
                (transpose(right), transpose(left), dst_row, dst_col)
            } else {
                (left, right, dst_col, dst_row)
            };
        T::gemm()(
            m as usize,
            n as usize,
            k as usize,
            dst,
            dst_col as isize,
            dst_row as isize,
            add,
            lhs,
            lhs_col as isize,
            lhs_row as isize,
            rhs,
            rhs_col as isize,
            rhs_row as isize,
            if add { T::ONE } else { T::ZERO },
            T::ONE,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
