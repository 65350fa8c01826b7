//! Collective operations on tensors.

use crate::ReduceOp;
use crate::group::{ProcessGroup, SOURCE, error, world};
use kiln_base::collective::Kind;
use kiln_tensor::{
    AsTensor, DType, Device, IntoShape, Result, Tensor, collective, on_behalf_of, user_line,
};
use std::panic::Location;

impl ProcessGroup {
    #[track_caller]
    fn record(
        &self,
        kind: Kind,
        x: impl AsTensor,
        backward: impl Fn(&ProcessGroup, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Tensor {
        let (group, token, loc) = (self.clone(), self.token(), user_line(Location::caller()));
        collective(kind, self.name_and_size(), &token, x, move |g| {
            on_behalf_of(SOURCE, loc, || backward(&group, g))
        })
    }

    /// Records a reduction. NCCL has none of integers of 16 bits, and its extremes leave NaN out.
    #[track_caller]
    fn record_reduction(
        &self,
        x: impl AsTensor,
        op: ReduceOp,
        kind: impl Fn(ReduceOp) -> Kind,
        backward: impl Fn(&ProcessGroup, &Tensor) -> Result<Tensor> + Clone + Send + Sync + 'static,
    ) -> Tensor {
        let x = &*x.as_tensor();
        let (dtype, own) = (x.dtype(), kind(op));
        let backward = move |group: &ProcessGroup, g: &Tensor| {
            check_linear(own, op)?;
            backward(group, g)
        };
        match op {
            _ if self.device() == Device::Cpu => self.record(own, x, backward),
            _ if matches!(dtype, DType::I16 | DType::U16) => {
                let wide = self.record(own, x.to_dtype(DType::I32), backward);
                wide.to_dtype(dtype)
            }
            ReduceOp::Max | ReduceOp::Min if dtype.is_float() && dtype.computes() => {
                let is_nan = self.record(kind(ReduceOp::Max), x.isnan(), backward.clone());
                let extreme = self.record(own, x, backward);
                extreme.masked_fill(is_nan, f64::NAN)
            }
            _ => self.record(own, x, backward),
        }
    }

    /// The sum, mean, maximum, minimum or product over all ranks, on every rank. Every rank gives the same dtype and
    /// shape. Sums and means have a derivative: the same operation on the gradients. f16 and bf16 are added in f32.
    #[track_caller]
    pub fn all_reduce(&self, x: impl AsTensor, op: ReduceOp) -> Tensor {
        self.record_reduction(x, op, Kind::AllReduce, move |group, g| {
            Ok(group.all_reduce(g, op))
        })
    }

    /// [`ProcessGroup::all_reduce`] whose result only rank `dst` of the group gets; the others get their own `x`. The
    /// derivative of a sum gives every rank the gradient of `dst`.
    #[track_caller]
    pub fn reduce(&self, x: impl AsTensor, dst: usize, op: ReduceOp) -> Tensor {
        let kind = |op| Kind::Reduce(op, dst as u32);
        self.record_reduction(x, op, kind, move |group, g| {
            let g = group.broadcast(g, dst);
            Ok(mean(g, op, group.size()))
        })
    }

    /// The `x` of rank `src` of the group, on every rank. The derivative gives `src` the sum of all gradients.
    #[track_caller]
    pub fn broadcast(&self, x: impl AsTensor, src: usize) -> Tensor {
        self.record(Kind::Broadcast(src as u32), x, move |group, g| {
            let sum = group.reduce(g, src, ReduceOp::Sum);
            Ok(match group.rank() == src {
                true => sum,
                false => sum.zeros_like(),
            })
        })
    }

    /// The `x` of all ranks, `[n, ..]`, concatenated along the first dim, on every rank: `[ranks · n, ..]`
    /// (`all_gather_into_tensor`). The derivative is a reduce-scatter.
    #[track_caller]
    pub fn all_gather(&self, x: impl AsTensor) -> Tensor {
        self.record(Kind::AllGather, x, |group, g| {
            Ok(group.reduce_scatter(g, ReduceOp::Sum))
        })
    }

    /// This rank's part of the reduction of `x`, `[ranks · n, ..]`: `[n, ..]` (`reduce_scatter_tensor`). The
    /// derivative of a sum or mean is an all-gather.
    #[track_caller]
    pub fn reduce_scatter(&self, x: impl AsTensor, op: ReduceOp) -> Tensor {
        self.record_reduction(x, op, Kind::ReduceScatter, move |group, g| {
            Ok(mean(group.all_gather(g), op, group.size()))
        })
    }

    /// The `x` of all ranks concatenated along the first dim, on rank `dst` of the group; elsewhere a tensor without
    /// elements. It has no derivative.
    #[track_caller]
    pub fn gather(&self, x: impl AsTensor, dst: usize) -> Tensor {
        let kind = Kind::Gather {
            root: dst as u32,
            here: dst == self.rank(),
        };
        self.record(kind, x, move |_, _| Err(not_differentiated(kind)))
    }

    /// This rank's part of what rank `src` of the group gives, `[ranks · n, ..]`: `[n, ..]`. On the other ranks `x` is
    /// a tensor of the result's dtype and shape, whose values don't matter. It has no derivative.
    #[track_caller]
    pub fn scatter(&self, x: impl AsTensor, src: usize) -> Tensor {
        let kind = Kind::Scatter {
            root: src as u32,
            here: src == self.rank(),
        };
        self.record(kind, x, move |_, _| Err(not_differentiated(kind)))
    }

    /// Part r of every rank's `x` along the first dim, on rank r, in the order of the ranks (`all_to_all_single`). The
    /// derivative is the same operation.
    #[track_caller]
    pub fn all_to_all(&self, x: impl AsTensor) -> Tensor {
        self.record(Kind::AllToAll, x, |group, g| Ok(group.all_to_all(g)))
    }

    /// Sends `x` to a rank of the group, which calls [`ProcessGroup::recv`]. It is sent when this returns, and does
    /// not wait for the receiver. Over NCCL, later operations of the device wait for it.
    ///
    /// # Errors
    /// The error of `x`, or of an operation that was recorded before.
    #[track_caller]
    pub fn send(&self, x: impl AsTensor, dst: usize) -> Result<()> {
        let kind = Kind::Send(dst as u32);
        // Without a first dim, the empty result has no shape.
        let sent = x.as_tensor().reshape([-1]);
        let sent = self.record(kind, sent, move |_, _| Err(not_differentiated(kind)));
        sent.check()?;
        let token = self.token().get();
        token.realize().map(drop)
    }

    /// The message of a rank of the group, of this dtype and shape.
    #[track_caller]
    pub fn recv(&self, shape: impl IntoShape, dtype: DType, src: usize) -> Tensor {
        let kind = Kind::Receive(src as u32);
        let placeholder = self.on_device(Tensor::zeros(shape, dtype));
        self.record(kind, placeholder, move |_, _| Err(not_differentiated(kind)))
    }

    /// Runs every recorded operation, and waits until all ranks are here.
    ///
    /// # Errors
    /// The error of one of these operations, or if a rank does not come.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        let x = self.on_device(Tensor::zeros([1], DType::U8));
        self.record(Kind::Barrier, x, |_, g| Ok(g.clone()))
            .check()?;
        self.flush()
    }
}

/// The gradient of a mean, given that of a sum.
fn mean(g: Tensor, op: ReduceOp, ranks: usize) -> Tensor {
    match op {
        ReduceOp::Mean => g / ranks as f64,
        _ => g,
    }
}

/// Errs unless the reduction is linear.
fn check_linear(kind: Kind, op: ReduceOp) -> Result<()> {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => Ok(()),
        _ => Err(not_differentiated(kind)),
    }
}

fn not_differentiated(kind: Kind) -> kiln_tensor::Error {
    error(
        kind.name(),
        format!("{kind} has no derivative; call it under no_grad"),
    )
}

/// Functions on the world's group, under the names of its methods.
macro_rules! on_world {
    ($($name:ident($($arg:ident: $ty:ty),*) -> Tensor;)*) => {$(
        #[doc = concat!("[`ProcessGroup::", stringify!($name), "`] of the world. Without a group, the result carries the error.")]
        #[track_caller]
        pub fn $name($($arg: $ty),*) -> Tensor {
            match world() {
                Ok(world) => world.$name($($arg),*),
                Err(e) => Tensor::from_error(e),
            }
        }
    )*};
}

on_world! {
    all_reduce(x: impl AsTensor, op: ReduceOp) -> Tensor;
    reduce(x: impl AsTensor, dst: usize, op: ReduceOp) -> Tensor;
    broadcast(x: impl AsTensor, src: usize) -> Tensor;
    all_gather(x: impl AsTensor) -> Tensor;
    reduce_scatter(x: impl AsTensor, op: ReduceOp) -> Tensor;
    gather(x: impl AsTensor, dst: usize) -> Tensor;
    scatter(x: impl AsTensor, src: usize) -> Tensor;
    all_to_all(x: impl AsTensor) -> Tensor;
    recv(shape: impl IntoShape, dtype: DType, src: usize) -> Tensor;
}

/// [`ProcessGroup::send`] in the world.
///
/// # Errors
/// As there, or if there is no group.
#[track_caller]
pub fn send(x: impl AsTensor, dst: usize) -> Result<()> {
    world()?.send(x, dst)
}

/// [`ProcessGroup::barrier`] of the world.
///
/// # Errors
/// As there, or if there is no group.
#[track_caller]
pub fn barrier() -> Result<()> {
    world()?.barrier()
}
