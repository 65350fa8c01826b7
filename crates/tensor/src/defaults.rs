//! The default dtype.

use crate::create::IntoShape;
use crate::{DType, Tensor};
use kiln_base::Scoped;
use std::cell::Cell;

thread_local! {
    static DTYPE: Cell<DType> = const { Cell::new(DType::F32) };
}

/// The dtype of [`zeros`], [`empty`], [`ones`], [`rand`], [`randn`] and the parameters of layers where none is given: f32,
/// unless inside [`with_default_dtype`].
pub fn default_dtype() -> DType {
    DTYPE.get()
}

/// Runs `f` with another default dtype on this thread.
///
/// ```
/// use kiln_tensor::{DType, randn, with_default_dtype};
/// let x = with_default_dtype(DType::F64, || randn([2, 3]));
/// assert_eq!(x.dtype(), DType::F64);
/// assert_eq!(randn([2, 3]).dtype(), DType::F32);
/// ```
pub fn with_default_dtype<T>(dtype: DType, f: impl FnOnce() -> T) -> T {
    let _inside = Scoped::new(&DTYPE, dtype);
    f()
}

macro_rules! of_the_default_dtype {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(shape: impl IntoShape) -> Tensor {
            Tensor::$name(shape, default_dtype())
        }
    )*};
}
of_the_default_dtype! {
    /// Zeros of the [default dtype](default_dtype); see [`Tensor::zeros`].
    zeros
    /// Zeros of the [default dtype](default_dtype); see [`Tensor::empty`].
    empty
    /// Ones of the [default dtype](default_dtype); see [`Tensor::ones`].
    ones
    /// Uniform numbers in [0, 1) of the [default dtype](default_dtype); see [`Tensor::rand`].
    rand
    /// Standard normal numbers of the [default dtype](default_dtype); see [`Tensor::randn`].
    randn
}
