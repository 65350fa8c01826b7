//! Hooks on parameters that are found by name.

use crate::support::{assert_close, held, random, values};
use kiln_nn::optim::{Optimizer, SGD};
use kiln_nn::*;
use kiln_tensor::{DType, Spec, Tensor, compile, with_default_dtype, with_seed};
use std::sync::{Arc, Mutex};

fn model() -> Sequential {
    let make = || {
        let body = Linear::new(3, 4).unwrap();
        let model = Sequential::new().named("body", body).add(Tanh::new());
        model.named("head", Linear::new(4, 1).unwrap())
    };
    with_default_dtype(DType::F64, || with_seed(1, make))
}

/// Notes names as hooks run, and doubles the gradient of the head's weight.
fn watch(model: &Sequential) -> (Arc<Mutex<Vec<String>>>, Vec<kiln_tensor::HookHandle>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let parameters = model.named_parameters().into_iter();
    let hooks = parameters.map(|(name, parameter)| {
        let seen = seen.clone();
        let hook = parameter.register_hook(move |g| {
            seen.lock().unwrap().push(name.clone());
            (name == "head.weight").then(|| g * 2.0)
        });
        hook.unwrap()
    });
    let hooks = hooks.collect();
    (seen, hooks)
}

fn gradients(model: &Sequential) -> Vec<(String, Vec<f64>)> {
    let of = |(name, p): (String, kiln_tensor::Var)| (name, values(&p.grad().unwrap()));
    model.named_parameters().into_iter().map(of).collect()
}

#[test]
fn each_parameter_knows_its_name() {
    let x = random([5, 3]);
    let (plain, hooked) = (model(), model());
    plain.call(&x).sum(()).backward().unwrap();
    let (seen, handles) = watch(&hooked);
    hooked.call(&x).sum(()).backward().unwrap();
    let mut names = seen.lock().unwrap().clone();
    names.sort();
    assert_eq!(
        names,
        ["body.bias", "body.weight", "head.bias", "head.weight"]
    );
    for ((name, g), (_, h)) in gradients(&plain).iter().zip(gradients(&hooked)) {
        let factor = if name == "head.weight" { 2.0 } else { 1.0 };
        let wanted: Vec<f64> = g.iter().map(|g| g * factor).collect();
        assert_close(&h, &wanted, 1e-14);
    }
    // A handle removes its hook, even if the names are looked up again.
    handles.iter().for_each(|h| h.remove());
    hooked.zero_grad();
    hooked.call(&x).sum(()).backward().unwrap();
    assert_eq!(seen.lock().unwrap().len(), 4);
    assert_eq!(gradients(&hooked), gradients(&plain));
}

#[test]
fn what_a_hook_does_is_part_of_lazy_and_compiled_steps() {
    let data: Vec<Tensor> = (0..3).map(|_| random([5, 3])).collect();
    let sgd = || SGD::new().lr(0.1);
    let run = |compiled: bool| {
        let model = model();
        let (seen, _handles) = watch(&model);
        let mut optimizer = Optimizer::new(model.parameters(), sgd()).unwrap();
        let mut step = |x: &Tensor| {
            optimizer.zero_grad();
            let loss = model.call(x).square().mean(());
            loss.backward()?;
            optimizer.step()?;
            Result::Ok(loss)
        };
        match compiled {
            false => data.iter().for_each(|x| drop(step(x).unwrap())),
            true => {
                let spec = Spec::new(DType::F64, [5, 3]);
                let step = compile(spec, |x| step(&x)).unwrap();
                data.iter().for_each(|x| drop(step.run(x).unwrap()));
            }
        }
        let calls = seen.lock().unwrap().len();
        (
            model.parameters().iter().flat_map(held).collect::<Vec<_>>(),
            calls,
        )
    };
    let ((lazy, called), (compiled, recorded)) = (run(false), run(true));
    assert_close(&compiled, &lazy, 1e-13);
    assert_eq!((called, recorded), (12, 4));
}
