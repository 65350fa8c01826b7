//! Cells of recurrent networks, randomised slopes, and parameters in lists.

use crate::support::{assert_close, check_gradients, f64_module, names, random, values};
use kiln_nn::init::Nonlinearity;
use kiln_nn::*;
use kiln_tensor::{DType, Tensor, Var};

/// `f(scale · 1)`, `f(scale · 2)`, … in this shape.
fn wave(shape: [usize; 2], f: fn(f64) -> f64, scale: f64) -> Tensor {
    let numbers: Vec<f64> = (1..=shape[0] * shape[1])
        .map(|i| f(i as f64 * scale))
        .collect();
    Tensor::from_slice(&numbers, shape)
}

/// Parameters that hold sin(1), sin(2), … each.
fn filled<M: Module>(m: M) -> M {
    for p in m.parameters() {
        let shape = p.shape().unwrap();
        let numbers: Vec<f64> = (1..=shape.iter().product())
            .map(|i: usize| (i as f64).sin())
            .collect();
        p.assign(Tensor::from_slice(&numbers, &shape)).unwrap();
    }
    m
}

// The expected numbers are PyTorch's, of cells from 3 to 2 that are filled in the same way.
#[test]
fn cells_give_pytorchs_states() {
    let (x, h) = (wave([2, 3], f64::cos, 1.0), wave([2, 2], f64::sin, 0.5));
    let c = wave([2, 2], f64::cos, 0.5);
    let rnn = filled(f64_module(|| RNNCell::new(3, 2)));
    let wanted = [
        0.9924539912267423,
        0.9080321752636823,
        0.9966325936643616,
        0.8412939083347005,
    ];
    assert_close(&values(&rnn.call((&x, &h))), &wanted, 1e-12);
    let wanted = [
        0.9245489911370501,
        0.9695876449562243,
        0.9097983073107445,
        0.9439347879497028,
    ];
    assert_close(&values(&rnn.call(&x)), &wanted, 1e-12);
    let options = RecurrentCell::new().nonlinearity(Nonlinearity::Relu);
    let relu = filled(f64_module(|| RNNCell::with(3, 2, options.clone())));
    let wanted = [
        2.788051767620834,
        1.5161944652299635,
        3.192537261325155,
        1.225584901468639,
    ];
    assert_close(&values(&relu.call((&x, &h))), &wanted, 1e-12);
    assert_eq!(relu.to_string(), "RNNCell(3, 2, nonlinearity=relu)");
    let gru = filled(f64_module(|| GRUCell::new(3, 2)));
    let wanted = [
        -0.5614882915826116,
        0.36224127361363245,
        -0.24206601744557688,
        -0.2257808095247006,
    ];
    assert_close(&values(&gru.call((&x, &h))), &wanted, 1e-12);
    let wanted = [
        -0.5393733616690735,
        0.30225026847325154,
        -0.29884823768184865,
        -0.760310952894772,
    ];
    assert_close(&values(&gru.call(&x)), &wanted, 1e-12);
    let lstm = filled(f64_module(|| LSTMCell::new(3, 2)));
    let (h1, c1) = lstm.call((&x, (&h, &c)));
    let wanted = [
        -0.45670457835643896,
        -0.06869364024142473,
        -0.6573047540927891,
        -0.5710829956275191,
    ];
    assert_close(&values(&h1), &wanted, 1e-12);
    let wanted = [
        -0.6796640536642891,
        -0.07136828718716676,
        -0.8204183646871174,
        -0.9347012734087727,
    ];
    assert_close(&values(&c1), &wanted, 1e-12);

    // Without a batch, and gradients.
    let (alone, _) = lstm.call((x.i(1), (h.i(1), c.i(1))));
    assert_close(&values(&alone), &values(&h1.i(1)), 1e-14);
    check_gradients(&lstm, &|| lstm.call((&x, (&h, &c))).0);
    check_gradients(&gru, &|| gru.call((&x, &h)));
    assert_eq!(
        names(&lstm),
        ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    );
    let bare = LSTMCell::with(3, 2, RecurrentCell::new().bias(false)).unwrap();
    assert_eq!(bare.to_string(), "LSTMCell(3, 2, bias=False)");
    assert_eq!((bare.input_size(), bare.hidden_size()), (3, 2));
}

#[test]
fn cells_say_what_does_not_fit() {
    let cell = GRUCell::new(3, 2).unwrap();
    let x = |shape: [usize; 2]| Tensor::zeros(shape, DType::F32);
    let e = cell.call(x([4, 5])).error().unwrap().to_string();
    assert!(
        e.contains("[n, 3]") && e.contains("f32[4, 5]") && e.contains("in GRUCell(3, 2)"),
        "{e}"
    );
    let e = cell
        .call((x([4, 3]), x([5, 2])))
        .error()
        .unwrap()
        .to_string();
    assert!(e.contains("f32[4, 2]") && e.contains("f32[5, 2]"), "{e}");
    assert!(RNNCell::new(0, 2).is_err());
    let options = RecurrentCell::new().nonlinearity(Nonlinearity::Relu);
    let e = GRUCell::with(3, 2, options).err().unwrap();
    assert!(e.message().contains("nonlinearity"), "{e}");
    assert_eq!(cell.call(x([0, 3])).shape().unwrap(), [0, 2]);
}

#[test]
fn randomised_slopes_lie_within_their_limits() {
    let layer = RReLU::default();
    let x = Tensor::from([-1.0, 2.0, f64::NAN]);
    layer.eval();
    let y = values(&layer.call(&x));
    assert_eq!(y[..2], [-(0.125 + 1.0 / 3.0) / 2.0, 2.0]);
    assert!(y[2].is_nan());
    layer.train();
    let x = (random([2000]).abs() + 0.1) * -1.0;
    let leaf = x.requires_grad_(true);
    let y = layer.call(&leaf);
    y.sum(()).backward().unwrap();
    let slopes = values(&(&y / &leaf));
    assert!(
        slopes
            .iter()
            .all(|s| (0.125 - 1e-9..1.0 / 3.0 + 1e-9).contains(s))
    );
    let mean = slopes.iter().sum::<f64>() / 2000.0;
    assert!((mean - 0.2292).abs() < 0.01, "{mean}");
    assert_close(&values(&leaf.grad().unwrap()), &slopes, 1e-12);
    assert_eq!(values(&layer.call(x.neg())), values(&x.neg()));
    assert!(RReLU::new(0.5, 0.2).is_err());
    assert_eq!(
        RReLU::new(0.1, 0.3).unwrap().to_string(),
        "RReLU(lower=0.1, upper=0.3)"
    );
}

#[test]
fn parameters_in_lists_are_found_by_name() {
    let p = |n: usize| Var::parameter(Tensor::ones([n, 2], DType::F32)).unwrap();
    #[derive(Module)]
    struct Own {
        list: ParameterList,
        named: ParameterDict,
    }
    let own = Own {
        list: [p(1), p(2)].into_iter().collect(),
        named: [("left", p(3))].into_iter().collect(),
    };
    assert_eq!(names(&own), ["list.0", "list.1", "named.left"]);
    assert_eq!(own.named.get("left").unwrap().shape().unwrap(), [3, 2]);
    let copy = own.deep_copy().unwrap();
    assert_eq!(names(&copy), names(&own));
    assert_ne!(copy.list.0[0].id(), own.list.0[0].id());
    assert!(
        own.list.to_string().contains("(1): Parameter(f32[2, 2])"),
        "{}",
        own.list
    );
}
