//! Tensor maps: parameters by which kernels copy boxes of memory.

use super::driver::{MAP, encode_tensor_map};
use kiln_base::{DType, Dim};
use kiln_kernel::error::{Result, damaged};
use kiln_plan::cuda::{Boxes, CudaKernel, TensorMap};

/// A tensor map with known sizes.
pub(super) struct Map {
    /// The index of the argument.
    pub(super) arg: usize,
    name: String,
    dtype: DType,
    /// The bytes before the first element.
    offset: u64,
    extents: Vec<u64>,
    /// In bytes, without that of the contiguous dimension.
    strides: Vec<u64>,
    boxes: Boxes,
    /// True if elements of f32 are rounded to TF32.
    rounds_to_tf32: bool,
}

impl Map {
    /// The map of a kernel, if symbols have these values.
    ///
    /// # Errors
    /// If it has no argument, or a size exceeds the range of coordinates.
    pub(super) fn new(kernel: &CudaKernel, map: &TensorMap, values: &[i64]) -> Result<Map> {
        let TensorMap {
            arg,
            offset,
            extents,
            strides,
            boxes,
            rounds_to_tf32,
        } = map;
        let invalid = || damaged!("{}: an invalid tensor map", kernel.name);
        let pointer = kernel.args.get(usize::from(*arg)).ok_or_else(invalid)?;
        let bytes = pointer.dtype.size() as u64;
        let number = |d: &Dim| {
            let value = d.eval_checked(values).and_then(|n| u64::try_from(n).ok());
            value.ok_or_else(invalid)
        };
        let extent = |d| {
            let n = number(d)?;
            let fits = n <= i32::MAX as u64;
            if fits { Ok(n) } else { Err(invalid()) }
        };
        let extents = extents.iter().map(extent).collect::<Result<Vec<u64>>>()?;
        let (min_dimensions, dimensions) = match boxes {
            Boxes::Tiled(boxes) => (1, boxes.len()),
            Boxes::Im2col(im2col) => (3, im2col.paths.len() + 2),
        };
        if !(min_dimensions..=5).contains(&dimensions)
            || extents.len() != dimensions
            || strides.len() + 1 != dimensions
            || *rounds_to_tf32 && pointer.dtype != DType::F32
        {
            return Err(invalid());
        }
        let strides = strides.iter().map(|d| Ok(number(d)?.saturating_mul(bytes)));
        Ok(Map {
            arg: usize::from(*arg),
            name: kernel.name.clone(),
            dtype: pointer.dtype,
            offset: number(offset)?.saturating_mul(bytes),
            extents,
            strides: strides.collect::<Result<_>>()?,
            boxes: boxes.clone(),
            rounds_to_tf32: *rounds_to_tf32,
        })
    }

    /// The map for memory at an address.
    ///
    /// # Errors
    /// If the driver refuses it.
    pub(super) fn encode(&self, address: u64) -> Result<[u64; MAP]> {
        if self.extents.contains(&0) {
            // No map can describe an empty tensor, and none of its boxes is copied.
            return Ok([0; MAP]);
        }
        let encoded = encode_tensor_map(
            (self.dtype, self.rounds_to_tf32),
            address.wrapping_add(self.offset),
            [&self.extents, &self.strides],
            &self.boxes,
        );
        encoded.map_err(|failure| {
            let (name, extents, strides) = (&self.name, &self.extents, &self.strides);
            failure.of(&format!(
                "a tensor map of {name}: {extents:?} by {strides:?} bytes"
            ))
        })
    }
}
