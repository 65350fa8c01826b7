//! Clipping.

use crate::{assert_close, numbers};
use kiln_nn::optim::{ClipNorm, clip_grad_norm_, clip_grad_norm_with, clip_grad_value_};
use kiln_tensor::{Tensor, Var};

/// Parameters with these gradients.
fn with_gradients(seed: u64) -> (Vec<Var>, Vec<f64>) {
    let shapes: [&[usize]; 4] = [&[3, 5], &[7], &[], &[1, 1]];
    let mut all = Vec::new();
    let mut gradients = Vec::new();
    for (i, shape) in shapes.iter().enumerate() {
        let n = shape.iter().product();
        let g = numbers(seed + i as u64, n);
        let p = Var::parameter(Tensor::from_slice(&vec![0.0; n], *shape)).unwrap();
        p.set_grad(Tensor::from_slice(&g, *shape)).unwrap();
        all.push(p);
        gradients.extend(g);
    }
    (all, gradients)
}

fn gradients(parameters: &[Var]) -> Vec<f64> {
    let read = |p: &Var| p.grad().unwrap().to_vec::<f64>().unwrap();
    parameters.iter().flat_map(read).collect()
}

#[test]
fn the_norm_of_all_gradients_is_limited() {
    for norm_type in [0.5, 1.0, 2.0, 3.0, f64::INFINITY] {
        for max_norm in [0.3, 1e6] {
            let (parameters, before) = with_gradients(5);
            let options = ClipNorm::new()
                .norm_type(norm_type)
                .error_if_nonfinite(true);
            let total = clip_grad_norm_with(&parameters, max_norm, options).unwrap();
            let norm = match norm_type.is_infinite() {
                true => before.iter().fold(0.0f64, |m, g| m.max(g.abs())),
                false => before
                    .iter()
                    .map(|g| g.abs().powf(norm_type))
                    .sum::<f64>()
                    .powf(1.0 / norm_type),
            };
            assert_close(&[total.item::<f64>().unwrap()], &[norm], 1e-12);
            let scale = (max_norm / (norm + 1e-6)).min(1.0);
            let expected: Vec<f64> = before.iter().map(|g| g * scale).collect();
            assert_close(&gradients(&parameters), &expected, 1e-12);
        }
    }
}

#[test]
fn a_norm_that_is_not_finite_is_an_error_where_asked_for() {
    let p = Var::parameter(Tensor::from_slice(&[0f32; 2], [2])).unwrap();
    let g = Tensor::from_slice(&[f32::NAN, 1.0], [2]);
    p.set_grad(&g).unwrap();
    let strict = ClipNorm::new().error_if_nonfinite(true);
    let e = clip_grad_norm_with([&p], 1.0, strict).unwrap_err();
    assert!(e.message().contains("NaN"), "{e}");
    assert_eq!(p.grad().unwrap().to_vec::<f32>().unwrap()[1], 1.0);
    let total = clip_grad_norm_(&p, 1.0).unwrap();
    assert!(total.item::<f32>().unwrap().is_nan());
}

#[test]
fn values_are_limited_and_parameters_without_gradient_skipped() {
    let (mut parameters, before) = with_gradients(9);
    parameters.push(crate::parameter(1, &[4]));
    clip_grad_value_(&parameters, 0.25).unwrap();
    assert!(parameters.pop().unwrap().grad().is_none());
    let expected: Vec<f64> = before.iter().map(|g| g.clamp(-0.25, 0.25)).collect();
    assert_close(&gradients(&parameters), &expected, 0.0);
    let none = clip_grad_norm_([&crate::parameter(2, &[3])], 1.0);
    assert_eq!(none.unwrap().item::<f32>().unwrap(), 0.0);
}
