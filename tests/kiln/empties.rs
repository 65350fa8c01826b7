//! Operands without elements: nothing is divided, looked up or multiplied, so no error can occur.

use kiln::{DType, Tensor};

#[track_caller]
fn zeros(x: &Tensor, shape: &[usize]) {
    assert_eq!(x.shape().unwrap(), shape);
    let values = x.to_dtype(DType::F64).to_vec::<f64>();
    let values = values.unwrap_or_else(|e| panic!("{e}"));
    assert!(values.iter().all(|v| *v == 0.0), "{values:?}");
}

#[test]
fn nothing_is_divided_for_no_elements() {
    for dtype in [DType::I32, DType::I64, DType::F32] {
        let (one, zero) = (
            |s: &[usize]| Tensor::ones(s, dtype),
            |s: &[usize]| Tensor::zeros(s, dtype),
        );
        zeros(&(zero(&[11, 0]) / zero(&[11, 0])).sum([1]), &[11]);
        let rows = one(&[11, 0]).floor_divide(zero(&[11, 1]));
        zeros(&rows.sum([1]), &[11]);
        zeros(&rows, &[11, 0]);
        zeros(&one(&[11, 0]).remainder(zero(&[])).sum([1]), &[11]);
        let columns = one(&[0, 11]).remainder(zero(&[11]));
        zeros(&columns.sum([0]), &[11]);
        zeros(&columns.sum(()), &[]);
        let right = zero(&[0, 4]).floor_divide(zero(&[4]));
        zeros(&one(&[11, 0]).matmul(&right), &[11, 4]);
    }
    // With elements, they are divided.
    let e = (Tensor::ones([11], DType::I64).floor_divide(Tensor::zeros([11], DType::I64)))
        .to_vec::<i64>()
        .unwrap_err();
    assert!(e.to_string().contains("division"), "{e}");
}

#[test]
fn nothing_is_looked_up_for_no_elements() {
    let x = Tensor::ones([4, 3], DType::F32);
    let none = |shape: &[usize]| Tensor::full(shape, 1000i64, DType::I64);
    zeros(&Tensor::zeros([0], DType::F32).take(none(&[3, 0])), &[3, 0]);
    zeros(&x.take(none(&[3, 0])).sum([1]), &[3]);
    zeros(&x.gather(1, none(&[4, 0])).sum([1]), &[4]);
    zeros(&x.index_select(0, none(&[0])).sum([0]), &[3]);
    let lost = Tensor::zeros([4, 0], DType::F32).index_select(0, none(&[1]));
    zeros(&lost.sum([1]), &[1]);
    let right = x.gather(0, none(&[0, 3]));
    zeros(&Tensor::ones([5, 0], DType::F32).matmul(&right), &[5, 3]);
    // A lookup in an empty tensor is an error.
    let e = Tensor::zeros([0], DType::F32)
        .take(none(&[2]))
        .to_vec::<f32>();
    assert!(e.unwrap_err().to_string().contains("1000"));
    let to = Tensor::zeros([0], DType::F32);
    let e = to.scatter(0, none(&[2]), Tensor::ones([2], DType::F32));
    assert!(e.to_vec::<f32>().unwrap_err().to_string().contains("1000"));
}

#[test]
fn gradients_of_nothing_are_zeros() {
    let w = Tensor::ones([0, 3], DType::F32).requires_grad_(true);
    let b = Tensor::ones([3], DType::F32).requires_grad_(true);
    let y = Tensor::ones([2, 0], DType::F32).matmul(&w) + &b;
    y.square().sum(()).backward().unwrap();
    zeros(&w.grad().unwrap(), &[0, 3]);
    assert_eq!(b.grad().unwrap().to_vec::<f32>().unwrap(), [4.0; 3]);
}
