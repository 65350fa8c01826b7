//! Calls of modules with other parameters, and parameters as one vector.

use crate::support::*;
use kiln_nn::*;
use kiln_tensor::{DType, Grad, Spec, Tensor, compile, grad_with, jacobian};

fn model() -> Sequential {
    let net =
        || sequential!["0": Linear::new(3, 4), "norm": BatchNorm1d::new(4), "2": Linear::new(4, 2)];
    f64_module(net)
}

#[test]
fn given_values_stand_for_those_of_the_module() {
    let (m, other, x) = (model(), model(), random([5, 3]));
    let before = m.state_dict();
    let wanted = other.call(&x);
    let y = functional_call(&m, other.named_parameters(), &x);
    assert_eq!(values(&y), values(&wanted));
    let nested = sequential!["net": m.clone(), "f": |x: Tensor| x].unwrap();
    let named = other
        .named_parameters()
        .into_iter()
        .map(|(n, p)| (format!("net.{n}"), p));
    let y = functional_call(&nested, named, &x);
    assert_close(&values(&y), &values(&wanted), 1e-12);
    let bias = [("0.bias", Tensor::zeros([4], DType::F64))];
    let one = functional_call(&m, bias, &x);
    assert_ne!(values(&one), values(&m.call(&x)));
    // The calls have left the module's parameters as they were.
    for (name, value) in before.iter().filter(|(name, _)| !name.starts_with("norm")) {
        assert_eq!(
            values(m.state_dict().get(name).unwrap()),
            values(value),
            "{name}"
        );
    }
}

#[test]
fn running_statistics_given_to_a_call_are_its_own() {
    let (m, x) = (model(), random([5, 3]));
    let state = m.state_dict();
    let y = functional_call(&m, state.iter(), &x);
    y.realize().unwrap();
    for (name, value) in state.iter() {
        assert_eq!(
            values(m.state_dict().get(name).unwrap()),
            values(value),
            "{name}"
        );
    }
    m.eval();
    let scaled: Vec<(String, Tensor)> = (state.iter())
        .map(|(n, t)| {
            (
                n.to_string(),
                if n == "norm.running_var" {
                    t * 4.0
                } else {
                    t.clone()
                },
            )
        })
        .collect();
    let halved = functional_call(&m, scaled, &x);
    assert_ne!(values(&halved), values(&m.call(&x)));
}

#[test]
fn gradients_reach_the_given_tensors() {
    let (m, x) = (model(), random([5, 3]));
    m.eval();
    let loss = |w: &Tensor| functional_call(&m, [("0.weight", w)], &x).square().sum(());
    m.call(&x).square().sum(()).backward().unwrap();
    let own = m.get_parameter("0.weight").unwrap();
    let wanted = own.grad().unwrap();
    m.zero_grad();
    let w = own.detach().requires_grad_(true);
    // A step of gradient descent and a loss behind it, as in meta learning.
    let g = grad_with(loss(&w), &w, Grad::new().create_graph(true)).unwrap();
    assert_close(&values(&g), &values(&wanted), 1e-12);
    loss(&(&w - 0.01 * &g)).backward().unwrap();
    assert!(own.grad().is_none());
    let found = values(&w.grad().unwrap());
    let base = values(&w);
    for i in 0..base.len() {
        let at = |h: f64| {
            let mut moved = base.clone();
            moved[i] += h;
            let w = Tensor::from_slice(&moved, [4, 3]).requires_grad_(true);
            let g = grad_with(loss(&w), &w, Grad::new()).unwrap();
            values(&loss(&(w - 0.01 * g)))[0]
        };
        let numeric = (at(1e-5) - at(-1e-5)) / 2e-5;
        assert!((found[i] - numeric).abs() < 1e-5 * (1.0 + numeric.abs()));
    }
    let j = jacobian(
        |b: Tensor| functional_call(&m, [("2.bias", b)], &x),
        random([2]),
    )
    .unwrap();
    let unit: Vec<f64> = [[1.0, 0.0, 0.0, 1.0]; 5].concat();
    assert_close(&values(&j), &unit, 1e-12);
}

#[test]
fn calls_compile() {
    let (m, x) = (f64_module(|| Linear::new(3, 2)), random([5, 3]));
    let specs = (
        Spec::new(DType::F64, (2, 3)),
        Spec::new(DType::F64, ("n", 3)),
    );
    let f = compile(specs, |(w, x)| functional_call(&m, [("weight", w)], x)).unwrap();
    let w = random([2, 3]);
    let bias = m.bias.as_ref().unwrap();
    let wanted = x.matmul(w.t()) + bias;
    assert_close(&values(&f.run((&w, &x)).unwrap()), &values(&wanted), 1e-12);
    assert_eq!(f.states().len(), 1, "the weight is no input");
}

#[test]
fn names_and_shapes_that_do_not_fit_are_listed() {
    let (m, x) = (model(), random([5, 3]));
    let error = |y: Tensor| y.error().unwrap().to_string();
    let two = [("0.wight", random([4, 3])), ("2.weight", random([4, 2]))];
    let text = error(functional_call(&m, two, &x));
    for part in [
        "0.wight: unexpected",
        "the module's is f64[2, 4], the given one f64[4, 2]",
        "functional_call.rs",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let strict = FunctionalCall::new().strict(true);
    let text = error(functional_call_with(
        &m,
        [("2.bias", random([2]))],
        &x,
        strict.clone(),
    ));
    assert!(
        text.contains("0.weight: missing") && text.contains("norm.running_mean: missing"),
        "{text}"
    );
    assert!(!text.contains("2.bias"), "{text}");
    let all = m.state_dict();
    assert!(
        functional_call_with(&m, all.iter(), &x, strict)
            .error()
            .is_none()
    );
    let text = error(functional_call(
        &m,
        [("2.bias", random([2])), ("2.bias", random([2]))],
        &x,
    ));
    assert!(text.contains("2.bias: given twice"), "{text}");
    let mut tied = f64_module(|| sequential!["a": Linear::new(2, 2)]);
    let shared = tied[0].clone();
    tied.push(shared);
    let both = [("a.bias", random([2])), ("1.bias", random([2]))];
    let text = error(functional_call(&tied, both, random([1, 2])));
    assert!(
        text.contains("1.bias: the same parameter as a.bias"),
        "{text}"
    );
    let half = error(functional_call(
        &m,
        [("2.bias", random([2]).to_dtype(DType::F32))],
        &x,
    ));
    assert!(half.contains("f64[2], the given one f32[2]"), "{half}");
}

#[test]
fn vectors_hold_all_parameters_in_order() {
    let m = f64_module(|| Linear::new(3, 2));
    let all = parameters_to_vector(m.parameters());
    let wanted = [held(&m.weight), held(m.bias.as_ref().unwrap())].concat();
    assert_eq!(values(&all), wanted);
    all.square().sum(()).backward().unwrap();
    let doubled: Vec<f64> = wanted[..6].iter().map(|w| 2.0 * w).collect();
    assert_close(&values(&m.weight.grad().unwrap()), &doubled, 1e-12);

    let new = random([8]);
    vector_to_parameters(&new, m.parameters()).unwrap();
    assert_eq!(held(&m.weight), values(&new)[..6]);
    for wrong in [random([7]), random([9]), random([8, 1])] {
        let e = vector_to_parameters(wrong, m.parameters()).unwrap_err();
        assert!(
            e.to_string().contains("8 elements") && e.to_string().contains("functional_call.rs"),
            "{e}"
        );
    }
    assert_eq!(held(&m.weight), values(&new)[..6]);
}
