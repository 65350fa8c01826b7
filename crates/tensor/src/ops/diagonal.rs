//! Triangles and diagonals.

use super::args::{DimArg, DimArgs, Int, IntList, axis, check_addressable, check_listable, known};
use super::places::inverse;
use crate::operand::AsTensor;
use crate::options::options;
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Scalar, Tensor};
use kiln_base::Dim;
use kiln_base::prim::ScatterKind;
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, Shape, ensure};

options! {
    /// The choice of a diagonal, and of the dims of the matrices.
    ///
    /// ```
    /// use kiln_tensor::{Diagonal, Tensor};
    /// let x = Tensor::arange(0, 9, 1).reshape([3, 3]);
    /// assert_eq!(x.diagonal().to_vec::<i64>()?, [0, 4, 8]);
    /// assert_eq!(x.diagonal_with(Diagonal::new().offset(1)).to_vec::<i64>()?, [1, 5]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    Diagonal () {
        /// The offset above the main diagonal (default 0); negative offsets are below it.
        offset: Int = 0,
        /// The dim of the matrices' rows (default 0).
        dim1: DimArg = 0,
        /// The dim of the matrices' columns (default 1).
        dim2: DimArg = 1,
    }
}

#[on_cells]
impl Tensor {
    /// Ones on the diagonal of a matrix, zeros elsewhere. One size gives a square matrix; two are rows and columns.
    ///
    /// ```
    /// use kiln_tensor::{DType, Tensor};
    /// assert_eq!(Tensor::eye(3, DType::F32).shape()?, [3, 3]);
    /// assert_eq!(Tensor::eye([2, 3], DType::I64).to_vec::<i64>()?, [1, 0, 0, 0, 1, 0]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn eye(size: impl Into<IntList>, dtype: DType) -> Tensor {
        let size = size.into().0;
        compose("eye", &[], |b| {
            let (n, m) = match size[..] {
                [n] => (n, n),
                [n, m] => (n, m),
                _ => return Err(OpError(format!("makes matrices, not tensors of {size:?}"))),
            };
            ensure!(n >= 0, "n must not be negative, but is {n}");
            ensure!(m >= 0, "m must not be negative, but is {m}");
            let shape = [n.into(), m.into()];
            check_addressable(&shape, dtype)?;
            let (row, column) = coordinates(b, &shape)?;
            let diagonal = b.binary(Pw::Eq, &row, &column)?;
            b.cast(&diagonal, dtype)
        })
    }

    /// The elements on and below the diagonal of each matrix; zeros above it.
    pub fn tril(&self) -> Tensor {
        self.tril_with(0)
    }

    /// The elements on and below the diagonal at offset `diagonal` above the main one of each matrix; zeros above it.
    pub fn tril_with(&self, diagonal: impl Into<Int>) -> Tensor {
        compose("tril", &[self], |b| triangle(b, self, diagonal, Pw::Le))
    }

    /// The elements on and above the diagonal of each matrix; zeros below it.
    pub fn triu(&self) -> Tensor {
        self.triu_with(0)
    }

    /// The elements on and above the diagonal at offset `diagonal` above the main one of each matrix; zeros below it.
    pub fn triu_with(&self, diagonal: impl Into<Int>) -> Tensor {
        compose("triu", &[self], |b| triangle(b, self, diagonal, Pw::Ge))
    }

    /// The diagonal of a matrix, or the matrix with this vector as its diagonal.
    pub fn diag(&self) -> Tensor {
        self.diag_with(0)
    }

    /// [`Tensor::diag`] for the diagonal at this offset above the main one.
    pub fn diag_with(&self, diagonal: impl Into<Int>) -> Tensor {
        compose("diag", &[self], |b| match self.ndim() {
            1 => embed(b, self, diagonal),
            2 => extract(b, self, diagonal),
            _ => Err(OpError(format!(
                "{} is neither a vector nor a matrix",
                self.fact()
            ))),
        })
    }

    /// The diagonals of the matrices that the first two dims form, as a new last dim.
    pub fn diagonal(&self) -> Tensor {
        self.diagonal_with(Diagonal::new())
    }

    /// [`Tensor::diagonal`] at another offset or with other dims.
    pub fn diagonal_with(&self, which: Diagonal) -> Tensor {
        let Diagonal { offset, dim1, dim2 } = which;
        let offset = offset.0;
        compose("diagonal", &[self], |b| {
            let perm = permute_matrices_last(self, &dim1, &dim2)?;
            let matrices = b.permute(self, &perm)?;
            let strides = self.strides();
            let mut strides: Vec<Dim> = perm.iter().map(|a| strides[*a].clone()).collect();
            // A step along the diagonal is a step along both dims.
            let (column, row) = (strides.pop(), strides.pop());
            strides.extend(row.zip(column).map(|(r, c)| &r + &c));
            Ok(extract(b, &matrices, offset)?.with_strides(strides))
        })
    }

    /// This tensor with its diagonal (see [`Tensor::diagonal`]) replaced by `src`, which must have the same shape.
    pub fn diagonal_scatter(&self, src: impl AsTensor) -> Tensor {
        self.diagonal_scatter_with(src, Diagonal::new())
    }

    /// This tensor with a diagonal (see [`Tensor::diagonal_with`]) replaced by `src`, which must have the same shape.
    pub fn diagonal_scatter_with(&self, src: impl AsTensor, which: Diagonal) -> Tensor {
        let Diagonal { offset, dim1, dim2 } = which;
        let offset = offset.0;
        compose("diagonal_scatter", &[self, src], |b| {
            let perm = permute_matrices_last(self, &dim1, &dim2)?;
            let matrices = b.permute(self, &perm)?;
            let diagonal = extract(b, &matrices, offset)?;
            ensure!(
                src.dims() == diagonal.dims(),
                "the source {} does not have the shape of the diagonal {}",
                src.fact(),
                diagonal.fact()
            );
            let src = b.cast(src, self.dtype())?;
            let last = src.ndim() - 1;
            if src.dims()[last].is(0) {
                return Ok(self.clone());
            }
            // A step along the diagonal is one row and one column.
            let (rows, columns) = (known(&matrices, last)?, known(&matrices, last + 1)?);
            let start = offset.min(0).unsigned_abs() as i64 * columns + offset.max(0);
            let positions = b.iota(&src.dims()[last])?;
            let positions = b.with(Pw::Mul, &positions, columns + 1)?;
            let positions = b.with(Pw::Add, &positions, start)?;
            let positions = b.reshape_along(&positions, last, last + 1)?;
            let positions = b.broadcast_to(&positions, src.dims())?;
            let mut flat = Shape::from(src.dims());
            flat[last] = (rows * columns).into();
            let flat = b.reshape(&matrices, &flat)?;
            let flat = b.scatter(ScatterKind::Set, &flat, last, &positions, &src)?;
            let placed = b.reshape(&flat, matrices.dims())?;
            b.permute(&placed, &inverse(&perm))
        })
    }

    /// This tensor with a number on its main diagonal, where the indices of all dims are equal. More than two dims
    /// must have the same size.
    pub(crate) fn with_diagonal(&self, value: impl Into<Scalar>) -> Tensor {
        compose("fill_diagonal_", &[self], |b| {
            let n = self.ndim();
            ensure!(n >= 2, "{} has fewer than 2 dims", self.fact());
            let even = self.dims().windows(2).all(|d| d[0] == d[1]);
            ensure!(n == 2 || even, "the dims of {} differ in size", self.fact());
            super::index::check_fill(self.dtype(), value)?;
            let mut inside: Option<Tensor> = None;
            let first_index = b.iota(&self.dims()[0])?;
            let first_index = b.reshape_along(&first_index, 0, n)?;
            for a in 1..n {
                let number = b.iota(&self.dims()[a])?;
                let number = b.reshape_along(&number, a, n)?;
                let is_diagonal = b.binary(Pw::Eq, &first_index, &number)?;
                inside = Some(b.accumulate(Pw::And, inside, is_diagonal)?);
            }
            let inside = inside.ok_or_else(|| OpError::new("needs at least 2 dims"))?;
            b.fill_where(&inside, value, self)
        })
    }

    /// Matrices with the vectors of the last dim on their diagonals. The last two dims of the result are their rows
    /// and columns.
    pub fn diag_embed(&self) -> Tensor {
        self.diag_embed_with(Diagonal::new().dim1(-2).dim2(-1))
    }

    /// [`Tensor::diag_embed`] on another diagonal, or with other dims of the result for the matrices.
    pub fn diag_embed_with(&self, which: Diagonal) -> Tensor {
        let Diagonal { offset, dim1, dim2 } = which;
        let offset = offset.0;
        compose("diag_embed", &[self], |b| {
            ensure!(self.ndim() > 0, "a number has no last dim");
            let matrices = embed(b, self, offset)?;
            let (rows, columns) = (axis(&matrices, &dim1)?, axis(&matrices, &dim2)?);
            ensure!(rows != columns, "the dims {dim1} and {dim2} are the same");
            let n = matrices.ndim();
            let mut batch_axes = 0..n - 2;
            let perm: Vec<usize> = (0..n)
                .map(|i| match i {
                    i if i == rows => n - 2,
                    i if i == columns => n - 1,
                    _ => batch_axes.next().unwrap_or(0),
                })
                .collect();
            b.permute(&matrices, &perm)
        })
    }

    /// The sum of a matrix's diagonal; integers give i64.
    #[autocast]
    pub fn trace(&self) -> Tensor {
        compose("trace", &[self], |b| {
            ensure!(self.ndim() == 2, "expected a matrix, not {}", self.fact());
            let diagonal = extract(b, self, 0)?;
            let diagonal = b.cast(&diagonal, super::reduce::sum_dtype(self.dtype()))?;
            b.sum(&diagonal, &[0], false)
        })
    }

    /// The matrix `[2, count]` of the positions on and below the diagonal of a `[row, col]` matrix, in
    /// row-major order.
    pub fn tril_indices(row: impl Into<Int>, col: impl Into<Int>) -> Tensor {
        Tensor::tril_indices_with(row, col, 0)
    }

    /// [`Tensor::tril_indices`] for the diagonal at `offset` above the main one.
    pub fn tril_indices_with(
        row: impl Into<Int>,
        col: impl Into<Int>,
        offset: impl Into<Int>,
    ) -> Tensor {
        let (row, col, offset) = (row.into().0, col.into().0, offset.into().0);
        compose("tril_indices", &[], |b| {
            list_positions(b, row, col, |r, c| c - r <= offset)
        })
    }

    /// The matrix `[2, count]` of the positions on and above the diagonal of a `[row, col]` matrix, in
    /// row-major order.
    pub fn triu_indices(row: impl Into<Int>, col: impl Into<Int>) -> Tensor {
        Tensor::triu_indices_with(row, col, 0)
    }

    /// [`Tensor::triu_indices`] for the diagonal at `offset` above the main one.
    pub fn triu_indices_with(
        row: impl Into<Int>,
        col: impl Into<Int>,
        offset: impl Into<Int>,
    ) -> Tensor {
        let (row, col, offset) = (row.into().0, col.into().0, offset.into().0);
        compose("triu_indices", &[], |b| {
            list_positions(b, row, col, |r, c| c - r >= offset)
        })
    }

    /// The matrices that `dims` form, rotated by 90° `k` times, from the first of the dims towards the second.
    pub fn rot90(&self, k: impl Into<Int>, dims: impl Into<DimArgs>) -> Tensor {
        compose("rot90", &[self], |b| {
            let axes = dims.axes(self)?;
            let [from, to] = axes[..] else {
                return Err(OpError(format!(
                    "rotates in a plane of 2 dims, not {:?}",
                    dims.0
                )));
            };
            let mut perm: Vec<usize> = (0..self.ndim()).collect();
            perm.swap(from, to);
            match k.rem_euclid(4) {
                0 => Ok(self.clone()),
                1 => {
                    let x = b.reversed(self, to)?;
                    b.permute(&x, &perm)
                }
                2 => {
                    let x = b.reversed(self, from)?;
                    b.reversed(&x, to)
                }
                _ => {
                    let x = b.reversed(self, from)?;
                    b.permute(&x, &perm)
                }
            }
        })
    }
}

fn list_positions(
    b: &mut Recorder,
    rows: i64,
    columns: i64,
    inside: impl Fn(i64, i64) -> bool,
) -> Recorded {
    ensure!(
        rows >= 0 && columns >= 0,
        "a matrix can't be {rows} by {columns}"
    );
    check_listable(
        rows.max(1).checked_mul(columns.max(1)),
        &format!("the positions of a {rows} by {columns} matrix"),
    )?;
    let cells = (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c)));
    let (mut values, second): (Vec<i64>, Vec<i64>) = cells.filter(|(r, c)| inside(*r, *c)).unzip();
    let count = values.len();
    values.extend(second);
    b.list(&values, &[2, count], DType::I64)
}

/// Returns the order of dims that moves two of them to the end: the rows and columns of matrices.
fn permute_matrices_last(t: &Tensor, dim1: &DimArg, dim2: &DimArg) -> Result<Vec<usize>, OpError> {
    let (rows, columns) = (axis(t, dim1)?, axis(t, dim2)?);
    ensure!(rows != columns, "the dims {dim1} and {dim2} are the same");
    let batch_axes = (0..t.ndim()).filter(|a| *a != rows && *a != columns);
    Ok(batch_axes.chain([rows, columns]).collect())
}

/// Row and column numbers of matrices of this shape, to broadcast.
pub(super) fn coordinates(b: &mut Recorder, shape: &[Dim]) -> Result<(Tensor, Tensor), OpError> {
    let [.., rows, columns] = shape else {
        return Err(OpError::new("needs at least 2 dims"));
    };
    let row = b.iota(rows)?;
    let row = b.reshape(&row, &[rows.clone(), Dim::ONE])?;
    Ok((row, b.iota(columns)?))
}

/// Returns the elements whose column is in `relation` to row + offset; zeros elsewhere.
pub(super) fn triangle(b: &mut Recorder, x: &Tensor, offset: i64, relation: Pw) -> Recorded {
    ensure!(x.ndim() >= 2, "{} has fewer than 2 dims", x.fact());
    let (row, column) = coordinates(b, x.dims())?;
    // Outside all rows and columns, but not so large that adding a row number overflows.
    let offset = offset.clamp(-(1 << 62), 1 << 62);
    let edge = b.with(Pw::Add, &row, offset)?;
    let inside = b.binary(relation, &column, &edge)?;
    let zero = b.scalar_like(0i64, x)?;
    b.select(&inside, x, &zero)
}

/// The diagonals of the matrices of the last two dims.
pub(crate) fn extract(b: &mut Recorder, x: &Tensor, offset: i64) -> Recorded {
    let n = x.ndim();
    let (rows, columns) = (known(x, n - 2)?, known(x, n - 1)?);
    check_addressable(x.dims(), x.dtype())?;
    let (down, right) = (offset.saturating_neg().max(0), offset.max(0));
    let len = (rows - down).min(columns - right).max(0);
    if len == 0 {
        let mut shape = Shape::from(&x.dims()[..n - 1]);
        shape[n - 2] = Dim::ZERO;
        return b.full(0i64, x.dtype(), &shape);
    }
    let square = b.narrow(x, n - 2, down, len)?;
    let square = b.narrow(&square, n - 1, right, len)?;
    // With one more element per row, each element of the diagonal lands in the first column.
    let mut shape = Shape::from(&x.dims()[..n - 2]);
    shape.push((len * len).into());
    let flat = b.reshape(&square, &shape)?;
    let flat = b.pad_axis(&flat, n - 2, 0i64, len, 0i64)?;
    shape[n - 2] = len.into();
    shape.push((len + 1).into());
    let rows = b.reshape(&flat, &shape)?;
    let first_row = b.narrow(&rows, n - 1, 0i64, 1i64)?;
    b.squeeze(&first_row, &[n - 1])
}

/// Returns matrices with the vectors of the last dim on a diagonal. Each element is followed by a row of zeros, which
/// shifts the next one by a column.
fn embed(b: &mut Recorder, x: &Tensor, offset: i64) -> Recorded {
    let last = x.ndim() - 1;
    let n = known(x, last)?;
    let side = i64::try_from(offset.unsigned_abs()).ok();
    let Some(side) = side.and_then(|far| n.checked_add(far)?.checked_add(1)) else {
        return Err(OpError(format!(
            "the diagonal {offset} is outside of {}",
            x.fact()
        )));
    };
    let mut room = Shape::from(&x.dims()[..last]);
    room.extend([side.into(), side.into()]);
    check_addressable(&room, x.dtype())?;
    let column = b.unsqueeze(x, last + 1)?;
    let spaced = b.pad_axis(&column, last + 1, 0i64, n, 0i64)?;
    let mut shape = Shape::from(&x.dims()[..last]);
    shape.push((n * (n + 1)).into());
    let flat = b.reshape(&spaced, &shape)?;
    let flat = b.narrow(&flat, last, 0i64, n * n)?;
    shape[last] = n.into();
    shape.push(n.into());
    let square = b.reshape(&flat, &shape)?;
    let (down, right) = (offset.saturating_neg().max(0), offset.max(0));
    let square = b.pad_axis(&square, last, down, right, 0i64)?;
    b.pad_axis(&square, last + 1, right, down, 0i64)
}
