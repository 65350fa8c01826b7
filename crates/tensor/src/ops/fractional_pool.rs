//! Pooling by windows at random distances.

use super::args::known;
use super::numbers::IntList;
use super::pool::check_input;
use crate::options::{Settings, options};
use crate::record::{SOURCE, compose};
use crate::{DType, Tensor, set_device};
use kiln_base::Dim;
use kiln_derive::on_cells;
use kiln_ir::{OpError, ensure};
use kiln_lazy::caller::on_behalf_of_caller;

options! {
    /// The windows of a fractional max pooling. Either their number or its ratio to the input's size is given.
    /// Numbers are given one for each spatial dim, or one for all.
    FractionalPool (
        /// The size of a window.
        kernel_size: IntList
    ) {
        /// The number of windows; `()` if `output_ratio` is given.
        output_size: IntList = (),
        /// The ratio of the number of windows to the number of elements, between 0 and 1; `()` if `output_size` is
        /// given.
        output_ratio: Ratios = (),
        ;
        /// Numbers from 0 to 1 that determine the positions of the windows, `[n, c, spatial]`; drawn if not given.
        random_samples,
    }
}

/// A list of factors: a number, an array or a vector of them, or `()` for none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ratios(pub Vec<f64>);

impl From<()> for Ratios {
    fn from((): ()) -> Ratios {
        Ratios::default()
    }
}

impl From<f64> for Ratios {
    fn from(ratio: f64) -> Ratios {
        Ratios(vec![ratio])
    }
}

impl<const N: usize> From<[f64; N]> for Ratios {
    fn from(ratios: [f64; N]) -> Ratios {
        Ratios(ratios.to_vec())
    }
}

impl From<Vec<f64>> for Ratios {
    fn from(ratios: Vec<f64>) -> Ratios {
        Ratios(ratios)
    }
}

impl Settings for FractionalPool {
    fn check(&self) -> Result<(), OpError> {
        let ratios = &self.output_ratio.0;
        ensure!(
            self.output_size.0.is_empty() != ratios.is_empty(),
            "needs either an output_size or an output_ratio"
        );
        if let Some(r) = ratios.iter().find(|r| !(0.0 < **r && **r < 1.0)) {
            return Err(OpError(format!(
                "output_ratio must lie between 0 and 1, not {r}"
            )));
        }
        Ok(())
    }
}

impl FractionalPool {
    /// Returns the size of each spatial axis, the size of its windows, and their number.
    fn axes(&self, spatial: usize, x: &Tensor) -> Result<Vec<[i64; 3]>, OpError> {
        check_input(spatial, x)?;
        self.check()?;
        let kernel = self.kernel_size.for_axes(spatial, "the kernel size", 1)?;
        let ratios = &self.output_ratio.0;
        let count = ratios.len();
        ensure!(
            [0, 1, spatial].contains(&count),
            "output_ratio needs one number or {spatial}, not {ratios:?}"
        );
        let sizes = match count {
            0 => self
                .output_size
                .for_axes(spatial, "the output size", 0)?
                .into_iter()
                .map(|n| n as i64)
                .collect(),
            _ => Vec::new(),
        };
        let axis = |a: usize| {
            let (n, k) = (known(x, x.ndim() - spatial + a)?, kernel[a] as i64);
            let windows = sizes
                .get(a)
                .copied()
                .unwrap_or_else(|| (n as f64 * ratios[a % count]) as i64);
            let fit = k.checked_add(windows).is_some_and(|end| end - 1 <= n);
            ensure!(
                fit,
                "{windows} windows of {k} do not fit into {n} elements of {}",
                x.fact()
            );
            Ok([n, k, windows])
        };
        (0..spatial).map(axis).collect()
    }
}

macro_rules! fractional_pools {
    ($($(#[$doc:meta])* $name:ident $with_indices:ident $spatial:literal;)*) => {
        #[on_cells]
        impl Tensor {
            $($(#[$doc])*
            pub fn $name(&self, pool: FractionalPool) -> Tensor {
                self.$with_indices(pool).0
            }

            /// The same, and the position of each maximum in its plane, row-major, as i64.
            #[autocast]
            pub fn $with_indices(&self, pool: FractionalPool) -> (Tensor, Tensor) {
                on_behalf_of_caller(SOURCE, || pool_windows(stringify!($name), $spatial, self, &pool))
            })*
        }
    };
}

fractional_pools! {
    /// The maxima of windows over `[n, c, h, w]` (or `[c, h, w]`) at random distances, each an integer next to the
    /// average distance (Graham, "Fractional Max-Pooling", 2014).
    ///
    /// ```
    /// use kiln_tensor::{DType, FractionalPool, Tensor};
    /// let x = Tensor::rand([4, 3, 32, 32], DType::F32);
    /// let y = x.fractional_max_pool2d(FractionalPool::new(2).output_size([20, 24]));
    /// assert_eq!(y.shape()?, [4, 3, 20, 24]);
    /// let y = x.fractional_max_pool2d(FractionalPool::new(3).output_ratio(0.7));
    /// assert_eq!(y.shape()?, [4, 3, 22, 22]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    fractional_max_pool2d fractional_max_pool2d_with_indices 2;
    /// The maxima of windows over `[n, c, d, h, w]` (or `[c, d, h, w]`) at random distances: the two integers next to
    /// the average distance.
    fractional_max_pool3d fractional_max_pool3d_with_indices 3;
}

#[track_caller]
fn pool_windows(
    called: &'static str,
    spatial: usize,
    x: &Tensor,
    pool: &FractionalPool,
) -> (Tensor, Tensor) {
    let mut axes = Vec::new();
    let checked = compose(called, &[x], |_| {
        axes = pool.axes(spatial, x)?;
        Ok(x.clone())
    });
    if checked.error().is_some() {
        return (checked.clone(), checked);
    }
    let batch = if x.ndim() > spatial + 1 {
        x.clone()
    } else {
        x.unsqueeze(0)
    };
    let _here = set_device(x.device());
    let planes = &batch.dims()[..2];
    let shape = [planes, &[Dim::from(spatial)]].concat();
    let samples = match &pool.random_samples {
        Some(given_samples) => compose(called, &[given_samples], |_| {
            ensure!(
                given_samples.dims() == shape,
                "random_samples must be {shape:?}, not {}",
                given_samples.fact()
            );
            Ok(given_samples.clone())
        }),
        None => Tensor::rand(&shape, super::short::wide(x.dtype())).to(x.device()),
    };
    // The position of each element of each window in its plane: [n, c, windows .., elements of a window ..].
    let mut positions = Tensor::zeros((), DType::I64);
    for (a, &[n, k, windows]) in axes.iter().enumerate() {
        let starts = starts(&samples.select(2, sample(spatial, a)), [n, k, windows]);
        let mut shape = [planes, &vec![Dim::ONE; 2 * spatial][..]].concat();
        (shape[2 + a], shape[2 + spatial + a]) = (windows.into(), k.into());
        let elements = starts.unsqueeze(-1) + Tensor::arange(0, k, 1);
        positions = positions * n + elements.reshape(shape);
    }
    let positions = positions.flatten(2 + spatial);
    let plane = batch.flatten(2);
    let elements = plane
        .gather(2, positions.flatten(2))
        .reshape(positions.dims());
    let largest = elements.argmax(-1).unsqueeze(-1);
    let pooled = (
        elements.gather(-1, &largest).squeeze(-1),
        positions.gather(-1, &largest).squeeze(-1),
    );
    match x.ndim() > spatial + 1 {
        true => pooled,
        false => (pooled.0.squeeze(0), pooled.1.squeeze(0)),
    }
}

/// The index of the sample that places the windows along an axis. In 2 dims, PyTorch reads the width's sample first.
fn sample(spatial: usize, axis: usize) -> i64 {
    (if spatial == 2 { 1 - axis } else { axis }) as i64
}

/// The starts of the windows of an axis, from samples `[n, c]`: `⌊(i + u) a⌋ − ⌊u a⌋`, the last one at the end.
#[track_caller]
fn starts(samples: &Tensor, [n, k, windows]: [i64; 3]) -> Tensor {
    let last = n - k;
    let step = Tensor::from(last as f64 / (windows - 1).max(1) as f64).to_dtype(samples.dtype());
    let u = samples.detach().unsqueeze(-1);
    let i = Tensor::arange(0, windows, 1);
    let starts = ((&i + &u) * &step).floor() - (u * step).floor();
    let starts = starts.to_dtype(DType::I64).clamp(0, last);
    super::index::where_(i.eq(windows - 1), last, starts)
}
