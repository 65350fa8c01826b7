//! Sorting and order statistics.

use super::{DTYPES, Host, LANES, assert_is, assert_near, read};
use kiln::{DType, Interpolation, Sort, Tensor, TopK, keep};
use kiln_ir::fuzz::Rng;
use std::cmp::Ordering;

/// NaN is the largest; −0 and 0 are equal.
fn order(a: f64, b: f64) -> Ordering {
    let nans = || a.is_nan().cmp(&b.is_nan());
    a.partial_cmp(&b).unwrap_or_else(nans)
}

/// The stable order of a lane.
fn sorted(lane: &[f64], descending: bool) -> Vec<usize> {
    let mut at: Vec<usize> = (0..lane.len()).collect();
    at.sort_by(|i, j| {
        let o = order(lane[*i], lane[*j]);
        if descending { o.reverse() } else { o }
    });
    at
}

/// A lane of values and one of indices, from the indices.
#[track_caller]
fn assert_chosen(
    x: &Host,
    dim: usize,
    dtype: DType,
    got: &(Tensor, Tensor),
    f: impl Fn(&[f64]) -> Vec<usize>,
) {
    let values = x.lanes(dim, |lane| f(lane).iter().map(|i| lane[*i]).collect());
    let indices = x.lanes(dim, |lane| f(lane).iter().map(|i| *i as f64).collect());
    assert_is(&got.0, dtype, &values);
    assert_is(&got.1, DType::I64, &indices);
}

/// For every dtype, shape and dim: a tensor with ties.
fn each(mut f: impl FnMut(&Host, &Tensor, usize, i64, DType)) {
    let mut rng = Rng::new(11);
    for &dtype in DTYPES {
        for &(shape, dim) in LANES {
            let mut x = Host::ties(&mut rng, shape, dtype);
            if dtype == DType::U8 {
                x.data.iter_mut().for_each(|v| *v = v.abs());
            }
            let t = x.tensor(dtype);
            let dims = [dim as i64, dim as i64 - shape.len() as i64];
            f(&x, &t, dim, dims[rng.below(2)], dtype);
        }
    }
}

#[test]
fn sorts_are_stable_and_put_nan_last_or_first() {
    each(|x, t, dim, d, dtype| {
        for descending in [false, true] {
            let got = t.sort_with(d, Sort::new().descending(descending));
            assert_chosen(x, dim, dtype, &got, |lane| sorted(lane, descending));
            assert_near(
                &read(&t.argsort_with(d, Sort::new().descending(descending))),
                &read(&got.1),
                DType::I64,
            );
        }
    });
}

#[test]
fn topk_takes_the_first_of_the_sorted() {
    each(|x, t, dim, d, dtype| {
        for (k, largest) in [(0, true), (1, false), (x.shape[dim], true)] {
            if x.data.is_empty() {
                continue; // has no lanes to compare
            }
            let got = t.topk(TopK::new(k as i64).dim(d).largest(largest));
            assert_chosen(x, dim, dtype, &got, |lane| {
                sorted(lane, largest)[..k].to_vec()
            });
        }
    });
}

#[test]
fn the_kth_value_counts_from_one() {
    each(|x, t, dim, d, dtype| {
        let k = x.shape[dim].div_ceil(2);
        if k > 0 && !x.data.is_empty() {
            let got = t.kthvalue(k as i64, keep(d));
            assert_chosen(x, dim, dtype, &got, |lane| vec![sorted(lane, false)[k - 1]]);
            let dropped = t.kthvalue(k as i64, d).0;
            assert_eq!(dropped.ndim() + 1, t.ndim());
        }
    });
}

#[test]
fn the_median_is_the_lower_of_two_and_the_first_nan() {
    each(|x, t, dim, d, dtype| {
        if x.data.is_empty() {
            return;
        }
        let got = t.median(keep(d));
        assert_chosen(x, dim, dtype, &got, |lane| {
            let nan = lane.iter().position(|v| v.is_nan());
            vec![nan.unwrap_or(sorted(lane, false)[(lane.len() - 1) / 2])]
        });
        let got = t.nanmedian(keep(d));
        assert_chosen(x, dim, dtype, &got, |lane| {
            let numbers = lane.iter().filter(|v| !v.is_nan()).count();
            vec![sorted(lane, false)[numbers.saturating_sub(1) / 2]]
        });
    });
    let empty = Tensor::zeros([0], DType::F32);
    assert!(read(&empty.median_all())[0].is_nan());
    assert!(empty.median(0).0.error().is_some());
    let x = Host::new(&[2, 2], vec![4.0, 1.0, 3.0, 2.0]);
    assert_is(
        &x.tensor(DType::F32).median_all(),
        DType::F32,
        &Host::new(&[], vec![2.0]),
    );
}

#[test]
fn the_mode_is_the_smallest_of_the_most_frequent_and_its_last_place() {
    each(|x, t, dim, d, dtype| {
        if x.data.is_empty() {
            return;
        }
        let got = t.mode(keep(d));
        assert_chosen(x, dim, dtype, &got, |lane| {
            let frequency = |v: f64| lane.iter().filter(|w| **w == v).count().max(1);
            let best = *sorted(lane, false)
                .iter()
                .rev()
                .max_by_key(|i| frequency(lane[**i]))
                .unwrap();
            let same = |w: &f64| *w == lane[best] || w.is_nan() && lane[best].is_nan();
            // Every NaN counts as a distinct value, so the first of them wins.
            match lane[best].is_nan() {
                true => vec![lane.iter().position(same).unwrap()],
                false => vec![lane.iter().rposition(same).unwrap()],
            }
        });
    });
}

#[test]
fn numbers_are_vectors_of_one() {
    let x = Tensor::scalar(2.5f32);
    let pairs = [
        x.sort(0),
        x.topk(1),
        x.kthvalue(1, 0),
        x.median(keep(0)),
        x.mode(-1),
        x.cummax(0),
    ];
    for (values, index) in &pairs {
        assert_is(values, DType::F32, &Host::new(&[], vec![2.5]));
        assert_is(index, DType::I64, &Host::new(&[], vec![0.0]));
    }
    assert_is(&x.cumsum(0), DType::F32, &Host::new(&[], vec![2.5]));
}

/// A quantile of a lane that has no NaN.
fn quantile(lane: &[f64], q: f64, interpolation: Interpolation) -> f64 {
    let s: Vec<f64> = sorted(lane, false).iter().map(|i| lane[*i]).collect();
    let rank = q * (s.len() - 1) as f64;
    let (low, high) = (s[rank.floor() as usize], s[rank.ceil() as usize]);
    match interpolation {
        Interpolation::Linear => low + (high - low) * (rank - rank.floor()),
        Interpolation::Lower => low,
        Interpolation::Higher => high,
        Interpolation::Midpoint => (low + high) / 2.0,
        Interpolation::Nearest => s[rank.round_ties_even() as usize],
    }
}

#[test]
fn quantiles_interpolate_and_propagate_or_skip_nan() {
    use Interpolation::*;
    let mut rng = Rng::new(5);
    let shape = [3, 9, 2];
    let x = Host::made(&shape, || match rng.chance(0.04) {
        true => f64::NAN,
        false => rng.unit() * 8.0 - 4.0,
    });
    let t = x.tensor(DType::F64);
    let qs = [0.0, 0.25, 0.5, 0.9, 1.0, 0.3125];
    for interpolation in [Linear, Lower, Higher, Midpoint, Nearest] {
        for q in qs {
            let plain = x.lanes(1, |lane| match lane.iter().any(|v| v.is_nan()) {
                true => vec![f64::NAN],
                false => vec![quantile(lane, q, interpolation)],
            });
            let skipping = x.lanes(1, |lane| {
                let numbers: Vec<f64> = lane.iter().copied().filter(|v| !v.is_nan()).collect();
                vec![quantile(&numbers, q, interpolation)]
            });
            assert_is(
                &t.quantile_with(q, keep(1), interpolation),
                DType::F64,
                &plain,
            );
            assert_is(
                &t.nanquantile_with(q, keep(-2), interpolation),
                DType::F64,
                &skipping,
            );
        }
        let several = t.quantile_with(Tensor::from_slice(&qs, [6]), 1, interpolation);
        assert_eq!(several.shape().unwrap(), [6, 3, 2]);
        let one = t.quantile_with(qs[3], 1, interpolation);
        assert_near(&read(&several.select(0, 3)), &read(&one), DType::F64);
    }
    let all = t.nanquantile_with(0.5, keep(None), Linear);
    assert_eq!(all.shape().unwrap(), [1, 1, 1]);
    let nothing = Tensor::full([4], f64::NAN, DType::F32).nanquantile_with(0.5, 0, Linear);
    assert!(read(&nothing)[0].is_nan());
    assert!(t.quantile_with(1.5, 0, Linear).error().is_some());
    let outside = t.quantile_with(Tensor::from_slice(&[1.5f64], [1]), 0, Lower);
    assert!(outside.to_vec::<f64>().is_err());
}
