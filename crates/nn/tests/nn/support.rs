//! The common functions of the tests.

use kiln_nn::Module;
use kiln_tensor::with_default_dtype;
use kiln_tensor::{DType, Result, Tensor, Var};

/// Numbers that differ from call to call of the process, but not from run to run.
pub fn random(shape: impl AsRef<[usize]>) -> Tensor {
    let t = Tensor::randn(shape.as_ref(), DType::F64);
    t.realize().expect("random numbers can be computed");
    t
}

/// A module of f64.
pub fn f64_module<M>(make: impl FnOnce() -> Result<M>) -> M {
    with_default_dtype(DType::F64, make).expect("the module can be made")
}

pub fn values(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64)
        .to_vec::<f64>()
        .unwrap_or_else(|e| panic!("{e}"))
}

pub fn held(var: &Var) -> Vec<f64> {
    values(&var.get().detach())
}

#[track_caller]
pub fn assert_close(found: &[f64], wanted: &[f64], tolerance: f64) {
    assert_eq!(found.len(), wanted.len());
    for (i, (a, b)) in found.iter().zip(wanted).enumerate() {
        let near = (a - b).abs() <= tolerance * (1.0 + b.abs());
        assert!(near, "element {i} is {a}, wanted {b}");
    }
}

/// The names of a module's state, in order.
pub fn names(m: &dyn Module) -> Vec<String> {
    m.state_dict().names().map(str::to_string).collect()
}

/// Compares the gradients of all parameters of `m`, an f64 module, with central differences of the sum
/// of `f`, which must not be random.
#[track_caller]
pub fn check_gradients(m: &dyn Module, f: &dyn Fn() -> Tensor) {
    let total = || f().square().sum(());
    m.zero_grad();
    total().backward().unwrap_or_else(|e| panic!("{e}"));
    for (name, var) in m.named_parameters() {
        let gradient = values(
            &var.grad()
                .unwrap_or_else(|| panic!("{name} has no gradient")),
        );
        let (before, shape) = (held(&var), var.shape().unwrap());
        // One direction, in which every element moves by another amount, is enough to tell formulas apart.
        let direction: Vec<f64> = (0..before.len())
            .map(|i| (i as f64 * 1.7 + 0.9).sin() / (before.len() as f64).sqrt())
            .collect();
        let at = |h: f64| {
            let moved: Vec<f64> = before
                .iter()
                .zip(&direction)
                .map(|(w, d)| w + h * d)
                .collect();
            var.assign(Tensor::from_slice(&moved, &shape))
                .expect("same shape");
            total().item::<f64>().unwrap_or_else(|e| panic!("{e}"))
        };
        let h = 1e-5;
        let numeric = (at(h) - at(-h)) / (2.0 * h);
        let along: f64 = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum();
        assert!(
            (along - numeric).abs() <= 1e-5 * (1.0 + numeric.abs()),
            "{name}: {along} along a direction, but differences give {numeric}"
        );
        var.assign(Tensor::from_slice(&before, &shape))
            .expect("same shape");
    }
    m.zero_grad();
}
