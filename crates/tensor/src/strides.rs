//! PyTorch's strides. Kiln's views are index maps and need none; they are derived from the chain of
//! views only to answer [`Tensor::view`], [`Tensor::stride`] and [`Tensor::is_contiguous`] as PyTorch
//! does. They belong to the handle, and never enter the program.

use crate::Result;
use crate::tensor::{Strides, Tensor};
use kiln_base::{Dim, contiguous_strides, numel};
use kiln_derive::on_cells;
use kiln_ir::Op;
use kiln_lazy::Handle;

#[on_cells]
impl Tensor {
    /// The distance in memory, in elements, between neighbours along each dim, as PyTorch defines it: views share the
    /// memory of their operand, everything else is contiguous.
    ///
    /// ```
    /// use kiln_tensor::{DType, Tensor};
    /// let x = Tensor::ones([2, 3], DType::F32);
    /// assert_eq!(x.stride()?, [3, 1]);
    /// assert_eq!(x.t().stride()?, [1, 3]);
    /// assert_eq!(x.i(0).expand([4, -1]).stride()?, [0, 1]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::shape`].
    pub fn stride(&self) -> Result<Vec<usize>> {
        self.shape()?;
        let strides = self.strides();
        Ok(strides
            .iter()
            .filter_map(Dim::as_const)
            .map(|d| d as usize)
            .collect())
    }

    /// True if the elements are in row-major order: false for the views that PyTorch doesn't call contiguous. This
    /// does not describe how Kiln stores them.
    pub fn is_contiguous(&self) -> bool {
        self.strides.is_none()
    }

    /// This tensor with contiguous strides. Costs nothing: it only lets [`Tensor::view`] make a copy.
    pub fn contiguous(&self) -> Tensor {
        let mut t = self.clone();
        t.strides = None;
        t
    }

    /// The same value with strides that can't be derived from a chain of views.
    pub(crate) fn with_strides(mut self, strides: Vec<Dim>) -> Tensor {
        let is_plain = are_contiguous(self.dims(), &strides);
        self.strides = (!is_plain).then(|| strides.into());
        self
    }

    pub(crate) fn strides(&self) -> Vec<Dim> {
        match &self.strides {
            Some(s) => s.to_vec(),
            None => contiguous(self.dims()),
        }
    }

    /// True if PyTorch could view the same memory in this shape.
    pub(crate) fn is_viewable(&self, shape: &[Dim]) -> bool {
        match &self.strides {
            Some(strides) => reshape_strides(self.dims(), strides, shape).is_some(),
            None => true,
        }
    }
}

/// The strides of a value recorded within a view, if they aren't contiguous.
pub(crate) fn infer(recorded: &Handle, inputs: &[Tensor]) -> Option<Strides> {
    let (op, shape, x) = (&recorded.node.op, recorded.dims(), inputs.first()?);
    if matches!(op, Op::Reshape(_)) && x.strides.is_none() {
        return None;
    }
    let new = view_strides(op, x.dims(), &x.strides(), shape)?;
    (!are_contiguous(shape, &new)).then(|| new.into())
}

/// The strides of the result of `op`, if it is a view of its operand, whose dims and strides are given.
pub(crate) fn view_strides(op: &Op, dims: &[Dim], old: &[Dim], shape: &[Dim]) -> Option<Vec<Dim>> {
    match op {
        Op::Permute(p) => Some(p.perm.iter().map(|a| old[*a].clone()).collect()),
        Op::Slice(s) if s.axes.iter().all(|a| a.step > 0) => {
            let steps = s.axes.iter().map(|a| Dim::Const(a.step));
            Some(old.iter().zip(steps).map(|(s, step)| s * &step).collect())
        }
        Op::Broadcast(_) => Some(broadcast_strides(dims, old, shape)),
        Op::Reshape(_) => reshape_strides(dims, old, shape),
        _ => None,
    }
}

/// The strides after a broadcast: 0 for stretched dims.
fn broadcast_strides(dims: &[Dim], old: &[Dim], shape: &[Dim]) -> Vec<Dim> {
    let added = shape.len() - dims.len();
    let stride = |i: usize| match i.checked_sub(added) {
        Some(a) if dims[a] == shape[i] => old[a].clone(),
        _ => Dim::ZERO,
    };
    (0..shape.len()).map(stride).collect()
}

fn is_empty(shape: &[Dim]) -> bool {
    shape.iter().any(|d| d.is(0))
}

/// Row-major strides; PyTorch counts dims of size 0 as 1.
pub(crate) fn contiguous(shape: &[Dim]) -> Vec<Dim> {
    let sizes = shape
        .iter()
        .map(|d| if d.is(0) { Dim::ONE } else { d.clone() });
    contiguous_strides(&sizes.collect::<Vec<_>>())
}

/// True if the strides are contiguous. Strides of dims of size 1 don't matter, and none matter without elements.
fn are_contiguous(shape: &[Dim], strides: &[Dim]) -> bool {
    let expected = contiguous(shape);
    let same = |((d, a), b): ((&Dim, &Dim), &Dim)| d.is(1) || a == b;
    is_empty(shape) || shape.iter().zip(strides).zip(&expected).all(same)
}

/// The strides of another shape with the same number of elements, if no copy is needed. Runs of dims that are nested
/// in memory are split and joined freely (PyTorch's `computeStride`).
fn reshape_strides(shape: &[Dim], strides: &[Dim], new_shape: &[Dim]) -> Option<Vec<Dim>> {
    if is_empty(shape) {
        return Some(contiguous(new_shape));
    }
    let mut new = vec![Dim::ONE; new_shape.len()];
    let mut next = new_shape.len();
    let mut base = strides.last().cloned().unwrap_or(Dim::ONE);
    let (mut run, mut filled) = (Dim::ONE, Dim::ONE);
    for a in (0..shape.len()).rev() {
        run = &run * &shape[a];
        let joined = a > 0 && (shape[a - 1].is(1) || strides[a - 1] == &run * &base);
        if joined {
            continue;
        }
        while next > 0 && (filled != run || new_shape[next - 1].is(1)) {
            next -= 1;
            new[next] = &filled * &base;
            filled = &filled * &new_shape[next];
        }
        if filled != run {
            return None;
        }
        if a > 0 {
            base = strides[a - 1].clone();
            (run, filled) = (Dim::ONE, Dim::ONE);
        }
    }
    (next == 0 || numel(&new_shape[..next]).is(1)).then_some(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(d: &[i64]) -> Vec<Dim> {
        d.iter().map(|d| Dim::Const(*d)).collect()
    }

    fn check(shape: &[i64], strides: &[i64], new: &[i64]) -> Option<Vec<i64>> {
        let found = reshape_strides(&dims(shape), &dims(strides), &dims(new))?;
        found.iter().map(Dim::as_const).collect()
    }

    #[test]
    fn views_split_and_join_what_lies_together() {
        assert_eq!(check(&[4, 3], &[3, 1], &[2, 6]), Some(vec![6, 1]));
        assert_eq!(check(&[3, 4], &[1, 3], &[12]), None);
        assert_eq!(check(&[3, 4], &[1, 3], &[3, 2, 2]), Some(vec![1, 6, 3]));
        assert_eq!(check(&[2, 4], &[12, 3], &[2, 2, 2]), Some(vec![12, 6, 3]));
        assert_eq!(check(&[2, 4], &[12, 3], &[8]), Some(vec![3]));
        assert_eq!(check(&[2, 4], &[16, 2], &[8]), None);
        assert_eq!(check(&[5, 3], &[0, 1], &[15]), None);
        assert_eq!(check(&[], &[], &[1, 1]), Some(vec![1, 1]));
        assert_eq!(check(&[1, 3], &[9, 2], &[3, 1, 1]), Some(vec![2, 2, 2]));
    }
}
