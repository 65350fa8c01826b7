//! Cumulative sums and other scans along a dim. A number counts as a vector of one element.

use super::args::DimArg;
use super::index::as_vector;
use super::reduce::sum_dtype;
use super::sort::lanes;
use crate::operand::Other;
use crate::options::options;
use crate::record::{Recorded, Recorder, compose, compose_pair};
use crate::{DType, Tensor};
use kiln_base::Dim;
use kiln_base::prim::ScanKind;
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, Shape, ensure};

options! {
    /// The options of [`Tensor::diff`].
    Diff () {
        /// The order of the differences (default 1).
        n: i64 = 1,
        /// The dim (default the last).
        dim: DimArg = -1,
        ;
        /// A tensor before the first elements, unless n is 0.
        prepend,
        /// A tensor after the last elements, unless n is 0.
        append,
    }
}

#[on_cells]
impl Tensor {
    /// Running sums; integers and bool give i64.
    ///
    /// ```
    /// use kiln_tensor::Tensor;
    /// assert_eq!(Tensor::from_slice(&[1i64, 2, 3], [3]).cumsum(0).shape()?, [3]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    #[autocast]
    pub fn cumsum(&self, dim: impl Into<DimArg>) -> Tensor {
        compose("cumsum", &[self], |b| {
            let x = b.cast(self, sum_dtype(self.dtype()))?;
            cumulative(b, ScanKind::Sum, &x, &dim)
        })
    }

    /// Running products; integers and bool give i64.
    #[autocast]
    pub fn cumprod(&self, dim: impl Into<DimArg>) -> Tensor {
        compose("cumprod", &[self], |b| {
            let x = b.cast(self, sum_dtype(self.dtype()))?;
            cumulative(b, ScanKind::Prod, &x, &dim)
        })
    }

    /// log Σ eˣ of the elements so far, of floats, without overflow.
    pub fn logcumsumexp(&self, dim: impl Into<DimArg>) -> Tensor {
        compose("logcumsumexp", &[self], |b| {
            super::args::check_float(self, "operand")?;
            cumulative(b, ScanKind::LogSumExp, self, &dim)
        })
    }

    /// The largest element so far and its i64 index, the last of equal ones. NaN counts as the largest.
    pub fn cummax(&self, dim: impl Into<DimArg>) -> (Tensor, Tensor) {
        extreme("cummax", ScanKind::Max, self, &dim)
    }

    /// The smallest element so far and its i64 index, the last of equal ones. NaN counts as the
    /// smallest.
    pub fn cummin(&self, dim: impl Into<DimArg>) -> (Tensor, Tensor) {
        extreme("cummin", ScanKind::Min, self, &dim)
    }

    /// Differences of neighbours along the last dim. Of bools, true where neighbours differ.
    pub fn diff(&self) -> Tensor {
        self.diff_with(Diff::new())
    }

    /// [`Tensor::diff`] along another dim, of another order, or with elements prepended or appended.
    pub fn diff_with(&self, options: Diff) -> Tensor {
        let (n, dim) = (options.n, options.dim);
        let (prepend, append) = (options.prepend.as_ref(), options.append.as_ref());
        let extended = match (n, prepend, append) {
            (0, ..) | (_, None, None) => self.clone(),
            _ => {
                let segments: Vec<&Tensor> =
                    prepend.into_iter().chain([self]).chain(append).collect();
                super::join::cat(&segments, &dim)
            }
        };
        let operands: Vec<&Tensor> = [self, &extended]
            .into_iter()
            .chain(prepend)
            .chain(append)
            .collect();
        compose("diff", &operands, |b| {
            ensure!(self.ndim() > 0, "needs at least 1 dim");
            ensure!(n >= 0, "the order can't be negative ({n})");
            for t in prepend.into_iter().chain(append) {
                ensure!(
                    t.ndim() == self.ndim(),
                    "{} and {} differ in the number of dims",
                    self.fact(),
                    t.fact()
                );
            }
            let mut x = extended.clone();
            let a = super::args::axis(&x, dim)?;
            for _ in 0..n.min(super::args::known(&x, a)?) {
                let (left, right) = neighbours(b, &x, a)?;
                let op = match x.dtype() {
                    DType::Bool => Pw::Xor,
                    _ => Pw::Sub,
                };
                x = b.binary(op, &right, &left)?;
            }
            Ok(x)
        })
    }

    /// The integral along a dim by the trapezoid rule. `x` is the distance of samples (a number) or their positions:
    /// a vector, or a tensor that broadcasts after dims of size 1 are prepended.
    pub fn trapezoid<'a>(&self, x: impl Into<Other<'a>>, dim: impl Into<DimArg>) -> Tensor {
        compose("trapezoid", &x.operands_with(self), |b| {
            let Some((areas, a)) = trapezoid_areas(b, self, &x, &dim)? else {
                let a = super::args::axis(self, dim)?;
                let mut shape = Shape::from(self.dims());
                shape.remove(a);
                return b.full(0i64, self.dtype(), &shape);
            };
            let (y, dtype) = halve(b, &areas)?;
            let sum = b.sum(&y, &[a], false)?;
            b.cast(&sum, dtype)
        })
    }

    /// The running integral along a dim by the trapezoid rule, see [`Tensor::trapezoid`].
    pub fn cumulative_trapezoid<'a>(
        &self,
        x: impl Into<Other<'a>>,
        dim: impl Into<DimArg>,
    ) -> Tensor {
        compose("cumulative_trapezoid", &x.operands_with(self), |b| {
            let Some((areas, a)) = trapezoid_areas(b, self, &x, &dim)? else {
                return Ok(self.clone());
            };
            let (y, dtype) = halve(b, &areas)?;
            let logs = b.scan(ScanKind::Sum, &y, a)?;
            b.cast(&logs, dtype)
        })
    }
}

fn cumulative(b: &mut Recorder, kind: ScanKind, t: &Tensor, dim: &DimArg) -> Recorded {
    let (x, a) = lanes(b, t, dim)?;
    let y = b.scan(kind, &x, a)?;
    b.reshape(&y, t.dims())
}

#[track_caller]
fn extreme(called: &'static str, kind: ScanKind, t: &Tensor, dim: &DimArg) -> (Tensor, Tensor) {
    compose_pair(called, &[t], |b| {
        let (x, a) = lanes(b, t, dim)?;
        let ordered = match x.dtype() {
            DType::Bool => b.cast(&x, DType::U8)?,
            _ => x.clone(),
        };
        let best = b.scan(kind, &ordered, a)?;
        // An element equal to the extreme so far is the latest position of it.
        let mut hit = b.binary(Pw::Eq, &ordered, &best)?;
        if x.dtype().is_float() {
            let nan = b.unary(Pw::IsNan, &x)?;
            hit = b.binary(Pw::Or, &hit, &nan)?;
        }
        let positions = b.iota(&x.dims()[a])?;
        let positions = b.reshape_along(&positions, a, x.ndim())?;
        let zero = b.scalar_like(0i64, &positions)?;
        let positions = b.select(&hit, &positions, &zero)?;
        let index = b.scan(ScanKind::Max, &positions, a)?;
        let values = b.gather(&x, a, &index)?;
        Ok((b.reshape(&values, t.dims())?, b.reshape(&index, t.dims())?))
    })
}

/// All but the last, and all but the first elements of an axis that is not empty.
fn neighbours(b: &mut Recorder, x: &Tensor, axis: usize) -> Result<(Tensor, Tensor), OpError> {
    let count = &x.dims()[axis] - &Dim::ONE;
    Ok((
        b.narrow(x, axis, 0i64, count.clone())?,
        b.narrow(x, axis, 1i64, count)?,
    ))
}

/// Twice the area between neighbouring samples, and the axis they lie along; `None` without samples.
fn trapezoid_areas(
    b: &mut Recorder,
    y: &Tensor,
    x: &Other,
    dim: &DimArg,
) -> Result<Option<(Tensor, usize)>, OpError> {
    let a = super::args::axis(y, dim)?;
    if y.dims()[a].is(0) {
        return Ok(None);
    }
    let bool = DType::Bool;
    ensure!(y.dtype() != bool, "bool has no integral; cast it first");
    let (left, right) = neighbours(b, y, a)?;
    let sum = b.binary(Pw::Add, &left, &right)?;
    let width = match x {
        Other::Number(_) => return multiply_promoted(b, &sum, x).map(|s| Some((s, a))),
        Other::Tensor(x) => {
            ensure!(
                x.dtype() != bool,
                "positions must be numbers, not bool; cast them first"
            );
            let x = align_positions(b, x, y, a)?;
            let y_axis = (a + x.ndim()).checked_sub(y.ndim());
            let y_axis = y_axis.ok_or_else(|| OpError(format!("{} has too few dims", x.fact())))?;
            let (left, right) = neighbours(b, &x, y_axis)?;
            b.binary(Pw::Sub, &right, &left)?
        }
    };
    let axis = a + sum.ndim().max(width.ndim()) - sum.ndim();
    multiply_promoted(b, &sum, &Other::from(&width)).map(|s| Some((s, axis)))
}

/// The positions of samples, with the dims of y.
fn align_positions(b: &mut Recorder, x: &Tensor, y: &Tensor, axis: usize) -> Recorded {
    let x = as_vector(b, x)?;
    if x.ndim() == 1 {
        ensure!(
            x.dims()[0] == y.dims()[axis],
            "{} does not hold one position for each sample of {} along dim {axis}",
            x.fact(),
            y.fact()
        );
        return b.reshape_along(&x, axis, y.ndim());
    }
    let mut shape = Shape::from(x.dims());
    while shape.len() < y.ndim() {
        shape.insert(0, Dim::ONE);
    }
    b.reshape(&x, &shape)
}

/// The product in the dtype that both promote to.
fn multiply_promoted(b: &mut Recorder, sum: &Tensor, width: &Other) -> Recorded {
    let (sum, width) = width.promoted(b, sum)?;
    b.binary(Pw::Mul, &sum, &width)
}

/// Half of each area, in the dtype to compute in, and the dtype of the result: integers become f32.
fn halve(b: &mut Recorder, areas: &Tensor) -> Result<(Tensor, DType), OpError> {
    let dtype = crate::promote::float_dtype(areas.dtype());
    let wide = b.cast(areas, super::short::wide(dtype))?;
    Ok((b.with(Pw::Mul, &wide, 0.5)?, dtype))
}
