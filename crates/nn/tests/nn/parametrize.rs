//! Parameters that are computed from others. `parametrize.py` makes PyTorch's results.

use crate::support::*;
use kiln_nn::optim::{Optimizer, SGD};
use kiln_nn::*;
use kiln_tensor::{Autocast, AutocastList, DType, Result, Tensor, Var, compile, set_autocast};
use serde_json::Value;

/// `sin(0.37 i + n)`, as in `parametrize.py`.
fn waves(n: usize, shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    let all: Vec<f64> = (0..count)
        .map(|i| (0.37 * i as f64 + n as f64).sin())
        .collect();
    Tensor::from_slice(&all, shape)
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap())
        .collect()
}

fn state(v: &Value) -> StateDict {
    let tensor = |v: &Value| {
        let shape: Vec<usize> = numbers(&v[0]).into_iter().map(|n| n as usize).collect();
        Tensor::from_slice(&numbers(&v[1]), shape)
    };
    let named = v.as_object().unwrap().iter();
    named.map(|(name, v)| (name.clone(), tensor(v))).collect()
}

fn assert_state(found: &StateDict, wanted: &StateDict) {
    for (name, value) in wanted.iter() {
        let found = found
            .get(name)
            .unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(found.shape().unwrap(), value.shape().unwrap(), "{name}");
        assert_close(&values(found), &values(value), 1e-9);
    }
    assert_eq!(found.len(), wanted.len());
}

/// A layer of PyTorch's name with a parametrized weight.
fn layer(name: &str, norm: &Value) -> (Box<dyn Module>, Var) {
    fn boxed<M: Module>(m: M, weight: impl Fn(&M) -> &Var) -> (Box<dyn Module>, Var) {
        let weight = weight(&m).clone();
        (Box::new(m), weight)
    }
    let (module, weight) = match name {
        "Linear" => boxed(f64_module(|| Linear::new(3, 2)), |m| &m.weight),
        "Conv2d" => boxed(f64_module(|| Conv2d::new(2, 3, 2)), |m| &m.weight),
        _ => boxed(f64_module(|| ConvTranspose1d::new(2, 3, 2)), |m| &m.weight),
    };
    weight.assign(waves(0, &weight.shape().unwrap())).unwrap();
    match norm.as_str() {
        Some(_) => register_parametrization(&*module, "weight", SpectralNorm::new()),
        None => register_parametrization(&*module, "weight", WeightNorm::new().dim(norm.as_i64())),
    }
    .unwrap();
    (module, weight)
}

#[test]
fn norms_of_weights_are_pytorchs() {
    let cases: Value = serde_json::from_str(include_str!("parametrize.json")).unwrap();
    for case in cases.as_array().unwrap() {
        let (m, weight) = layer(case["layer"].as_str().unwrap(), &case["norm"]);
        // Strict: the names and shapes are PyTorch's.
        m.load_state_dict(&state(&case["state"]), true).unwrap();
        for (i, read) in case["reads"].as_array().unwrap().iter().enumerate() {
            m.set_training(i > 0);
            m.zero_grad();
            let w = weight.get();
            (&w * waves(5, &weight.shape().unwrap()))
                .sum(())
                .backward()
                .unwrap();
            assert_close(&values(&w), &numbers(&read["weight"]), 1e-9);
            let gradients = m.named_parameters().into_iter();
            let gradients = gradients.filter_map(|(name, p)| Some((name, p.grad()?)));
            assert_state(&gradients.collect(), &state(&read["gradients"]));
            assert_state(&m.state_dict(), &state(&read["state"]));
        }
    }
}

#[test]
fn power_iteration_finds_the_largest_singular_value() {
    let layer = f64_module(|| spectral_norm(Linear::new(5, 4)));
    assert!(is_parametrized(&layer) && !is_parametrized(&f64_module(|| Linear::new(1, 1))));
    for _ in 0..60 {
        layer.weight.get().realize().unwrap();
    }
    layer.eval();
    let gram = layer.weight.matmul(layer.weight.t());
    // The largest eigenvalue of w wᵀ, by its powers.
    let mut power = gram.detach();
    for _ in 0..8 {
        power = power.matmul(&power);
        power.realize().unwrap();
    }
    let largest = values(&power.trace())[0].powf(1.0 / 256.0);
    assert!((largest - 1.0).abs() < 1e-2, "{largest}");
    let (one, other) = (held(&layer.weight), held(&layer.weight));
    assert_eq!(one, other, "evaluation changes nothing");
}

#[test]
fn parametrized_layers_train_compile_and_move() {
    let make = || {
        let model = sequential![
            weight_norm(Linear::new(3, 4)),
            Tanh::new(),
            spectral_norm(Linear::new(4, 2))
        ]?;
        let m = sequential!["body": model, "head": Linear::new(2, 1)]?;
        Result::Ok(m)
    };
    let model = f64_module(make);
    let x = random([6, 3]);
    model.eval();
    check_gradients(&model, &|| model.call(&x));
    model.train();
    let copy = model.deep_copy().unwrap();
    assert_eq!(names(&copy), names(&model));
    let step = |m: &Sequential, optimizer: &mut Optimizer| {
        optimizer.zero_grad();
        let loss = m.call(&x).square().mean(());
        loss.backward()?;
        optimizer.step()?;
        Result::Ok(loss)
    };
    let sgd = |m: &Sequential| Optimizer::new(m.parameters(), SGD::new().lr(0.1)).unwrap();
    let (mut here, mut there) = (sgd(&model), sgd(&copy));
    let compiled = compile((), |()| step(&copy, &mut there)).unwrap();
    for _ in 0..4 {
        let loss = step(&model, &mut here).unwrap();
        assert_close(&values(&loss), &values(&compiled.run(()).unwrap()), 1e-10);
    }
    for (name, value) in model.state_dict().iter() {
        assert_close(
            &values(copy.state_dict().get(name).unwrap()),
            &values(value),
            1e-10,
        );
    }
    model.to_dtype(DType::F32).unwrap();
    let y = model.call(x.to_dtype(DType::F32));
    assert_eq!(y.dtype(), DType::F32);
    let first = model
        .get_submodule("body.0")
        .unwrap()
        .downcast_ref::<Linear>()
        .unwrap();
    assert_eq!(
        (first.weight.dtype(), first.weight.get().dtype()),
        (DType::F32, DType::F32)
    );
}

#[test]
fn assignments_reach_the_originals_and_removal_keeps_a_value() {
    let layer = f64_module(|| weight_norm(Linear::new(3, 2)));
    let wanted = waves(7, &[2, 3]);
    layer.weight.assign(&wanted).unwrap();
    assert_close(&held(&layer.weight), &values(&wanted), 1e-12);
    let lengths = layer
        .get_parameter("parametrizations.weight.original0")
        .unwrap();
    assert_close(&held(&lengths), &values(&wanted.vector_norm(2.0, 1)), 1e-12);
    layer.weight.mul_(2.0).unwrap();
    layer.reset_parameters().unwrap();
    let before = held(&layer.weight);

    let e = remove_parametrizations(&layer, "weight", false).unwrap_err();
    assert!(e.message().contains("2 originals"), "{e}");
    remove_parametrizations(&layer, "weight", true).unwrap();
    assert_eq!(held(&layer.weight), before);
    assert_eq!(names(&layer), ["weight", "bias"]);
    layer.call(random([1, 3])).sum(()).backward().unwrap();
    assert!(layer.weight.grad().is_some() && lengths.grad().is_none());
    // And again, by a function.
    register_parametrization(&layer, "weight", |w: &Tensor| w * 3.0).unwrap();
    let tripled: Vec<f64> = before.iter().map(|w| w * 3.0).collect();
    assert_close(&held(&layer.weight), &tripled, 1e-12);
    remove_parametrizations(&layer, "weight", false).unwrap();
    assert_eq!(held(&layer.weight), before);
}

#[test]
fn older_names_of_weight_norm_are_read() {
    let layer = f64_module(|| sequential!["a": weight_norm(Linear::new(3, 2))]);
    let older = layer.state_dict().rename(|name| {
        let name = name.replace("parametrizations.weight.original0", "weight_g");
        Some(name.replace("parametrizations.weight.original1", "weight_v"))
    });
    assert!(older.get("a.weight_g").is_some());
    let other = f64_module(|| sequential!["a": weight_norm(Linear::new(3, 2))]);
    other.load_state_dict(&older, true).unwrap();
    assert_state(&other.state_dict(), &layer.state_dict());
}

#[test]
fn what_cannot_be_parametrized_says_why() {
    let layer = f64_module(|| Linear::new(3, 2));
    let message = |r: Result<()>| r.unwrap_err().to_string();
    let of = |name: &str| register_parametrization(&layer, name, SpectralNorm::new());
    assert!(message(of("wight")).contains("has no parameter \"wight\""));
    let wide = register_parametrization(&layer, "weight", |w: &Tensor| w.t());
    assert!(message(wide).contains("but makes f64[3, 2] of f64[2, 3]"));
    let dim = register_parametrization(&layer, "weight", WeightNorm::new().dim(2));
    let text = message(dim);
    assert!(
        text.contains("no dim 2") && text.contains("parametrize.rs"),
        "{text}"
    );
    let none = SpectralNorm::new().n_power_iterations(0);
    assert!(message(register_parametrization(&layer, "weight", none)).contains("at least 1"));
    of("weight").unwrap();
    assert!(message(of("weight")).contains("computed already"));
    assert!(message(remove_parametrizations(&layer, "bias", true)).contains("not parametrized"));
    let lazy = LazyLinear::new(2).unwrap();
    let e = message(register_parametrization(&lazy, "weight", WeightNorm::new()));
    assert!(e.contains("first input"), "{e}");
    // A bias is a vector.
    of("bias").unwrap();
    let norm: f64 = held(layer.bias.as_ref().unwrap())
        .iter()
        .map(|b| b * b)
        .sum();
    assert!((norm - 1.0).abs() < 1e-12);
}

#[test]
fn computed_values_have_the_dtype_of_the_cell_inside_autocast() -> Result<()> {
    let layer = spectral_norm(Linear::new(5, 4))?;
    let bf16 = weight_norm(Linear::new(5, 4))?;
    bf16.to_dtype(DType::BF16)?;
    let function = Linear::new(4, 4)?;
    register_parametrization(&function, "weight", |w: &Tensor| w.matmul(w.t()))?;
    let _inside = set_autocast(Autocast::new(DType::BF16).list(AutocastList::Cuda));
    let y = layer.call(Tensor::ones([2, 5], DType::F32));
    assert_eq!(y.dtype(), DType::BF16);
    y.realize()?;
    assert_eq!(layer.weight.get().dtype(), DType::F32);
    bf16.weight.assign(Tensor::ones([4, 5], DType::BF16))?;
    assert_eq!(bf16.weight.to_dtype(DType::F32).to_vec::<f32>()?, [1.0; 20]);
    remove_parametrizations(&function, "weight", true)?;
    assert_eq!(function.weight.get().dtype(), DType::F32);
    Ok(())
}
