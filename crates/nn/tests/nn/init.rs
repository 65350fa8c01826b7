//! The distributions that parameters start with.

use crate::support::held;
use kiln_nn::init::TruncNormal;
use kiln_nn::init::{self, FanMode, Nonlinearity};
use kiln_nn::*;
use kiln_tensor::{DType, Tensor, Var};

/// Asserts that numbers are uniform within ±bound: all are inside, and their variance is as expected.
#[track_caller]
fn assert_uniform(var: &Var, bound: f64) {
    let x = held(var);
    let limit = bound * (1.0 + 1e-6);
    assert!(
        x.iter().all(|v| v.abs() <= limit),
        "a number is beyond {bound}"
    );
    let square = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let near = (square / (bound * bound / 3.0) - 1.0).abs() < 0.15;
    assert!(
        near || x.len() < 500,
        "the mean square is {square} for a bound of {bound}"
    );
    assert!(x.iter().any(|v| *v > 0.0) && x.iter().any(|v| *v < 0.0));
}

#[track_caller]
fn assert_normal(var: &Var, std: f64) {
    let x = held(var);
    let square = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    assert!(
        (square.sqrt() / std - 1.0).abs() < 0.1,
        "the deviation is {}",
        square.sqrt()
    );
    assert!(
        x.iter().any(|v| v.abs() > 2.0 * std),
        "normal numbers have tails"
    );
}

#[test]
fn layers_start_with_pytorchs_distributions() {
    let linear = Linear::new(25, 40).unwrap();
    assert_uniform(&linear.weight, 0.2);
    assert_uniform(linear.bias.as_ref().unwrap(), 0.2);
    let conv = Conv2d::new(8, 16, Kernel::new(3).groups(2)).unwrap();
    assert_uniform(&conv.weight, 1.0 / 6.0);
    assert_uniform(conv.bias.as_ref().unwrap(), 1.0 / 6.0);
    let back = ConvTranspose2d::new(20, 4, 3).unwrap();
    assert_uniform(&back.weight, 1.0 / 6.0);
    assert_uniform(&Bilinear::new(4, 10, 20).unwrap().weight, 0.5);
    assert_normal(&Embedding::new(100, 20).unwrap().weight, 1.0);
    let lstm = LSTM::new(10, 16).unwrap();
    for (_, var) in lstm.named_parameters() {
        assert_uniform(&var, 0.25);
    }
    let norm = BatchNorm2d::new(3).unwrap();
    assert_eq!(held(norm.weight.as_ref().unwrap()), [1.0; 3]);
    assert_eq!(held(norm.bias.as_ref().unwrap()), [0.0; 3]);
    assert_eq!(held(norm.running_var.as_ref().unwrap()), [1.0; 3]);
    let attention =
        MultiheadAttention::with(24, 4, AttentionOptions::new().add_bias_kv(true)).unwrap();
    // Xavier of [72, 24].
    assert_uniform(
        attention.in_proj_weight.as_ref().unwrap(),
        (6.0f64 / 96.0).sqrt(),
    );
    assert_uniform(&attention.out_proj.weight, 1.0 / 24f64.sqrt());
    assert_eq!(held(attention.in_proj_bias.as_ref().unwrap()), [0.0; 72]);
    assert_eq!(held(attention.out_proj.bias.as_ref().unwrap()), [0.0; 24]);
}

fn var(shape: &[usize]) -> Var {
    Var::parameter(Tensor::zeros(shape, DType::F32)).unwrap()
}

#[test]
fn scaled_initialisers_count_inputs_and_outputs() {
    let w = var(&[16, 8, 3, 3]);
    init::xavier_uniform_(&w, 2.0).unwrap();
    assert_uniform(&w, 2.0 * (6.0f64 / (72.0 + 144.0)).sqrt());
    init::xavier_normal_(&w, 1.0).unwrap();
    assert_normal(&w, (2.0f64 / (72.0 + 144.0)).sqrt());
    init::kaiming_uniform_(&w).unwrap();
    assert_uniform(&w, (6.0f64 / 72.0).sqrt());
    let slope = Nonlinearity::LeakyRelu(5f64.sqrt());
    init::kaiming_uniform_with_(&w, FanMode::FanIn, slope).unwrap();
    assert_uniform(&w, 1.0 / 72f64.sqrt());
    init::kaiming_normal_(&w).unwrap();
    assert_normal(&w, (2.0f64 / 72.0).sqrt());
    init::kaiming_normal_with_(&w, FanMode::FanOut, Nonlinearity::Relu).unwrap();
    assert_normal(&w, (2.0f64 / 144.0).sqrt());
    assert_eq!(init::calculate_gain(Nonlinearity::Tanh), 5.0 / 3.0);
    assert_eq!(init::calculate_gain(Nonlinearity::Linear), 1.0);
    assert_eq!(init::calculate_gain(Nonlinearity::Selu), 0.75);
}

#[test]
fn plain_initialisers_fill() {
    let w = var(&[40, 50]);
    init::uniform_(&w, 1.0, 3.0).unwrap();
    assert!(held(&w).iter().all(|v| (1.0..3.0).contains(v)));
    init::normal_(&w, 0.0, 0.5).unwrap();
    assert_normal(&w, 0.5);
    init::constant_(&w, 7.0).unwrap();
    assert_eq!(held(&w), [7.0; 2000]);
    init::zeros_(&w).unwrap();
    assert_eq!(held(&w), [0.0; 2000]);
    init::ones_(&w).unwrap();
    assert_eq!(held(&w), [1.0; 2000]);
    assert!(w.requires_grad(), "an initialised parameter stays one");
    let small = var(&[2, 3]);
    init::eye_(&small).unwrap();
    assert_eq!(held(&small), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
}

#[test]
fn truncated_normals_keep_their_shape_within_the_range() {
    let w = var(&[4000]);
    init::trunc_normal_(
        &w,
        TruncNormal::new().mean(1.0).std(2.0).low(-1.0).high(3.0),
    )
    .unwrap();
    let x = held(&w);
    assert!(x.iter().all(|v| (-1.0..=3.0).contains(v)));
    let mean = x.iter().sum::<f64>() / 4000.0;
    let var_ = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 4000.0;
    assert!((mean - 1.0).abs() < 0.1, "{mean}");
    // A normal cut at one deviation has 0.2911 of its variance left.
    assert!((var_ / 4.0 - 0.2911).abs() < 0.03, "{var_}");
    assert!(init::trunc_normal_(&w, TruncNormal::new().low(2.0).high(1.0)).is_err());
}

#[test]
fn dirac_is_the_identity_of_a_convolution() {
    for (groups, size) in [(1, [3, 3]), (2, [1, 4])] {
        let conv = Conv2d::new(
            4,
            4,
            Kernel::new([size[0], size[1]])
                .groups(groups)
                .bias(false)
                .padding([size[0] / 2, size[1] / 2]),
        )
        .unwrap();
        init::dirac_(&conv.weight, groups).unwrap();
        let x = Tensor::rand([1, 4, 6, 6], DType::F32);
        x.realize().unwrap();
        let y = conv.call(&x);
        let y = y.narrow(2, 0, 6).narrow(3, 0, 6);
        assert_eq!(y.to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
    }
}

#[test]
fn cells_that_do_not_fit_are_named() {
    let bias = Var::parameter(Tensor::zeros([3], DType::F32)).unwrap();
    let e = init::xavier_uniform_(&bias, 1.0).unwrap_err();
    assert!(
        e.message().contains("2 dims") && e.message().contains("f32[3]"),
        "{e}"
    );
    let count = Var::new(Tensor::zeros([3], DType::I64)).unwrap();
    let e = init::normal_(&count, 0.0, 1.0).unwrap_err();
    assert!(e.message().contains("i64"), "{e}");
    assert!(init::eye_(&bias).is_err() && init::dirac_(&bias, 1).is_err());
}
