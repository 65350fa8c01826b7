//! Tensors print as in PyTorch. The texts are PyTorch's, except for the names of dtypes.

use crate::vector;
use kiln::{DType, PrintOptions, Tensor};

#[track_caller]
fn assert_prints(t: Tensor, text: &str) {
    assert_eq!(t.to_string(), text);
}

#[test]
fn whole_numbers_need_no_decimals() {
    assert_prints(vector(&[1.0, 2.0, -3.0]), "tensor([ 1.,  2., -3.])");
    assert_prints(vector(&[0.0, 0.0]), "tensor([0., 0.])");
    assert_prints(vector(&[-0.0, 0.0]), "tensor([-0., 0.])");
    assert_prints(Tensor::scalar(1.0f32), "tensor(1.)");
    assert_prints(Tensor::scalar(-7i64), "tensor(-7)");
    assert_prints(
        vector(&[1.0, f32::INFINITY, f32::NAN]),
        "tensor([1., inf, nan])",
    );
    assert_prints(vector(&[100.0, f32::NEG_INFINITY]), "tensor([100., -inf])");
    assert_prints(
        Tensor::ones([2, 3], DType::F32),
        "tensor([[1., 1., 1.],\n        [1., 1., 1.]])",
    );
}

#[test]
fn decimals_are_four_and_aligned() {
    assert_prints(Tensor::scalar(3.5f32), "tensor(3.5000)");
    assert_prints(
        vector(&[0.1, -2.5, 10.0]),
        "tensor([ 0.1000, -2.5000, 10.0000])",
    );
    assert_prints(vector(&[0.0, 0.5]), "tensor([0.0000, 0.5000])");
    assert_prints(vector(&[f32::NAN, 0.25]), "tensor([   nan, 0.2500])");
    assert_prints(
        vector(&[f32::INFINITY, 12.25]),
        "tensor([    inf, 12.2500])",
    );
    // Rounded half to even of the exact binary value.
    assert_prints(vector(&[0.03125, 0.09375]), "tensor([0.0312, 0.0938])");
}

#[test]
fn magnitudes_far_apart_print_scientifically() {
    assert_prints(vector(&[1.0, 1001.0]), "tensor([1.0000e+00, 1.0010e+03])");
    assert_prints(vector(&[1.0, 1000.0]), "tensor([   1., 1000.])");
    assert_prints(vector(&[1e-5]), "tensor([1.0000e-05])");
    assert_prints(vector(&[0.5, 1e-4]), "tensor([5.0000e-01, 1.0000e-04])");
    assert_prints(
        vector(&[1e8]),
        "tensor([1.0000e+08])"
            .replace("1.0000e+08", "100000000.")
            .as_str(),
    );
    assert_prints(vector(&[2e8, 2e8]), "tensor([2.0000e+08, 2.0000e+08])");
    assert_prints(Tensor::scalar(-1e10f32), "tensor(-1.0000e+10)");
    assert_prints(Tensor::scalar(1e-300f64), "tensor(1.0000e-300, dtype=f64)");
    assert_prints(
        vector(&[0.0, 1e-6, f32::NAN]),
        "tensor([0.0000e+00, 1.0000e-06,        nan])",
    );
}

#[test]
fn integers_and_truth_values() {
    assert_prints(Tensor::from([1i64, -20, 300]), "tensor([  1, -20, 300])");
    assert_prints(Tensor::from([true, false]), "tensor([ True, False])");
    assert_prints(Tensor::from([7u8]), "tensor([7], dtype=u8)");
    assert_prints(
        Tensor::from([u64::MAX]),
        "tensor([18446744073709551615], dtype=u64)",
    );
}

#[test]
fn what_is_not_the_default_is_said() {
    assert_prints(Tensor::from([0.5f64]), "tensor([0.5000], dtype=f64)");
    let half = vector(&[1.5]).to_dtype(DType::BF16);
    assert_prints(half, "tensor([1.5000], dtype=bf16)");
    assert_prints(Tensor::zeros([0], DType::F32), "tensor([])");
    assert_prints(Tensor::zeros([0, 3], DType::F32), "tensor([], size=(0, 3))");
    assert_prints(
        Tensor::zeros([2, 0], DType::I64),
        "tensor([], size=(2, 0), dtype=i64)",
    );
    let named = vector(&[1.0, 2.0]).refine_names(["N"]);
    assert_prints(named, "tensor([1., 2.], names=('N',))");
}

#[test]
fn dims_are_nested_and_lines_break() {
    let x = Tensor::arange(0, 8, 1).reshape([2, 2, 2]);
    let text = "tensor([[[0, 1],\n         [2, 3]],\n\n        [[4, 5],\n         [6, 7]]])";
    assert_prints(x, text);
    assert_prints(
        Tensor::arange(0, 24, 1),
        "tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16, 17,\n        \
         18, 19, 20, 21, 22, 23])",
    );
    // As in PyTorch, zeros don't count for the width, so these lines are long.
    let zeros = Tensor::zeros([25], DType::F32).to_string();
    assert_eq!(zeros.lines().next().unwrap().matches("0.").count(), 24);
    assert_prints(
        Tensor::from([123456789i64, 1])
            .to_dtype(DType::U32)
            .reshape([2, 1]),
        "tensor([[123456789],\n        [        1]], dtype=u32)",
    );
}

#[test]
fn many_elements_are_summarised() {
    assert_prints(
        Tensor::arange(0, 1001, 1),
        "tensor([   0,    1,    2,  ...,  998,  999, 1000])",
    );
    assert!(!Tensor::arange(0, 1000, 1).to_string().contains("..."));
    let x = Tensor::arange(0, 10000, 1).reshape([100, 100]);
    assert_prints(
        x,
        "tensor([[   0,    1,    2,  ...,   97,   98,   99],\n        \
         [ 100,  101,  102,  ...,  197,  198,  199],\n        \
         [ 200,  201,  202,  ...,  297,  298,  299],\n        \
         ...,\n        \
         [9700, 9701, 9702,  ..., 9797, 9798, 9799],\n        \
         [9800, 9801, 9802,  ..., 9897, 9898, 9899],\n        \
         [9900, 9901, 9902,  ..., 9997, 9998, 9999]])",
    );
    // Elements that are not shown do not affect the format.
    let mut values = vec![1.0f32; 1001];
    values[500] = 0.5;
    let text = vector(&values).to_string();
    assert_eq!(text, "tensor([1., 1., 1.,  ..., 1., 1., 1.])");
}

#[test]
fn options_change_it() {
    let x = Tensor::from([1.23456f32, 20000.0]);
    let with = |o: PrintOptions| x.to_text(&o).unwrap();
    let base = PrintOptions::default();
    assert_eq!(with(base.clone()), "tensor([1.2346e+00, 2.0000e+04])");
    let plain = PrintOptions {
        sci_mode: Some(false),
        precision: 2,
        ..base.clone()
    };
    assert_eq!(with(plain), "tensor([    1.23, 20000.00])");
    let short = PrintOptions {
        threshold: 3,
        edgeitems: 1,
        linewidth: 20,
        ..base
    };
    let many = Tensor::arange(0, 8, 1);
    assert_eq!(many.to_text(&short).unwrap(), "tensor([0,  ..., 7])");
    let narrow = PrintOptions {
        threshold: 100,
        ..short
    };
    assert_eq!(
        many.to_text(&narrow).unwrap(),
        "tensor([0, 1, 2, 3,\n        4, 5, 6, 7])"
    );
}
