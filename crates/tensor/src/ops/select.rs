//! Elements selected by a condition.
//!
//! The number of elements depends on values, so these operations compute their mask and record ordinary gathers with
//! the positions found. Inside `compile` no value is known, so there they are errors.

use super::host;
use crate::operand::AsTensor;
use crate::record::compose;
use crate::{DType, Result, Tensor, set_device};
use kiln_base::prim::ScanKind;
use kiln_base::{Dim, numel};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, broadcast_shapes, ensure};
use std::panic::Location;

/// Returns the positions of the nonzero elements of a mask (or of any tensor), in row-major order: one i64 vector for
/// each dim. The mask is computed.
#[track_caller]
pub(crate) fn nonzero_vectors(mask: &Tensor) -> Result<Vec<Tensor>> {
    let positions = host::nonzero_positions(mask)?;
    let shape = mask.shape()?;
    let columns = shape.iter().map(|_| host::reserve(positions.len()));
    let mut columns = columns.collect::<Result<Vec<_>>>()?;
    for position in positions {
        let mut remaining = position;
        for (column, &extent) in columns.iter_mut().zip(&shape).rev() {
            column.push(remaining % extent as i64);
            remaining /= extent as i64;
        }
    }
    Ok(columns
        .iter()
        .map(|c| host::vector(c, mask.device()))
        .collect())
}

/// True if a tensor in brackets is a mask rather than an index. As in PyTorch, u8 is a mask.
pub(crate) fn is_mask(t: &Tensor) -> bool {
    matches!(t.dtype(), DType::Bool | DType::U8)
}

#[on_cells]
impl Tensor {
    /// The positions of the nonzero elements, in row-major order: i64 `[count, rank]`. Computes this tensor.
    ///
    /// ```
    /// use kiln_tensor::Tensor;
    /// let x = Tensor::from_slice(&[0i64, 5, 7, 0], [2, 2]);
    /// assert_eq!(x.nonzero().to_vec::<i64>()?, [0, 1, 1, 0]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn nonzero(&self) -> Tensor {
        let columns = match nonzero_vectors(self) {
            Ok(columns) => columns,
            Err(e) => return Tensor::poisoned(e, Location::caller()),
        };
        if columns.is_empty() {
            let count = host::nonzero_positions(self).map(|positions| positions.len());
            let _here = set_device(self.device());
            return Tensor::zeros([count.unwrap_or(0), 0], DType::I64);
        }
        compose("nonzero", &columns.iter().collect::<Vec<_>>(), |b| {
            let columns = columns.iter().map(|c| b.unsqueeze(c, 1));
            let columns = columns.collect::<std::result::Result<Vec<_>, _>>()?;
            b.concat(&columns, 1)
        })
    }

    /// [`Tensor::nonzero`] under its NumPy name.
    pub fn argwhere(&self) -> Tensor {
        self.nonzero()
    }

    /// [`Tensor::nonzero`] as one i64 vector for each dim, which together index this tensor. A number counts as a
    /// vector of one element.
    pub fn nonzero_as_tuple(&self) -> Vec<Tensor> {
        let x = compose("nonzero", &[self], |b| super::index::as_vector(b, self));
        let count = x.ndim();
        nonzero_vectors(&x).unwrap_or_else(|e| vec![Tensor::poisoned(e, Location::caller()); count])
    }

    /// The elements where the mask (bool, both broadcast) is true, as a vector. Computes the mask.
    pub fn masked_select(&self, mask: impl AsTensor) -> Tensor {
        let shaped = compose("masked_select", &[self, mask], |b| {
            needs_mask(mask)?;
            let shape = shared_shape(self, mask)?;
            let mask = b.broadcast_to(mask, &shape)?;
            b.reshape(&mask, &[numel(&shape)])
        });
        let positions = host::nonzero_positions(&shaped)
            .map(|positions| host::vector(&positions, shaped.device()));
        let positions = host::or_poisoned(positions);
        compose("masked_select", &[self, &positions], |b| {
            let shape = shared_shape(self, mask)?;
            let x = b.broadcast_to(self, &shape)?;
            let x = b.reshape(&x, &[numel(&shape)])?;
            b.gather(&x, 0, &positions)
        })
    }

    /// This tensor with the elements of `source`, in order, at the positions where the mask (bool, both broadcast) is
    /// true. A source with fewer elements than positions is a data error.
    pub fn masked_scatter(&self, mask: impl AsTensor, source: impl AsTensor) -> Tensor {
        compose("masked_scatter", &[self, mask, source], |b| {
            needs_mask(mask)?;
            super::args::check_alike(self, "tensor", source, "source")?;
            let shape = shared_shape(self, mask)?;
            let (x, mask) = (b.broadcast_to(self, &shape)?, b.broadcast_to(mask, &shape)?);
            let flat = b.reshape(&mask, &[numel(&shape)])?;
            // Position n takes element n of the source. Other positions read the padding in front.
            let number = b.cast(&flat, DType::I64)?;
            let number = b.scan(ScanKind::Sum, &number, 0)?;
            let zero = b.scalar_like(0i64, &number)?;
            let number = b.select(&flat, &number, &zero)?;
            let source = b.reshape(source, &[source.fact().numel()])?;
            let source = b.pad_axis(&source, 0, Dim::ONE, Dim::ZERO, 0i64)?;
            let placed = b.gather(&source, 0, &number)?;
            let placed = b.reshape(&placed, &shape)?;
            b.select(&mask, &placed, &x)
        })
    }
}

fn needs_mask(mask: &Tensor) -> std::result::Result<(), OpError> {
    ensure!(
        mask.dtype() == DType::Bool,
        "the mask must be bool, not {}",
        mask.dtype()
    );
    Ok(())
}

/// The shape that a tensor and its mask broadcast to.
fn shared_shape(x: &Tensor, mask: &Tensor) -> std::result::Result<kiln_ir::Shape, OpError> {
    broadcast_shapes([x.dims(), mask.dims()]).ok_or_else(|| {
        OpError(format!(
            "{} and the mask {} do not broadcast together",
            x.fact(),
            mask.fact()
        ))
    })
}
