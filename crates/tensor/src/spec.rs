//! What a compiled function takes and gives.

use crate::{DType, Device, Result, Tensor};

/// Dtype, shape and device of an argument of a compiled function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub dims: Vec<DimSpec>,
    /// Where it is.
    pub device: Device,
}

/// A size of a [`Spec`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DimSpec {
    /// This size.
    Known(usize),
    /// Any size, the same in every place where the name stands. Sizes of 0 and 1 have plans of their own,
    /// compiled when a run first has one.
    Symbol(String),
}

impl Spec {
    /// A spec from numbers and names: `Spec::new(DType::F32, ["batch".into(), 64.into()])`.
    pub fn new(dtype: DType, dims: impl IntoIterator<Item = DimSpec>) -> Spec {
        Spec {
            dtype,
            dims: dims.into_iter().collect(),
            device: Device::Cpu,
        }
    }

    /// The same, on a device.
    pub fn on(mut self, device: Device) -> Spec {
        self.device = device;
        self
    }

    /// A spec whose sizes are all known.
    pub fn fixed(dtype: DType, shape: impl AsRef<[usize]>) -> Spec {
        Spec::new(dtype, shape.as_ref().iter().map(|d| DimSpec::Known(*d)))
    }

    /// The spec of tensors like this one.
    ///
    /// # Errors
    /// If the tensor is poisoned.
    pub fn like(t: &Tensor) -> Result<Spec> {
        Ok(Spec::fixed(t.dtype(), t.shape()?).on(t.device()))
    }
}

impl From<usize> for DimSpec {
    fn from(n: usize) -> DimSpec {
        DimSpec::Known(n)
    }
}

impl From<&str> for DimSpec {
    fn from(name: &str) -> DimSpec {
        DimSpec::Symbol(name.to_string())
    }
}

/// What a function given to [`crate::compile`] may return.
pub trait IntoOutputs {
    /// The tensors, in order.
    ///
    /// # Errors
    /// The function's own error.
    fn into_outputs(self) -> Result<Vec<Tensor>>;
}

impl IntoOutputs for Tensor {
    fn into_outputs(self) -> Result<Vec<Tensor>> {
        Ok(vec![self])
    }
}

impl IntoOutputs for Vec<Tensor> {
    fn into_outputs(self) -> Result<Vec<Tensor>> {
        Ok(self)
    }
}

impl<const N: usize> IntoOutputs for [Tensor; N] {
    fn into_outputs(self) -> Result<Vec<Tensor>> {
        Ok(self.into())
    }
}

impl<T: IntoOutputs> IntoOutputs for Result<T> {
    fn into_outputs(self) -> Result<Vec<Tensor>> {
        self?.into_outputs()
    }
}

impl std::fmt::Display for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, d) in self.dims.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            match d {
                DimSpec::Known(n) => write!(f, "{comma}{n}")?,
                DimSpec::Symbol(name) => write!(f, "{comma}{name}")?,
            }
        }
        f.write_str("]")?;
        match self.device {
            Device::Cpu => Ok(()),
            device => write!(f, " on {device}"),
        }
    }
}
