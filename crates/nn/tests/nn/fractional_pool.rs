//! Fractional max pooling: PyTorch's values for given samples.

use crate::support::*;
use kiln_nn::*;
use kiln_tensor::{
    DType, FractionalPool, GradCheck, Spec, Tensor, Var, compile, gradcheck_with, with_seed,
};

fn plane(shape: &[usize], below: usize) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|i: usize| (i * 37 % below) as f32)
        .collect();
    Tensor::from_slice(&values, shape)
}

fn x2() -> Tensor {
    plane(&[2, 2, 7, 9], 41)
}

fn samples2() -> Tensor {
    Tensor::from([[[0.1f32, 0.9], [0.5, 0.3]], [[0.7, 0.2], [0.95, 0.01]]])
}

fn windows2() -> FractionalPool {
    FractionalPool::new([2, 3])
        .output_size([3, 4])
        .random_samples(samples2())
}

const MAXIMA: [i64; 48] = [
    38, 38, 30, 22, 15, 40, 40, 32, 30, 22, 14, 39, 40, 32, 24, 16, 14, 39, 39, 31, 24, 16, 40, 37,
    34, 26, 18, 38, 40, 37, 33, 25, 18, 38, 39, 35, 28, 20, 40, 40, 38, 30, 22, 14, 40, 40, 37, 29,
];
const PLACES: [i64; 48] = [
    11, 11, 13, 15, 27, 31, 31, 33, 54, 56, 58, 62, 9, 11, 13, 15, 36, 40, 40, 42, 54, 56, 50, 61,
    9, 11, 13, 8, 28, 39, 40, 42, 54, 49, 59, 60, 9, 11, 6, 6, 27, 29, 31, 33, 47, 47, 58, 60,
];

fn ints(t: &Tensor) -> Vec<i64> {
    values(t).into_iter().map(|v| v as i64).collect()
}

#[test]
fn pytorchs_values() {
    let (y, at) = FractionalMaxPool2d::new(windows2())
        .unwrap()
        .call_with_indices(x2());
    assert_eq!(
        (y.shape().unwrap(), y.dtype(), at.dtype()),
        (vec![2, 2, 3, 4], DType::F32, DType::I64)
    );
    assert_eq!((ints(&y), ints(&at)), (MAXIMA.to_vec(), PLACES.to_vec()));

    let ratio = FractionalPool::new(3)
        .output_ratio([0.5, 0.6])
        .random_samples(samples2());
    let y = FractionalMaxPool2d::new(ratio).unwrap().call(x2());
    assert_eq!(y.shape().unwrap(), [2, 2, 3, 5]);
    assert_eq!(
        ints(&y)[..15],
        [38, 39, 39, 35, 27, 20, 39, 40, 40, 37, 30, 26, 18, 37, 39]
    );

    let x3 = plane(&[1, 2, 5, 6, 7], 101).to_dtype(DType::F64);
    let samples = Tensor::from([[[0.1f64, 0.9, 0.4], [0.5, 0.3, 0.8]]]);
    let windows = FractionalPool::new(2)
        .output_size([2, 3, 4])
        .random_samples(&samples);
    let (y, at) = FractionalMaxPool3d::new(windows.clone())
        .unwrap()
        .call_with_indices(&x3);
    assert_eq!(
        ints(&y),
        [
            96, 74, 86, 84, 89, 87, 99, 97, 83, 100, 73, 85, 92, 90, 100, 100, 86, 98, 76, 88, 99,
            91, 89, 82, 94, 99, 99, 77, 100, 80, 92, 90, 95, 93, 86, 98, 85, 83, 95, 93, 98, 96,
            89, 99, 92, 84, 84, 94,
        ]
    );
    assert_eq!(
        ints(&at)[..12],
        [49, 2, 46, 5, 57, 16, 60, 19, 35, 30, 32, 76]
    );
    let one = FractionalMaxPool3d::new(windows)
        .unwrap()
        .call(x3.squeeze(0));
    assert_eq!(
        (one.shape().unwrap(), ints(&one)),
        (vec![2, 2, 3, 4], ints(&y))
    );
}

#[test]
fn ends_of_the_range() {
    let pool =
        |options: FractionalPool, x: &Tensor| FractionalMaxPool2d::new(options).unwrap().call(x);
    let first = samples2().narrow(0, 0, 1);
    let one = FractionalPool::new(2).output_size(1).random_samples(&first);
    assert_eq!(ints(&pool(one, &x2().select(0, 0))), [39, 37]);
    let all = FractionalPool::new(2)
        .output_size([6, 8])
        .random_samples(samples2());
    assert_eq!(
        ints(&pool(all, &x2()))[..10],
        [37, 38, 38, 34, 30, 26, 22, 18, 10, 38]
    );
    assert_eq!(
        pool(FractionalPool::new(2).output_size(0), &x2())
            .shape()
            .unwrap(),
        [2, 2, 0, 0]
    );
    let nobody = pool(FractionalPool::new(2).output_size(2), &x2().narrow(0, 0, 0));
    assert_eq!(nobody.shape().unwrap(), [0, 2, 2, 2]);
    // NaN is the largest element. A view is pooled in its own order, not in that of its memory.
    let x = Tensor::from([[[1f32, f32::NAN, 3.0, 4.0, 9.0]]])
        .flip(-1)
        .flip(-1);
    let whole = FractionalPool::new([1, 5]).output_size(1);
    let (y, at) = FractionalMaxPool2d::new(whole)
        .unwrap()
        .call_with_indices(&x);
    assert!(values(&y)[0].is_nan() && ints(&at) == [1]);
    let turned = FractionalMaxPool2d::new(windows2())
        .unwrap()
        .call(x2().flip([2, 3]).flip([2, 3]));
    assert_eq!(ints(&turned), MAXIMA);
}

#[test]
fn windows_are_drawn_anew_and_cover_both_ends() {
    let x = Tensor::arange(0, 40, 1)
        .to_dtype(DType::F32)
        .reshape([1, 1, 1, 40]);
    let pool = FractionalMaxPool2d::new(FractionalPool::new([1, 2]).output_size([1, 25])).unwrap();
    let draws = |n| with_seed(1, || (0..n).map(|_| ints(&pool.call(&x))).collect());
    let (drawn, again): (Vec<_>, Vec<_>) = (draws(8), draws(1));
    assert_eq!(again[0], drawn[0]);
    assert!(drawn.iter().any(|y| *y != drawn[0]));
    for y in drawn {
        assert_eq!((y[0], y[24]), (1, 39));
        assert!(
            y.windows(2).all(|w| (1..=2).contains(&(w[1] - w[0]))),
            "{y:?}"
        );
    }
    let f = compile(Spec::new(DType::F32, ("n", 2, 7, 9)), |x| {
        x.fractional_max_pool2d(FractionalPool::new(2).output_size(4))
    });
    assert_eq!(f.unwrap().run(x2()).unwrap().shape().unwrap(), [2, 2, 4, 4]);
}

#[test]
fn gradients_go_to_the_maxima() {
    let x = random([2, 2, 7, 9]);
    let options = FractionalPool::new([2, 3])
        .output_size([3, 4])
        .random_samples(samples2());
    gradcheck_with(
        |x: Tensor| x.fractional_max_pool2d(options.clone()),
        &x,
        GradCheck::new().atol(1e-7),
    )
    .unwrap();
    let x = Var::parameter(x2()).unwrap();
    FractionalMaxPool2d::new(windows2())
        .unwrap()
        .call(&x)
        .sum(())
        .backward()
        .unwrap();
    let mut wanted = vec![0.0; 252];
    PLACES
        .iter()
        .enumerate()
        .for_each(|(i, at)| wanted[i / 12 * 63 + *at as usize] += 1.0);
    assert_close(&values(&x.grad().unwrap()), &wanted, 0.0);
}

#[test]
fn what_does_not_fit_is_named() {
    let made =
        |options: FractionalPool| FractionalMaxPool2d::new(options).err().unwrap().to_string();
    assert!(
        made(FractionalPool::new(2)).contains("needs either an output_size or an output_ratio")
    );
    let both = FractionalPool::new(2).output_size(2).output_ratio(0.5);
    assert!(made(both).contains("needs either an output_size or an output_ratio"));
    assert!(
        made(FractionalPool::new(2).output_ratio(1.0))
            .contains("output_ratio must lie between 0 and 1, not 1")
    );
    assert!(
        made(FractionalPool::new(0).output_ratio(0.5))
            .contains("the kernel size must be at least 1, not 0")
    );
    let called = |options: FractionalPool| {
        let e = FractionalMaxPool2d::new(options)
            .unwrap()
            .call(x2())
            .to_vec::<f32>()
            .unwrap_err()
            .to_string();
        assert!(
            e.contains("fractional_max_pool2d") && e.contains("in FractionalMaxPool2d()"),
            "{e}"
        );
        assert!(e.contains("tests/nn/fractional_pool.rs"), "{e}");
        e
    };
    assert!(
        called(FractionalPool::new(2).output_size([7, 8]))
            .contains("7 windows of 2 do not fit into 7 elements of f32[2, 2, 7, 9]")
    );
    let samples = FractionalPool::new(2)
        .output_size(3)
        .random_samples(samples2().narrow(0, 0, 1));
    assert!(called(samples).contains("random_samples must be [2, 2, 2], not f32[1, 2, 2]"));
    assert!(
        called(FractionalPool::new(2).output_ratio([0.5, 0.5, 0.5]))
            .contains("output_ratio needs one number or 2")
    );
}
