//! Squares of vectors, multiplied by a matrix from both sides: `L · x · Lᵀ`.
//!
//! The transforms of Winograd convolutions have this form. Elements of a square are vectors over channels. A
//! [`Transform`] is emitted as straight-line code for a vector of each element, in a loop over the channels. Without
//! emission, a portable loop computes it.

#[cfg(all(target_arch = "x86_64", not(portable), unix))]
pub(super) mod emit;
#[cfg(test)]
mod tests;

use super::epilogue::RegisterEpilogue;
use super::footprint::Footprint;
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
use crate::emission::cache;
use kiln_base::{DType, Features};
use kiln_kernel::view::span;
use kiln_plan::Rows;
use std::sync::Arc;

/// A transform of f32. Strides are in bytes.
#[derive(Clone, Debug)]
pub struct Transform {
    pub level: Features,
    /// A row of coefficients for each row of the result.
    pub matrix: &'static Rows,
    /// The dtype of the square. Elements of f16 and bf16 are widened as they are loaded.
    pub reads: DType,
    /// The strides of rows and columns of the square.
    pub from: [i64; 2],
    /// The strides of the result; with an epilogue, in rows of its result.
    pub to: [i64; 2],
    /// The number of channels, which are contiguous.
    pub channels: u32,
    /// The number of rows and columns of the result that are written.
    pub kept: [u8; 2],
    /// The epilogue of the results, which then stores its own results.
    pub epilogue: Option<Arc<RegisterEpilogue>>,
}

impl Transform {
    /// Returns a readable name.
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    pub(super) fn name(&self) -> String {
        let epilogue = self.epilogue.as_ref().map_or("", |_| ", with an epilogue");
        let (level, channels, [rows, columns]) = (self.level, self.channels, self.kept);
        format!("transform, {level:?} to {rows}x{columns}, {channels} channels{epilogue}")
    }

    /// True if code can be emitted for the level and the epilogue.
    pub fn is_emitted(&self) -> bool {
        let is_small = |n: i64| n.saturating_abs() < 1 << 26;
        let have_small_strides = self.from.into_iter().chain(self.to).all(is_small);
        let rows = 4 * (self.to[0] + self.to[1]);
        let has_large_stride = |p: &super::epilogue::BodyAccess| {
            !is_small(rows.saturating_mul(p.row.saturating_mul(p.size as i64)))
        };
        let is_epilogue_emitted = self.epilogue.as_ref().is_none_or(|epilogue| {
            epilogue.locations.len() <= POINTERS
                && !epilogue.locations.iter().flatten().any(has_large_stride)
        });
        let is_x86 = cfg!(all(target_arch = "x86_64", not(portable), unix));
        is_x86 && self.level != Features::BASELINE && have_small_strides && is_epilogue_emitted
    }

    /// Returns the bytes that a call accesses.
    pub(super) fn footprint(&self) -> Footprint {
        let (side, channels) = (self.matrix[0].len() as i64, i64::from(self.channels));
        let [rows, columns] = self.kept.map(i64::from);
        let grid = |extents: [i64; 2], [row_stride, column_stride]: [i64; 2], bytes: i64| {
            let [min, max] = span([(extents[0], row_stride), (extents[1], column_stride)]);
            [min, max - 1 + bytes]
        };
        let read = channels * self.reads.size() as i64;
        Footprint {
            left: grid([side; 2], self.from, read),
            out: grid([rows, columns], self.to, channels * 4),
            rows: grid([rows, columns], self.to, 1),
            columns: channels,
            ..Footprint::default()
        }
    }

    /// Returns everything that emitted code depends on.
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    pub(super) fn key(&self) -> Vec<u8> {
        let coefficients: Vec<Vec<u64>> = (self.matrix.iter())
            .map(|row| row.iter().map(|x| x.to_bits()).collect())
            .collect();
        let strides = [self.from, self.to];
        let sizes = (self.channels, self.kept, strides, &self.epilogue);
        cache::key(b'w', &(self.level, self.reads, coefficients, sizes))
    }
}

/// The maximum number of accesses of an epilogue.
const POINTERS: usize = 10;
