//! Matrix products that cuBLASLt computes.

use crate::contract::{Contract, Contradiction, Described, Draft, Reads};
use crate::{Dims, Footprint, Matrix};
use kiln_base::{DType, Dim};
use serde::{Deserialize, Serialize};

/// A plain matrix product of known sizes by an algorithm of cuBLASLt. The algorithm is for one version of the library
/// and one kind of GPU, so files hold no such kernel. Nothing can keep the library from writing its result: a step of
/// it has no guard and writes no donated memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryProduct {
    /// The dtype of the operands: f32, f16, bf16 or i8.
    pub dtype: DType,
    /// The dtype of the result.
    pub stored: DType,
    /// True if f32 operands are rounded to TF32.
    pub tf32: bool,
    /// The number of products.
    pub batch: i64,
    /// The number of rows of the result.
    pub m: i64,
    /// The length of the sums.
    pub k: i64,
    /// The number of columns of the result.
    pub n: i64,
    /// The operands A and B.
    pub operands: [LibraryMatrix; 2],
    /// The contiguous result's argument.
    pub out: u16,
    /// The argument with the workspace, of bytes, if it needs one.
    pub workspace: Option<u16>,
    /// The bytes of the workspace.
    pub workspace_bytes: u64,
    /// The library's description of its algorithm (`cublasLtMatmulAlgo_t`).
    pub algorithm: [u64; 8],
}

impl Dims for LibraryProduct {
    fn all_dims(&self, _: &mut dyn FnMut(&Dim) -> bool) -> bool {
        true
    }
}

/// A batch of matrices whose rows or columns are contiguous.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryMatrix {
    /// The argument's index.
    pub arg: u16,
    /// The offset in elements.
    pub offset: i64,
    /// True if columns are contiguous, and not rows.
    pub transposed: bool,
    /// The distance of rows, or of columns if these are contiguous.
    pub leading: i64,
    /// The distance of matrices; 0 if all products share one.
    pub batch_stride: i64,
}

impl LibraryMatrix {
    /// Returns matrices as the library sees them; `None` if it can't: neither rows nor columns are contiguous, or the
    /// matrices are not evenly spaced.
    pub fn new(x: &Matrix, batch: &[i64], [rows, columns]: [i64; 2]) -> Option<LibraryMatrix> {
        let strides = x.batch_strides.iter().map(Dim::as_const);
        let strides = strides.collect::<Option<Vec<i64>>>()?;
        let mut batch_stride = None;
        // From the innermost batch dim outwards: its stride, and the required stride of the next.
        for (extent, stride) in batch.iter().zip(&strides).rev().filter(|(n, _)| **n != 1) {
            let (_, expected) = *batch_stride.get_or_insert((*stride, *stride));
            if expected != *stride {
                return None;
            }
            batch_stride = batch_stride.map(|(first, _)| (first, stride * extent));
        }
        let (row, column) = (x.row.as_const()?, x.col.as_const()?);
        // The distance of lines of which there is only one does not matter.
        let leading = |lines: i64, stride: i64, len: i64| if lines == 1 { len } else { stride };
        let by_rows = (column == 1 || columns == 1).then(|| leading(rows, row, columns));
        let by_columns = (row == 1 || rows == 1).then(|| leading(columns, column, rows));
        let (transposed, leading) = match (by_rows, by_columns) {
            (Some(leading), _) if leading >= columns => (false, leading),
            (_, Some(leading)) if leading >= rows => (true, leading),
            _ => return None,
        };
        Some(LibraryMatrix {
            arg: x.arg,
            offset: x.offset.as_const()?,
            transposed,
            leading,
            batch_stride: batch_stride.map_or(0, |(first, _)| first),
        })
    }

    fn footprint(&self, batch: i64, [rows, columns]: [i64; 2]) -> Footprint {
        let [row, column] = match self.transposed {
            false => [self.leading, 1],
            true => [1, self.leading],
        };
        Footprint {
            arg: self.arg,
            extents: [batch, rows, columns].map(Dim::from).into(),
            offset: self.offset.into(),
            strides: [self.batch_stride, row, column].map(Dim::from).into(),
            bounds: Vec::new(),
        }
    }
}

impl Described for LibraryProduct {
    fn name(&self) -> &str {
        "cublaslt"
    }

    fn contract(&self) -> Result<Contract, Contradiction> {
        let mut draft = Draft::new(self.name());
        for x in &self.operands {
            draft.reads(x.arg, self.dtype, Reads::Throughout)?;
        }
        draft.writes(self.out, self.stored)?;
        if let Some(workspace) = self.workspace {
            draft.writes(workspace, DType::U8)?;
        }
        draft.finish(0)
    }

    fn operations(&self) -> Dim {
        let sizes = [2, self.batch, self.m, self.k, self.n].map(Dim::from);
        sizes.iter().fold(Dim::ONE, |n, d| &n * d)
    }

    fn footprints(&self) -> Vec<Footprint> {
        let LibraryProduct { batch, m, k, n, .. } = *self;
        let [a, b] = &self.operands;
        let result = [batch, m, n].map(Dim::from);
        let mut footprints = vec![
            a.footprint(batch, [m, k]),
            b.footprint(batch, [k, n]),
            Footprint::whole(self.out, &result),
        ];
        let bytes = Dim::from(self.workspace_bytes as i64);
        footprints.extend((self.workspace).map(|arg| Footprint::whole(arg, [&bytes])));
        footprints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(batch: &[[i64; 2]], sizes: [i64; 2], strides: [i64; 2]) -> Option<(bool, i64, i64)> {
        let [extents, steps] = [0, 1].map(|i| batch.iter().map(|b| b[i]).collect::<Vec<i64>>());
        let matrix = Matrix {
            arg: 0,
            offset: Dim::Const(3),
            batch_strides: steps.into_iter().map(Dim::from).collect(),
            row: strides[0].into(),
            col: strides[1].into(),
        };
        let x = LibraryMatrix::new(&matrix, &extents, sizes)?;
        assert_eq!((x.arg, x.offset), (0, 3));
        Some((x.transposed, x.leading, x.batch_stride))
    }

    #[test]
    fn matrices_are_seen_by_rows_or_columns() {
        assert_eq!(seen(&[], [3, 5], [5, 1]), Some((false, 5, 0)));
        assert_eq!(seen(&[], [3, 5], [8, 1]), Some((false, 8, 0)));
        assert_eq!(seen(&[], [3, 5], [1, 3]), Some((true, 3, 0)));
        // One row or column, at any distance.
        assert_eq!(seen(&[], [1, 5], [0, 1]), Some((false, 5, 0)));
        assert_eq!(seen(&[], [1, 5], [7, 2]), Some((true, 2, 0)));
        assert_eq!(seen(&[], [3, 1], [4, 9]), Some((false, 4, 0)));
        assert_eq!(seen(&[], [1, 1], [0, 0]), Some((false, 1, 0)));
        // Every other element, and rows that are repeated or overlap.
        assert_eq!(seen(&[], [3, 5], [10, 2]), None);
        assert_eq!(seen(&[], [3, 5], [0, 1]), None);
        assert_eq!(seen(&[], [3, 5], [2, 1]), None);
    }

    #[test]
    fn batches_are_evenly_spaced() {
        let of = |batch: &[[i64; 2]]| seen(batch, [3, 5], [5, 1]).map(|(_, _, stride)| stride);
        assert_eq!(of(&[[4, 15]]), Some(15));
        assert_eq!(of(&[[2, 60], [4, 15]]), Some(15));
        assert_eq!(of(&[[2, 0], [4, 0]]), Some(0));
        assert_eq!(of(&[[2, 60], [1, 7], [4, 15], [1, 0]]), Some(15));
        assert_eq!(of(&[[2, 0], [4, 15]]), None);
        assert_eq!(of(&[[2, 15], [4, 0]]), None);
        assert_eq!(of(&[[2, 61], [4, 15]]), None);
    }
}
