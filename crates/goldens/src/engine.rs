//! The engines that compute the outputs.

use kiln_tensor::{
    CompileOptions, DType, Device, Result, Tensor, compile_with, evaluate_reference,
};

/// An engine that computes the outputs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The CPU engine.
    Cpu,
    /// The CPU engine without rewrites and without fusion.
    Plain,
    /// The reference evaluation.
    Reference,
    /// A GPU.
    Cuda(Device),
}

/// A tensor's elements on the host, little-endian and row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<usize>,
    /// Elements.
    pub bytes: Vec<u8>,
}

impl Engine {
    /// The device that it computes on.
    pub fn device(self) -> Device {
        match self {
            Engine::Cuda(device) => device,
            _ => Device::Cpu,
        }
    }

    /// The values of these tensors.
    ///
    /// # Errors
    /// If one of them is invalid or can't be computed.
    pub fn read(self, tensors: &[Tensor]) -> Result<Vec<Array>> {
        let computed = match self {
            Engine::Cpu => tensors.to_vec(),
            Engine::Cuda(device) => tensors.iter().map(|t| t.to(device)).collect(),
            Engine::Plain => {
                let options = CompileOptions {
                    optimize: false,
                    fuse: false,
                    ..CompileOptions::default()
                };
                compile_with((), &options, |()| tensors.to_vec())?.run(())?
            }
            Engine::Reference => evaluate_reference(tensors)?,
        };
        let read = |t: &Tensor| {
            Ok(Array {
                dtype: t.dtype(),
                shape: t.shape()?,
                bytes: t.to_bytes()?,
            })
        };
        computed.iter().map(read).collect()
    }
}

impl Array {
    /// The tensor of these elements.
    pub fn tensor(&self) -> Tensor {
        Tensor::from_bytes(&self.bytes, self.dtype, &self.shape)
    }

    /// Floats as f64; other elements as they are.
    pub fn in_f64(&self) -> Array {
        if !self.dtype.is_float() {
            return self.clone();
        }
        let bytes = self.to_f64().into_iter().flat_map(f64::to_le_bytes);
        Array {
            dtype: DType::F64,
            shape: self.shape.clone(),
            bytes: bytes.collect(),
        }
    }

    /// The elements as f64; integers beyond 2⁵³ round.
    pub fn to_f64(&self) -> Vec<f64> {
        match self.dtype.is_float() {
            true => self.dtype.floats(&self.bytes),
            false => self.to_i64().into_iter().map(|i| i as f64).collect(),
        }
    }

    /// The elements of an integer or bool tensor.
    pub fn to_i64(&self) -> Vec<i64> {
        match self.dtype.is_float() {
            true => self.to_f64().into_iter().map(|x| x as i64).collect(),
            false => self.dtype.ints(&self.bytes),
        }
    }
}
