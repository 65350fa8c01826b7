//! Stochastic rounding of parameters of bf16.

use super::Optimizer;
use kiln_tensor::{DType, Error, Result, Tensor, where_};

/// A number of f32 rounded to one of its two neighbours in bf16, to each with the probability that its expectation is the
/// number: `random` is uniform in [0, 1), of the same shape. What is subnormal in bf16, infinite, NaN or beyond its
/// largest number is rounded to nearest.
///
/// With the nearer neighbour `near` and `x = near + e`, where `e` is exact, the other one lies a gap away on the side of
/// `e` and is taken with probability `|e| / gap`. The gap is exact too: `near · (1 ± 1.25 · 2⁻⁸)` is between half of a
/// step of bf16 and one and a half away, also below a power of two, where steps are half as large.
pub(super) fn round(x: &Tensor, random: &Tensor) -> Tensor {
    let nearest = x.to_dtype(DType::BF16);
    let near = nearest.to_dtype(DType::F32);
    let e = x - &near;
    let outward = e.signbit().eq(near.signbit());
    let step = 1.25 / 256.0;
    let next = where_(outward, &near * (1.0 + step), &near * (1.0 - step));
    let next = next.to_dtype(DType::BF16);
    let gap = next.to_dtype(DType::F32) - &near;
    let is_normal = near.abs().ge(f64::from(f32::MIN_POSITIVE) * 4.0);
    let taken = (random * gap.abs()).lt(e.abs()).logical_and(gap.isfinite());
    where_(taken.logical_and(is_normal), next, nearest)
}

impl Optimizer {
    /// Rounds, from now on, new values of bf16 parameters *stochastically*: up or down with probabilities that give the
    /// value of f32 in the mean, so that changes too small for bf16 add up without master weights. The random numbers
    /// are those of the default generator ([`manual_seed`](kiln_tensor::manual_seed)), the same on every device;
    /// parameters of other dtypes are rounded to nearest.
    ///
    /// ```
    /// use kiln_nn::optim::{Optimizer, SGD};
    /// use kiln_tensor::{DType, Tensor, Var, manual_seed};
    /// manual_seed(0);
    /// let w = Var::parameter(Tensor::ones([1000], DType::BF16))?;
    /// let mut optimizer = Optimizer::new(&w, SGD::new().lr(1e-3))?;
    /// optimizer.round_stochastically()?;
    /// for _ in 0..4 {
    ///     w.set_grad(Tensor::ones([1000], DType::BF16))?;
    ///     optimizer.step()?; // rounded to nearest, all would stay at 1
    /// }
    /// let mean = w.to_dtype(DType::F32).mean(()).item::<f32>()?;
    /// assert!((mean - 0.996).abs() < 1e-3);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If it keeps master weights, which keep what rounding loses, or its rule evaluates the loss itself.
    #[track_caller]
    pub fn round_stochastically(&mut self) -> Result<()> {
        if self.keeps_masters || self.searches() {
            let message =
                "goes with neither master weights nor a rule that evaluates the loss itself";
            return Err(Error::invalid("round_stochastically", message));
        }
        self.stochastic = true;
        Ok(())
    }
}
