//! Conversions from and to the arrays of the crate `ndarray`.

use crate::{Device, Element, Error, ErrorKind, Result, Tensor};
use kiln_base::Loc;
use ndarray::{ArrayD, ArrayView, Dimension, IxDyn};
use std::panic::Location;

impl Tensor {
    /// A copy on the CPU of an array of any layout, including negative strides.
    ///
    /// ```
    /// use kiln_tensor::Tensor;
    /// use ndarray::{array, s};
    /// let a = array![[1.0f32, 2.0], [3.0, 4.0]];
    /// assert_eq!(Tensor::from_ndarray(&a).shape()?, [2, 2]);
    /// let flipped = Tensor::from_ndarray(a.slice(s![.., ..;-1]));
    /// assert_eq!(flipped.to_ndarray::<f32>()?, array![[2.0, 1.0], [4.0, 3.0]].into_dyn());
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn from_ndarray<'a, T: Element, D: Dimension>(
        array: impl Into<ArrayView<'a, T, D>>,
    ) -> Tensor {
        let array = array.into();
        let shape: Vec<i64> = array.shape().iter().map(|d| *d as i64).collect();
        let loc = Location::caller();
        match array.as_slice() {
            Some(values) => Tensor::data_on(Device::Cpu, values, &shape, loc, "from_ndarray"),
            None => {
                let values: Vec<T> = array.iter().copied().collect();
                Tensor::data_on(Device::Cpu, &values, &shape, loc, "from_ndarray")
            }
        }
    }

    /// The values as an array in row-major order.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`].
    #[track_caller]
    pub fn to_ndarray<T: Element>(&self) -> Result<ArrayD<T>> {
        let loc = Loc::from(Location::caller());
        ArrayD::from_shape_vec(IxDyn(&self.shape()?), self.to_vec()?)
            .map_err(|e| Error::new(ErrorKind::Internal, "to_ndarray", e.to_string(), loc))
    }
}
