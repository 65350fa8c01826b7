//! Batches on devices.

use kiln_tensor::{Device, Tensor};
use std::collections::BTreeMap;

/// Batches that can be moved to a device with all their tensors: tensors, and tuples, arrays, `Vec`s, `Option`s and
/// `BTreeMap`s of movable parts; texts stay as they are.
///
/// Copies to a GPU go through page-locked memory, concurrent with the GPU's other work, as PyTorch's do with
/// `pin_memory` and `non_blocking`.
///
/// ```
/// use kiln_data::ToDevice;
/// use kiln_tensor::{Device, Tensor};
/// let batch = (Tensor::from([1.0f32, 2.0]), vec!["a", "b"]);
/// let (x, names) = batch.to(Device::Cpu);
/// assert_eq!((x.to_vec::<f32>()?, names.len()), (vec![1.0, 2.0], 2));
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub trait ToDevice: Sized {
    /// The batch on the device, as by [`Tensor::to`].
    #[track_caller]
    fn to(self, device: Device) -> Self;
}

impl ToDevice for Tensor {
    fn to(self, device: Device) -> Tensor {
        Tensor::to(&self, device)
    }
}

impl ToDevice for String {
    fn to(self, _: Device) -> String {
        self
    }
}

impl ToDevice for &'static str {
    fn to(self, _: Device) -> &'static str {
        self
    }
}

impl<T: ToDevice> ToDevice for Vec<T> {
    fn to(self, device: Device) -> Vec<T> {
        self.into_iter().map(|x| x.to(device)).collect()
    }
}

impl<T: ToDevice> ToDevice for Option<T> {
    fn to(self, device: Device) -> Option<T> {
        self.map(|x| x.to(device))
    }
}

impl<T: ToDevice, const N: usize> ToDevice for [T; N] {
    fn to(self, device: Device) -> [T; N] {
        self.map(|x| x.to(device))
    }
}

impl<K: Ord, T: ToDevice> ToDevice for BTreeMap<K, T> {
    fn to(self, device: Device) -> BTreeMap<K, T> {
        let entries = self.into_iter();
        entries.map(|(key, x)| (key, x.to(device))).collect()
    }
}

macro_rules! tuples {
    ($(($($name:ident)*))*) => {$(
        impl<$($name: ToDevice),*> ToDevice for ($($name,)*) {
            #[allow(non_snake_case)]
            fn to(self, device: Device) -> Self {
                let ($($name,)*) = self;
                ($($name.to(device),)*)
            }
        }
    )*};
}
tuples!((A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F));
