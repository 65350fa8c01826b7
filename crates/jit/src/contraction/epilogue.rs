//! Epilogues that are applied to the accumulators of a register tile while they are in registers.
//!
//! An epilogue of a product or convolution is a tile program over the linear index space of the results. If each of its
//! accesses has one stride from row to row, and a stride of 1 or 0 from column to column, its code is emitted after the
//! sums, which it reads from registers.

use kiln_kernel::bound::Bound;
use kiln_kernel::view::Arguments;
use smallvec::SmallVec;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

#[cfg(all(target_arch = "x86_64", not(portable), unix))]
use {
    crate::emission::{Target, lines::Lines, stage::Body},
    kiln_base::DType,
    kiln_kernel::{affine::Affine, bound::BoundAccess},
    kiln_plan::tile::Inst,
};

/// The addresses of the accesses of an epilogue.
pub struct Accesses<'a> {
    /// The addresses for the first result, and the strides from row to row and from column to column, in bytes; null
    /// for the accumulators themselves.
    first: SmallVec<[(*mut u8, [isize; 2]); 8]>,
    current: SmallVec<[*mut u8; 8]>,
    epilogue: Option<&'a RegisterEpilogue>,
    arguments: PhantomData<Arguments<'a>>,
}

impl<'a> Accesses<'a> {
    /// Makes the addresses of an epilogue, if there is one.
    ///
    /// # Panics
    /// If arguments are shorter than those that it was bound for.
    #[inline]
    pub fn of(epilogue: Option<&'a RegisterEpilogue>, args: &Arguments<'a>) -> Accesses<'a> {
        let bound = epilogue.map_or(&[][..], |f| &f.sizes);
        let fit = bound
            .iter()
            .zip(args.sizes())
            .all(|(bound, size)| bound <= size);
        assert!(
            fit && bound.len() <= args.sizes().len(),
            "arguments are too short"
        );
        let location = |location: &Option<BodyAccess>| match location {
            None => (std::ptr::null_mut(), [0; 2]),
            Some(p) => {
                let bytes = |n: i64| n as isize * p.size as isize;
                (
                    args.addresses()[p.arg].wrapping_offset(bytes(p.offset)),
                    [p.row, p.column].map(bytes),
                )
            }
        };
        let first: SmallVec<[(*mut u8, [isize; 2]); 8]> = epilogue
            .iter()
            .flat_map(|f| &f.locations)
            .map(location)
            .collect();
        Accesses {
            current: first.iter().map(|location| location.0).collect(),
            first,
            epilogue,
            arguments: PhantomData,
        }
    }

    /// Returns the addresses for the result in this row and column.
    #[inline]
    pub(super) fn at(&mut self, (row, column): (i64, i64)) -> &[*mut u8] {
        for (address, (first, [row_stride, column_stride])) in
            self.current.iter_mut().zip(&self.first)
        {
            *address =
                first.wrapping_offset(row as isize * row_stride + column as isize * column_stride);
        }
        &self.current
    }

    /// As [`Accesses::at`], for code of the `expected` epilogue, which accesses rows from `min_row` to `max_row` and
    /// this number of columns, relative to `at`.
    ///
    /// # Panics
    /// If there are no such results, or these are the addresses of another epilogue.
    #[inline]
    pub(super) fn checked(
        &mut self,
        expected: &RegisterEpilogue,
        at: (i64, i64),
        [min_row, max_row]: [i64; 2],
        columns: i64,
    ) -> *const *mut u8 {
        let epilogue = self
            .epilogue
            .filter(|epilogue| std::ptr::eq(*epilogue, expected) || *epilogue == expected);
        let is_inside = epilogue.is_some_and(|epilogue| {
            at.0 + min_row >= 0
                && at.0 + max_row <= epilogue.rows
                && at.1 >= 0
                && at.1 + columns <= epilogue.width
        });
        assert!(is_inside, "an epilogue outside its results");
        self.at(at).as_ptr()
    }
}

/// An epilogue on the accumulators of a tile.
#[derive(Debug)]
pub struct RegisterEpilogue {
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    pub(super) body: Body,
    /// The location of each access of the body; `None` for the accumulators themselves.
    pub(super) locations: Vec<Option<BodyAccess>>,
    /// Everything that emitted code depends on.
    key: Vec<u8>,
    /// The number of rows of all results, and of columns.
    rows: i64,
    width: i64,
    /// The sizes of the arguments without the accumulators, in bytes.
    sizes: Vec<usize>,
}

/// The location of an access of the body.
#[derive(Clone, Debug)]
pub(super) struct BodyAccess {
    pub arg: usize,
    pub size: usize,
    /// The offset of the first result, and the strides from row to row and from column to column (0 or 1), in elements.
    pub offset: i64,
    pub row: i64,
    pub column: i64,
}

impl PartialEq for RegisterEpilogue {
    fn eq(&self, other: &RegisterEpilogue) -> bool {
        self.key == other.key
    }
}
impl Eq for RegisterEpilogue {}
impl Hash for RegisterEpilogue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl RegisterEpilogue {
    /// Returns the epilogue on rows of `width` results, if it can be emitted after accumulators of 32 bits.
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    pub fn of(
        bound: &Bound,
        width: i64,
        level: kiln_kernel::simd::Features,
    ) -> Option<RegisterEpilogue> {
        let program = bound.program;
        let target = Target::of(level)?;
        let stages = &program.stages;
        let is_simple = program.slots.is_empty() && bound.outer.is_empty();
        if !is_simple || stages.iter().any(|s| s.over_inner) {
            return None;
        }
        let raw = bound.lens.len() - 1;
        // Instructions that depend on the position, or that may fail, can't follow accumulators.
        let is_unsupported = |inst: &Inst| match inst {
            Inst::Index { .. } | Inst::LoadAt { .. } => true,
            Inst::Binary { op, a, .. } => {
                op.divides() && !program.registers[usize::from(a.0)].is_float()
            }
            _ => false,
        };
        if stages.iter().flat_map(|s| &s.code).any(is_unsupported) {
            return None;
        }
        let body = Body {
            registers: program.registers.clone(),
            constants: program.constants.clone(),
            dtypes: (program.accesses.iter())
                .map(|a| program.args[usize::from(a.arg)].dtype)
                .collect(),
            code: stages.iter().flat_map(|s| s.code.iter().cloned()).collect(),
            ..Body::default()
        };
        let is_written = |i: usize| {
            let stores =
                |c: &Inst| matches!(c, Inst::Store { access, .. } if usize::from(*access) == i);
            body.code.iter().any(stores)
        };
        let location = |(i, access): (usize, &BoundAccess)| -> Option<Option<BodyAccess>> {
            if access.arg == Some(raw) {
                let has_32_bits = matches!(body.dtypes[i], DType::F32 | DType::I32);
                let is_accumulator = has_32_bits && !is_written(i);
                return is_accumulator.then_some(None);
            }
            let (row, column) = rows(&access.address, &bound.lane, width)?;
            let fits = access.limits.is_empty() && (column == 1 || column == 0 && !is_written(i));
            let size = body.dtypes[i].size();
            fits.then_some(Some(BodyAccess {
                arg: access.arg?,
                size,
                offset: access.address.offset,
                row,
                column,
            }))
        };
        let locations = bound.accesses.iter().take(program.accesses.len());
        let locations: Vec<Option<BodyAccess>> =
            locations.enumerate().map(location).collect::<Option<_>>()?;
        // Checks that the code can be emitted.
        RegisterEpilogue::lines(&body, target)?;
        let mut key = body.cache_key(target);
        for location in &locations {
            let location = location.as_ref().map_or([-1, -1], |p| [p.row, p.column]);
            location.iter().for_each(|n| key.extend(n.to_le_bytes()));
        }
        let has_small_stride = |p: &BodyAccess| {
            p.row
                .checked_mul(32 * p.size as i64)
                .is_some_and(|n| n.abs() < 1 << 30)
        };
        let have_small_strides = locations.iter().flatten().all(has_small_stride);
        have_small_strides.then_some(RegisterEpilogue {
            rows: bound.axes_len() * bound.inner_len() / width.max(1),
            width,
            sizes: bound.sizes().take(raw).collect(),
            body,
            locations,
            key,
        })
    }

    /// Always `None`: code is never emitted here.
    #[cfg(not(all(target_arch = "x86_64", not(portable), unix)))]
    pub fn of(_: &Bound, _: i64, _: kiln_kernel::simd::Features) -> Option<RegisterEpilogue> {
        None
    }

    /// Returns the instructions as vector code.
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    pub(super) fn lines(body: &Body, target: Target) -> Option<Lines> {
        body.lines(target, &body.code, &[]).ok()
    }

    /// Returns the largest stride of an access from row to row, in bytes.
    pub(super) fn farthest_row(&self) -> i64 {
        let row_bytes = |p: &BodyAccess| p.row.saturating_abs().saturating_mul(p.size as i64);
        self.locations
            .iter()
            .flatten()
            .map(row_bytes)
            .max()
            .unwrap_or(0)
    }
}

/// Returns the strides of an access from row to row, and from column to column, of a space of rows of `width` elements;
/// `None` if there is no single stride.
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
fn rows(address: &Affine, extents: &[i64], width: i64) -> Option<(i64, i64)> {
    // The (extent, stride) of the axes of a row, and of the preceding ones, in reverse; one axis may be part of both.
    let (mut columns, mut rows) = (vec![], vec![]);
    if extents.contains(&0) || width == 0 {
        return None;
    }
    let mut remaining = width;
    for (extent, stride) in extents.iter().zip(&address.strides).rev() {
        if remaining == 1 {
            rows.push((*extent, *stride));
        } else if remaining % extent == 0 {
            columns.push((*extent, *stride));
            remaining /= extent;
        } else if extent % remaining == 0 {
            columns.push((remaining, *stride));
            rows.push((extent / remaining, stride * remaining));
            remaining = 1;
        } else {
            return None;
        }
    }
    let single_stride = |axes: &[(i64, i64)]| -> Option<i64> {
        let mut axes = axes.iter().filter(|(extent, _)| *extent != 1);
        let Some((extent, first_stride)) = axes.next() else {
            return Some(0);
        };
        let mut next = first_stride * extent;
        for (extent, stride) in axes {
            if *stride != next {
                return None;
            }
            next *= extent;
        }
        Some(*first_stride)
    };
    // A single column does not determine a stride.
    let column = if width == 1 {
        1
    } else {
        single_stride(&columns)?
    };
    (remaining == 1).then_some((single_stride(&rows)?, column))
}

#[cfg(all(test, target_arch = "x86_64", not(portable), unix))]
mod tests {
    use super::*;

    #[test]
    fn rows_and_columns_of_a_space_are_found() {
        let strides_of = |extents: &[i64], strides: &[i64], width| {
            let address = Affine {
                offset: 3,
                strides: strides.to_vec(),
            };
            rows(&address, extents, width)
        };
        // Everything in one axis, with rows of 5; a bias; a residual; one element per row.
        assert_eq!(strides_of(&[30], &[1], 5), Some((5, 1)));
        assert_eq!(strides_of(&[6, 5], &[0, 1], 5), Some((0, 1)));
        assert_eq!(strides_of(&[2, 3, 5], &[15, 5, 1], 5), Some((5, 1)));
        assert_eq!(strides_of(&[6, 5], &[1, 0], 5), Some((1, 0)));
        // Rows of two axes, and axes that don't make rows.
        assert_eq!(strides_of(&[4, 2, 3], &[6, 3, 1], 6), Some((6, 1)));
        assert_eq!(strides_of(&[4, 2, 3], &[6, 1, 2], 6), None);
        assert_eq!(strides_of(&[2, 3, 5], &[5, 0, 1], 5), None);
        assert_eq!(strides_of(&[4, 6], &[6, 1], 4), None);
        assert_eq!(strides_of(&[1, 7], &[9, 1], 7), Some((0, 1)));
    }
}
