//! Searching in sorted numbers, and counting.

use super::args::{Int, check_alike, known};
use super::host;
use super::short::wide;
use crate::operand::AsTensor;
use crate::operand::Other;
use crate::options::options;
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Error, ErrorKind, Tensor};
use kiln_base::Kind;
use kiln_base::prim::{Reduction, ScatterKind};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, Shape, ensure};
use std::panic::Location;

options! {
    /// The options of [`Tensor::searchsorted_with`].
    SearchSorted () {
        /// True to insert values after equal elements (default false).
        right: bool = false,
        ;
        /// The i64 indices that sort the lanes, if they aren't sorted.
        sorter,
    }
}

options! {
    /// The options of [`Tensor::bucketize_with`].
    Bucketize () {
        /// True to count boundaries that equal an element too (default false).
        right: bool = false,
    }
}

options! {
    /// The options of [`Tensor::bincount_with`].
    BinCount () {
        /// The minimum length of the result (default 0).
        minlength: Int = 0,
        ;
        /// The weights of the elements, floats of this vector's shape.
        weights,
    }
}

options! {
    /// The bins of [`Tensor::histc`]; a number of bins converts into them.
    ///
    /// ```
    /// use kiln_tensor::{Histogram, Tensor};
    /// let x = Tensor::from([0.0f32, 1.0, 1.5, 4.0]);
    /// assert_eq!(x.histc(2).to_vec::<f32>()?, [3.0, 1.0]);
    /// assert_eq!(x.histc(Histogram::new(2).min(0.0).max(2.0)).to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    Histogram (
        /// The number of bins.
        bins: Int
    ) {
        /// The start of the first bin (default 0).
        min: f64 = 0.0,
        /// The inclusive end of the last bin (default 0). If both are equal, the range is that of the elements, which
        /// must then be finite (else a data error); it is extended by one on both sides if they are all equal.
        max: f64 = 0.0,
    }
}

#[on_cells]
impl Tensor {
    /// The positions at which `values` must be inserted into the sorted lanes of this tensor's last dim to keep them
    /// sorted: i64, before equal elements. This tensor is a vector, or has the leading dims of the values. NaN is
    /// inserted at the end.
    pub fn searchsorted<'a>(&self, values: impl Into<Other<'a>>) -> Tensor {
        self.searchsorted_with(values, SearchSorted::new())
    }

    /// [`Tensor::searchsorted`] after equal elements, or in an unsorted tensor with a given order.
    pub fn searchsorted_with<'a>(
        &self,
        values: impl Into<Other<'a>>,
        options: SearchSorted,
    ) -> Tensor {
        let sorter = options.sorter.as_ref();
        let mut operands = values.operands_with(self);
        operands.extend(sorter);
        compose("searchsorted", &operands, |b| {
            let mut sequence = self.clone();
            if let Some(order) = sorter {
                super::index::check_index(order, "sorter")?;
                ensure!(
                    order.dims() == self.dims(),
                    "the sorter {} does not have the shape of {}",
                    order.fact(),
                    self.fact()
                );
                sequence = b.gather(self, self.ndim() - 1, order)?;
            }
            let values = match &values {
                Other::Tensor(v) => Tensor::clone(v),
                Other::Number(n) => b.scalar_like(*n, self)?,
            };
            insertion_index(b, &sequence, &values, options.right)
        })
    }

    /// The index of the bucket of each element, i64: the number of ascending `boundaries` (a vector) that are smaller
    /// than it.
    pub fn bucketize(&self, boundaries: impl AsTensor) -> Tensor {
        self.bucketize_with(boundaries, Bucketize::new())
    }

    /// [`Tensor::bucketize`], with boundaries that can belong to the bucket below them.
    pub fn bucketize_with(&self, boundaries: impl AsTensor, options: Bucketize) -> Tensor {
        compose("bucketize", &[self, boundaries], |b| {
            ensure!(
                boundaries.ndim() == 1,
                "the boundaries must be a vector, not {}",
                boundaries.fact()
            );
            insertion_index(b, boundaries, self, options.right)
        })
    }

    /// True where the element is among the test elements.
    pub fn isin<'a>(&self, test_elements: impl Into<Other<'a>>) -> Tensor {
        compose("isin", &test_elements.operands_with(self), |b| {
            let (x, tests) = match &test_elements {
                Other::Tensor(t) => {
                    let dtype = crate::promote::common_dtype(&[self, t])?;
                    (b.cast(self, dtype)?, b.cast(t, dtype)?)
                }
                number => {
                    let (x, n) = number.promoted(b, self)?;
                    return b.binary(Pw::Eq, &x, &n);
                }
            };
            let tests = b.reshape(&tests, &[tests.fact().numel()])?;
            let n = known(&tests, 0)?;
            if n == 0 {
                return b.full(false, DType::Bool, x.dims());
            }
            let order = b.arg_sort(&tests, 0, false, None)?;
            let tests = b.gather(&tests, 0, &order)?;
            let insertion = insertion_index(b, &tests, &x, false)?;
            let insertion = b.with(Pw::Minimum, &insertion, n - 1)?;
            let insertion = b.reshape(&insertion, &[x.fact().numel()])?;
            let neighbours = b.gather(&tests, 0, &insertion)?;
            let neighbours = b.reshape(&neighbours, x.dims())?;
            b.binary(Pw::Eq, &neighbours, &x)
        })
    }

    /// The number of occurrences of each integer from 0 in this vector of integers, i64. Computes this tensor, since
    /// its largest element determines the length.
    pub fn bincount(&self) -> Tensor {
        self.bincount_with(BinCount::new())
    }

    /// [`Tensor::bincount`] with a minimum length, or with sums of weights (f32 for f32, else f64).
    pub fn bincount_with(&self, options: BinCount) -> Tensor {
        let (minlength, weights) = (options.minlength.0, options.weights.as_ref());
        let loc = Location::caller();
        let numbers = compose("bincount", &[self], |b| {
            let int = self.dtype().kind() == Kind::Int;
            ensure!(
                int && self.ndim() == 1,
                "needs a vector of integers, not {}",
                self.fact()
            );
            ensure!(minlength >= 0, "minlength can't be negative ({minlength})");
            b.cast(self, DType::I64)
        });
        let values = match host::values(&numbers) {
            Ok(values) => values,
            Err(e) => return Tensor::poisoned(e, loc),
        };
        let ints = values.ints().unwrap_or_default();
        if let Some(negative) = ints.iter().find(|i| **i < 0) {
            let message = format!("counts numbers from 0 on, but there is a {negative}");
            let e = Error::new(ErrorKind::Data, "bincount", message, loc);
            return Tensor::poisoned(e, loc);
        }
        let length = ints.iter().max().map_or(0, |m| m.saturating_add(1));
        let length = length.max(minlength);
        let operands: Vec<&Tensor> = [&numbers].into_iter().chain(weights).collect();
        compose("bincount", &operands, |b| {
            super::args::check_addressable(&[length.into()], DType::I64)?;
            let counted = match weights {
                None => b.full(1i64, DType::I64, numbers.dims())?,
                Some(w) => {
                    ensure!(
                        w.dims() == self.dims(),
                        "the weights {} do not have the shape of {}",
                        w.fact(),
                        self.fact()
                    );
                    let f32 = w.dtype() == DType::F32;
                    b.cast(w, if f32 { DType::F32 } else { DType::F64 })?
                }
            };
            let zeros = b.full(0i64, counted.dtype(), &[length.into()])?;
            b.scatter(ScatterKind::Sum, &zeros, 0, &numbers, &counted)
        })
    }

    /// The number of elements in each of equal bins over the range of the elements, or over that of [`Histogram`], in
    /// the float's own dtype. Elements outside aren't counted.
    pub fn histc(&self, bins: impl Into<Histogram>) -> Tensor {
        let Histogram { bins, min, max } = bins;
        let bins = bins.0;
        compose("histc", &[self], |b| {
            super::args::check_float(self, "operand")?;
            ensure!(bins > 0, "the number of bins must be positive, not {bins}");
            ensure!(
                min.is_finite() && max.is_finite(),
                "the range {min}..={max} is not finite"
            );
            ensure!(min <= max, "max {max} must be larger than min {min}");
            let x = b.reshape(self, &[self.fact().numel()])?;
            let x = b.cast(&x, wide(x.dtype()))?;
            let (low, high) = bounds(b, &x, min, max)?;
            let width = b.binary(Pw::Sub, &high, &low)?;
            let bin = b.binary(Pw::Sub, &x, &low)?;
            let bin = b.with(Pw::Mul, &bin, bins as f64)?;
            let bin = b.binary(Pw::Div, &bin, &width)?;
            let bin = b.cast(&bin, DType::I64)?;
            let bin = b.with(Pw::Minimum, &bin, bins - 1)?; // the last part includes its end
            let (above, below) = (b.binary(Pw::Ge, &x, &low)?, b.binary(Pw::Le, &x, &high)?);
            let inside = b.binary(Pw::And, &above, &below)?;
            let zero = b.scalar_like(0i64, &bin)?;
            let bin = b.select(&inside, &bin, &zero)?;
            // If the width isn't finite there are no bins: the index is out of range.
            let finite = b.finite(&width)?;
            let none = b.scalar_like(bins, &bin)?;
            let bin = b.select(&finite, &bin, &none)?;
            let weights = b.cast(&inside, DType::I64)?;
            let zeros = b.full(0i64, DType::I64, &[bins.into()])?;
            let counts = b.scatter(ScatterKind::Sum, &zeros, 0, &bin, &weights)?;
            b.cast(&counts, self.dtype())
        })
    }
}

/// Returns the ends of a histogram, as numbers of the dtype of x.
fn bounds(b: &mut Recorder, x: &Tensor, min: f64, max: f64) -> Result<(Tensor, Tensor), OpError> {
    if min != max || x.dims()[0].is(0) {
        let max = if min == max { min + 1.0 } else { max };
        return Ok((b.scalar_like(min, x)?, b.scalar_like(max, x)?));
    }
    let low = b.reduce(Reduction::Min, x, &[0], false)?;
    let high = b.reduce(Reduction::Max, x, &[0], false)?;
    let same = b.binary(Pw::Eq, &low, &high)?;
    let (below, above) = (b.with(Pw::Sub, &low, 1.0)?, b.with(Pw::Add, &high, 1.0)?);
    Ok((
        b.select(&same, &below, &low)?,
        b.select(&same, &above, &high)?,
    ))
}

/// Returns the number of elements of each sorted lane that are smaller than a value (or not larger, if `right`), i64
/// of the values' shape.
pub(crate) fn insertion_index(
    b: &mut Recorder,
    sequence: &Tensor,
    values: &Tensor,
    right: bool,
) -> Recorded {
    check_alike(sequence, "sorted sequence", values, "values")?;
    ensure!(sequence.ndim() > 0, "the sequence must have a dim");
    let flat = Shape::from_elem(values.fact().numel(), 1);
    let v = match sequence.ndim() {
        1 => b.reshape(values, &flat)?,
        _ => values.clone(),
    };
    let a = sequence.ndim() - 1;
    ensure!(
        v.ndim() == a + 1 && v.dims()[..a] == sequence.dims()[..a],
        "the values {} do not have the leading dims of the sorted sequence {}",
        values.fact(),
        sequence.fact()
    );
    let ordered = match v.dtype() {
        DType::Bool => DType::U8,
        other => other,
    };
    let (s, v) = (b.cast(sequence, ordered)?, b.cast(&v, ordered)?);
    let n = known(&s, a)?;
    let beyond = b.binary(Pw::Ne, &v, &v)?; // NaN
    let mut position = b.full(0i64, DType::I64, v.dims())?;
    // Binary search: steps of halved size, each taken if it doesn't pass the value.
    let op = if right { Pw::Le } else { Pw::Lt };
    for bit in (0..i64::BITS - n.leading_zeros()).rev() {
        let next = b.with(Pw::Add, &position, 1i64 << bit)?;
        let last = b.with(Pw::Minimum, &next, n)?;
        let last = b.with(Pw::Sub, &last, 1i64)?;
        let element = b.gather(&s, a, &last)?;
        let less = b.binary(op, &element, &v)?;
        let less = b.binary(Pw::Or, &less, &beyond)?;
        let in_bounds = b.with(Pw::Le, &next, n)?;
        let go = b.binary(Pw::And, &less, &in_bounds)?;
        position = b.select(&go, &next, &position)?;
    }
    b.reshape(&position, values.dims())
}
