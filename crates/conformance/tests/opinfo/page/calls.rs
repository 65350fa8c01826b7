//! Calls of the rows, with operands for all of them.

use super::*;
use kiln_tensor::{DType, Reduction, Result, Scalar, Tensor};

/// A call, and the tensors that it gave.
pub(super) type Called = (&'static str, Result<Vec<Tensor>>);

/// The calls of a group of rows: that of the row of a number, on two tensors.
pub(super) type Group = fn(usize, &Tensor, &Tensor) -> Option<Called>;

/// A result of a call.
pub(super) struct Found<'a, T>(pub(super) &'a T);

/// The tensors of a result; those of results that hold none are [`Other`]'s.
pub(super) trait Tensors {
    fn tensors(&self) -> Vec<Tensor>;
}

pub(super) trait Other {
    fn tensors(&self) -> Vec<Tensor> {
        Vec::new()
    }
}

impl<T> Other for &Found<'_, T> {}

impl Tensors for Found<'_, Tensor> {
    fn tensors(&self) -> Vec<Tensor> {
        vec![self.0.clone()]
    }
}

impl Tensors for Found<'_, Vec<Tensor>> {
    fn tensors(&self) -> Vec<Tensor> {
        self.0.clone()
    }
}

impl Tensors for Found<'_, (Tensor, Tensor)> {
    fn tensors(&self) -> Vec<Tensor> {
        vec![self.0.0.clone(), self.0.1.clone()]
    }
}

impl Tensors for Found<'_, (Tensor, Tensor, Tensor)> {
    fn tensors(&self) -> Vec<Tensor> {
        let (a, b, c) = self.0;
        vec![a.clone(), b.clone(), c.clone()]
    }
}

const ONE: Scalar = Scalar::Float(1.0);

pub(super) const ELEMENTWISE: Group =
    |row, x, y| elementwise::call(row, x, y, y, &x.gt(y), ONE, x.dtype());
pub(super) const REDUCTIONS: Group = |row, x, _| reductions::call(row, x, 1, &[0, 1]);
pub(super) const PRODUCTS: Group =
    |row, x, y| products::call(row, x, y, y, y, y, 0, ONE, ONE, 3.0, false);
pub(super) const LINALG: Group = |row, x, y| linalg::call(row, x, y, y);
pub(super) const CONVOLUTION: Group =
    |row, x, y| convolution::call(row, x, y, None, y, y, 2, 1, 1, 1, 1, 0, false, false);
pub(super) const LOSSES: Group =
    |row, x, y| losses::call(row, x, y, y, y, Some(y), Reduction::Mean);
pub(super) const INDEXING: Group = |row, x, y| {
    let index = match y.dtype().is_float() {
        true => y.zeros_like().to_dtype(DType::I64),
        false => y.clone(),
    };
    indexing::call(row, x, y, y, &index, &x.gt(0.0), x, None, 1)
};
pub(super) const SHAPE: Group = |row, x, y| shape::call(row, x, y, 1, &[2.into(), 5.into()]);
pub(super) const SORTING: Group = |row, x, y| sorting::call(row, x, y, 1, false, false);
