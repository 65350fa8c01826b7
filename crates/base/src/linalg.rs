//! The routines of linear algebra: [`custom`](crate::custom) operators whose kernels the crate `kiln-linalg`
//! registers.
//!
//! Each computes one tensor from batches of matrices `[.., m, n]`, with `k = min(m, n)`. Several results are
//! concatenated in the last dim, row-major.

/// A routine.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Routine {
    /// The lower triangular L of `A = L Lᵀ`, from A's lower triangle.
    Cholesky,
    /// L and U of `A[rows] = L U` in one `[m, n]`, then the k pivots: at step i, row i was exchanged with row `pivot −
    /// 1`.
    Lu,
    /// From i32 pivots `[.., k]`, the i64 rows of A `[.., m]` in the order of L U.
    Rows,
    /// Q `[m, k]` and R `[k, n]`.
    Qr,
    /// Q `[m, m]` and R `[m, n]`.
    QrComplete,
    /// U `[m, k]`, the singular values `[k]`, descending, and Vᵀ `[k, n]`.
    Svd,
    /// U `[m, m]`, the singular values `[k]` and Vᵀ `[n, n]`.
    SvdFull,
    /// The singular values `[k]`, descending.
    SingularValues,
    /// The eigenvalues `[n]` of a symmetric matrix, ascending, and its eigenvectors `[n, n]`, from its
    /// lower triangle.
    Eigh,
    /// The eigenvalues `[n]` alone.
    Eigenvalues,
    /// X of `A X = B` with a triangular A. Only that triangle is read, without the diagonal if it is ones.
    SolveTriangular {
        /// True if the upper triangle is read.
        upper: bool,
        /// True if the diagonal is ones.
        unit: bool,
    },
    /// X of `A X = B`; a singular A is an error.
    Solve,
    /// The inverse; a singular matrix is an error.
    Inverse,
    /// The inverse, with infinities and NaN for a singular matrix.
    InverseUnchecked,
    /// The determinant `[]`.
    Determinant,
    /// The determinant's sign and the logarithm of its absolute value, `[2]`.
    SignAndLog,
    /// The gradient of the determinant, `det(A) A⁻ᵀ`, for singular matrices too.
    Cofactors,
    /// The pseudo-inverse `[n, m]`. The second and third operand, `[..]`, are the absolute tolerance and the tolerance
    /// relative to the largest singular value: smaller singular values count as 0.
    PseudoInverse,
}

impl Routine {
    /// All routines.
    pub const ALL: [Routine; 21] = [
        Routine::Cholesky,
        Routine::Lu,
        Routine::Rows,
        Routine::Qr,
        Routine::QrComplete,
        Routine::Svd,
        Routine::SvdFull,
        Routine::SingularValues,
        Routine::Eigh,
        Routine::Eigenvalues,
        triangular(false, false),
        triangular(false, true),
        triangular(true, false),
        triangular(true, true),
        Routine::Solve,
        Routine::Inverse,
        Routine::InverseUnchecked,
        Routine::Determinant,
        Routine::SignAndLog,
        Routine::Cofactors,
        Routine::PseudoInverse,
    ];

    /// Returns the name of the operator. The part before a `:` is PyTorch's name.
    pub fn name(self) -> &'static str {
        match self {
            Routine::Cholesky => "linalg.cholesky",
            Routine::Lu => "linalg.lu",
            Routine::Rows => "linalg.lu:rows",
            Routine::Qr => "linalg.qr",
            Routine::QrComplete => "linalg.qr:complete",
            Routine::Svd => "linalg.svd",
            Routine::SvdFull => "linalg.svd:full",
            Routine::SingularValues => "linalg.svdvals",
            Routine::Eigh => "linalg.eigh",
            Routine::Eigenvalues => "linalg.eigvalsh",
            Routine::SolveTriangular { upper, unit } => match (upper, unit) {
                (false, false) => "linalg.solve_triangular",
                (false, true) => "linalg.solve_triangular:unit",
                (true, false) => "linalg.solve_triangular:upper",
                (true, true) => "linalg.solve_triangular:upper_unit",
            },
            Routine::Solve => "linalg.solve",
            Routine::Inverse => "linalg.inv",
            Routine::InverseUnchecked => "linalg.inv_ex",
            Routine::Determinant => "linalg.det",
            Routine::SignAndLog => "linalg.slogdet",
            Routine::Cofactors => "linalg.det:cofactors",
            Routine::PseudoInverse => "linalg.pinv",
        }
    }

    /// Returns the routine of this name.
    pub fn named(name: &str) -> Option<Routine> {
        Routine::ALL.into_iter().find(|r| r.name() == name)
    }
}

const fn triangular(upper: bool, unit: bool) -> Routine {
    Routine::SolveTriangular { upper, unit }
}

#[cfg(test)]
mod tests {
    use super::Routine;

    #[test]
    fn names_are_those_of_one_routine() {
        for r in Routine::ALL {
            assert_eq!(Routine::named(r.name()), Some(r));
        }
        assert_eq!(Routine::named("mine::cube"), None);
    }
}
