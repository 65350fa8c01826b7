//! Distinct elements and slices.
//!
//! The number of results depends on values, so these operations compute their operand and record gathers with the
//! positions found. NaN equals nothing, not even NaN.

use super::args::{DimArgs, axis};
use super::host;
use crate::record::compose;
use crate::{Error, ErrorKind, Result, Tensor};
use kiln_base::Loc;
use kiln_derive::on_cells;
use kiln_ir::Builder;
use kiln_ir::eval::{Array, Data};
use std::cmp::Ordering;
use std::panic::Location;

#[on_cells]
impl Tensor {
    /// The distinct elements in ascending order (a vector), or the distinct slices of a dim in lexicographic order.
    /// Then the position in them of each element or slice (i64), and the number of occurrences of each (i64).
    ///
    /// ```
    /// use kiln_tensor::Tensor;
    /// let (values, inverse, counts) = Tensor::from_slice(&[3i64, 1, 3], [3]).unique(None);
    /// assert_eq!(values.to_vec::<i64>()?, [1, 3]);
    /// assert_eq!(inverse.to_vec::<i64>()?, [1, 0, 1]);
    /// assert_eq!(counts.to_vec::<i64>()?, [1, 2]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn unique(&self, dim: impl Into<DimArgs>) -> (Tensor, Tensor, Tensor) {
        unique_slices("unique", self, dim, true)
    }

    /// The first of each run of equal elements or, along a dim, of equal slices. Then the run that each is in (i64),
    /// and the lengths of the runs (i64).
    pub fn unique_consecutive(&self, dim: impl Into<DimArgs>) -> (Tensor, Tensor, Tensor) {
        unique_slices("unique_consecutive", self, dim, false)
    }
}

#[track_caller]
fn unique_slices(
    called: &'static str,
    t: &Tensor,
    dims: DimArgs,
    sort: bool,
) -> (Tensor, Tensor, Tensor) {
    let loc = Location::caller();
    let found = match group_slices(called, t, &dims, sort) {
        Ok(groups) => groups,
        Err(e) => {
            let bad = Tensor::poisoned(e, loc);
            return (bad.clone(), bad.clone(), bad);
        }
    };
    let dim = dims.0.first();
    let first_indices = host::vector(&found.first, t.device());
    let values = compose(called, &[t, &first_indices], |b| match dim {
        Some(d) => b.index_select(t, axis(t, d)?, &first_indices),
        None => {
            let flat = b.reshape(t, &[t.fact().numel()])?;
            b.gather(&flat, 0, &first_indices)
        }
    });
    let inverse = host::vector(&found.inverse, t.device());
    let inverse = match dim {
        Some(_) => inverse,
        None => inverse.reshape(t.dims()),
    };
    (values, inverse, host::vector(&found.counts, t.device()))
}

/// Groups of equal slices.
#[derive(Default)]
struct Groups {
    /// The index of the first slice of each group.
    first: Vec<i64>,
    /// The number of slices in each group.
    counts: Vec<i64>,
    /// The group of each slice.
    inverse: Vec<i64>,
}

#[track_caller]
fn group_slices(called: &str, t: &Tensor, dims: &DimArgs, sort: bool) -> Result<Groups> {
    let loc = Loc::from(Location::caller());
    let wrong = |m: String| Error::new(ErrorKind::Op, called, m, loc.clone());
    t.check()?;
    let a = dims
        .one_or_all()
        .and_then(|d| d.map(|d| axis(t, d)).transpose());
    let a = a.map_err(|e| wrong(e.0))?;
    if !t.dtype().computes() {
        let message = format!(
            "{} can only be stored, compared and cast; cast it first",
            t.dtype()
        );
        return Err(wrong(message));
    }
    let array = host::values(t)?;
    let slices = Slices::new(&array, a);
    if slices.width == 0 && slices.count > 0 {
        return Err(wrong(format!(
            "the slices of {} have no elements",
            t.fact()
        )));
    }
    let mut order: Vec<usize> = (0..slices.count).collect();
    if sort {
        order.sort_by(|i, j| slices.compare(*i, *j));
    }
    let mut groups = Groups {
        inverse: vec![0; slices.count],
        ..Groups::default()
    };
    let mut before = None;
    for i in order {
        match before {
            Some(j) if slices.equal(i, j) => {}
            _ => {
                groups.first.push(i as i64);
                groups.counts.push(0);
            }
        }
        let group = groups.counts.len() - 1;
        groups.counts[group] += 1;
        groups.inverse[i] = group as i64;
        before = Some(i);
    }
    Ok(groups)
}

/// The slices of an axis, or the single elements.
struct Slices<'a> {
    data: &'a Data,
    count: usize,
    /// The number of elements of a slice.
    width: usize,
    /// The number of elements in the dims after the axis.
    inner: usize,
}

impl<'a> Slices<'a> {
    fn new(array: &'a Array, axis: Option<usize>) -> Slices<'a> {
        let (shape, data) = (array.shape(), array.data());
        let (count, inner) = match axis {
            Some(a) => (shape[a], shape[a + 1..].iter().product()),
            None => (array.len(), 1),
        };
        let outer: usize = axis.map_or(1, |a| shape[..a].iter().product());
        Slices {
            data,
            count,
            width: outer * inner,
            inner,
        }
    }

    /// The positions of the elements of two slices, in pairs.
    fn pairs(&self, i: usize, j: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..self.width).map(move |k| {
            let start = k / self.inner * self.inner * self.count + k % self.inner;
            (start + i * self.inner, start + j * self.inner)
        })
    }

    /// Lexicographic order; NaN is the largest.
    fn compare(&self, i: usize, j: usize) -> Ordering {
        let order = |(p, q): (usize, usize)| match self.data {
            Data::Float(v) => v[p]
                .partial_cmp(&v[q])
                .unwrap_or_else(|| v[p].is_nan().cmp(&v[q].is_nan())),
            Data::Int(v) => v[p].cmp(&v[q]),
        };
        let mut orders = self.pairs(i, j).map(order);
        orders.find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
    }

    fn equal(&self, i: usize, j: usize) -> bool {
        self.pairs(i, j).all(|(p, q)| match self.data {
            Data::Float(v) => v[p] == v[q],
            Data::Int(v) => v[p] == v[q],
        })
    }
}
