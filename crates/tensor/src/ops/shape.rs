//! Views: the same elements in other shapes and orders.

use super::args::{DimArg, DimArgs, Int, axis, check_addressable, new_axis};
use crate::operand::AsTensor;
use crate::record::{Recorded, Recorder, compose, view_of};
use crate::{Error, ErrorKind, IntoShape, Result, Tensor};
use kiln_base::{Dim, numel};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Shape, ensure};
use std::panic::Location;

/// Returns the shape with its one −1 replaced by the size that gives the right number of elements.
fn infer_size(total: &Dim, shape: &[Dim]) -> std::result::Result<Shape, OpError> {
    let mut dims = Shape::from(shape);
    let unknown: Vec<usize> = (0..shape.len()).filter(|i| shape[*i].is(-1)).collect();
    let known = shape.iter().filter_map(Dim::as_const);
    ensure!(
        known.min().is_none_or(|d| d >= -1),
        "a size can't be negative in {shape:?}"
    );
    match unknown[..] {
        [] => {}
        [at] => {
            dims[at] = Dim::ONE;
            let known = numel(&dims);
            ensure!(
                !known.is(0),
                "−1 in {shape:?} could be any size, because the other sizes make no elements"
            );
            dims[at] = total.div_exact(&known).map_err(|_| {
                OpError(format!("{total} elements do not fill the shape {shape:?}"))
            })?;
        }
        _ => return Err(OpError(format!("{shape:?} has more than one −1"))),
    }
    Ok(dims)
}

#[on_cells]
impl Tensor {
    /// The sizes as an array: PyTorch's `n, c, h, w = x.size()`.
    ///
    /// ```
    /// use kiln_tensor::{DType, Tensor};
    /// let x = Tensor::ones([2, 3, 4, 5], DType::F32);
    /// let [n, c, h, w] = x.size()?;
    /// assert_eq!(x.reshape((n, c, h * w)).shape()?, [2, 3, 20]);
    /// assert!(x.size::<3>().is_err(), "x has four dims");
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the tensor has another number of dims, or as [`Tensor::shape`].
    pub fn size<const N: usize>(&self) -> Result<[usize; N]> {
        let loc = Location::caller();
        <[usize; N]>::try_from(self.shape()?).map_err(|shape| {
            let message = format!("the shape {shape:?} has {} dims, not {N}", shape.len());
            Error::new(ErrorKind::Value, "size", message, loc)
        })
    }

    /// The elements in row-major order in another shape; one size may be −1 and is inferred.
    pub fn reshape(&self, shape: impl IntoShape) -> Tensor {
        view_of("reshape", &[self], |b| {
            let shape = infer_size(&self.fact().numel(), &shape)?;
            b.reshape(self, &shape)
        })
    }

    /// Like [`Tensor::reshape`], but an error where PyTorch would have to copy. After a transpose, for example, dims
    /// can be split but not merged. Kiln could do it, and `reshape` does; the check is for code that relies on
    /// sharing memory.
    ///
    /// ```
    /// use kiln_tensor::{DType, Tensor};
    /// let x = Tensor::ones([4, 4], DType::F32);
    /// assert_eq!(x.view([-1, 8]).shape()?, [2, 8]);
    /// assert!(x.t().view([16]).error().is_some());
    /// assert_eq!(x.t().reshape([16]).shape()?, [16]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn view(&self, shape: impl IntoShape) -> Tensor {
        view_of("view", &[self], |b| {
            let shape = infer_size(&self.fact().numel(), &shape)?;
            view(b, self, &shape)
        })
    }

    /// The elements in the shape of another tensor.
    pub fn view_as(&self, other: impl AsTensor) -> Tensor {
        view_of("view_as", &[self, other], |b| view(b, self, other.dims()))
    }

    /// Broadcasts dims of size 1 and prepends dims; −1 keeps a dim's size.
    pub fn expand(&self, shape: impl IntoShape) -> Tensor {
        view_of("expand", &[self], |b| {
            ensure!(
                shape.len() >= self.ndim(),
                "{shape:?} has fewer dims than {}",
                self.fact()
            );
            let added = shape.len() - self.ndim();
            let mut out = Shape::new();
            for (i, d) in shape.iter().enumerate() {
                out.push(match d.as_const() {
                    Some(-1) if i >= added => self.dims()[i - added].clone(),
                    None | Some(0..) => d.clone(),
                    Some(_) => {
                        return Err(OpError(format!(
                            "the size {d} of dim {i} in {shape:?} keeps no dim of {}",
                            self.fact()
                        )));
                    }
                });
            }
            check_addressable(&out, self.dtype())?;
            b.broadcast_to(self, &out)
        })
    }

    /// Broadcasts dims of size 1 and prepends dims.
    pub fn broadcast_to(&self, shape: impl IntoShape) -> Tensor {
        self.expand(shape)
    }

    /// Broadcasts to the shape of another tensor.
    pub fn expand_as(&self, other: impl AsTensor) -> Tensor {
        view_of("expand_as", &[self, other], |b| {
            b.broadcast_to(self, other.dims())
        })
    }

    /// The view whose dim i is this tensor's dim `dims[i]`.
    pub fn permute(&self, dims: impl Into<DimArgs>) -> Tensor {
        view_of("permute", &[self], |b| {
            ensure!(
                dims.0.len() == self.ndim(),
                "{:?} names {} dims, but {} has {}",
                dims.0,
                dims.0.len(),
                self.fact(),
                self.ndim()
            );
            let perm = dims.axes(self)?;
            b.permute(self, &perm)
        })
    }

    /// Swaps two dims.
    pub fn transpose(&self, dim0: impl Into<DimArg>, dim1: impl Into<DimArg>) -> Tensor {
        view_of("transpose", &[self], |b| {
            if self.ndim() == 0 {
                DimArgs::from(&dim0).axes(self)?;
                DimArgs::from(&dim1).axes(self)?;
                return Ok(self.clone());
            }
            let mut perm: Vec<usize> = (0..self.ndim()).collect();
            perm.swap(axis(self, &dim0)?, axis(self, &dim1)?);
            b.permute(self, &perm)
        })
    }

    /// The transpose of a matrix; vectors and numbers are unchanged.
    pub fn t(&self) -> Tensor {
        view_of("t", &[self], |b| {
            ensure!(
                self.ndim() <= 2,
                "{} has more than 2 dims; use transpose",
                self.fact()
            );
            let perm: Vec<usize> = (0..self.ndim()).rev().collect();
            b.permute(self, &perm)
        })
    }

    /// Removes dims of size 1: those given, or none for `()` (see [`Tensor::squeeze_all`]).
    pub fn squeeze(&self, dims: impl Into<DimArgs>) -> Tensor {
        view_of("squeeze", &[self], |b| {
            let mut axes = dims.axes(self)?;
            axes.retain(|a| self.dims()[*a].is(1));
            b.squeeze(self, &axes)
        })
    }

    /// Removes every dim of size 1.
    pub fn squeeze_all(&self) -> Tensor {
        view_of("squeeze", &[self], |b| {
            let unit_axes: Vec<usize> =
                (0..self.ndim()).filter(|a| self.dims()[*a].is(1)).collect();
            b.squeeze(self, &unit_axes)
        })
    }

    /// Inserts a dim of size 1 that becomes dim `dim` of the result.
    pub fn unsqueeze(&self, dim: impl Into<Int>) -> Tensor {
        view_of("unsqueeze", &[self], |b| {
            let axis = new_axis(self, dim)?;
            b.unsqueeze(self, axis)
        })
    }

    /// Merges neighbouring dims: from the first to the second of `dims`, from a single one to the last, or all for
    /// `()`.
    ///
    /// ```
    /// use kiln_tensor::{DType, Tensor};
    /// let x = Tensor::zeros([2, 3, 4, 5], DType::F32);
    /// assert_eq!(x.flatten(1).shape()?, [2, 60]);
    /// assert_eq!(x.flatten((1, 2)).shape()?, [2, 12, 5]);
    /// assert_eq!(x.flatten(()).shape()?, [120]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn flatten(&self, dims: impl Into<DimArgs>) -> Tensor {
        view_of("flatten", &[self], |b| {
            let (start_dim, end_dim) = match &dims.0[..] {
                [] => (DimArg::Index(0), DimArg::Index(-1)),
                [start] => (start.clone(), DimArg::Index(-1)),
                [start, end] => (start.clone(), end.clone()),
                _ => return Err(OpError(format!("takes up to 2 dims, not {:?}", dims.0))),
            };
            if self.ndim() == 0 {
                DimArgs::from(&start_dim).axes(self)?;
                DimArgs::from(&end_dim).axes(self)?;
                return b.reshape(self, &[Dim::ONE]);
            }
            let (start, end) = (axis(self, &start_dim)?, axis(self, &end_dim)?);
            ensure!(
                start <= end,
                "start_dim {start_dim} comes after end_dim {end_dim}"
            );
            let mut shape = Shape::from(&self.dims()[..start]);
            shape.push(numel(&self.dims()[start..=end]));
            shape.extend(self.dims()[end + 1..].iter().cloned());
            let y = b.reshape(self, &shape)?;
            Ok(y.with_names_of(self, |names| {
                names.splice(start..=end, [None]);
            }))
        })
    }

    /// Splits a dim into several; one of their sizes may be −1.
    pub fn unflatten(&self, dim: impl Into<DimArg>, sizes: impl IntoShape) -> Tensor {
        view_of("unflatten", &[self], |b| {
            let at = axis(self, &dim)?;
            ensure!(!sizes.is_empty(), "dim {dim} can't become no dims");
            let inferred = infer_size(&self.dims()[at], &sizes)?;
            ensure!(
                numel(&inferred) == self.dims()[at],
                "{:?} does not multiply to the size {} of dim {dim}",
                sizes,
                self.dims()[at]
            );
            let mut shape = Shape::from(&self.dims()[..at]);
            shape.extend(inferred);
            shape.extend(self.dims()[at + 1..].iter().cloned());
            b.reshape(self, &shape)
        })
    }

    /// Moves the dims `source` to the positions `destination`; the others keep their order.
    pub fn movedim(&self, source: impl Into<DimArgs>, destination: impl Into<DimArgs>) -> Tensor {
        view_of("movedim", &[self], |b| {
            ensure!(
                source.0.len() == destination.0.len(),
                "the source dims {:?} and the destinations {:?} differ in number",
                source.0,
                destination.0
            );
            let (from, to) = (source.axes(self)?, destination.axes(self)?);
            let mut other_axes = (0..self.ndim()).filter(|a| !from.contains(a));
            let perm: Vec<usize> = (0..self.ndim())
                .map(|i| match to.iter().position(|t| *t == i) {
                    Some(at) => Some(from[at]),
                    None => other_axes.next(),
                })
                .collect::<Option<_>>()
                .ok_or_else(|| OpError::new("the destinations are not distinct"))?;
            b.permute(self, &perm)
        })
    }

    /// `[.., c · r², h, w]` rearranged to `[.., c, h · r, w · r]` (Shi et al., 2016).
    pub fn pixel_shuffle(&self, upscale_factor: impl Into<Int>) -> Tensor {
        compose("pixel_shuffle", &[self], |b| {
            let n = image_rank(self)?;
            ensure!(
                upscale_factor > 0,
                "the factor must be positive, not {upscale_factor}"
            );
            let r = Dim::Const(upscale_factor);
            let channels = self.dims()[n - 3].div_exact(&(&r * &r));
            let channels = channels.map_err(|e| OpError(format!("the channels: {e}")))?;
            let (h, w) = (self.dims()[n - 2].clone(), self.dims()[n - 1].clone());
            let lead = &self.dims()[..n - 3];
            let split = concat_shape(lead, [&channels, &r, &r, &h, &w]);
            let x = b.reshape(self, &split)?;
            let k = n - 3;
            let mut perm: Vec<usize> = (0..k).collect();
            perm.extend([k, k + 3, k + 1, k + 4, k + 2]);
            let x = b.permute(&x, &perm)?;
            b.reshape(&x, &concat_shape(lead, [&channels, &(&h * &r), &(&w * &r)]))
        })
    }

    /// `[.., c, h · r, w · r]` rearranged to `[.., c · r², h, w]`: the inverse of
    /// [`Tensor::pixel_shuffle`].
    pub fn pixel_unshuffle(&self, downscale_factor: impl Into<Int>) -> Tensor {
        compose("pixel_unshuffle", &[self], |b| {
            let n = image_rank(self)?;
            ensure!(
                downscale_factor > 0,
                "the factor must be positive, not {downscale_factor}"
            );
            let r = Dim::Const(downscale_factor);
            let c = self.dims()[n - 3].clone();
            let divide = |d: &Dim| d.div_exact(&r).map_err(|e| OpError(e.to_string()));
            let (h, w) = (divide(&self.dims()[n - 2])?, divide(&self.dims()[n - 1])?);
            let lead = &self.dims()[..n - 3];
            let x = b.reshape(self, &concat_shape(lead, [&c, &h, &r, &w, &r]))?;
            let k = n - 3;
            let mut perm: Vec<usize> = (0..k).collect();
            perm.extend([k, k + 2, k + 4, k + 1, k + 3]);
            let x = b.permute(&x, &perm)?;
            b.reshape(&x, &concat_shape(lead, [&(&(&c * &r) * &r), &h, &w]))
        })
    }

    /// `[n, groups · c, ..]` with its channels reordered so that groups alternate.
    pub fn channel_shuffle(&self, groups: impl Into<Int>) -> Tensor {
        compose("channel_shuffle", &[self], |b| {
            ensure!(self.ndim() > 2, "{} has fewer than 3 dims", self.fact());
            ensure!(groups > 0, "groups must be positive, not {groups}");
            let g = Dim::Const(groups);
            let c = self.dims()[1].div_exact(&g);
            let c = c.map_err(|e| OpError(format!("the channels: {e}")))?;
            let mut split = Shape::from(self.dims());
            split[1] = g;
            split.insert(2, c);
            let x = b.reshape(self, &split)?;
            let mut perm: Vec<usize> = (0..split.len()).collect();
            perm.swap(1, 2);
            let x = b.permute(&x, &perm)?;
            b.reshape(&x, self.dims())
        })
    }
}

fn view(b: &mut Recorder, x: &Tensor, shape: &[Dim]) -> Recorded {
    let y = b.reshape(x, shape)?;
    ensure!(
        x.is_viewable(shape),
        "{} with strides {:?} can't be viewed as {shape:?} without a copy, because at least one dim \
         would span two that do not lie together in memory; use reshape",
        x.fact(),
        x.strides()
    );
    Ok(y)
}

fn image_rank(t: &Tensor) -> std::result::Result<usize, OpError> {
    ensure!(
        t.ndim() >= 3,
        "{} has no channels, height and width",
        t.fact()
    );
    Ok(t.ndim())
}

fn concat_shape<const N: usize>(lead: &[Dim], tail: [&Dim; N]) -> Shape {
    lead.iter().chain(tail).cloned().collect()
}
