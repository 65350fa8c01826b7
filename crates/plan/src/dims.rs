//! Traversal of the sizes in a plan.

use crate::Kernel;
use kiln_base::{DType, Dim};
use std::sync::Arc;

/// A value with sizes.
pub trait Dims {
    /// True if `holds` is true for every size in it, those of its programs and bodies included: extents, strides,
    /// offsets and numbers that kernels are called with.
    fn all_dims(&self, holds: &mut dyn FnMut(&Dim) -> bool) -> bool;
}

/// Implements [`Dims`] by the fields with sizes. The fields behind the semicolon have none; they are named so that no
/// field is left out.
macro_rules! dims {
    ($ty:ty: $($field:ident),*; $($other:ident),*) => {
        impl $crate::Dims for $ty {
            fn all_dims(&self, holds: &mut dyn FnMut(&kiln_base::Dim) -> bool) -> bool {
                let Self { $($field,)* $($other: _,)* } = self;
                $($crate::Dims::all_dims($field, holds))&&*
            }
        }
    };
}
pub(crate) use dims;

impl Dims for Dim {
    fn all_dims(&self, holds: &mut dyn FnMut(&Dim) -> bool) -> bool {
        holds(self)
    }
}

macro_rules! lists {
    ($($ty:ty),*) => {$(
        impl<T: Dims> Dims for $ty {
            fn all_dims(&self, holds: &mut dyn FnMut(&Dim) -> bool) -> bool {
                self.as_slice().iter().all(|x| x.all_dims(holds))
            }
        }
    )*};
}
lists!(Vec<T>, Option<T>, [T; 2], [T; 3]);

impl<T: Dims> Dims for Box<T> {
    fn all_dims(&self, holds: &mut dyn FnMut(&Dim) -> bool) -> bool {
        (**self).all_dims(holds)
    }
}

impl Dims for Arc<Kernel> {
    fn all_dims(&self, holds: &mut dyn FnMut(&Dim) -> bool) -> bool {
        (**self).all_dims(holds)
    }
}

impl Dims for Kernel {
    fn all_dims(&self, holds: &mut dyn FnMut(&Dim) -> bool) -> bool {
        (**self).all_dims(holds)
    }
}

/// A matrix and its dtype.
impl<T: Dims> Dims for (T, DType) {
    fn all_dims(&self, holds: &mut dyn FnMut(&Dim) -> bool) -> bool {
        self.0.all_dims(holds)
    }
}
