//! Forward and gradients of layers against plain loops in f64.

use crate::support::{assert_close, check_gradients, f64_module, held, random, values};
use kiln_nn::*;
use kiln_tensor::{AvgPool, DType, Pool, Tensor};

#[test]
fn linear_is_a_product_and_a_bias() {
    for (rows, n, m) in [(1, 1, 1), (3, 7, 5), (0, 3, 2), (2, 0, 3)] {
        let layer = f64_module(|| Linear::new(n, m));
        let x = random([rows, n]);
        let (w, b) = (held(&layer.weight), held(layer.bias.as_ref().unwrap()));
        let xs = values(&x);
        let mut wanted = Vec::new();
        for r in 0..rows {
            for o in 0..m {
                let sum: f64 = (0..n).map(|i| xs[r * n + i] * w[o * n + i]).sum();
                wanted.push(sum + b[o]);
            }
        }
        assert_close(&values(&layer.call(&x)), &wanted, 1e-12);
    }
    let layer = f64_module(|| Linear::new(3, 2));
    let x = random([2, 4, 3]);
    assert_eq!(layer.call(&x).shape().unwrap(), [2, 4, 2]);
    check_gradients(&layer, &|| layer.call(&x));
}

#[test]
fn bilinear_is_a_form_for_each_output() {
    let layer = f64_module(|| Bilinear::new(2, 3, 4));
    let (x, y) = (random([5, 2]), random([5, 3]));
    let (w, b) = (held(&layer.weight), held(layer.bias.as_ref().unwrap()));
    let (xs, ys) = (values(&x), values(&y));
    let mut wanted = Vec::new();
    for n in 0..5 {
        for o in 0..4 {
            let mut sum = b[o];
            for i in 0..2 {
                for j in 0..3 {
                    sum += xs[n * 2 + i] * w[(o * 2 + i) * 3 + j] * ys[n * 3 + j];
                }
            }
            wanted.push(sum);
        }
    }
    assert_close(&values(&layer.call((&x, &y))), &wanted, 1e-12);
    check_gradients(&layer, &|| layer.call((&x, &y)));
}

/// Each row with mean 0 and variance 1, or its root mean square 1.
fn normalised(rows: &[f64], n: usize, eps: f64, centre: bool) -> Vec<f64> {
    let row = |r: &[f64]| {
        let mean = if centre {
            r.iter().sum::<f64>() / n as f64
        } else {
            0.0
        };
        let var = r.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        r.iter()
            .map(move |x| (x - mean) / (var + eps).sqrt())
            .collect::<Vec<_>>()
    };
    rows.chunks(n).flat_map(row).collect()
}

#[test]
fn layer_norms_normalise_the_last_dims() {
    let x = random([3, 2, 5]);
    let layer = f64_module(|| LayerNorm::new([2, 5]));
    assert_close(
        &values(&layer.call(&x)),
        &normalised(&values(&x), 10, 1e-5, true),
        1e-12,
    );
    layer
        .weight
        .as_ref()
        .unwrap()
        .assign(random([2, 5]))
        .unwrap();
    layer.bias.as_ref().unwrap().assign(random([2, 5])).unwrap();
    check_gradients(&layer, &|| layer.call(&x));
    let plain = f64_module(|| LayerNorm::with(5, Norm::new().affine(false).eps(0.5)));
    assert_eq!(plain.num_parameters(), 0);
    assert_close(
        &values(&plain.call(&x)),
        &normalised(&values(&x), 5, 0.5, true),
        1e-12,
    );
}

#[test]
fn rms_norms_divide_by_the_root_mean_square() {
    let x = random([3, 7]);
    let layer = f64_module(|| RMSNorm::new(7));
    let wanted = normalised(&values(&x), 7, f64::EPSILON, false);
    assert_close(&values(&layer.call(&x)), &wanted, 1e-12);
    check_gradients(&layer, &|| layer.call(&x));
    assert_eq!(
        layer.to_string(),
        "RMSNorm((7,), eps=None, elementwise_affine=True)"
    );
}

#[test]
fn group_norms_normalise_groups_of_channels() {
    let x = random([2, 6, 3]);
    let layer = f64_module(|| GroupNorm::new(2, 6));
    assert_close(
        &values(&layer.call(&x)),
        &normalised(&values(&x), 9, 1e-5, true),
        1e-12,
    );
    layer.weight.as_ref().unwrap().assign(random([6])).unwrap();
    check_gradients(&layer, &|| layer.call(&x));
    assert_eq!(layer.to_string(), "GroupNorm(2, 6, eps=1e-05, affine=True)");
}

#[test]
fn embeddings_choose_rows_and_padding_gets_no_gradient() {
    let layer = f64_module(|| Embedding::with(5, 3, Rows::new().padding_idx(2)));
    let rows = held(&layer.weight);
    assert_eq!(rows[6..9], [0.0; 3]);
    let indices = Tensor::from_slice(&[2i64, 0, 0, 4], [2, 2]);
    let y = layer.call(&indices);
    let wanted: Vec<f64> = [2, 0, 0, 4]
        .iter()
        .flat_map(|i| rows[i * 3..i * 3 + 3].to_vec())
        .collect();
    assert_close(&values(&y), &wanted, 0.0);
    assert_eq!(y.shape().unwrap(), [2, 2, 3]);
    y.sum(()).backward().unwrap();
    let gradient = values(&layer.weight.grad().unwrap());
    let counts: Vec<f64> = gradient.chunks(3).map(|r| r[0]).collect();
    assert_eq!(counts, [2.0, 0.0, 0.0, 0.0, 1.0]);
    layer.reset_parameters().unwrap();
    assert_eq!(held(&layer.weight)[6..9], [0.0; 3]);
    assert_eq!(layer.to_string(), "Embedding(5, 3, padding_idx=2)");

    let given = Embedding::from_pretrained(Tensor::ones([2, 2], DType::F32)).unwrap();
    assert_eq!((given.num_parameters(), given.num_trainable()), (4, 0));
    let y = given.call(Tensor::from_slice(&[1i32], [1]));
    assert_eq!(y.to_vec::<f32>().unwrap(), [1.0, 1.0]);
}

#[test]
fn dropout_zeroes_in_training_and_passes_in_evaluation() {
    let layer = Dropout::new(0.25).unwrap();
    let x = Tensor::ones([10_000], DType::F32);
    let y = layer.call(&x).to_vec::<f32>().unwrap();
    let zeros = y.iter().filter(|v| **v == 0.0).count();
    assert!(y.iter().all(|v| *v == 0.0 || (*v - 4.0 / 3.0).abs() < 1e-6));
    assert!((2300..2700).contains(&zeros), "{zeros}");
    layer.eval();
    assert_eq!(layer.call(&x).to_vec::<f32>().unwrap(), [1.0; 10_000]);
}

#[test]
fn channel_dropout_keeps_or_drops_whole_channels() {
    let x = Tensor::ones([50, 20, 3, 2], DType::F32);
    let layer = Dropout2d::default();
    let y = layer.call(&x).to_vec::<f32>().unwrap();
    let channels: Vec<f32> = y
        .chunks(6)
        .map(|c| {
            assert!(c.iter().all(|v| v == &c[0]) && (c[0] == 0.0 || c[0] == 2.0));
            c[0]
        })
        .collect();
    let dropped = channels.iter().filter(|c| **c == 0.0).count();
    assert!((400..600).contains(&dropped), "{dropped}");
    let unbatched = Dropout1d::new(1.0)
        .unwrap()
        .call(Tensor::ones([4, 5], DType::F32));
    assert_eq!(unbatched.to_vec::<f32>().unwrap(), [0.0; 20]);
    layer.eval();
    assert_eq!(layer.call(&x).to_vec::<f32>().unwrap(), [1.0; 6000]);
}

#[test]
fn pooling_layers_have_pytorchs_defaults() {
    let x = Tensor::arange(0, 24, 1)
        .to_dtype(DType::F32)
        .reshape([1, 1, 4, 6]);
    let pool = MaxPool2d::new(2).unwrap();
    assert_eq!(
        pool.call(&x).to_vec::<f32>().unwrap(),
        [7.0, 9.0, 11.0, 19.0, 21.0, 23.0]
    );
    let (_, indices) = pool.call_with_indices(&x);
    assert_eq!(indices.to_vec::<i64>().unwrap(), [7, 9, 11, 19, 21, 23]);
    let average = AvgPool2d::new([2, 3]).unwrap();
    assert_eq!(
        average.call(&x).to_vec::<f32>().unwrap(),
        [4.0, 7.0, 16.0, 19.0]
    );
    let windows = AvgPool::new(3).stride(3).padding(1);
    let border = AvgPool2d::new(windows.clone()).unwrap();
    assert_eq!(border.call(&x).to_vec::<f32>().unwrap()[0], 14.0 / 9.0);
    let inside = AvgPool2d::new(windows.count_include_pad(false)).unwrap();
    assert_eq!(inside.call(&x).to_vec::<f32>().unwrap()[0], 14.0 / 4.0);
    let adaptive = AdaptiveAvgPool2d::new([1, 2]).unwrap();
    assert_eq!(adaptive.call(&x).to_vec::<f32>().unwrap(), [10.0, 13.0]);
    assert_eq!(
        AdaptiveMaxPool2d::new(1)
            .unwrap()
            .call(&x)
            .to_vec::<f32>()
            .unwrap(),
        [23.0]
    );
    let lines = x.reshape([1, 4, 6]);
    assert_eq!(
        MaxPool1d::new(Pool::new(3).stride(2))
            .unwrap()
            .call(&lines)
            .shape()
            .unwrap(),
        [1, 4, 2]
    );
    assert_eq!(
        AvgPool1d::new(6).unwrap().call(&lines).shape().unwrap(),
        [1, 4, 1]
    );
    assert_eq!(
        MaxPool3d::new([1, 2, 3]).unwrap().call(&x).shape().unwrap(),
        [1, 1, 2, 2]
    );
    assert_eq!(
        MaxPool2d::new(Pool::new([3, 2]).stride(2))
            .unwrap()
            .to_string(),
        "MaxPool2d(kernel_size=(3, 2), stride=2, padding=0, dilation=1, ceil_mode=False)"
    );
}

#[test]
fn activations_compute_their_formulas() {
    let x = [-3.0, -0.7, 0.0, 0.3, 2.5f64];
    let t = Tensor::from_slice(&x, [5]);
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    type Row = (Box<dyn Forward>, Box<dyn Fn(f64) -> f64>);
    let rows: Vec<Row> = vec![
        (Box::new(ReLU::new()), Box::new(|x| x.max(0.0))),
        (Box::new(ReLU6::new()), Box::new(|x| x.clamp(0.0, 6.0))),
        (
            Box::new(LeakyReLU::default()),
            Box::new(|x| if x > 0.0 { x } else { 0.01 * x }),
        ),
        (
            Box::new(ELU::new(2.0)),
            Box::new(|x| if x > 0.0 { x } else { 2.0 * x.exp_m1() }),
        ),
        (
            Box::new(CELU::new(2.0)),
            Box::new(|x| x.max(0.0) + (2.0 * (x / 2.0).exp_m1()).min(0.0)),
        ),
        (Box::new(Sigmoid::new()), Box::new(sigmoid)),
        (
            Box::new(LogSigmoid::new()),
            Box::new(move |x| sigmoid(x).ln()),
        ),
        (Box::new(Tanh::new()), Box::new(f64::tanh)),
        (Box::new(Tanhshrink::new()), Box::new(|x| x - x.tanh())),
        (Box::new(SiLU::new()), Box::new(move |x| x * sigmoid(x))),
        (
            Box::new(Mish::new()),
            Box::new(|x| x * x.exp().ln_1p().tanh()),
        ),
        (Box::new(Softplus::default()), Box::new(|x| x.exp().ln_1p())),
        (Box::new(Softsign::new()), Box::new(|x| x / (1.0 + x.abs()))),
        (
            Box::new(Hardtanh::default()),
            Box::new(|x| x.clamp(-1.0, 1.0)),
        ),
        (
            Box::new(Hardsigmoid::new()),
            Box::new(|x| ((x + 3.0) / 6.0).clamp(0.0, 1.0)),
        ),
        (
            Box::new(Hardswish::new()),
            Box::new(|x| x * ((x + 3.0) / 6.0).clamp(0.0, 1.0)),
        ),
        (
            Box::new(Hardshrink::default()),
            Box::new(|x| if x.abs() > 0.5 { x } else { 0.0 }),
        ),
        (
            Box::new(Softshrink::default()),
            Box::new(|x| x - x.clamp(-0.5, 0.5)),
        ),
        (
            Box::new(Threshold::new(0.1, 20.0)),
            Box::new(|x| if x > 0.1 { x } else { 20.0 }),
        ),
        (
            Box::new(GELU::approximate_tanh()),
            Box::new(|x| {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                0.5 * x * (1.0 + inner.tanh())
            }),
        ),
        (
            Box::new(SELU::new()),
            Box::new(|x| {
                let (scale, alpha) = (1.0507009873554805, 1.6732632423543772);
                scale * if x > 0.0 { x } else { alpha * x.exp_m1() }
            }),
        ),
        (
            Box::new(PReLU::new(1).unwrap()),
            Box::new(|x| if x > 0.0 { x } else { 0.25 * x }),
        ),
    ];
    for (layer, formula) in rows {
        let t = if layer.name() == "PReLU" {
            t.to_dtype(DType::F32)
        } else {
            t.clone()
        };
        let tolerance = if layer.name() == "PReLU" { 1e-6 } else { 1e-10 };
        let wanted: Vec<f64> = x.iter().map(|x| formula(*x)).collect();
        let y = layer.call(&t);
        assert_close(&values(&y), &wanted, tolerance);
    }
    // The exact GELU at 1 is Φ(1).
    let one = Tensor::from_slice(&[1.0f64], [1]);
    assert_close(
        &values(&GELU::new().call(&one)),
        &[0.8413447460685429],
        1e-9,
    );
    assert_eq!(
        values(&GLU::default().call(Tensor::from_slice(&[3.0f64, 0.0], [2]))),
        [1.5]
    );
}

#[test]
fn softmaxes_sum_to_one_along_their_dim() {
    let x = random([3, 4]);
    let rows = values(&Softmax::new(1).call(&x).sum(1));
    assert_close(&rows, &[1.0; 3], 1e-12);
    let columns = values(&LogSoftmax::new(0).call(&x).exp().sum(0));
    assert_close(&columns, &[1.0; 4], 1e-12);
    let min = values(&Softmin::new(1).call(&x));
    assert_close(&min, &values(&Softmax::new(1).call(x.neg())), 1e-12);
}

#[test]
fn rearranging_layers_keep_every_element() {
    let x = Tensor::arange(0, 24, 1).reshape([2, 3, 4]);
    assert_eq!(Flatten::new().call(&x).shape().unwrap(), [2, 12]);
    assert_eq!(Flatten::dims(0, 1).call(&x).shape().unwrap(), [6, 4]);
    let y = Unflatten::new(2, [2, -1]).unwrap().call(&x);
    assert_eq!(y.shape().unwrap(), [2, 3, 2, 2]);
    assert_eq!(y.to_vec::<i64>().unwrap(), (0..24).collect::<Vec<_>>());
    assert_eq!(
        Identity::new().call(&x).to_vec::<i64>().unwrap(),
        (0..24).collect::<Vec<_>>()
    );
    let image = Tensor::arange(0, 9, 1)
        .to_dtype(DType::F32)
        .reshape([1, 1, 3, 3]);
    let columns = Unfold::new(2).unwrap().call(&image);
    assert_eq!(columns.shape().unwrap(), [1, 4, 4]);
    assert_eq!(columns.to_vec::<f32>().unwrap()[..4], [0.0, 1.0, 3.0, 4.0]);
}
