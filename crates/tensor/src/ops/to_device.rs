//! Moving tensors between devices.

use crate::record::compose;
use crate::run::{outcome, read};
use crate::{Device, Error, ErrorKind, Tensor, custom_function};
use kiln_ir::{Builder, Role, ops};
use std::panic::Location;

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
        if self.error().is_some() || self.node.device == Some(device) {
            return self.clone();
        }
        let loc = Location::caller();
        if self.node.device.is_none() && !self.is_realized() {
            return compose("to", &[self], |b| {
                b.place_on(device);
                let shape = self.dims().into();
                b.op(ops::Reshape { shape }, std::slice::from_ref(self))
            });
        }
        let back = self.device();
        let copy = |x: &Tensor| match copied(x, device, loc) {
            Ok(copy) => copy,
            Err(e) => Tensor::poisoned(e, loc),
        };
        let mut moved = match self.requires_grad() {
            true => custom_function(
                &[self],
                |x| copy(&x[0]),
                move |_, _, g| vec![Some(g.to(back))],
            ),
            false => copy(self),
        };
        moved.names = self.names.clone();
        moved
    }
}

/// A leaf of the same values, computed if need be.
fn copied(x: &Tensor, device: Device, loc: &'static Location<'static>) -> crate::Result<Tensor> {
    if !x.is_realized() {
        read::realize_at(&[x], loc)?;
    }
    let lost = || Error::new(ErrorKind::Internal, "to", "the value is gone", loc);
    let buffer = x.node.ready(x.output).ok_or_else(lost)?;
    outcome::settle(&buffer)?;
    let buffer = device.bring(buffer).map_err(|e| {
        let kind = match e {
            kiln_runtime::Error::OutOfMemory { .. } => ErrorKind::Memory,
            _ => ErrorKind::Device,
        };
        Error::new(kind, "to", e.to_string(), loc)
    })?;
    Ok(Tensor::leaf(buffer, Role::Data, Some(device), loc, "to"))
}
