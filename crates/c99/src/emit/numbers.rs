//! Tile programs with all sizes known. Adjacent axes are merged if that changes nothing.

use crate::error::{Error, Result};
use kiln_base::{DType, Dim, Scalar};
use kiln_kernel::affine::{self, Affine, Limit};
use kiln_plan::tile::{Inst, Schedule, TileProgram};

/// The value of a size.
pub(crate) fn number(d: &Dim, values: &[i64]) -> Result<i64> {
    affine::eval(d, values).map_err(damaged)
}

/// The values of sizes.
pub(crate) fn numbers(dims: &[Dim], values: &[i64]) -> Result<Vec<i64>> {
    dims.iter().map(|d| number(d, values)).collect()
}

/// The number of elements of a shape.
pub(crate) fn elements(shape: &[Dim], values: &[i64]) -> Result<i64> {
    Ok(numbers(shape, values)?.iter().product())
}

/// The bytes of `len` elements.
pub(crate) fn bytes(len: i64, dtype: DType) -> Result<usize> {
    let bytes = usize::try_from(len).ok();
    let bytes = bytes.and_then(|n| n.checked_mul(dtype.size()));
    bytes.ok_or_else(|| Error::Damaged("a size beyond memory".into()))
}

fn damaged(e: kiln_runtime::Error) -> Error {
    Error::Damaged(match e {
        kiln_runtime::Error::Plan(why) => why,
        e => e.to_string(),
    })
}

/// An access to memory.
pub(crate) struct Access {
    pub arg: usize,
    /// The element, over the parallel axes and then the inner ones.
    pub at: Affine,
    /// The conditions under which the access is in bounds.
    pub limits: Vec<Limit>,
    pub fill: Scalar,
}

/// A program with the values of its sizes.
pub(crate) struct Numbers<'a> {
    pub program: &'a TileProgram,
    /// The values of symbols.
    pub values: &'a [i64],
    pub axes: Vec<i64>,
    pub inner: Vec<i64>,
    pub accesses: Vec<Access>,
    /// The values of [`Inst::Index`], in the order of the stages and their instructions.
    pub indices: Vec<Affine>,
}

impl<'a> Numbers<'a> {
    pub fn new(program: &'a TileProgram, values: &'a [i64]) -> Result<Numbers<'a>> {
        let rank = program.axes.len() + program.inner.len();
        let affine = |offset: &Dim, strides: &[Dim]| {
            Affine::new(offset, strides, rank, values).map_err(damaged)
        };
        let mut accesses = Vec::new();
        for a in &program.accesses {
            let limits = a.bounds.iter().map(|b| Limit::new(b, rank, values));
            accesses.push(Access {
                arg: a.arg.into(),
                at: affine(&a.offset, &a.strides)?,
                limits: limits.collect::<Result<_, _>>().map_err(damaged)?,
                fill: a.fill,
            });
        }
        let code = program.stages.iter().flat_map(|s| &s.code);
        let indices = code.filter_map(|i| match i {
            Inst::Index {
                offset, strides, ..
            } => Some(affine(offset, strides)),
            _ => None,
        });
        let mut program_numbers = Numbers {
            program,
            values,
            axes: numbers(&program.axes, values)?,
            inner: numbers(&program.inner, values)?,
            accesses,
            indices: indices.collect::<Result<_>>()?,
        };
        program_numbers.merge();
        program_numbers.drop_bounds();
        Ok(program_numbers)
    }

    /// All affine expressions.
    fn expressions_mut(&mut self) -> impl Iterator<Item = &mut Affine> {
        let accesses = self.accesses.iter_mut();
        let expressions = accesses.flat_map(|a| {
            let limits = a.limits.iter_mut().map(|l| &mut l.value);
            std::iter::once(&mut a.at).chain(limits)
        });
        expressions.chain(self.indices.iter_mut())
    }

    /// Merges two axes if every expression moves over both as over one, and drops axes of one element.
    fn merge(&mut self) {
        let mut extents = [&self.axes[..], &self.inner].concat();
        let mut outer = self.axes.len();
        let first_parallel = match self.program.serial {
            0 => 0,
            _ => outer,
        };
        for axis in (first_parallel..extents.len()).rev() {
            let n = extents[axis];
            let begins = axis == first_parallel || axis == outer;
            let moves = |a: &mut Affine| a.strides[axis - 1] == a.strides[axis].wrapping_mul(n);
            if n != 1 && (begins || !self.expressions_mut().all(moves)) {
                continue;
            }
            for a in self.expressions_mut() {
                let stride = a.strides.remove(axis);
                if n != 1 {
                    a.strides[axis - 1] = stride;
                }
            }
            if n != 1 {
                extents[axis - 1] *= n;
            }
            extents.remove(axis);
            outer -= usize::from(axis < outer);
        }
        self.inner = extents.split_off(outer);
        self.axes = extents;
    }

    /// Drops bounds that hold everywhere.
    fn drop_bounds(&mut self) {
        let extents: Vec<i64> = self.axes.iter().chain(&self.inner).copied().collect();
        for access in &mut self.accesses {
            access.limits.retain(|limit| {
                let (low, high) = limit.value.range(&extents);
                low < 0 || high >= limit.extent.into()
            });
        }
    }

    /// The number of points of the inner axes.
    pub fn inner_points(&self) -> i64 {
        self.inner.iter().product()
    }

    pub fn by_rows(&self) -> bool {
        self.program.schedule == Schedule::Rows
    }
}
