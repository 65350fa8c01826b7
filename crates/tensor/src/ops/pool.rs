//! Pooling.

use super::args::IntList;
use super::conv::{check_rank, with_batch_dim};
use super::parts::windows;
use crate::options::options;
use crate::record::{Recorded, Recorder, compose, compose_pair};
use crate::{DType, Scalar, Tensor};
use kiln_base::prim::Reduction;
use kiln_base::{Dim, Kind, numel};
use kiln_derive::on_cells;
use kiln_ir::ops::{self, Axes, WindowReduce, window_extent};
use kiln_ir::{Builder, OpError, Pw, Shape, ensure};

options! {
    /// The windows of a pooling; a size converts into them. Numbers are given one for each spatial dim, or one
    /// for all.
    ///
    /// ```
    /// use kiln_tensor::{DType, Pool, Tensor};
    /// let x = Tensor::zeros([30, 20, 32, 32], DType::F32);
    /// assert_eq!(x.max_pool2d(5).shape()?, [30, 20, 6, 6]);
    /// assert_eq!(x.max_pool2d(Pool::new(3).stride(2).padding(1)).shape()?, [30, 20, 16, 16]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    Pool (
        /// The size of a window.
        kernel_size: IntList
    ) {
        /// The distance between windows; `()`, the default, is the kernel size.
        stride: IntList = (),
        /// The padding on both sides of each dim, which is never a maximum (default 0).
        padding: IntList = 0,
        /// The distance between elements of a window (default 1).
        dilation: IntList = 1,
        /// True to include windows that extend past the end (default false).
        ceil_mode: bool = false,
    }
}

options! {
    /// The windows of an average pooling; a size converts into them. Numbers are given one for each spatial dim,
    /// or one for all.
    AvgPool (
        /// The size of a window.
        kernel_size: IntList
    ) {
        /// The distance between windows; `()`, the default, is the kernel size.
        stride: IntList = (),
        /// The zeros on both sides of each dim (default 0).
        padding: IntList = 0,
        /// True to include windows that extend past the end (default false).
        ceil_mode: bool = false,
        /// True if the padding counts in the mean (the default).
        count_include_pad: bool = true,
        /// The divisor of sums, in place of the number of elements.
        divisor_override: Option<i64> = None,
    }
}

options! {
    /// The windows of the max pooling that an unpooling inverts; a size converts into them.
    Unpool (
        /// The size of a window.
        kernel_size: IntList
    ) {
        /// The distance between windows; `()`, the default, is the kernel size.
        stride: IntList = (),
        /// The padding on both sides of each dim of the pooled tensor (default 0).
        padding: IntList = 0,
        /// The spatial size of the tensor before pooling, since several sizes pool to the same one. `()`, the
        /// default, is `(size − 1) · stride − 2 · padding + kernel`; another size must differ from it by less than a
        /// stride in each dim.
        output_size: IntList = (),
    }
}

options! {
    /// The windows that become columns; a size converts into them.
    Im2Col (
        /// The size of a window.
        kernel_size: IntList
    ) {
        /// The distance between windows (default 1).
        stride: IntList = 1,
        /// The zeros on both sides of each dim (default 0).
        padding: IntList = 0,
        /// The distance between elements of a window (default 1).
        dilation: IntList = 1,
    }
}

/// The positions of windows, with one entry for each spatial axis.
struct Windows {
    kernel: Axes,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    ceil_mode: bool,
}

/// Returns the stride, which defaults to the kernel size.
pub(super) fn stride_or_kernel(stride: &IntList, kernel: &Axes) -> Result<Axes, OpError> {
    match stride.0.is_empty() {
        true => Ok(kernel.clone()),
        false => stride.for_axes(kernel.len(), "the stride", 1),
    }
}

impl Windows {
    fn new(spatial: usize, pool: &Pool) -> Result<Windows, OpError> {
        let kernel = pool.kernel_size.for_axes(spatial, "the kernel size", 1)?;
        let stride = stride_or_kernel(&pool.stride, &kernel)?;
        let padding = pool.padding.for_axes(spatial, "the padding", 0)?;
        for (p, k) in padding.iter().zip(&kernel) {
            ensure!(
                *p <= *k / 2,
                "the padding must be at most half the kernel size {k}, not {p}"
            );
        }
        let dilation = pool.dilation.for_axes(spatial, "the dilation", 1)?;
        Ok(Windows {
            kernel,
            stride,
            padding,
            dilation,
            ceil_mode: pool.ceil_mode,
        })
    }

    fn spatial(&self) -> usize {
        self.kernel.len()
    }

    /// Returns the padding before and after each axis. With `ceil_mode`, it includes enough after it for a last
    /// window that extends past the end and starts inside the input or its front padding.
    fn borders(&self) -> Vec<(usize, usize)> {
        let border = |a: usize| {
            let low = self.padding[a];
            if !self.ceil_mode {
                return (low, low);
            }
            let span = self.dilation[a]
                .saturating_mul(self.kernel[a] - 1)
                .saturating_add(1);
            (low, low.saturating_add(self.stride[a]).min(span) - 1)
        };
        (0..self.spatial()).map(border).collect()
    }

    fn reduce(&self, b: &mut Recorder, kind: Reduction, x: &Tensor) -> Recorded {
        let op = WindowReduce {
            kind,
            kernel: self.kernel.clone(),
            stride: self.stride.clone(),
            padding: self.borders(),
            dilation: self.dilation.clone(),
        };
        b.op(op, std::slice::from_ref(x))
    }

    /// Returns the elements of every window as new last dims, over the padded input.
    fn window_elements(&self, b: &mut Recorder, x: &Tensor, fill: Scalar) -> Recorded {
        let first_axis = x.ndim() - self.spatial();
        let mut y = x.clone();
        for (a, &(low, high)) in self.borders().iter().enumerate() {
            let extent = &x.dims()[first_axis + a];
            let (k, s, d) = (self.kernel[a], self.stride[a], self.dilation[a]);
            let count = window_extent(extent, &Dim::from(k), s, (low, high), d)?;
            y = b.pad_axis(&y, first_axis + a, low, high, fill)?;
            y = windows(b, &y, first_axis + a, &count, k as i64, s as i64, d as i64)?;
        }
        Ok(y)
    }
}

pub(crate) fn check_input(spatial: usize, x: &Tensor) -> Result<(), OpError> {
    check_rank(spatial, x)?;
    for a in x.ndim() - spatial - 1..x.ndim() {
        ensure!(!x.dims()[a].is(0), "dim {a} of {} is empty", x.fact());
    }
    Ok(())
}

macro_rules! max_pools {
    ($($(#[$doc:meta])* $name:ident $with_indices:ident $spatial:literal;)*) => {
        #[on_cells]
        impl Tensor {
            $($(#[$doc])*
            #[autocast]
            pub fn $name(&self, pool: impl Into<Pool>) -> Tensor {
                compose(stringify!($name), &[self], |b| {
                    check_input($spatial, self)?;
                    Windows::new($spatial, &pool)?.reduce(b, Reduction::Max, self)
                })
            }

            /// The same, and the position of each maximum in its plane, row-major, as i64.
            #[autocast]
            pub fn $with_indices(&self, pool: impl Into<Pool>) -> (Tensor, Tensor) {
                compose_pair(stringify!($name), &[self], |b| {
                    check_input($spatial, self)?;
                    let windows = Windows::new($spatial, &pool)?;
                    Ok((
                        windows.reduce(b, Reduction::Max, self)?,
                        max_positions(b, self, &windows)?,
                    ))
                })
            })*
        }
    };
}

max_pools! {
    /// The maxima of sliding windows over `[n, c, l]` (or `[c, l]`).
    max_pool1d max_pool1d_with_indices 1;
    /// The maxima of sliding windows over `[n, c, h, w]` (or `[c, h, w]`); see [`Pool`].
    max_pool2d max_pool2d_with_indices 2;
    /// The maxima of sliding windows over `[n, c, d, h, w]` (or `[c, d, h, w]`).
    max_pool3d max_pool3d_with_indices 3;
}

/// The smallest number of a dtype, the identity of the maximum.
fn lowest(dtype: DType) -> Scalar {
    match (dtype.kind(), dtype.int_range()) {
        (Kind::Float, _) => Scalar::Float(f64::NEG_INFINITY),
        (_, Some((low, _))) => Scalar::Int(low as i64),
        _ => Scalar::Int(0),
    }
}

/// Returns the position in its plane of the first maximum of each window.
fn max_positions(b: &mut Recorder, x: &Tensor, w: &Windows) -> Recorded {
    let spatial = w.spatial();
    let first_axis = x.ndim() - spatial;
    let elements = w.window_elements(b, x, lowest(x.dtype()))?;
    let mut shape = Shape::from(&elements.dims()[..x.ndim()]);
    let out = shape.clone();
    shape.push(w.kernel.iter().fold(Dim::ONE, |a, k| &a * &Dim::from(*k)));
    let flat = b.reshape(&elements, &shape)?;
    let op = ops::ArgReduce {
        kind: Reduction::Max,
        axis: x.ndim(),
    };
    // Splits the index within the window into an index along each of its axes.
    let mut flat_index = b.op(op, &[flat])?;
    let mut plane = b.full(0i64, DType::I64, &out)?;
    let mut stride = Dim::ONE;
    for a in (0..spatial).rev() {
        let k = w.kernel[a] as i64;
        let tap = b.with(Pw::Remainder, &flat_index, k)?;
        flat_index = b.with(Pw::FloorDivide, &flat_index, k)?;
        let window = b.iota(&out[first_axis + a])?;
        let start = b.with(Pw::Mul, &window, w.stride[a] as i64)?;
        let start = b.with(Pw::Sub, &start, w.padding[a] as i64)?;
        let start = b.reshape_along(&start, first_axis + a, x.ndim())?;
        let tap = b.with(Pw::Mul, &tap, w.dilation[a] as i64)?;
        let position = b.binary(Pw::Add, &start, &tap)?;
        let position = b.with_size(Pw::Mul, &position, &stride)?;
        plane = b.binary(Pw::Add, &plane, &position)?;
        stride = &stride * &x.dims()[first_axis + a];
    }
    Ok(plane)
}

macro_rules! average_pools {
    ($($(#[$doc:meta])* $name:ident $spatial:literal;)*) => {
        #[on_cells]
        impl Tensor {
            $($(#[$doc])*
            #[autocast]
            pub fn $name(&self, pool: impl Into<AvgPool>) -> Tensor {
                compose(stringify!($name), &[self], |b| {
                    check_input($spatial, self)?;
                    average(b, $spatial, self, pool)
                })
            })*
        }
    };
}

average_pools! {
    /// The means of sliding windows over `[n, c, l]` (or `[c, l]`).
    avg_pool1d 1;
    /// The means of sliding windows over `[n, c, h, w]` (or `[c, h, w]`).
    avg_pool2d 2;
    /// The means of sliding windows over `[n, c, d, h, w]` (or `[c, d, h, w]`).
    avg_pool3d 3;
}

fn average(b: &mut Recorder, spatial: usize, t: &Tensor, pool: AvgPool) -> Recorded {
    let (count_include_pad, divisor_override) = (pool.count_include_pad, pool.divisor_override);
    let w = &Windows::new(
        spatial,
        &Pool {
            kernel_size: pool.kernel_size,
            stride: pool.stride,
            padding: pool.padding,
            dilation: 1.into(),
            ceil_mode: pool.ceil_mode,
        },
    )?;
    ensure!(t.dtype() != DType::Bool, "is not defined on bool");
    ensure!(divisor_override != Some(0), "the divisor can't be 0");
    let x = b.widen(t)?;
    let sum = w.reduce(b, Reduction::Sum, &x)?;
    let first_axis = x.ndim() - w.spatial();
    let window_size: usize = w.kernel.iter().product();
    let uniform = w.padding.iter().all(|p| *p == 0) || count_include_pad;
    let y = match divisor_override {
        Some(divisor) => b.with(Pw::Div, &sum, divisor)?,
        None if uniform && !w.ceil_mode => b.with(Pw::Div, &sum, window_size as i64)?,
        None => {
            // The number of elements that each window covers, computed axis by axis.
            let mut y = sum.clone();
            let mut divisor = b.scalar_like(1i64, &sum)?;
            for a in 0..w.spatial() {
                let (n, count) = (&x.dims()[first_axis + a], &sum.dims()[first_axis + a]);
                let counts = count_covered(b, n, count, a, w, count_include_pad)?;
                let counts = b.cast(&counts, sum.dtype())?;
                let counts = b.reshape_along(&counts, a, w.spatial())?;
                divisor = b.binary(Pw::Mul, &divisor, &counts)?;
            }
            y = b.binary(Pw::Div, &y, &divisor)?;
            y
        }
    };
    b.narrowed(&y, t.dtype())
}

/// Returns the number of elements that each of `count` windows covers along axis `a` of size `n`.
fn count_covered(
    b: &mut Recorder,
    n: &Dim,
    count: &Dim,
    a: usize,
    w: &Windows,
    include_pad: bool,
) -> Recorded {
    let (k, s, p) = (w.kernel[a] as i64, w.stride[a] as i64, w.padding[a] as i64);
    let window = b.iota(count)?;
    let start = b.with(Pw::Mul, &window, s)?;
    let mut start = b.with(Pw::Sub, &start, p)?;
    let end = b.with(Pw::Add, &start, k)?;
    let mut limit = n + &Dim::Const(p);
    if !include_pad {
        (start, limit) = (b.with(Pw::Maximum, &start, 0i64)?, n.clone());
    }
    let end = b.with_size(Pw::Minimum, &end, &limit)?;
    b.binary(Pw::Sub, &end, &start)
}

#[on_cells]
impl Tensor {
    /// The windows of `[n, c, h, w]` (or `[c, h, w]`) as columns: `[n, c · kh · kw, windows]`
    /// (`torch.nn.functional.unfold`, im2col).
    pub fn im2col(&self, windows: impl Into<Im2Col>) -> Tensor {
        compose("im2col", &[self], |b| {
            check_input(2, self)?;
            let w = Windows {
                kernel: windows.kernel_size.for_axes(2, "the kernel size", 1)?,
                stride: windows.stride.for_axes(2, "the stride", 1)?,
                padding: windows.padding.for_axes(2, "the padding", 0)?,
                dilation: windows.dilation.for_axes(2, "the dilation", 1)?,
                ceil_mode: false,
            };
            with_batch_dim(b, 2, self, |b, x| {
                // [n, c, oh, ow, kh, kw] to [n, c, kh, kw, oh, ow].
                let y = w.window_elements(b, x, Scalar::Int(0))?;
                let y = b.permute(&y, &[0, 1, 4, 5, 2, 3])?;
                let d = y.dims();
                let shape = [d[0].clone(), numel(&d[1..4]), numel(&d[4..6])];
                b.reshape(&y, &shape)
            })
        })
    }
}
