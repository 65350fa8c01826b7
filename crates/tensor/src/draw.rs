//! Random numbers under PyTorch's in-place names.

use crate::{DType, Error, ErrorKind, Int, Other, Result, Tensor, Var, set_device};
use kiln_base::Loc;
use std::f64::consts::PI;
use std::panic::Location;

/// Random numbers under PyTorch's in-place names, drawn where an assignment is recorded.
///
/// ```
/// use kiln_tensor::{DType, Tensor, Var};
/// let w = Var::parameter(&Tensor::zeros([4, 3], DType::F32))?;
/// w.uniform_(-0.5, 0.5)?;
/// assert!(w.get().abs().le(0.5).all(()).item::<bool>()?);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
impl Var {
    /// Uniform numbers in `[low, high)`.
    ///
    /// # Errors
    /// If the cell does not hold floats.
    #[track_caller]
    pub fn uniform_(&self, low: f64, high: f64) -> Result<()> {
        let u = self.uniform(self.dtype());
        self.hold("uniform_", &(u * (high - low) + low))
    }

    /// Normal numbers.
    ///
    /// # Errors
    /// If the cell does not hold floats.
    #[track_caller]
    pub fn normal_(&self, mean: f64, std: f64) -> Result<()> {
        let z = self.normal();
        self.hold("normal_", &(z * std + mean))
    }

    /// Numbers whose logarithms are normal, with this mean and deviation of the logarithms.
    ///
    /// # Errors
    /// If the cell does not hold floats, or the deviation is not above 0.
    #[track_caller]
    pub fn log_normal_(&self, mean: f64, std: f64) -> Result<()> {
        self.check_range("log_normal_", std > 0.0, || {
            format!("the deviation must be above 0, not {std}")
        })?;
        let z = self.normal();
        self.hold("log_normal_", &(z * std + mean).exp())
    }

    /// Waiting times for events that happen `lambd` times per unit of time: density `λ e^(−λ x)`, mean 1 / λ.
    ///
    /// # Errors
    /// If the cell does not hold floats, or lambd is not above 0.
    #[track_caller]
    pub fn exponential_(&self, lambd: f64) -> Result<()> {
        self.check_range("exponential_", lambd > 0.0, || {
            format!("lambd must be above 0, not {lambd}")
        })?;
        self.hold("exponential_", &(self.log_of_uniform() / -lambd))
    }

    /// Numbers of the Cauchy distribution, half of which lie within `sigma` of the median.
    ///
    /// # Errors
    /// If the cell does not hold floats, or sigma is not above 0.
    #[track_caller]
    pub fn cauchy_(&self, median: f64, sigma: f64) -> Result<()> {
        self.check_range("cauchy_", sigma > 0.0, || {
            format!("sigma must be above 0, not {sigma}")
        })?;
        let u = self.uniform(self.dtype());
        self.hold("cauchy_", &(((u - 0.5) * PI).tan() * sigma + median))
    }

    /// The number of attempts until a success of probability `p`: 1, 2, …, with probability `(1 − p)ᵏ⁻¹ p`, in the
    /// cell's dtype.
    ///
    /// # Errors
    /// If p does not lie between 0 and 1, or the cell holds bool.
    #[track_caller]
    pub fn geometric_(&self, p: f64) -> Result<()> {
        let fine = p > 0.0 && p < 1.0 && self.dtype() != DType::Bool;
        let wrong = || match self.dtype() {
            DType::Bool => "a Var of bool can't count attempts".to_string(),
            _ => format!("p must lie between 0 and 1, not {p}"),
        };
        self.check_range("geometric_", fine, wrong)?;
        let attempts = self.log_of_uniform() / (-p).ln_1p();
        self.hold(
            "geometric_",
            &attempts.ceil().clamp_min(1).to_dtype(self.dtype()),
        )
    }

    /// 1 with probability `p`, else 0: a number, or floats that broadcast to the cell's shape.
    ///
    /// # Errors
    /// If p does not lie in 0..=1, which is a data error where it is a tensor.
    #[track_caller]
    pub fn bernoulli_<'a>(&self, p: impl Into<Other<'a>>) -> Result<()> {
        let hits = match p.into() {
            Other::Number(p) => self.get().detach().bernoulli_with(p.as_f64()),
            Other::Tensor(p) => p.detach().expand(self.sizes()).bernoulli(),
        };
        self.hold("bernoulli_", &hits.to_dtype(self.dtype()))
    }

    /// Integers in `low..high`, in the cell's dtype.
    ///
    /// # Errors
    /// If there is no such integer, or the cell holds bool.
    #[track_caller]
    pub fn random_(&self, low: impl Into<Int>, high: impl Into<Int>) -> Result<()> {
        let _here = set_device(self.device());
        self.hold("random_", &Tensor::randint(low, high, self.sizes()))
    }

    /// The logarithms of uniform numbers in `(0, 1]`, in f64 if the cell's dtype is f64 or i64, else in f32.
    #[track_caller]
    fn log_of_uniform(&self) -> Tensor {
        let dtype = match self.dtype() {
            DType::F64 | DType::I64 => DType::F64,
            _ => DType::F32,
        };
        self.uniform(dtype).neg().log1p()
    }

    /// Uniform numbers in [0, 1) of the cell's shape, on its device.
    #[track_caller]
    fn uniform(&self, dtype: DType) -> Tensor {
        let _here = set_device(self.device());
        Tensor::rand(self.sizes(), dtype)
    }

    /// Standard normal numbers of the cell's shape and dtype, on its device.
    #[track_caller]
    fn normal(&self) -> Tensor {
        let _here = set_device(self.device());
        Tensor::randn(self.sizes(), self.dtype())
    }

    #[track_caller]
    fn check_range(&self, called: &str, fine: bool, wrong: impl Fn() -> String) -> Result<()> {
        match fine {
            true => Ok(()),
            false => {
                let loc = Loc::from(Location::caller());
                Err(Error::new(ErrorKind::Assign, called, wrong(), loc))
            }
        }
    }
}
