//! Specs of the arguments of a compiled function.

use crate::ops::from_items;
use crate::{AsTensor, DType, Device, Int, Result, default_device};

/// The dtype, shape and device of an argument of a compiled function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub dims: Vec<DimSpec>,
    /// The device.
    pub device: Device,
}

/// A size of a [`Spec`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DimSpec {
    /// This size.
    Known(i64),
    /// Any size, the same in every place with this name. Strides need not divide it. Sizes of 0 and 1 have their own
    /// plans, compiled when a run first has one. Sizes that are too small, for a window for example, are errors of
    /// the run.
    Symbol(String),
}

/// The sizes of a [`Spec`], numbers and names: a single one, a tuple of both, or an array, a slice or a vector of
/// either; `()` for none.
///
/// ```
/// use kiln_tensor::{DType, Spec};
/// let batch: usize = 4;
/// assert_eq!(Spec::new(DType::F32, ("batch", 3)).to_string(), "f32[batch, 3]");
/// assert_eq!(Spec::new(DType::F32, [batch, 3]).to_string(), "f32[4, 3]");
/// assert_eq!(Spec::new(DType::I64, "n").to_string(), "i64[n]");
/// assert_eq!(Spec::new(DType::F64, ()).to_string(), "f64[]");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DimSpecs(pub Vec<DimSpec>);

impl Spec {
    /// The spec of a tensor on the [default device](default_device): the CPU unless the program set another.
    pub fn new(dtype: DType, dims: impl Into<DimSpecs>) -> Spec {
        Spec {
            dtype,
            dims: dims.into().0,
            device: default_device(),
        }
    }

    /// The same, on a device.
    pub fn on(mut self, device: Device) -> Spec {
        self.device = device;
        self
    }

    /// The spec of tensors like this one.
    ///
    /// # Errors
    /// If the tensor is poisoned, or has symbolic sizes, which only a function given to `compile` can use.
    pub fn like(t: impl AsTensor) -> Result<Spec> {
        let t = t.as_tensor();
        Ok(Spec::new(t.dtype(), t.shape()?).on(t.device()))
    }
}

impl<T: Into<Int>> From<T> for DimSpec {
    fn from(n: T) -> DimSpec {
        DimSpec::Known(n.into().0)
    }
}

impl From<&str> for DimSpec {
    fn from(name: &str) -> DimSpec {
        DimSpec::Symbol(name.to_string())
    }
}

impl From<&&str> for DimSpec {
    fn from(name: &&str) -> DimSpec {
        DimSpec::from(*name)
    }
}

impl From<String> for DimSpec {
    fn from(name: String) -> DimSpec {
        DimSpec::Symbol(name)
    }
}

impl From<&String> for DimSpec {
    fn from(name: &String) -> DimSpec {
        DimSpec::from(name.as_str())
    }
}

from_items!(DimSpecs, DimSpec, DimSpec);

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
