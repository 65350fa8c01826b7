//! The [routines](Routine) of linear algebra, recorded.

use crate::{Builder, DType, Dim, Fact, OpError, Pw, Shape, ensure, ops};
use kiln_base::linalg::Routine;

/// Records a routine. Its operands are matrices `[.., m, n]` with equal batch dims; see [`Routine`].
///
/// # Errors
/// If the routine does not take these operands.
pub fn apply<B: Builder>(
    b: &mut B,
    routine: Routine,
    operands: &[B::Value],
) -> Result<B::Value, OpError> {
    let facts: Vec<Fact> = operands.iter().map(|v| b.fact(v)).collect();
    let output = infer(routine, &facts)?;
    let name = routine.name().into();
    b.op(ops::Custom { name, output }, operands)
}

/// The rows of A in the order that a factored `L U` has them; see [`Routine::Rows`].
fn rows<B: Builder>(b: &mut B, pivots: &B::Value, m: &Dim) -> Result<B::Value, OpError> {
    let fact = b.fact(pivots);
    ensure!(
        fact.dtype == DType::I32 && fact.rank() > 0,
        "the pivots must be i32, not {fact}"
    );
    let mut shape = fact.shape;
    let last = shape.len() - 1;
    shape[last] = m.clone();
    let output = Fact::new(DType::I64, shape);
    let name = Routine::Rows.name().into();
    b.op(ops::Custom { name, output }, std::slice::from_ref(pivots))
}

/// Returns P of `A = P L U` for the i32 pivots of a matrix of `m` rows.
///
/// # Errors
/// If the pivots are not i32.
pub fn permutation<B: Builder>(
    b: &mut B,
    pivots: &B::Value,
    m: &Dim,
    dtype: DType,
) -> Result<B::Value, OpError> {
    let order = rows(b, pivots, m)?;
    let mut shape = b.fact(&order).shape;
    shape.insert(shape.len() - 1, Dim::ONE);
    let order = b.reshape(&order, &shape)?;
    let row = b.op(ops::Iota { len: m.clone() }, &[])?;
    let row = b.reshape(&row, &[m.clone(), Dim::ONE])?;
    let p = b.pointwise(Pw::Eq, &[row, order])?;
    b.cast(&p, dtype)
}

/// Returns the matrices with zeros above the diagonal and ones on it.
///
/// # Errors
/// If the value has fewer than two dims.
pub fn unit_lower<B: Builder>(b: &mut B, x: &B::Value) -> Result<B::Value, OpError> {
    let is_below = position_mask(b, Pw::Gt, x)?;
    let zero = b.scalar_like(0.0, x)?;
    let strict = b.pointwise(Pw::Select, &[is_below, x.clone(), zero])?;
    let diagonal = position_mask(b, Pw::Eq, x)?;
    let dtype = b.fact(x).dtype;
    let ones = b.cast(&diagonal, dtype)?;
    b.pointwise(Pw::Add, &[strict, ones])
}

/// Returns a mask of the size of `x`, true where `row op column` holds.
///
/// # Errors
/// If the value has fewer than two dims.
pub fn position_mask<B: Builder>(b: &mut B, op: Pw, x: &B::Value) -> Result<B::Value, OpError> {
    let fact = b.fact(x);
    let (_, m, n) = matrices(&fact)?;
    let row = b.op(ops::Iota { len: m.clone() }, &[])?;
    let row = b.reshape(&row, &[m.clone(), Dim::ONE])?;
    let column = b.op(ops::Iota { len: n.clone() }, &[])?;
    b.pointwise(op, &[row, column])
}

/// Returns the batch dims, rows and columns of matrices.
///
/// # Errors
/// If the value has fewer than two dims.
pub fn matrices(fact: &Fact) -> Result<(&[Dim], &Dim, &Dim), OpError> {
    match &fact.shape[..] {
        [batch @ .., m, n] => Ok((batch, m, n)),
        _ => Err(OpError(format!("must have at least 2 dims, not {fact}"))),
    }
}

/// Returns the smaller of two sizes.
///
/// # Errors
/// If that depends on a symbol.
pub fn min_dim(m: &Dim, n: &Dim) -> Result<Dim, OpError> {
    match (m.as_const(), n.as_const()) {
        _ if m == n => Ok(m.clone()),
        (Some(a), Some(b)) => Ok(Dim::Const(a.min(b))),
        _ => Err(OpError(format!(
            "matrices of {m} rows and {n} columns must be square, or of known sizes"
        ))),
    }
}

/// Splits the last dim of packed results into parts of these shapes, which follow the batch dims.
///
/// # Errors
/// If the number of elements differs, or a shape has symbols, since the offset of a slice must be known.
pub fn split_packed<B: Builder, const N: usize>(
    b: &mut B,
    packed: &B::Value,
    shapes: [&[Dim]; N],
) -> Result<[B::Value; N], OpError> {
    let mut batch = b.fact(packed).shape;
    batch.pop();
    let last = batch.len();
    let mut start = Dim::ZERO;
    let mut out = Vec::new();
    for shape in shapes {
        let len = kiln_base::numel(shape);
        ensure!(
            len.as_const().is_some(),
            "factors of {shape:?} need known sizes; only the batch dims may be symbols"
        );
        let factor = b.narrow(packed, last, start.clone(), len.clone())?;
        start = &start + &len;
        let mut matrix_shape = batch.clone();
        matrix_shape.extend(shape.iter().cloned());
        out.push(b.reshape(&factor, &matrix_shape)?);
    }
    let out = out.try_into();
    Ok(out.unwrap_or_else(|_| unreachable!("each shape gives one part")))
}

fn infer(routine: Routine, facts: &[Fact]) -> Result<Fact, OpError> {
    let a = &facts[0];
    let (batch, m, n) = matrices(a)?;
    ensure!(
        matches!(a.dtype, DType::F32 | DType::F64),
        "takes matrices of f32 or f64, not {a}; cast them first"
    );
    let needs_square = !matches!(
        routine,
        Routine::Lu
            | Routine::Qr
            | Routine::QrComplete
            | Routine::Svd
            | Routine::SvdFull
            | Routine::SingularValues
            | Routine::PseudoInverse
    );
    ensure!(
        m == n || !needs_square,
        "A must be batches of square matrices, but they are {m} by {n} matrices"
    );
    let dims: Shape = match routine {
        Routine::Cholesky | Routine::Inverse | Routine::InverseUnchecked | Routine::Cofactors => {
            return Ok(a.clone());
        }
        Routine::Solve | Routine::SolveTriangular { .. } => {
            let (rhs_batch, rows, _) = matrices(&facts[1])?;
            ensure!(
                facts[1].dtype == a.dtype && rhs_batch == batch && rows == n,
                "the sides {a} and {} do not fit",
                facts[1]
            );
            return Ok(facts[1].clone());
        }
        Routine::Lu => Shape::from_iter([&(m * n) + &min_dim(m, n)?]),
        Routine::Qr => Shape::from_iter([&min_dim(m, n)? * &(m + n)]),
        Routine::QrComplete => Shape::from_iter([m * &(m + n)]),
        Routine::Svd => Shape::from_iter([&min_dim(m, n)? * &(&(m + n) + &Dim::ONE)]),
        Routine::SvdFull => Shape::from_iter([&(&(m * m) + &(n * n)) + &min_dim(m, n)?]),
        Routine::SingularValues => Shape::from_iter([min_dim(m, n)?]),
        Routine::Eigh => Shape::from_iter([n * &(n + &Dim::ONE)]),
        Routine::Eigenvalues => Shape::from_iter([n.clone()]),
        Routine::Determinant => Shape::new(),
        Routine::SignAndLog => Shape::from_iter([Dim::Const(2)]),
        Routine::PseudoInverse => Shape::from_iter([n.clone(), m.clone()]),
        Routine::Rows => return Err(OpError::new("takes pivots")),
    };
    let shape: Shape = batch.iter().cloned().chain(dims).collect();
    Ok(Fact::new(a.dtype, shape))
}
