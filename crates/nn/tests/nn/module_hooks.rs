//! Hooks on modules: their inputs and outputs, forward and backward, and their states.

use crate::support::{assert_close, random, values};
use kiln_nn::*;
use kiln_tensor::{DType, Spec, Tensor, checkpoint, compile, with_default_dtype, with_seed};
use std::sync::{Arc, Mutex};

/// The values that hooks have seen.
type Log<T> = Arc<Mutex<Vec<T>>>;

fn log<T>() -> Log<T> {
    Arc::default()
}

fn taken<T>(log: &Log<T>) -> Vec<T> {
    std::mem::take(&mut *log.lock().unwrap())
}

fn model() -> Sequential {
    let make = || {
        sequential![
            "body": sequential![Linear::new(3, 4), Tanh::new()],
            "head": Linear::new(4, 2),
        ]
    };
    with_default_dtype(DType::F64, || with_seed(3, make)).unwrap()
}

#[test]
fn forward_hooks_see_and_replace_what_goes_through() {
    let (model, x) = (model(), random([5, 3]));
    let plain = model.call(&x);
    let seen = log();
    let hidden = model.get_submodule("body.1").unwrap();
    let handle = {
        let seen = seen.clone();
        let note = move |m: &dyn Module, x: &[Tensor], y: &[Tensor]| {
            let near = values(&y[0]) == values(&x[0].tanh());
            seen.lock().unwrap().push((m.name().to_string(), near));
        };
        hidden.register_forward_hook(note).unwrap()
    };
    assert_eq!(values(&model.call(&x)), values(&plain));
    assert_eq!(taken(&seen), [("Tanh".to_string(), true)]);

    // Hooks run in the order in which they were registered; each sees the results of the one before it.
    let double = |_: &dyn Module, _: &[Tensor], y: &[Tensor]| vec![&y[0] * 2.0];
    let twice = hidden.register_forward_hook(double).unwrap();
    let halve = |_: &dyn Module, x: &[Tensor]| Some(vec![&x[0] * 0.5]);
    let head = &model["head"];
    let half = head.register_forward_pre_hook(halve).unwrap();
    assert_close(&values(&model.call(&x)), &values(&plain), 1e-14);
    half.remove();
    assert!(values(&model.call(&x)) != values(&plain));
    twice.remove();
    handle.remove();
    handle.remove();
    drop(taken(&seen));
    assert_eq!(values(&model.call(&x)), values(&plain));
    assert!(taken(&seen).is_empty(), "a removed hook sees nothing");
}

#[test]
fn a_dropped_handle_leaves_its_hook() {
    let layer = ReLU::new();
    let seen = log();
    {
        let seen = seen.clone();
        let note = move |_: &dyn Module, _: &[Tensor], _: &[Tensor]| seen.lock().unwrap().push(1);
        drop(layer.register_forward_hook(note).unwrap());
    }
    layer.call(random([2]));
    layer.call(random([2]));
    assert_eq!(taken(&seen), [1, 1]);
}

#[test]
fn a_hook_that_gives_something_else_is_an_error_at_the_call() {
    let layer = ReLU::new();
    let two = |_: &dyn Module, _: &[Tensor], y: &[Tensor]| vec![y[0].clone(), y[0].clone()];
    layer.register_forward_hook(two).unwrap();
    let line = line!() + 1;
    let y = layer.call(random([2]));
    let e = y.error().expect("an error");
    assert_eq!(
        (e.loc().line(), e.loc().file().ends_with("module_hooks.rs")),
        (line, true),
        "{e}"
    );
    assert!(e.message().contains("2 tensors in the place of 1"), "{e}");
}

#[test]
fn a_module_without_a_place_for_hooks_says_so() {
    #[derive(Module)]
    struct Own(Linear);
    let own = Own(Linear::new(2, 2).unwrap());
    let line = line!() + 1;
    let e = own.register_full_backward_hook(|_, _| ()).unwrap_err();
    assert_eq!(e.loc().line(), line, "{e}");
    assert!(e.to_string().contains("hooks: Hooks"), "{e}");
    assert!(own.0.register_full_backward_hook(|_, _| ()).is_ok());
}

/// Inputs and outputs of different shapes, with gradients for both.
#[derive(Module)]
struct Mixed {
    left: Linear,
    right: Linear,
    hooks: Hooks,
}

impl Forward<(Tensor, Tensor), (Tensor, Tensor)> for Mixed {
    fn forward(&self, (a, b): (Tensor, Tensor)) -> Result<(Tensor, Tensor)> {
        let (a, b) = (self.left.call(a), self.right.call(b));
        Ok((&a * &b, a + b.exp()))
    }
}

fn mixed() -> Mixed {
    let make = || -> Result<Mixed> {
        Ok(Mixed {
            left: Linear::new(3, 4)?,
            right: Linear::new(2, 4)?,
            hooks: Hooks::new(),
        })
    };
    with_default_dtype(DType::F64, || with_seed(5, make)).unwrap()
}

/// Gradients, one after the other.
type Seen = Vec<Vec<f64>>;

/// Returns the gradients that reach the inputs, and those that hooks saw.
fn gradients(mixed: &Mixed, seen: &Log<Seen>, inside: bool) -> (Vec<f64>, Vec<Seen>) {
    let [a, b] = with_seed(6, || [[5, 3], [5, 2]].map(random)).map(|t| t.requires_grad_(true));
    let run = |(a, b): (Tensor, Tensor)| mixed.call((a.sin(), b.cos()));
    let (y, z) = match inside {
        true => checkpoint(run, (a.clone(), b.clone())),
        false => run((a.clone(), b.clone())),
    };
    (y.square().sum(()) + z.sum(())).backward().unwrap();
    let all = [a, b].map(|t| values(&t.grad().unwrap()));
    (all.concat(), taken(seen))
}

#[test]
fn backward_hooks_see_the_gradients_of_all_inputs_and_outputs() {
    let (plain, hooked) = (mixed(), mixed());
    let seen: Log<Seen> = log();
    {
        let seen = seen.clone();
        let note = move |inputs: &[Option<Tensor>], outputs: &[Option<Tensor>]| {
            let shown = inputs
                .iter()
                .chain(outputs)
                .map(|g| values(g.as_ref().unwrap()));
            seen.lock().unwrap().push(shown.collect());
        };
        hooked.register_full_backward_hook(note).unwrap();
    }
    let ((wanted, none), (found, shown)) = (
        gradients(&plain, &log(), false),
        gradients(&hooked, &seen, false),
    );
    assert_close(&found, &wanted, 1e-14);
    assert!(none.is_empty());
    // By hand: the gradients of outputs are 2 y and 1. Those of inputs are the gradients of a and b without the
    // derivatives of sine and cosine.
    let [shown] = &shown[..] else {
        panic!("the hook ran {} times", shown.len());
    };
    assert_eq!(
        shown.iter().map(Vec::len).collect::<Vec<_>>(),
        [15, 10, 20, 20]
    );
    assert_eq!(shown[3], [1.0; 20]);
    let [a, b] = with_seed(6, || [[5, 3], [5, 2]].map(random));
    let outer = [values(&a.cos()), values(&b.sin().neg())].concat();
    let inner = [shown[0].clone(), shown[1].clone()].concat();
    let product: Vec<f64> = outer.iter().zip(&inner).map(|(o, i)| o * i).collect();
    assert_close(&product, &wanted, 1e-12);

    // Inside a checkpoint, the same holds.
    let (found, again) = gradients(&hooked, &seen, true);
    assert_close(&found, &wanted, 1e-14);
    assert_eq!(again.len(), 1);
    assert_close(&again[0].concat(), &shown.concat(), 1e-12);
}

#[test]
fn what_a_backward_hook_returns_takes_the_place_of_the_inputs_gradients() {
    let (plain, hooked) = (mixed(), mixed());
    let triple = |inputs: &[Option<Tensor>], _: &[Option<Tensor>]| {
        let mut inputs = inputs.to_vec();
        inputs[1] = inputs[1].as_ref().map(|g| g * 3.0);
        inputs
    };
    let handle = hooked.register_full_backward_hook(triple).unwrap();
    let (wanted, found) = (
        gradients(&plain, &log(), false).0,
        gradients(&hooked, &log(), false).0,
    );
    assert_close(&found[..15], &wanted[..15], 1e-14);
    let tripled: Vec<f64> = wanted[15..].iter().map(|g| g * 3.0).collect();
    assert_close(&found[15..], &tripled, 1e-14);
    // Parameters inside are reached before the inputs, and keep their gradients.
    let of = |m: &Mixed| values(&m.right.weight.grad().unwrap());
    assert_close(&of(&hooked), &of(&plain), 1e-14);
    handle.remove();
    assert_close(&gradients(&hooked, &log(), false).0, &wanted, 1e-14);

    let wrong = |inputs: &[Option<Tensor>], _: &[Option<Tensor>]| vec![inputs[0].clone()];
    hooked.register_full_backward_hook(wrong).unwrap();
    let x = random([5, 3]).requires_grad_(true);
    let y = random([5, 2]).requires_grad_(true);
    let e = hooked.call((&x, &y)).0.sum(()).backward().unwrap_err();
    assert!(e.to_string().contains("1 gradients for 2 inputs"), "{e}");
}

#[test]
fn a_first_layer_whose_input_has_no_gradient_is_seen_too() {
    let model = model();
    let seen = log();
    let first = model.get_submodule("body.0").unwrap();
    {
        let seen = seen.clone();
        let note = move |inputs: &[Option<Tensor>], outputs: &[Option<Tensor>]| {
            let shape = outputs[0].as_ref().unwrap().shape().unwrap();
            seen.lock().unwrap().push((inputs[0].is_none(), shape));
        };
        first.register_full_backward_hook(note).unwrap();
    }
    model.call(random([5, 3])).sum(()).backward().unwrap();
    assert_eq!(taken(&seen), [(true, vec![5, 4])]);
    kiln_tensor::no_grad(|| model.call(random([5, 3])));
    assert!(taken(&seen).is_empty());
}

#[test]
fn hooks_are_recorded_into_compiled_functions() {
    let model = model();
    let x = random([5, 3]);
    let calls = log();
    {
        let calls = calls.clone();
        let scale = move |_: &dyn Module, _: &[Tensor], y: &[Tensor]| {
            calls.lock().unwrap().push(());
            vec![&y[0] * 3.0]
        };
        model
            .get_submodule("body")
            .unwrap()
            .register_forward_hook(scale)
            .unwrap();
        model
            .get_submodule("head")
            .unwrap()
            .register_full_backward_hook(|g, _| vec![g[0].as_ref().map(|g| g * 0.5)])
            .unwrap();
    }
    let step = |x: &Tensor| {
        model.zero_grad();
        let y = model.call(x);
        y.square().sum(()).backward()?;
        let g = model.get_parameter("body.0.weight")?.grad();
        Result::Ok(vec![y, g.expect("a gradient")])
    };
    let wanted: Vec<Vec<f64>> = step(&x).unwrap().iter().map(values).collect();
    assert_eq!(taken(&calls).len(), 1);
    let spec = Spec::new(DType::F64, ("n", 3));
    let f = compile(spec, |x| step(&x)).unwrap();
    assert_eq!(taken(&calls).len(), 1);
    for _ in 0..2 {
        let found = f.run(&x).unwrap();
        for (found, wanted) in found.iter().zip(&wanted) {
            assert_close(&values(found), wanted, 1e-12);
        }
    }
    assert!(taken(&calls).is_empty(), "a run calls nothing");
}

#[test]
fn features_are_taken_out_by_name() {
    let (model, x) = (model(), random([5, 3]));
    let (y, [hidden, body]) = extract(&model, ["body.1", "body"], &x).unwrap();
    assert_eq!(values(&y), values(&model.call(&x)));
    assert_eq!(values(&hidden[0]), values(&model["body"].call(&x)));
    assert_eq!(values(&hidden[0]), values(&body[0]));
    hidden[0].sum(()).backward().unwrap();
    assert!(
        model
            .get_parameter("body.0.weight")
            .unwrap()
            .grad()
            .is_some()
    );

    let line = line!() + 1;
    let e = extract(&model, ["tail"], &x).err().unwrap();
    assert_eq!(e.loc().line(), line, "{e}");
    assert!(
        e.message().contains("\"tail\"") && e.message().contains("body"),
        "{e}"
    );
    let e = extract(&model, ["body"], random([5, 7])).err().unwrap();
    assert!(e.to_string().contains("Linear(in_features=3"), "{e}");
    #[derive(Module)]
    struct Half(Linear, Linear);
    impl Forward for Half {
        fn forward(&self, x: Tensor) -> Result<Tensor> {
            Ok(self.0.call(x))
        }
    }
    let half: Result<Half> = with_default_dtype(DType::F64, || {
        Ok(Half(Linear::new(3, 1)?, Linear::new(3, 1)?))
    });
    let e = extract(&half.unwrap(), ["1"], &x).err().unwrap();
    assert!(e.message().contains("does not call \"1\""), "{e}");
}

#[test]
fn state_hooks_run_where_states_are_taken_and_loaded() {
    let model = model();
    let seen = log();
    let body = model.get_submodule("body").unwrap();
    {
        let seen = seen.clone();
        body.register_state_dict_pre_hook(move |m, prefix| {
            seen.lock().unwrap().push(format!("{} {prefix}", m.name()));
        })
        .unwrap();
    }
    let state = model.state_dict();
    assert_eq!(taken(&seen), ["Sequential body."]);

    // An older model used other names for the head's parameters, and had one more parameter.
    let mut old = state.rename(|name| Some(name.replace("head.", "head.fc_")));
    old.insert("extra", random([1]));
    assert!(model.load_state_dict(&old, true).is_err());
    model["head"]
        .register_load_state_dict_pre_hook(|_, state, prefix| {
            let (from, to) = (format!("{prefix}fc_"), prefix.to_string());
            *state = state.rename(|name| Some(name.replace(&from, &to)));
        })
        .unwrap();
    let report = model.load_state_dict(&old, false).unwrap();
    assert_eq!(
        (report.missing.len(), &report.unexpected[..]),
        (0, &["extra".to_string()][..])
    );
    let forget = model.register_load_state_dict_post_hook(|_, report| report.unexpected.clear());
    let report = model.load_state_dict(&old, false).unwrap();
    assert_eq!(report, LoadReport::default());
    forget.unwrap().remove();
    assert_eq!(
        model.load_state_dict(&old, false).unwrap().unexpected,
        ["extra"]
    );
}
