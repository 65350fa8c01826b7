//! Random numbers that depend on tensors or on the other numbers drawn.

use super::entropy::check_probabilities;
use super::search::insertion_index;
use crate::Int;
use crate::operand::Other;
use crate::options::options;
use crate::random::numbers;
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Tensor, set_device};
use kiln_base::prim::{RandomKind, Reduction, ScanKind};
use kiln_derive::on_cells;
use kiln_ir::{Builder, Pw, Shape, broadcast_shapes, ensure};

options! {
    /// The options of [`Tensor::multinomial`]; a number of draws converts into them.
    Multinomial (
        /// The number of indices drawn for each row.
        num_samples: Int
    ) {
        /// True if an index can be drawn again (default false).
        replacement: bool = false,
    }
}

#[on_cells]
impl Tensor {
    /// The integers from 0 to n − 1 in random order, as i64.
    pub fn randperm(n: impl Into<Int>) -> Tensor {
        let n = n.into().0;
        compose("randperm", &[], |b| {
            ensure!(n >= 0, "n must not be negative, but is {n}");
            let keys = numbers(b, RandomKind::Bits, DType::I64, &[n.into()])?;
            b.arg_sort(&keys, 0, false, None)
        })
    }

    /// 1 with the probability given by each element of this float tensor, else 0, in its dtype. A probability outside
    /// 0..=1 is a data error.
    pub fn bernoulli(&self) -> Tensor {
        compose("bernoulli", &[self], |b| {
            super::args::check_float(self, "probability")?;
            let wide = match self.dtype() {
                DType::F64 => DType::F64,
                _ => DType::F32,
            };
            let p = b.cast(self, wide)?;
            let p = check_probabilities(b, &p, "all probabilities must lie between 0 and 1")?;
            let u = numbers(b, RandomKind::Uniform, wide, self.dims())?;
            let hit = b.binary(Pw::Lt, &u, &p)?;
            b.cast(&hit, self.dtype())
        })
    }

    /// 1 with probability `p`, else 0, in this tensor's shape and dtype.
    pub fn bernoulli_with(&self, p: f64) -> Tensor {
        compose("bernoulli", &[self], |b| {
            ensure!((0.0..=1.0).contains(&p), "p must lie in 0..=1, not {p}");
            let u = numbers(b, RandomKind::Uniform, DType::F64, self.dims())?;
            let hit = b.with(Pw::Lt, &u, p)?;
            b.cast(&hit, self.dtype())
        })
    }

    /// For each row of weights (`[count]` or `[rows, count]`, floats), the i64 indices of `num_samples` draws with
    /// probabilities proportional to the weights. Unless [`Multinomial`] allows replacement, no index is drawn twice.
    /// A row whose weights are negative, not finite or all zero is a data error.
    pub fn multinomial(&self, num_samples: impl Into<Multinomial>) -> Tensor {
        let replacement = num_samples.replacement;
        let num_samples = num_samples.num_samples.0;
        compose("multinomial", &[self], |b| {
            super::args::check_float(self, "weights")?;
            ensure!(
                self.ndim() == 1 || self.ndim() == 2,
                "the weights must be a vector or a matrix, not {}",
                self.fact()
            );
            let a = self.ndim() - 1;
            let n = super::args::known(self, a)?;
            ensure!(n > 0, "{} has nothing to draw from", self.fact());
            ensure!(num_samples > 0, "can't draw {num_samples} samples");
            ensure!(
                replacement || num_samples <= n,
                "can't draw {num_samples} of {n} without replacement"
            );
            let p = b.cast(self, DType::F64)?;
            let total = b.sum(&p, &[a], true)?;
            let index = if replacement {
                let mut shape = Shape::from(self.dims());
                shape[a] = num_samples.into();
                let u = numbers(b, RandomKind::Uniform, DType::F64, &shape)?;
                let target = b.binary(Pw::Mul, &u, &total)?;
                let cumulative = b.scan(ScanKind::Sum, &p, a)?;
                let index = insertion_index(b, &cumulative, &target, true)?;
                b.with(Pw::Minimum, &index, n - 1)?
            } else {
                // The first of exponential clocks with these rates to ring is drawn first.
                let u = numbers(b, RandomKind::Uniform, DType::F64, self.dims())?;
                let minus = b.unary(Pw::Neg, &u)?;
                let log = b.unary(Pw::Log1p, &minus)?;
                let time = b.unary(Pw::Neg, &log)?;
                let time = b.binary(Pw::Div, &time, &p)?;
                b.arg_sort(&time, a, false, Some(num_samples as usize))?
            };
            check_rows(b, &p, &total, &index)
        })
    }
}

/// Returns the index, with a data error where a row of weights is not a distribution.
fn check_rows(b: &mut Recorder, p: &Tensor, total: &Tensor, index: &Tensor) -> Recorded {
    let a = p.ndim() - 1;
    let smallest = b.reduce(Reduction::Min, p, &[a], true)?;
    let positive = b.with(Pw::Ge, &smallest, 0.0)?;
    let finite = b.finite(total)?;
    let numbers = b.binary(Pw::And, &positive, &finite)?;
    let text = "the weights hold an infinity, a NaN or an element below 0";
    let index = b.require(&numbers, index, text)?;
    let some = b.with(Pw::Gt, total, 0.0)?;
    let other = b.unary(Pw::Not, &numbers)?;
    let some = b.binary(Pw::Or, &some, &other)?;
    b.require(&some, &index, "the sum of a row's weights is 0")
}

/// Normal numbers with these means and standard deviations, broadcast, in the float dtype that they promote to (f32
/// for two numbers, which give a rank-0 tensor). A deviation below 0 is a data error. Gradients are zeros, as in
/// PyTorch.
#[track_caller]
pub fn normal<'a>(mean: impl Into<Other<'a>>, std: impl Into<Other<'a>>) -> Tensor {
    let (mean, std) = (mean.into(), std.into());
    let device = [&mean, &std].into_iter().find_map(|o| match o {
        Other::Tensor(t) => Some(t.device()),
        Other::Number(_) => None,
    });
    let _here = device.map(set_device);
    let tensor = |o: &Other| match o {
        Other::Tensor(t) => Tensor::clone(t),
        Other::Number(n) => Tensor::full((), n.as_f64(), DType::F32),
    };
    let number = match &std {
        Other::Number(n) => Some(n.as_f64()),
        Other::Tensor(_) => None,
    };
    let is_number = number.is_some();
    let (mean, std) = (tensor(&mean), tensor(&std));
    compose("normal", &[&mean, &std], |b| {
        let n = number.unwrap_or(0.0);
        ensure!(n >= 0.0, "the deviation must be at least 0, not {n}");
        let dtype = crate::promote::float_dtype(crate::promote::common_dtype(&[&mean, &std])?);
        let shape = broadcast_shapes([mean.dims(), std.dims()]);
        let shape = shape.ok_or_else(|| {
            kiln_ir::OpError(format!(
                "the means {} and deviations {} do not broadcast together",
                mean.fact(),
                std.fact()
            ))
        })?;
        let z = numbers(b, RandomKind::Normal, dtype, &shape)?;
        let (mean, mut std) = (b.cast(&mean, dtype)?, b.cast(&std, dtype)?);
        if !is_number {
            let fine = b.with(Pw::Ge, &std, 0.0)?;
            std = b.require(&fine, &std, "all deviations must be at least 0")?;
        }
        let scaled = b.binary(Pw::Mul, &z, &std.detach())?;
        let drawn = b.binary(Pw::Add, &scaled, &mean.detach())?;
        let drawn = b.connect(&drawn, &mean)?;
        b.connect(&drawn, &std)
    })
}
