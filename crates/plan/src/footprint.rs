//! Footprints: the elements that kernels touch.

use crate::dims::dims;
use crate::tile::Bound;
use crate::{Matrix, Strided};
use kiln_base::{Dim, numel};
use serde::{Deserialize, Serialize};

/// A footprint: the elements of an argument that a kernel touches. They are `offset + Σ strides · index` for every
/// index of a box that is within all bounds. Binding a plan proves that they lie within the argument, whatever the
/// kernel's code is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// The argument's index.
    pub arg: u16,
    /// The extents of the box.
    pub extents: Vec<Dim>,
    /// The element at index zero.
    pub offset: Dim,
    /// The strides, one per axis of the box.
    pub strides: Vec<Dim>,
    /// The conditions that must all hold, or else nothing is touched.
    pub bounds: Vec<Bound>,
}

dims!(Footprint: extents, offset, strides, bounds; arg);

impl Footprint {
    /// Returns the first elements of an argument, as many as the product of these extents.
    pub fn whole<'a>(arg: u16, extents: impl IntoIterator<Item = &'a Dim>) -> Footprint {
        let extents: Vec<Dim> = extents.into_iter().cloned().collect();
        Footprint {
            arg,
            extents: vec![numel(&extents)],
            offset: Dim::ZERO,
            strides: vec![Dim::ONE],
            bounds: Vec::new(),
        }
    }
}

impl Matrix {
    /// Returns the footprint of a batch of matrices with `rows` rows and `columns` columns.
    pub fn footprint(&self, batch: &[Dim], rows: &Dim, columns: &Dim) -> Footprint {
        let strides = self.batch_strides.iter().chain([&self.row, &self.col]);
        Footprint {
            arg: self.arg,
            extents: batch.iter().chain([rows, columns]).cloned().collect(),
            offset: self.offset.clone(),
            strides: strides.cloned().collect(),
            bounds: Vec::new(),
        }
    }
}

impl Strided {
    /// Returns the footprint of a box of these extents.
    pub fn footprint(&self, extents: &[Dim]) -> Footprint {
        Footprint {
            arg: self.arg,
            extents: extents.to_vec(),
            offset: self.offset.clone(),
            strides: self.strides.clone(),
            bounds: Vec::new(),
        }
    }
}
