//! Transposes by blocks. Where neighbours in memory belong to different rows of the result, some rows are computed at
//! once, some columns of each. So every cache line is read once.

use super::code::{Call, Op};
use super::load::{at, is_direct};
use super::pieces::{is_plain, part};
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

/// The rows of a block: this many elements of 4 bytes fill a cache line.
const ROWS: i64 = 16;
/// The candidates for the columns of a block, the largest that fits; rows of the result in memory have this length.
const COLUMNS: [i64; 3] = [32, 16, 8];

/// Returns the program over blocks, and programs for the rest, if it reads anything across rows; otherwise nothing.
///
/// # Errors
/// If its sizes have no values.
pub(crate) fn blocks(program: &TileProgram, values: &[i64]) -> Result<Vec<TileProgram>> {
    if !is_plain(program) || program.schedule != Schedule::Lanes {
        return Ok(Vec::new());
    }
    let mut program = program.clone();
    merge_axes(&mut program, values)?;
    let Some([row, column]) = across(&program, values)? else {
        return Ok(Vec::new());
    };
    let (rows, columns) = (
        extent(&program.axes[row], values)?,
        extent(&program.axes[column], values)?,
    );
    let Some(wide) = COLUMNS.into_iter().find(|n| *n <= columns) else {
        return Ok(Vec::new());
    };
    let (even_rows, even_columns) = (rows / ROWS * ROWS, columns / wide * wide);
    let even = part(
        &part(&program, row, (0, even_rows)),
        column,
        (0, even_columns),
    );
    let mut all = vec![in_blocks(even, [(row, ROWS), (column, wide)], values)?];
    if even_columns < columns {
        let upper = part(&program, row, (0, even_rows));
        all.push(part(&upper, column, (even_columns, columns)));
    }
    if even_rows < rows {
        all.push(part(&program, row, (even_rows, rows)));
    }
    Ok(all)
}

/// Returns the axis along which a load has neighbours, if that is not the last, and the last axis, along which it has a
/// stride. Results have neighbours along the last axis.
fn across(program: &TileProgram, values: &[i64]) -> Result<Option<[usize; 2]>> {
    let Some(last) = program.axes.len().checked_sub(1) else {
        return Ok(None);
    };
    let mut found = None;
    for inst in &program.stages[0].code {
        let (access, is_store) = match inst {
            Inst::Load { access, .. } => (*access, false),
            Inst::Store { access, .. } => (*access, true),
            _ => continue,
        };
        let strides = &program.accesses[usize::from(access)].strides;
        let along = eval(&strides[last], values)?;
        if is_store && along != 1 {
            return Ok(None);
        }
        if is_store || matches!(along, 0 | 1) {
            continue;
        }
        for (axis, stride) in strides[..last].iter().enumerate() {
            if eval(stride, values)? == 1 && extent(&program.axes[axis], values)? >= ROWS {
                found = Some([axis, last]);
            }
        }
    }
    Ok(found)
}

/// Returns all lists of a program that have a stride per axis.
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
        let mut joins = true;
        for s in strides(program) {
            let (before, this) = (eval(&s[i - 1], values)?, eval(&s[i], values)?);
            joins &= this.checked_mul(inner) == Some(before);
        }
        if joins {
            let outer = program.axes.remove(i - 1);
            program.axes[i - 1] = &program.axes[i - 1] * &outer;
            strides(program).for_each(|s| drop(s.remove(i - 1)));
        }
    }
    Ok(())
}

/// Returns the program with two axes cut into parts of some indices each, which come last. Extents are multiples of
/// these parts.
fn in_blocks(
    mut program: TileProgram,
    cuts: [(usize, i64); 2],
    values: &[i64],
) -> Result<TileProgram> {
    let [row, column] = cuts.map(|(axis, _)| axis);
    let split = |of: &mut Vec<Dim>, [rows, columns]: [[Dim; 2]; 2]| {
        of.remove(row.max(column));
        of.remove(row.min(column));
        let ([a, b], [c, d]) = (rows, columns);
        of.extend([a, c, b, d]);
    };
    let extents = cuts.map(|(axis, by)| (extent(&program.axes[axis], values), by));
    let [rows, columns] = extents.map(|(n, by)| n.map(|n| [Dim::from(n / by), Dim::from(by)]));
    split(&mut program.axes, [rows?, columns?]);
    for s in strides(&mut program) {
        let both = cuts.map(|(axis, by)| [&s[axis] * &Dim::from(by), s[axis].clone()]);
        split(s, both);
    }
    Ok(program)
}

/// Rows that start one element apart, from a lane on.
#[derive(Copy, Clone, Default, PartialEq)]
struct Rows {
    lane: usize,
    address: i64,
    stride: i64,
    columns: usize,
    count: usize,
}

impl Rows {
    /// True if this row comes next.
    fn goes_on(&self, row: &Rows) -> bool {
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
                by => (0..rows.columns)
                    .for_each(|i| *to.add(i) = *from.offset(i as isize * by as isize)),
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
            let (ctx, code, walk, memory) = at::<T>(call);
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
                if rows.goes_on(&row) {
                    rows.count += 1;
                } else {
                    transpose_rows::<I, T>(std::mem::replace(&mut rows, row), memory, d);
                }
            });
            transpose_rows::<I, T>(rows, memory, d);
        }
    }
}

/// A load of elements whose register type is their memory type, with a table of places.
struct Lookup<T>(PhantomData<T>);
impl<T: Lane + Elem> Kernel<Call> for Lookup<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(call: Call) {
        // SAFETY: binding proved all lanes to be within the argument; the walk has their places.
        unsafe {
            let (ctx, code, walk, memory) = at::<T>(call);
            let d = ctx.reg::<T>(code.dst);
            let (first, places) = walk.looked_up(ctx);
            let from = memory.wrapping_offset(first as isize);
            for i in 0..ctx.n {
                *d.add(i) = *from.wrapping_offset(*places.add(i) as isize);
            }
        }
    }
}

/// The affine numbers of lanes, from a table of places.
struct Numbers<const LANES: bool>;
impl<const LANES: bool> Kernel<Call> for Numbers<LANES> {
    #[inline(always)]
    unsafe fn run<I: Isa>((ctx, code): Call) {
        // SAFETY: the register's elements are i64, by the checks; the walk has the places of its lanes.
        unsafe {
            let (ctx, code) = (&*ctx, &*code);
            let d = ctx.reg::<i64>(code.dst);
            let walk = &*ctx.walks.add(code.x as usize);
            let (first, places) = walk.looked_up(ctx);
            let base = if LANES {
                *ctx.bases.add(walk.base_at)
            } else {
                0
            };
            for i in 0..ctx.n {
                *d.add(i) = first - base + i64::from(*places.add(i));
            }
        }
    }
}

/// Returns the instruction of a load whose lanes are not contiguous.
pub(super) fn load(walk: &mut Walk, dtype: DType, level: Features) -> Op {
    walk.look_up();
    match (dtype.size(), is_direct(dtype), walk.places.is_empty()) {
        (4, true, false) => compiled::<Lookup<f32>, Call>(level),
        (8, true, false) => compiled::<Lookup<f64>, Call>(level),
        (4, true, true) => compiled::<Load<f32>, Call>(level),
        (8, true, true) => compiled::<Load<f64>, Call>(level),
        _ => super::load::load(dtype),
    }
}

/// Returns the instruction of a walk's affine number, or with `LANES` only the part that the lanes contribute.
pub(super) fn index<const LANES: bool>(walk: &mut Walk, level: Features) -> Op {
    walk.look_up();
    match walk.places.is_empty() {
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
    fn whole_blocks_are_one_program() {
        let points = |all: &[TileProgram]| -> Vec<Vec<i64>> {
            let extents = |p: &TileProgram| p.axes.iter().map(|e| e.as_const().unwrap()).collect();
            all.iter().map(extents).collect()
        };
        let of =
            |rows, columns, strides| points(&blocks(&copy(rows, columns, strides), &[]).unwrap());
        assert_eq!(of(32, 64, [1, 32]), [[2, 2, 16, 32]]);
        let rest = vec![vec![2, 1, 16, 16], vec![32, 4], vec![1, 20]];
        assert_eq!(of(33, 20, [1, 33]), rest);
        // Programs with few rows or columns, or which read along rows, stay whole.
        assert!(of(15, 64, [1, 15]).is_empty());
        assert!(of(64, 7, [1, 64]).is_empty());
        assert!(of(64, 64, [64, 1]).is_empty());
        assert!(of(64, 64, [0, 1]).is_empty());
    }
}
