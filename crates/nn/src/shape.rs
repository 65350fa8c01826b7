//! Layers that rearrange.

use crate::layer::run;
use crate::pool::given;
use crate::print::sizes;
use crate::{Forward, Module};
use kiln_tensor::{IntList, Tensor};

/// One dim for several (`torch.nn.Flatten`).
#[derive(Clone, Copy, Debug, Module)]
#[module(extra_repr)]
pub struct Flatten {
    /// The first of them.
    pub start_dim: i64,
    /// The last of them.
    pub end_dim: i64,
}

impl Flatten {
    /// A layer that keeps dim 0, the batch.
    pub fn new() -> Flatten {
        Flatten::dims(1, -1)
    }

    /// A layer for these dims and those between them.
    pub fn dims(start_dim: i64, end_dim: i64) -> Flatten {
        Flatten { start_dim, end_dim }
    }

    fn extra_repr(&self) -> String {
        format!("start_dim={}, end_dim={}", self.start_dim, self.end_dim)
    }
}

impl Default for Flatten {
    fn default() -> Flatten {
        Flatten::new()
    }
}

impl Forward for Flatten {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        run(self, &[x], || x.flatten(self.start_dim, self.end_dim))
    }
}

/// Several dims for one (`torch.nn.Unflatten`).
#[derive(Clone, Debug, Module)]
#[module(extra_repr)]
pub struct Unflatten {
    dim: i64,
    unflattened_size: IntList,
}

impl Unflatten {
    /// A layer that gives `dim` these sizes, of which one may be −1.
    pub fn new(dim: i64, unflattened_size: impl Into<IntList>) -> Unflatten {
        Unflatten {
            dim,
            unflattened_size: unflattened_size.into(),
        }
    }

    fn extra_repr(&self) -> String {
        let size = &self.unflattened_size.0;
        format!(
            "dim={}, unflattened_size={}",
            self.dim,
            sizes(size, size.len())
        )
    }
}

impl Forward for Unflatten {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        run(self, &[x], || {
            x.unflatten(self.dim, self.unflattened_size.clone())
        })
    }
}

/// The windows of `[n, c, h, w]` (or `[c, h, w]`) as columns `[n, c · kh · kw, windows]`
/// (`torch.nn.Unfold`).
///
/// ```
/// use kiln_nn::{Forward, Unfold};
/// use kiln_tensor::{DType, Tensor};
/// let x = Tensor::zeros([1, 3, 224, 224], DType::F32);
/// assert_eq!(Unfold::new(4).stride(4).forward(&x).shape()?, [1, 48, 3136]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
#[module(extra_repr)]
pub struct Unfold {
    kernel_size: IntList,
    dilation: IntList,
    padding: IntList,
    stride: IntList,
}

impl Unfold {
    /// A layer of stride 1 without padding.
    pub fn new(kernel_size: impl Into<IntList>) -> Unfold {
        Unfold {
            kernel_size: kernel_size.into(),
            dilation: 1.into(),
            padding: 0.into(),
            stride: 1.into(),
        }
    }

    /// The layer with this dilation (default 1).
    pub fn dilation(mut self, dilation: impl Into<IntList>) -> Unfold {
        self.dilation = dilation.into();
        self
    }

    /// The layer with this border of zeros (default 0).
    pub fn padding(mut self, padding: impl Into<IntList>) -> Unfold {
        self.padding = padding.into();
        self
    }

    /// The layer with this stride (default 1).
    pub fn stride(mut self, stride: impl Into<IntList>) -> Unfold {
        self.stride = stride.into();
        self
    }

    fn extra_repr(&self) -> String {
        format!(
            "kernel_size={}, dilation={}, padding={}, stride={}",
            given(&self.kernel_size),
            given(&self.dilation),
            given(&self.padding),
            given(&self.stride)
        )
    }
}

impl Forward for Unfold {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        run(self, &[x], || {
            let (k, d) = (self.kernel_size.clone(), self.dilation.clone());
            x.im2col(k, d, self.padding.clone(), self.stride.clone())
        })
    }
}
