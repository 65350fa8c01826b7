//! Quantiles.

use super::args::{ReducedDims, named_values};
use super::sort::{lanes, reduced_shape, sorted_with_nans};
use crate::operand::Other;
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Tensor};
use kiln_base::Dim;
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, Shape, ensure};

/// The value of a quantile between two elements.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// In proportion to the distances from both elements.
    Linear,
    /// The smaller element.
    Lower,
    /// The larger element.
    Higher,
    /// The mean of both.
    Midpoint,
    /// The nearer element; of two equally near, the one of even rank.
    Nearest,
}

named_values! {
    Interpolation, "interpolation":
    "linear" => Linear,
    "lower" => Lower,
    "higher" => Higher,
    "midpoint" => Midpoint,
    "nearest" => Nearest,
}

#[on_cells]
impl Tensor {
    /// The q-quantiles of f32 or f64 lanes of a dim, or of all elements, interpolated linearly between the two
    /// neighbouring elements; NaN for lanes with a NaN. `q` is a number in 0..=1, or a tensor of them of rank 0 or 1,
    /// whose dim comes first in the result. A number outside this range in a tensor is a data error.
    pub fn quantile<'a>(&self, q: impl Into<Other<'a>>, dim: impl Into<ReducedDims>) -> Tensor {
        self.quantile_with(q, dim, Interpolation::Linear)
    }

    /// [`Tensor::quantile`] with another interpolation between two elements.
    #[autocast]
    pub fn quantile_with<'a>(
        &self,
        q: impl Into<Other<'a>>,
        dim: impl Into<ReducedDims>,
        interpolation: Interpolation,
    ) -> Tensor {
        compose("quantile", &q.operands_with(self), |b| {
            quantile(b, self, &q, &dim, interpolation, false)
        })
    }

    /// The q-quantiles of the elements that are not NaN, see [`Tensor::quantile`]; NaN for lanes without numbers.
    pub fn nanquantile<'a>(&self, q: impl Into<Other<'a>>, dim: impl Into<ReducedDims>) -> Tensor {
        self.nanquantile_with(q, dim, Interpolation::Linear)
    }

    /// [`Tensor::nanquantile`] with another interpolation between two elements.
    #[autocast]
    pub fn nanquantile_with<'a>(
        &self,
        q: impl Into<Other<'a>>,
        dim: impl Into<ReducedDims>,
        interpolation: Interpolation,
    ) -> Tensor {
        compose("nanquantile", &q.operands_with(self), |b| {
            quantile(b, self, &q, &dim, interpolation, true)
        })
    }
}

/// `q` as a tensor of the dtype of t.
fn fractions(b: &mut Recorder, t: &Tensor, q: &Other) -> Recorded {
    match q {
        Other::Number(n) => {
            ensure!(
                (0.0..=1.0).contains(&n.as_f64()),
                "q must lie in 0..=1, not {n}"
            );
            b.scalar_like(*n, t)
        }
        Other::Tensor(q) => {
            ensure!(q.ndim() <= 1, "q must have at most 1 dim, not {}", q.fact());
            super::args::check_alike(t, "tensor", q, "q")?;
            Ok(Tensor::clone(q))
        }
    }
}

fn quantile(
    b: &mut Recorder,
    t: &Tensor,
    q: &Other,
    reduced: &ReducedDims,
    interpolation: Interpolation,
    skip_nan: bool,
) -> Recorded {
    ensure!(
        matches!(t.dtype(), DType::F32 | DType::F64),
        "needs an f32 or f64 tensor, not {}",
        t.dtype()
    );
    let q = fractions(b, t, q)?;
    let keepdim = reduced.keepdim;
    let (x, kept) = match reduced.dims.one_or_all()? {
        Some(d) => {
            let (x, a) = lanes(b, t, d)?;
            let kept = reduced_shape(t, a, keepdim);
            let mut perm: Vec<usize> = (0..x.ndim()).filter(|i| *i != a).collect();
            perm.push(a);
            (b.permute(&x, &perm)?, kept)
        }
        None => {
            let kept_dims = Shape::from_elem(Dim::ONE, if keepdim { t.ndim() } else { 0 });
            (b.reshape(t, &[t.fact().numel()])?, kept_dims)
        }
    };
    // Lanes are the last dim; so are the quantiles of a lane, until the end.
    let a = x.ndim() - 1;
    let n = super::args::known(&x, a)?;
    ensure!(n > 0, "{} has no elements there", t.fact());
    let (sorted, nans, _) = sorted_with_nans(b, &x, a)?;
    let count = q.fact().numel();
    let q_row = b.reshape(&q, std::slice::from_ref(&count))?;
    let rank = quantile_ranks(b, n, &nans, &q_row, skip_nan)?;
    let values = interpolate(b, &sorted, a, &rank, interpolation)?;
    let mut perm: Vec<usize> = (0..a).collect();
    perm.insert(0, a);
    let values = b.permute(&values, &perm)?;
    let shape: Shape = q.dims().iter().cloned().chain(kept).collect();
    b.reshape(&values, &shape)
}

/// Returns the position of each quantile in its sorted lane, where NaNs come last.
fn quantile_ranks(b: &mut Recorder, n: i64, nans: &Tensor, q: &Tensor, skip_nan: bool) -> Recorded {
    let last = b.scalar_like(n - 1, q)?;
    if !skip_nan {
        let any = b.with(Pw::Gt, nans, 0i64)?;
        let rank = b.binary(Pw::Mul, q, &last)?;
        return b.select(&any, &last, &rank);
    }
    let nans = b.cast(nans, q.dtype())?;
    let last = b.binary(Pw::Sub, &last, &nans)?;
    let last = b.with(Pw::Maximum, &last, 0.0)?; // a lane of NaNs gives one
    b.binary(Pw::Mul, q, &last)
}

fn interpolate(
    b: &mut Recorder,
    sorted: &Tensor,
    axis: usize,
    rank: &Tensor,
    interpolation: Interpolation,
) -> Recorded {
    let value_at = |b: &mut Recorder, op: Pw| {
        let rounded = b.unary(op, rank)?;
        let index = b.cast(&rounded, DType::I64)?;
        Ok::<_, OpError>((b.gather(sorted, axis, &index)?, rounded))
    };
    match interpolation {
        Interpolation::Lower => return Ok(value_at(b, Pw::Floor)?.0),
        Interpolation::Higher => return Ok(value_at(b, Pw::Ceil)?.0),
        Interpolation::Nearest => return Ok(value_at(b, Pw::Round)?.0),
        Interpolation::Midpoint | Interpolation::Linear => {}
    }
    let ((low, floor), (high, _)) = (value_at(b, Pw::Floor)?, value_at(b, Pw::Ceil)?);
    let weight = match interpolation {
        Interpolation::Midpoint => b.full(0.5, low.dtype(), low.dims())?,
        _ => b.binary(Pw::Sub, rank, &floor)?,
    };
    // Interpolated from the nearer end, so that weights 0 and 1 give the elements themselves.
    let distance = b.binary(Pw::Sub, &high, &low)?;
    let step = b.binary(Pw::Mul, &weight, &distance)?;
    let from_low = b.binary(Pw::Add, &low, &step)?;
    let minus = b.unary(Pw::Neg, &weight)?;
    let complement = b.with(Pw::Add, &minus, 1.0)?;
    let step = b.binary(Pw::Mul, &distance, &complement)?;
    let from_high = b.binary(Pw::Sub, &high, &step)?;
    let near_low = b.with(Pw::Lt, &weight, 0.5)?;
    b.select(&near_low, &from_low, &from_high)
}
