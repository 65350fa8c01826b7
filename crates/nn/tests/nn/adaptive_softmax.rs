//! The adaptive softmax: PyTorch's values.

use crate::support::*;
use kiln_nn::*;
use kiln_tensor::{Result, Tensor, Var};

/// Makes the ten classes, parameters and inputs from which the values below were computed.
fn made() -> (AdaptiveLogSoftmaxWithLoss, Tensor) {
    let options = Cutoffs::new([3, 7]).div_value(2.0).head_bias(true);
    let layer = f64_module(|| AdaptiveLogSoftmaxWithLoss::new(6, 10, options));
    let mut numbers = (0..).map(|i| (i * 29 % 31) as f64 / 31.0 - 0.5);
    for p in layer.parameters() {
        let values: Vec<f64> = numbers.by_ref().take(p.numel().unwrap()).collect();
        p.assign(Tensor::from_slice(&values, p.shape().unwrap()))
            .unwrap();
    }
    let x: Vec<f64> = (0..30).map(|i| (i * 17 % 19) as f64 / 9.0 - 1.0).collect();
    (layer, Tensor::from_slice(&x, [5, 6]))
}

fn classes() -> Tensor {
    Tensor::from([0i64, 9, 4, 2, 7])
}

#[test]
fn pytorchs_values() {
    let (layer, x) = made();
    let wanted = [
        "head.weight",
        "head.bias",
        "tail.0.0.weight",
        "tail.0.1.weight",
        "tail.1.0.weight",
        "tail.1.1.weight",
    ];
    assert_eq!(names(&layer), wanted);
    let x = Var::parameter(x).unwrap();
    let (output, loss) = layer.call((&x, classes()));
    let wanted = [
        -0.9979881229815164,
        -3.400197338888219,
        -2.5635834948520198,
        -1.1085866343114668,
        -2.489725369235504,
    ];
    assert_close(&values(&output), &wanted, 1e-12);
    assert_close(&values(&loss), &[2.112016192053745], 1e-12);
    loss.backward().unwrap();
    let slopes: Vec<f64> = [x.clone()]
        .into_iter()
        .chain(layer.parameters())
        .map(|p| values(&p.grad().unwrap()).iter().map(|g| g.abs()).sum())
        .collect();
    let wanted = [
        1.4125031740073795,
        2.753812498223289,
        0.5015076966812104,
        0.19243472787404253,
        0.23032505625563487,
        0.03830580536705738,
        0.0833810316445606,
    ];
    assert_close(&slopes, &wanted, 1e-12);

    let x = x.get().detach();
    let wanted = [
        -0.9979881229815164,
        -2.535622531583667,
        -1.8510347179635953,
        -2.781047964288309,
        -2.748096177954629,
        -2.7151443916209486,
        -2.8614040748213183,
        -3.019261127863632,
        -3.0249265227069664,
        -3.030591917550301,
    ];
    assert_close(&values(&layer.log_prob(&x).select(0, 0)), &wanted, 1e-12);
    assert_eq!(layer.predict(&x).to_vec::<i64>().unwrap(), [0, 2, 2, 2, 2]);
    let (one, loss) = layer.call((x.select(0, 0), Tensor::from(0i64)));
    assert_close(
        &[values(&one)[0], values(&loss)[0]],
        &[-0.9979881229815164, 0.9979881229815164],
        1e-12,
    );
    assert_close(&values(&layer.log_prob(&x.select(0, 0))), &wanted, 1e-12);
    check_gradients(&layer, &|| layer.call((&x, classes())).0);
}

#[test]
fn clusters_without_features_are_even() {
    let layer = f64_module(|| AdaptiveLogSoftmaxWithLoss::new(6, 10, [3, 7]));
    let shapes: Result<Vec<Vec<usize>>> = layer.parameters().iter().map(Var::shape).collect();
    assert_eq!(
        shapes.unwrap(),
        [vec![5, 6], vec![1, 6], vec![4, 1], vec![0, 6], vec![3, 0]]
    );
    let log = values(&layer.log_prob(&random([2, 6])));
    assert!((log[7] - log[8]).abs() < 1e-12);
    let sums = log
        .chunks(10)
        .map(|row| row.iter().map(|l| l.exp()).sum::<f64>());
    assert_close(&sums.collect::<Vec<_>>(), &[1.0, 1.0], 1e-12);
}

#[test]
fn what_does_not_fit_is_named() {
    let (layer, x) = made();
    let error = |x: &Tensor, y: Tensor| {
        layer
            .call((x, y))
            .0
            .to_vec::<f64>()
            .unwrap_err()
            .to_string()
    };
    for class in [10i64, -1] {
        let e = error(&x, Tensor::from([0, class, 4, 2, 7]));
        assert!(
            e.contains(&format!("{class} is outside 0..10")) && e.contains("in AdaptiveLogSoftmax"),
            "{e}"
        );
    }
    let e = error(&x, Tensor::from([0i64, 1]));
    assert!(
        e.contains("takes [n, in_features] and i64[n], or without n, not f64[5, 6] and i64[2]"),
        "{e}"
    );
    let e = error(&x.narrow(1, 0, 3), classes());
    assert!(e.contains("in Linear(in_features=6, out_features=5"), "{e}");
    let made = |cutoffs: &[i64]| -> Result<_> { AdaptiveLogSoftmaxWithLoss::new(6, 10, cutoffs) };
    for cutoffs in [&[][..], &[3, 3], &[10], &[0, 3], &[7, 3]] {
        let e = made(cutoffs).err().unwrap().to_string();
        assert!(e.contains("the cutoffs must ascend between 1 and 9"), "{e}");
    }
    let e = AdaptiveLogSoftmaxWithLoss::new(6, 10, Cutoffs::new(3).div_value(0.0))
        .err()
        .unwrap()
        .to_string();
    assert!(e.contains("div_value must be positive, not 0"), "{e}");
}
