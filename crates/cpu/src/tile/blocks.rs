//! Blocking of transposes. If consecutive elements in memory belong to different rows of the result, blocks of rows and
//! columns are computed at once, and each cache line is read once.

use super::code::{Call, Op};
use super::load::{args_of, is_direct};
use super::pieces::{is_plain, restrict};
use super::walk::Walk;
use kiln_base::{DType, Dim};
use kiln_kernel::affine::{eval, extent};
use kiln_kernel::element::Elem;
use kiln_kernel::error::Result;
use kiln_kernel::simd::transpose::{Transpose, TransposeKernel};
use kiln_kernel::simd::{Features, Isa, Kernel, compiled};
use kiln_kernel::sums::Lane;
use kiln_plan::tile::{Access, Bound, Inst, Schedule, TileProgram};
use std::marker::PhantomData;

/// The rows of a block; this many f32 fill a cache line.
const ROWS: i64 = 16;
/// The candidates for the columns of a block. The largest that fits is taken.
const COLUMNS: [i64; 3] = [32, 16, 8];

/// Returns the program over full blocks and the programs of the remaining rows and columns. The list is empty if no
/// load is transposed.
///
/// # Errors
/// If its sizes have no values.
pub(crate) fn split(program: &TileProgram, values: &[i64]) -> Result<Vec<TileProgram>> {
    if !is_plain(program) || program.schedule != Schedule::Lanes {
        return Ok(Vec::new());
    }
    let mut program = program.clone();
    merge_axes(&mut program, values)?;
    let Some([row, column]) = transposed_axes(&program, values)? else {
        return Ok(Vec::new());
    };
    let (rows, columns) = (
        extent(&program.axes[row], values)?,
        extent(&program.axes[column], values)?,
    );
    let Some(width) = COLUMNS.into_iter().find(|n| *n <= columns) else {
        return Ok(Vec::new());
    };
    let (full_rows, full_columns) = (rows / ROWS * ROWS, columns / width * width);
    let full = restrict(
        &restrict(&program, row, (0, full_rows)),
        column,
        (0, full_columns),
    );
    let mut programs = vec![split_axes(full, [(row, ROWS), (column, width)], values)?];
    if full_columns < columns {
        let right_edge = restrict(&program, row, (0, full_rows));
        programs.push(restrict(&right_edge, column, (full_columns, columns)));
    }
    if full_rows < rows {
        programs.push(restrict(&program, row, (full_rows, rows)));
    }
    Ok(programs)
}

/// Returns the axis along which a load is contiguous, if that is not the last axis, and the last axis. Stores are
/// contiguous along the last axis.
fn transposed_axes(program: &TileProgram, values: &[i64]) -> Result<Option<[usize; 2]>> {
    let Some(last) = program.axes.len().checked_sub(1) else {
        return Ok(None);
    };
    let mut axes = None;
    for inst in &program.stages[0].code {
        let (access, is_store) = match inst {
            Inst::Load { access, .. } => (*access, false),
            Inst::Store { access, .. } => (*access, true),
            _ => continue,
        };
        let strides = &program.accesses[usize::from(access)].strides;
        let stride = eval(&strides[last], values)?;
        if is_store && stride != 1 {
            return Ok(None);
        }
        if is_store || matches!(stride, 0 | 1) {
            continue;
        }
        for (axis, stride) in strides[..last].iter().enumerate() {
            if eval(stride, values)? == 1 && extent(&program.axes[axis], values)? >= ROWS {
                axes = Some([axis, last]);
            }
        }
    }
    Ok(axes)
}

/// Returns every list of a program with a stride per axis.
fn strides(program: &mut TileProgram) -> impl Iterator<Item = &mut Vec<Dim>> {
    let accesses = program.accesses.iter_mut().flat_map(|a| {
        let Access {
            strides, bounds, ..
        } = a;
        let bounds = bounds.iter_mut().map(|Bound { strides, .. }| strides);
        std::iter::once(strides).chain(bounds)
    });
    let code = program.stages[0].code.iter_mut();
    accesses.chain(code.filter_map(|inst| match inst {
        Inst::Index { strides, .. } => Some(strides),
        _ => None,
    }))
}

/// Merges neighbouring axes that are contiguous for all accesses.
fn merge_axes(program: &mut TileProgram, values: &[i64]) -> Result<()> {
    for i in (1..program.axes.len()).rev() {
        let inner = extent(&program.axes[i], values)?;
        let mut is_contiguous = true;
        for s in strides(program) {
            let (outer_stride, inner_stride) = (eval(&s[i - 1], values)?, eval(&s[i], values)?);
            is_contiguous &= inner_stride.checked_mul(inner) == Some(outer_stride);
        }
        if is_contiguous {
            let outer = program.axes.remove(i - 1);
            program.axes[i - 1] = &program.axes[i - 1] * &outer;
            strides(program).for_each(|s| drop(s.remove(i - 1)));
        }
    }
    Ok(())
}

/// Returns the program with two axes split by the given factors; the inner axes come last. Extents are multiples of the
/// factors.
fn split_axes(
    mut program: TileProgram,
    splits: [(usize, i64); 2],
    values: &[i64],
) -> Result<TileProgram> {
    let [row, column] = splits.map(|(axis, _)| axis);
    let regroup = |dims: &mut Vec<Dim>, [rows, columns]: [[Dim; 2]; 2]| {
        dims.remove(row.max(column));
        dims.remove(row.min(column));
        let ([a, b], [c, d]) = (rows, columns);
        dims.extend([a, c, b, d]);
    };
    let extents = splits.map(|(axis, by)| (extent(&program.axes[axis], values), by));
    let [rows, columns] = extents.map(|(n, by)| n.map(|n| [Dim::from(n / by), Dim::from(by)]));
    regroup(&mut program.axes, [rows?, columns?]);
    for s in strides(&mut program) {
        let pairs = splits.map(|(axis, by)| [&s[axis] * &Dim::from(by), s[axis].clone()]);
        regroup(s, pairs);
    }
    Ok(program)
}

/// Consecutive rows whose starts have a stride of one element.
#[derive(Copy, Clone, Default, PartialEq)]
struct Rows {
    lane: usize,
    address: i64,
    stride: i64,
    columns: usize,
    count: usize,
}

impl Rows {
    /// True if `row` continues these rows.
    fn is_followed_by(&self, row: &Rows) -> bool {
        let next = Rows {
            lane: self.lane + self.count * self.columns,
            address: self.address + self.count as i64,
            count: 1,
            ..*self
        };
        *row == next
    }
}

/// Copies rows to their lanes.
///
/// # Safety
/// The elements exist, and there is room for them.
#[inline(always)]
unsafe fn transpose_rows<I: Isa, T: Lane>(rows: Rows, memory: *const T, lanes: *mut T) {
    let from = memory.wrapping_offset(rows.address as isize);
    // SAFETY: the caller's.
    unsafe {
        let to = lanes.add(rows.lane);
        if rows.count <= 1 {
            match rows.stride {
                1 => (0..rows.columns).for_each(|i| *to.add(i) = *from.add(i)),
                stride => (0..rows.columns)
                    .for_each(|i| *to.add(i) = *from.offset(i as isize * stride as isize)),
            }
            return;
        }
        TransposeKernel::run::<I>(Transpose {
            from,
            pitch: rows.stride as isize,
            rows: rows.columns,
            columns: rows.count,
            to,
            to_pitch: rows.columns as isize,
        });
    }
}

/// A load of elements whose register type is their memory type, which transposes rows of a block together.
struct Load<T>(PhantomData<T>);
impl<T: Lane + Elem> Kernel<Call> for Load<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(call: Call) {
        // SAFETY: binding proved what the limits allow to be within the argument.
        unsafe {
            let (ctx, code, walk, memory) = args_of::<T>(call);
            let d = ctx.reg::<T>(code.dst);
            let fill = T::from_bits(walk.fill);
            let mut rows = Rows::default();
            walk.runs(ctx, |lane, address, stride, len, low, high| {
                for i in (0..low).chain(high..len) {
                    *d.add(lane + i) = fill;
                }
                let row = Rows {
                    lane: lane + low,
                    address: address + low as i64 * stride,
                    stride,
                    columns: high - low,
                    count: 1,
                };
                if rows.is_followed_by(&row) {
                    rows.count += 1;
                } else {
                    transpose_rows::<I, T>(std::mem::replace(&mut rows, row), memory, d);
                }
            });
            transpose_rows::<I, T>(rows, memory, d);
        }
    }
}

/// A load of elements whose register type is their memory type, by a table of lane offsets.
struct Lookup<T>(PhantomData<T>);
impl<T: Lane + Elem> Kernel<Call> for Lookup<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(call: Call) {
        // SAFETY: binding proved all lanes to be within the argument; the walk has their offsets.
        unsafe {
            let (ctx, code, walk, memory) = args_of::<T>(call);
            let d = ctx.reg::<T>(code.dst);
            let (first, lane_offsets) = walk.tile_lane_offsets(ctx);
            let from = memory.wrapping_offset(first as isize);
            for i in 0..ctx.n {
                *d.add(i) = *from.wrapping_offset(*lane_offsets.add(i) as isize);
            }
        }
    }
}

/// The affine numbers of lanes, by a table of lane offsets.
struct Numbers<const LANES: bool>;
impl<const LANES: bool> Kernel<Call> for Numbers<LANES> {
    #[inline(always)]
    unsafe fn run<I: Isa>((ctx, code): Call) {
        // SAFETY: the register's elements are i64, by the checks; the walk has the offsets of its lanes.
        unsafe {
            let (ctx, code) = (&*ctx, &*code);
            let d = ctx.reg::<i64>(code.dst);
            let walk = &*ctx.walks.add(code.x as usize);
            let (first, lane_offsets) = walk.tile_lane_offsets(ctx);
            let base = if LANES {
                *ctx.bases.add(walk.base_index)
            } else {
                0
            };
            for i in 0..ctx.n {
                *d.add(i) = first - base + i64::from(*lane_offsets.add(i));
            }
        }
    }
}

/// Returns the instruction of a load whose lanes are not contiguous.
pub(super) fn load(walk: &mut Walk, dtype: DType, level: Features) -> Op {
    walk.tabulate_lane_offsets();
    match (dtype.size(), is_direct(dtype), walk.lane_offsets.is_empty()) {
        (4, true, false) => compiled::<Lookup<f32>, Call>(level),
        (8, true, false) => compiled::<Lookup<f64>, Call>(level),
        (4, true, true) => compiled::<Load<f32>, Call>(level),
        (8, true, true) => compiled::<Load<f64>, Call>(level),
        _ => super::load::load(dtype),
    }
}

/// Returns the instruction of a walk's affine number, or with `LANES` only the part that the lanes contribute.
pub(super) fn index<const LANES: bool>(walk: &mut Walk, level: Features) -> Op {
    walk.tabulate_lane_offsets();
    match walk.lane_offsets.is_empty() {
        true => super::load::index::<LANES>,
        false => compiled::<Numbers<LANES>, Call>(level),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_base::{Compute, Scalar};
    use kiln_plan::tile::{Arg, Reg, Stage};

    /// Returns a program that copies a matrix, read with these strides.
    fn copy(rows: i64, columns: i64, strides: [i64; 2]) -> TileProgram {
        let access = |arg, strides: [i64; 2]| Access {
            arg,
            offset: Dim::from(0),
            strides: strides.map(Dim::from).to_vec(),
            bounds: vec![],
            fill: Scalar::Float(0.0),
        };
        let arg = |written| Arg {
            dtype: DType::F32,
            written,
        };
        TileProgram {
            axes: vec![Dim::from(rows), Dim::from(columns)],
            args: vec![arg(false), arg(true)],
            accesses: vec![access(0, strides), access(1, [columns, 1])],
            registers: vec![Compute::F32],
            stages: vec![Stage {
                code: vec![
                    Inst::Load {
                        dst: Reg(0),
                        access: 0,
                    },
                    Inst::Store {
                        access: 1,
                        src: Reg(0),
                    },
                ],
                ..Stage::default()
            }],
            ..TileProgram::default()
        }
    }

    #[test]
    fn full_blocks_are_one_program() {
        let points = |all: &[TileProgram]| -> Vec<Vec<i64>> {
            let extents = |p: &TileProgram| p.axes.iter().map(|e| e.as_const().unwrap()).collect();
            all.iter().map(extents).collect()
        };
        let extents_of =
            |rows, columns, strides| points(&split(&copy(rows, columns, strides), &[]).unwrap());
        assert_eq!(extents_of(32, 64, [1, 32]), [[2, 2, 16, 32]]);
        let with_edges = vec![vec![2, 1, 16, 16], vec![32, 4], vec![1, 20]];
        assert_eq!(extents_of(33, 20, [1, 33]), with_edges);
        // Programs with few rows or columns, or which read along rows, stay whole.
        assert!(extents_of(15, 64, [1, 15]).is_empty());
        assert!(extents_of(64, 7, [1, 64]).is_empty());
        assert!(extents_of(64, 64, [64, 1]).is_empty());
        assert!(extents_of(64, 64, [0, 1]).is_empty());
    }
}
