//! Layers that change shapes.

use crate::layer::{check_accepts, invalid};
use crate::pool::{format_size, window};
use crate::print::sizes;
use crate::{Forward, Hooks, Module};
use kiln_tensor::{Im2Col, Int, IntList, Result, Tensor};

/// Merges several dims into one (`torch.nn.Flatten`).
#[derive(Clone, Debug, Module)]
#[module(extra_repr)]
pub struct Flatten {
    start_dim: i64,
    end_dim: i64,
    hooks: Hooks,
}

impl Flatten {
    /// Makes a layer that keeps dim 0, the batch.
    pub fn new() -> Flatten {
        Flatten::dims(1, -1)
    }

    /// Makes a layer that merges these dims and those between them.
    pub fn dims(start_dim: impl Into<Int>, end_dim: impl Into<Int>) -> Flatten {
        let (start_dim, end_dim) = (start_dim.into().0, end_dim.into().0);
        let hooks = Hooks::new();
        Flatten {
            start_dim,
            end_dim,
            hooks,
        }
    }

    /// The first of the dims.
    pub fn start_dim(&self) -> i64 {
        self.start_dim
    }

    /// The last of the dims.
    pub fn end_dim(&self) -> i64 {
        self.end_dim
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
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(x.flatten((self.start_dim, self.end_dim)))
    }
}

/// Splits one dim into several (`torch.nn.Unflatten`).
#[derive(Clone, Debug, Module)]
#[module(extra_repr)]
pub struct Unflatten {
    dim: i64,
    unflattened_size: IntList,
    hooks: Hooks,
}

impl Unflatten {
    /// Makes a layer that splits `dim` into these sizes, of which one may be −1.
    ///
    /// # Errors
    /// If there are no sizes, several are −1, or one is below −1.
    #[track_caller]
    pub fn new(dim: impl Into<Int>, unflattened_size: impl Into<IntList>) -> Result<Unflatten> {
        let unflattened_size = unflattened_size.into();
        let sizes = &unflattened_size.0;
        let open = sizes.iter().filter(|n| **n == -1).count();
        if sizes.is_empty() || open > 1 || sizes.iter().any(|n| *n < -1) {
            let message = format!("a dim can't be unflattened to {sizes:?}");
            return Err(invalid("Unflatten", message));
        }
        Ok(Unflatten {
            dim: dim.into().0,
            unflattened_size,
            hooks: Hooks::new(),
        })
    }

    /// The dim that is split.
    pub fn dim(&self) -> i64 {
        self.dim
    }

    /// The sizes into which it is split.
    pub fn unflattened_size(&self) -> &IntList {
        &self.unflattened_size
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
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(x.unflatten(self.dim, self.unflattened_size.clone()))
    }
}

/// The windows of `[n, c, h, w]` (or `[c, h, w]`) as columns `[n, c · kh · kw, windows]`
/// (`torch.nn.Unfold`).
///
/// ```
/// use kiln_nn::{Forward, Unfold};
/// use kiln_tensor::{DType, Im2Col, Tensor};
/// let x = Tensor::zeros([1, 3, 224, 224], DType::F32);
/// let patches = Unfold::new(Im2Col::new(4).stride(4))?;
/// assert_eq!(patches.call(&x).shape()?, [1, 48, 3136]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
#[module(extra_repr)]
pub struct Unfold {
    #[skip]
    windows: Im2Col,
    hooks: Hooks,
}

impl Unfold {
    /// Makes a layer with these windows; a window size converts into them.
    ///
    /// # Errors
    /// If the windows are impossible.
    #[track_caller]
    pub fn new(windows: impl Into<Im2Col>) -> Result<Unfold> {
        let (windows, hooks) = (windows.into(), Hooks::new());
        let shape = window::<2>("Unfold", &windows.kernel_size, &windows.dilation)?;
        check_accepts(Unfold { windows, hooks }, &shape)
    }

    /// The windows.
    pub fn windows(&self) -> &Im2Col {
        &self.windows
    }

    fn extra_repr(&self) -> String {
        format!(
            "kernel_size={}, dilation={}, padding={}, stride={}",
            format_size(&self.windows.kernel_size),
            format_size(&self.windows.dilation),
            format_size(&self.windows.padding),
            format_size(&self.windows.stride)
        )
    }
}

impl Forward for Unfold {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(x.im2col(self.windows.clone()))
    }
}
