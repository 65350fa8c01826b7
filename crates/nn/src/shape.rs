//! Layers that rearrange.

use crate::layer::run;
use crate::pool::given;
use crate::print::sizes;
use crate::{Forward, Module};
use kiln_tensor::{Im2Col, Int, IntList, Tensor};

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
    pub fn dims(start_dim: impl Into<Int>, end_dim: impl Into<Int>) -> Flatten {
        let (start_dim, end_dim) = (start_dim.into().0, end_dim.into().0);
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
    pub fn new(dim: impl Into<Int>, unflattened_size: impl Into<IntList>) -> Unflatten {
        Unflatten {
            dim: dim.into().0,
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
/// use kiln_tensor::{DType, Im2Col, Tensor};
/// let x = Tensor::zeros([1, 3, 224, 224], DType::F32);
/// let patches = Unfold::new(Im2Col::new(4).stride(4));
/// assert_eq!(patches.forward(&x).shape()?, [1, 48, 3136]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
#[module(extra_repr)]
pub struct Unfold {
    /// The windows.
    #[skip]
    pub windows: Im2Col,
}

impl Unfold {
    /// A layer with these windows; their size alone stands for them.
    pub fn new(windows: impl Into<Im2Col>) -> Unfold {
        Unfold {
            windows: windows.into(),
        }
    }

    fn extra_repr(&self) -> String {
        format!(
            "kernel_size={}, dilation={}, padding={}, stride={}",
            given(&self.windows.kernel_size),
            given(&self.windows.dilation),
            given(&self.windows.padding),
            given(&self.windows.stride)
        )
    }
}

impl Forward for Unfold {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        run(self, &[x], || x.im2col(self.windows.clone()))
    }
}
