//! Tensors in tuples and lists.

use crate::Tensor;

/// Tensors in a fixed arrangement: one, a tuple, a `Vec`, an array, an `Option`, or any nesting of
/// these. What JAX calls a pytree.
pub trait Nest: Sized {
    /// The tensors, in order.
    fn tensors(&self) -> Vec<Tensor>;

    /// The same arrangement of other tensors, which are taken from `tensors`.
    fn with(&self, tensors: &mut dyn Iterator<Item = Tensor>) -> Self;
}

impl Nest for Tensor {
    fn tensors(&self) -> Vec<Tensor> {
        vec![self.clone()]
    }

    fn with(&self, tensors: &mut dyn Iterator<Item = Tensor>) -> Tensor {
        tensors.next().unwrap_or_else(|| self.clone())
    }
}

impl Nest for () {
    fn tensors(&self) -> Vec<Tensor> {
        vec![]
    }

    fn with(&self, _: &mut dyn Iterator<Item = Tensor>) {}
}

impl<T: Nest> Nest for Vec<T> {
    fn tensors(&self) -> Vec<Tensor> {
        self.iter().flat_map(Nest::tensors).collect()
    }

    fn with(&self, tensors: &mut dyn Iterator<Item = Tensor>) -> Vec<T> {
        self.iter().map(|t| t.with(tensors)).collect()
    }
}

impl<T: Nest> Nest for Option<T> {
    fn tensors(&self) -> Vec<Tensor> {
        self.iter().flat_map(Nest::tensors).collect()
    }

    fn with(&self, tensors: &mut dyn Iterator<Item = Tensor>) -> Option<T> {
        self.as_ref().map(|t| t.with(tensors))
    }
}

impl<T: Nest, const N: usize> Nest for [T; N] {
    fn tensors(&self) -> Vec<Tensor> {
        self.iter().flat_map(Nest::tensors).collect()
    }

    fn with(&self, tensors: &mut dyn Iterator<Item = Tensor>) -> [T; N] {
        std::array::from_fn(|i| self[i].with(tensors))
    }
}

macro_rules! nest_tuple {
    ($($name:ident $at:tt),*) => {
        impl<$($name: Nest),*> Nest for ($($name,)*) {
            fn tensors(&self) -> Vec<Tensor> {
                let mut all = Vec::new();
                $(all.extend(self.$at.tensors());)*
                all
            }

            fn with(&self, tensors: &mut dyn Iterator<Item = Tensor>) -> Self {
                ($(self.$at.with(tensors),)*)
            }
        }
    };
}
nest_tuple!(A 0);
nest_tuple!(A 0, B 1);
nest_tuple!(A 0, B 1, C 2);
nest_tuple!(A 0, B 1, C 2, D 3);
