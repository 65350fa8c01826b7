//! The error messages for sizes and dtypes that do not fit.

use super::ints;
use crate::errors::shown;
use kiln::{DType, Tensor};

/// The text of a poisoned tensor's error.
fn text(t: &Tensor) -> String {
    shown(t.error().expect("this call is wrong").clone(), "errors.rs")
}

fn x() -> Tensor {
    Tensor::zeros([3, 4], DType::F32)
}

#[test]
fn gather_with_an_index_larger_off_the_dim() {
    let index = Tensor::zeros([4, 2], DType::I64);
    insta::assert_snapshot!(text(&x().gather(1, &index)));
}

#[test]
fn gather_with_an_index_of_another_rank() {
    insta::assert_snapshot!(text(&x().gather(1, ints(&[2], &[0, 1]))));
}

#[test]
fn gather_with_an_index_that_is_not_i64() {
    let index = Tensor::zeros([3, 2], DType::F32);
    insta::assert_snapshot!(text(&x().gather(1, &index)));
}

#[test]
fn scatter_with_an_index_larger_than_the_tensor_off_the_dim() {
    let index = Tensor::zeros([2, 5], DType::I64);
    let src = Tensor::zeros([6, 6], DType::F32);
    insta::assert_snapshot!(text(&x().scatter(0, &index, &src)));
}

#[test]
fn scatter_with_an_index_larger_than_the_source() {
    let index = Tensor::zeros([6, 2], DType::I64);
    let src = Tensor::zeros([5, 2], DType::F32);
    insta::assert_snapshot!(text(&x().scatter(0, &index, &src)));
}

#[test]
fn scatter_with_an_index_of_another_rank() {
    let index = Tensor::zeros([1, 2, 2], DType::I64);
    let src = Tensor::zeros([1, 2, 2], DType::F32);
    insta::assert_snapshot!(text(&x().scatter_add(0, &index, &src)));
}

#[test]
fn scatter_with_a_source_of_another_rank() {
    let index = Tensor::zeros([2, 2], DType::I64);
    let src = Tensor::zeros([4], DType::F32);
    insta::assert_snapshot!(text(&x().scatter(0, &index, &src)));
}

#[test]
fn scatter_with_a_source_of_another_dtype() {
    let index = Tensor::zeros([2, 2], DType::I64);
    let src = Tensor::zeros([2, 2], DType::F64);
    insta::assert_snapshot!(text(&x().scatter(0, &index, &src)));
}

#[test]
fn scatter_along_a_dim_that_is_not_there() {
    let index = Tensor::zeros([2, 2], DType::I64);
    insta::assert_snapshot!(text(&x().scatter(2, &index, 1.0)));
}

#[test]
fn index_add_with_a_source_of_other_slices() {
    let source = Tensor::zeros([2, 3], DType::F32);
    insta::assert_snapshot!(text(&x().index_add(0, ints(&[2], &[0, 1]), &source)));
}

#[test]
fn a_mask_of_another_shape() {
    let mask = Tensor::zeros([3, 3], DType::Bool);
    insta::assert_snapshot!(text(&x().i(&mask)));
}

#[test]
fn more_elements_than_there_are() {
    insta::assert_snapshot!(text(&x().topk(5).0));
}
