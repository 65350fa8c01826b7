//! Moving tensors between devices.

use crate::record::compose;
use crate::{Device, Tensor};
use kiln_derive::on_cells;
use kiln_ir::{Builder, ops};
use kiln_lazy::run::transfer;
use std::panic::Location;

#[on_cells]
impl Tensor {
    /// The same values on another device: this tensor if it is there. Gradients flow back. What depends on
    /// no data yet (zeros, random numbers) will be computed there; other values are computed where they
    /// are and copied, which inside `compile` only those can be that are known.
    ///
    /// ```no_run
    /// use kiln_tensor::{DType, Device, Tensor};
    /// let device = Device::cuda(0)?;
    /// let x = Tensor::rand([1024, 1024], DType::F32).to(device);
    /// println!("{}", x.matmul(&x).sum(()));
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn to(&self, device: Device) -> Tensor {
        if self.error().is_some() || self.handle.node.device == Some(device) {
            return self.clone();
        }
        let loc = Location::caller();
        if self.handle.node.device.is_none() && !self.is_realized() {
            return compose("to", &[self], |b| {
                b.place_on(device);
                let shape = self.dims().into();
                b.op(ops::Reshape { shape }, std::slice::from_ref(self))
            });
        }
        match transfer::to(&self.handle, device, loc) {
            Ok(handle) => Tensor {
                names: self.names.clone(),
                ..handle.into()
            },
            Err(e) => Tensor::poisoned(e, loc),
        }
    }
}
