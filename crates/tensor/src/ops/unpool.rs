//! The inverse of max pooling.

use super::args::known;
use super::conv::with_batch_dim;
use super::pool::Unpool;
use crate::operand::AsTensor;
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Tensor};
use kiln_base::prim::ScatterKind;
use kiln_base::{Dim, numel};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Shape, ensure};

macro_rules! unpools {
    ($($(#[$doc:meta])* $name:ident $spatial:literal;)*) => {
        #[on_cells]
        impl Tensor {
            $($(#[$doc])*
            #[autocast]
            pub fn $name(&self, indices: impl AsTensor, windows: impl Into<Unpool>) -> Tensor {
                unpool(stringify!($name), $spatial, self, indices, &windows)
            })*
        }
    };
}

unpools! {
    /// `[n, c, l]` (or `[c, l]`) written to the positions that [`Tensor::max_pool1d_with_indices`] returned, zeros
    /// elsewhere. Of several elements for one position, the last is kept.
    max_unpool1d 1;
    /// `[n, c, h, w]` (or `[c, h, w]`) written to the positions that [`Tensor::max_pool2d_with_indices`] returned,
    /// zeros elsewhere. Of several elements for one position, the last is kept.
    max_unpool2d 2;
    /// `[n, c, d, h, w]` (or `[c, d, h, w]`) written to the positions that [`Tensor::max_pool3d_with_indices`]
    /// returned, zeros elsewhere. Of several elements for one position, the last is kept.
    max_unpool3d 3;
}

#[track_caller]
fn unpool(
    called: &'static str,
    spatial: usize,
    t: &Tensor,
    indices: &Tensor,
    windows: &Unpool,
) -> Tensor {
    compose(called, &[t, indices], |b| {
        super::pool::check_input(spatial, t)?;
        super::index::check_index(indices, "indices")?;
        b.indexed_by("indices", indices);
        ensure!(
            indices.dims() == t.dims(),
            "the indices {} do not have the shape of {}",
            indices.fact(),
            t.fact()
        );
        let size = output_size(spatial, t, windows)?;
        with_batch_dim(b, spatial, t, |b, x| {
            let indices = b.reshape(indices, x.dims())?;
            scatter_planes(b, x, &indices, &size)
        })
    })
}

/// The spatial sizes of the result.
fn output_size(spatial: usize, t: &Tensor, windows: &Unpool) -> Result<Shape, OpError> {
    let kernel = windows
        .kernel_size
        .for_axes(spatial, "the kernel size", 1)?;
    let stride = super::pool::stride_or_kernel(&windows.stride, &kernel)?;
    let padding = windows.padding.for_axes(spatial, "the padding", 0)?;
    let wanted = &windows.output_size;
    // A full output size begins with the leading dims of the tensor.
    let wanted = match wanted.0.len() {
        n if n == t.ndim() => &wanted.0[n - spatial..],
        _ => &wanted.0[..],
    };
    ensure!(
        wanted.is_empty() || wanted.len() == spatial,
        "the output size needs {spatial} numbers, not {wanted:?}"
    );
    let mut size = Shape::new();
    for a in 0..spatial {
        let n = known(t, t.ndim() - spatial + a)?;
        let (k, s, p) = (kernel[a] as i128, stride[a] as i128, padding[a] as i128);
        let usual = (i128::from(n) - 1) * s - 2 * p + k;
        let out = wanted.get(a).map_or(usual, |out| i128::from(*out));
        ensure!(
            wanted.is_empty() || (usual - s < out && out < usual + s),
            "the output size {out} differs from {usual} by a stride of {s} or more"
        );
        ensure!(out >= 0, "the output size can't be negative ({out})");
        let out = i64::try_from(out);
        size.push(
            out.map_err(|_| OpError(format!("the output size {usual} is too large")))?
                .into(),
        );
    }
    Ok(size)
}

/// Writes the elements of each plane to their positions in a larger plane of zeros.
fn scatter_planes(b: &mut Recorder, x: &Tensor, indices: &Tensor, size: &Shape) -> Recorded {
    let lead = Shape::from(&x.dims()[..2]);
    let plane = |n: Dim| -> Shape { lead.iter().cloned().chain([n]).collect() };
    let from = plane(numel(&x.dims()[2..]));
    let (x, flat_indices) = (b.reshape(x, &from)?, b.reshape(indices, &from)?);
    super::args::check_addressable(&plane(numel(size)), DType::F64)?;
    let zeros = b.full(0i64, x.dtype(), &plane(numel(size)))?;
    let y = b.scatter(ScatterKind::Set, &zeros, 2, &flat_indices, &x)?;
    let shape: Shape = lead.iter().chain(size).cloned().collect();
    b.reshape(&y, &shape)
}
