//! Moving tensors between devices.

use crate::record::compose;
use crate::{Device, Result, Tensor, user_line};
use kiln_derive::on_cells;
use kiln_ir::{Builder, ops};
use kiln_lazy::Handle;
use kiln_lazy::run::transfer;
use std::panic::Location;

#[on_cells]
impl Tensor {
    /// True if the device is an NVIDIA GPU.
    pub fn is_cuda(&self) -> bool {
        self.device() != Device::Cpu
    }

    /// The number of the GPU; -1 on the CPU.
    pub fn get_device(&self) -> i64 {
        self.device().ordinal().map_or(-1, i64::from)
    }

    /// The same values on another device; this tensor if it is already there. Gradients flow back. Values that depend
    /// on no data (zeros, random numbers) and are not computed yet will be computed there. Other values are computed
    /// where they are and copied; inside `compile` only known values can be copied.
    ///
    /// ```no_run
    /// use kiln_tensor::{DType, Device, Tensor};
    /// let device = Device::cuda(0)?;
    /// let x = Tensor::rand([1024, 1024], DType::F32).to(device);
    /// println!("{}", x.matmul(&x).sum(()));
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
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

/// Tensors, each on a device, as [`Tensor::to`] moves one. They are computed before, every device in one program, so that
/// several devices compute at the same time. Gradients flow back in the same way.
///
/// # Errors
/// If one can't be computed, a device fails, or inside `compile`.
#[doc(hidden)]
#[track_caller]
pub fn to_each(tensors: &[(Tensor, Device)]) -> Result<Vec<Tensor>> {
    let handles = tensors.iter().map(|(t, device)| (&t.handle, *device));
    let loc = user_line(Location::caller());
    let moved = transfer::to_each(&handles.collect::<Vec<_>>(), loc)?;
    let named = |(handle, (t, _)): (Handle, &(Tensor, Device))| Tensor {
        names: t.names.clone(),
        ..handle.into()
    };
    Ok(moved.into_iter().zip(tensors).map(named).collect())
}
