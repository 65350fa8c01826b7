//! Running results along a dim.

use super::{DTYPES, Host, LANES, assert_is};
use kiln::{DType, Diff, Tensor};
use kiln_ir::fuzz::Rng;

fn sums(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::I64 }
}

#[test]
fn sums_and_products_of_integers_are_i64() {
    let mut rng = Rng::new(3);
    for &dtype in DTYPES {
        for &(shape, dim) in LANES {
            let x = match dtype {
                DType::Bool => Host::made(shape, || rng.below(2) as f64),
                DType::U8 => Host::made(shape, || rng.range(0, 200) as f64),
                d if d.is_float() => Host::made(shape, || rng.range(-4, 4) as f64 / 4.0),
                _ => Host::made(shape, || rng.range(-4, 4) as f64),
            };
            let t = x.tensor(dtype);
            let running = |f: fn(f64, f64) -> f64, start: f64| {
                x.lanes(dim, |lane| {
                    let mut state = start;
                    let step = |v: &f64| {
                        state = f(state, *v);
                        state
                    };
                    lane.iter().map(step).collect()
                })
            };
            // A sum that starts at −0 keeps the sign of the first zero.
            let sum = running(|a, b| a + b, 0.0);
            assert_is(&t.cumsum(dim as i64), sums(dtype), &sum);
            if shape.len() == 1 && shape[0] < 20 && dtype != DType::U8 {
                let product = running(|a, b| a * b, 1.0);
                assert_is(&t.cumprod(dim as i64), sums(dtype), &product);
            }
        }
    }
}

#[test]
fn extremes_so_far_are_the_last_of_equal_ones_and_nan_wins() {
    let mut rng = Rng::new(4);
    for &dtype in DTYPES {
        for &(shape, dim) in LANES {
            let mut x = Host::ties(&mut rng, shape, dtype);
            if dtype == DType::U8 {
                x.data.iter_mut().for_each(|v| *v = v.abs());
            }
            let t = x.tensor(dtype);
            let d = dim as i64;
            for (got, largest) in [(t.cummax(d), true), (t.cummin(d), false)] {
                let places = |lane: &[f64]| {
                    let mut best = 0;
                    let mut out = Vec::new();
                    for (i, v) in lane.iter().enumerate() {
                        let b: f64 = lane[best];
                        let better = if largest { *v >= b } else { *v <= b };
                        if v.is_nan() || !b.is_nan() && better {
                            best = i;
                        }
                        out.push(best);
                    }
                    out
                };
                let index = x.lanes(dim, |l| places(l).iter().map(|i| *i as f64).collect());
                let values = x.lanes(dim, |l| places(l).iter().map(|i| l[*i]).collect());
                assert_is(&got.0, dtype, &values);
                assert_is(&got.1, DType::I64, &index);
            }
        }
    }
}

#[test]
fn running_logsumexp_does_not_overflow() {
    let x = Host::new(
        &[2, 3],
        vec![1000.0, 1000.0, -1000.0, -2.0, f64::NEG_INFINITY, 3.0],
    );
    let expected = x.lanes(1, |lane| {
        (1..=lane.len())
            .map(|n| {
                let max = lane[..n].iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
                max + lane[..n].iter().map(|v| (v - max).exp()).sum::<f64>().ln()
            })
            .collect()
    });
    for dtype in [DType::F32, DType::F64] {
        assert_is(&x.tensor(dtype).logcumsumexp(-1), dtype, &expected);
    }
    assert!(x.tensor(DType::I64).logcumsumexp(0).error().is_some());
}

#[test]
fn differences_are_repeated_and_extended() {
    let mut rng = Rng::new(8);
    let x = Host::quarters(&mut rng, &[3, 7]);
    let t = x.tensor(DType::F32);
    let diff = |l: &[f64]| -> Vec<f64> { l.windows(2).map(|w| w[1] - w[0]).collect() };
    assert_is(
        &t.diff_with(Diff::new().dim(1)),
        DType::F32,
        &x.lanes(1, diff),
    );
    let twice = x.lanes(1, |l| diff(&diff(l)));
    assert_is(&t.diff_with(Diff::new().n(2)), DType::F32, &twice);
    assert_eq!(
        t.diff_with(Diff::new().n(9).dim(1)).shape().unwrap(),
        [3, 0]
    );
    let edge = Tensor::full([3, 1], 1.0, DType::F32);
    let extended = x.lanes(1, |l| diff(&[&[1.0], l, &[1.0]].concat()));
    assert_is(
        &t.diff_with(Diff::new().dim(1).prepend(&edge).append(&edge)),
        DType::F32,
        &extended,
    );
    assert_is(
        &t.diff_with(Diff::new().n(0).dim(1).prepend(&edge)),
        DType::F32,
        &x,
    );
    let bits = Tensor::from_slice(&[true, true, false], [3]);
    assert_eq!(bits.diff_with(Diff::new().dim(0)).dtype(), DType::Bool);
    assert_is(
        &bits.diff_with(Diff::new().dim(0)),
        DType::Bool,
        &Host::new(&[2], vec![0.0, 1.0]),
    );
}

#[test]
fn trapezoids_by_distance_and_by_place() {
    let mut rng = Rng::new(9);
    let y = Host::quarters(&mut rng, &[2, 5]);
    let places = [0.0, 0.5, 2.0, 2.25, 4.0];
    let area = |l: &[f64], p: &[f64]| -> Vec<f64> {
        let area = |i: usize| (l[i] + l[i + 1]) * (p[i + 1] - p[i]) / 2.0;
        (0..l.len() - 1).map(area).collect()
    };
    let even: Vec<f64> = (0..5).map(|i| i as f64 * 1.5).collect();
    let t = y.tensor(DType::F64);
    let sum = |p: &[f64]| {
        let mut h = y.lanes(1, |l| vec![area(l, p).iter().sum()]);
        h.shape.pop();
        h
    };
    let x = Tensor::from_slice(&places, [5]);
    assert_is(&t.trapezoid(1.5, 1), DType::F64, &sum(&even));
    assert_is(&t.trapezoid(&x, -1), DType::F64, &sum(&places));
    assert_is(
        &t.trapezoid(x.reshape([1, 5]), 1),
        DType::F64,
        &sum(&places),
    );
    let running = y.lanes(1, |l| {
        let mut sum = 0.0;
        let add = |a: f64| {
            sum += a;
            sum
        };
        area(l, &places).into_iter().map(add).collect()
    });
    assert_is(&t.cumulative_trapezoid(&x, 1), DType::F64, &running);
    let whole = Tensor::from_slice(&[1i64, 2, 4], [3]).trapezoid(1i64, 0);
    assert_is(&whole, DType::F32, &Host::new(&[], vec![4.5]));
    let none = Tensor::zeros([2, 0], DType::F32).trapezoid(1.0, 1);
    assert_is(&none, DType::F32, &Host::new(&[2], vec![0.0, 0.0]));
}
