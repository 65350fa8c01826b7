//! Searching in sorted numbers, counting, distinct elements.

use super::{DTYPES, Host, assert_is, assert_near, ints, read};
use kiln::{BinCount, Bucketize, DType, Histogram, SearchSorted, Tensor};
use kiln_ir::fuzz::Rng;

#[test]
fn insertion_points_left_and_right_of_equal_elements() {
    let mut rng = Rng::new(1);
    for n in [0usize, 1, 2, 3, 7, 8, 31, 100] {
        for &dtype in &[DType::F32, DType::I64, DType::BF16] {
            let mut s = Host::made(&[n], || rng.range(-9, 9) as f64);
            s.data.sort_by(f64::total_cmp);
            let v = Host::made(&[3, 5], || rng.range(-11, 11) as f64);
            for right in [false, true] {
                let before = |x: f64, v: f64| if right { x <= v } else { x < v };
                let place = |v: &f64| s.data.partition_point(|x| before(*x, *v)) as f64;
                let expected = Host::new(&[3, 5], v.data.iter().map(place).collect());
                let (st, vt) = (s.tensor(dtype), v.tensor(dtype));
                assert_is(
                    &st.searchsorted_with(&vt, SearchSorted::new().right(right)),
                    DType::I64,
                    &expected,
                );
                assert_is(
                    &vt.bucketize_with(&st, Bucketize::new().right(right)),
                    DType::I64,
                    &expected,
                );
            }
        }
    }
}

#[test]
fn each_lane_is_searched_and_a_sorter_sorts_it_first() {
    let mut rng = Rng::new(2);
    let x = Host::quarters(&mut rng, &[2, 3, 9]).tensor(DType::F64);
    let v = Host::quarters(&mut rng, &[2, 3, 4]).tensor(DType::F64);
    let (sorted, order) = x.sort(-1);
    let direct = sorted.searchsorted(&v);
    assert_near(
        &read(&x.searchsorted_with(&v, SearchSorted::new().sorter(&order))),
        &read(&direct),
        DType::I64,
    );
    for lane in 0..3 {
        let (s, v) = (
            sorted.select(0, 1).select(0, lane),
            v.select(0, 1).select(0, lane),
        );
        let one = s.searchsorted(&v);
        let of_all = direct.select(0, 1).select(0, lane);
        assert_near(&read(&one), &read(&of_all), DType::I64);
    }
    let numbers = Tensor::from_slice(&[1.0f32, 2.0, f32::NAN], [3]);
    assert_is(
        &numbers.searchsorted(1.5),
        DType::I64,
        &Host::new(&[], vec![1.0]),
    );
    let nan = numbers.searchsorted(f64::NAN);
    assert_is(&nan, DType::I64, &Host::new(&[], vec![3.0]));
}

#[test]
fn membership_promotes_and_nan_is_no_member() {
    let mut rng = Rng::new(3);
    for &dtype in DTYPES {
        for n in [0, 1, 13] {
            let size = |v: f64| if dtype == DType::U8 { v.abs() } else { v };
            let mut x = Host::ties(&mut rng, &[4, 3], dtype);
            x.data.iter_mut().for_each(|v| *v = size(*v));
            let mut tests = Host::ties(&mut rng, &[n], dtype);
            tests.data.iter_mut().for_each(|v| *v = size(*v));
            for invert in [false, true] {
                let member = |v: &f64| (tests.data.contains(v) != invert) as i64 as f64;
                let expected = Host::new(&[4, 3], x.data.iter().map(member).collect());
                let hit = x.tensor(dtype).isin(tests.tensor(dtype));
                let got = if invert { !hit } else { hit };
                assert_is(&got, DType::Bool, &expected);
            }
        }
    }
    let mixed = ints(&[3], &[1, 2, 3]).isin(Tensor::from_slice(&[2.0f32, 2.5], [2]));
    assert_is(&mixed, DType::Bool, &Host::new(&[3], vec![0.0, 1.0, 0.0]));
    assert_is(
        &!ints(&[2], &[1, 2]).isin(2i64),
        DType::Bool,
        &Host::new(&[2], vec![1.0, 0.0]),
    );
}

#[test]
fn counts_and_sums_of_weights() {
    let x = ints(&[5], &[4, 0, 4, 2, 4]);
    assert_is(
        &x.bincount(),
        DType::I64,
        &Host::new(&[5], vec![1.0, 0.0, 1.0, 0.0, 3.0]),
    );
    assert_eq!(
        x.bincount_with(BinCount::new().minlength(9))
            .shape()
            .unwrap(),
        [9]
    );
    let w = Tensor::from_slice(&[0.5f32, 1.0, 2.0, -1.0, 0.25], [5]);
    let sums = Host::new(&[5], vec![1.0, 0.0, -1.0, 0.0, 2.75]);
    assert_is(
        &x.bincount_with(BinCount::new().weights(&w)),
        DType::F32,
        &sums,
    );
    assert_is(
        &x.bincount_with(BinCount::new().weights(w.to_dtype(DType::F16))),
        DType::F64,
        &sums,
    );
    assert_eq!(
        ints(&[0], &[])
            .bincount_with(BinCount::new().minlength(3))
            .shape()
            .unwrap(),
        [3]
    );
    assert!(ints(&[1], &[-1]).bincount().error().is_some());
    assert!(w.bincount().error().is_some());
}

#[test]
fn histograms_close_the_last_bin_and_skip_what_is_outside() {
    let x = Tensor::from_slice(&[0.0f32, 0.5, 1.0, 2.0, 4.0, 5.0, -1.0, f32::NAN], [8]);
    let bins = x.histc(Histogram::new(4).max(4.0));
    assert_is(
        &bins,
        DType::F32,
        &Host::new(&[4], vec![2.0, 1.0, 1.0, 1.0]),
    );
    let own = x.narrow(0, 0, 5).histc(2);
    assert_is(&own, DType::F32, &Host::new(&[2], vec![3.0, 2.0]));
    let equal = Tensor::full([3], 2.0, DType::F64).histc(2);
    assert_is(&equal, DType::F64, &Host::new(&[2], vec![0.0, 3.0]));
    assert!(x.histc(4).to_vec::<f32>().is_err(), "NaN has no range");
    assert!(x.histc(Histogram::new(0).max(1.0)).error().is_some());
    assert!(
        x.histc(Histogram::new(4).min(2.0).max(1.0))
            .error()
            .is_some()
    );
    let none = Tensor::zeros([0], DType::F32).histc(3);
    assert_is(&none, DType::F32, &Host::new(&[3], vec![0.0; 3]));
}

/// The distinct slices of a dim by pairwise comparison: the first of each, their counts, and the number
/// of each slice's.
fn distinct(x: &Host, dim: usize, sort: bool) -> (Vec<usize>, Vec<f64>, Vec<f64>) {
    let slice = |i: usize| -> Vec<f64> {
        let inside = x.indices().into_iter().filter(|at| at[dim] == i);
        inside.map(|at| x.at(&at)).collect()
    };
    let mut order: Vec<usize> = (0..x.shape[dim]).collect();
    if sort {
        order.sort_by(|i, j| slice(*i).partial_cmp(&slice(*j)).unwrap());
    }
    let (mut first, mut counts, mut inverse) = (Vec::new(), Vec::new(), vec![0.0; order.len()]);
    for (n, &i) in order.iter().enumerate() {
        if n == 0 || slice(order[n - 1]) != slice(i) {
            first.push(i);
            counts.push(0.0);
        }
        *counts.last_mut().unwrap() += 1.0;
        inverse[i] = (counts.len() - 1) as f64;
    }
    (first, counts, inverse)
}

#[test]
fn distinct_elements_and_slices_with_inverse_and_counts() {
    let mut rng = Rng::new(6);
    for (shape, dim) in [
        (vec![31], 0),
        (vec![9, 2], 0),
        (vec![2, 11], 1),
        (vec![2, 8, 1], 1),
    ] {
        for &dtype in &[DType::F32, DType::I64, DType::BF16, DType::Bool] {
            let x = match dtype {
                DType::Bool => Host::made(&shape, || rng.below(2) as f64),
                _ => Host::made(&shape, || rng.range(0, 2) as f64),
            };
            let t = x.tensor(dtype);
            for sort in [true, false] {
                let (first, counts, inverse) = distinct(&x, dim, sort);
                let unique = |d| {
                    if sort {
                        t.unique(d)
                    } else {
                        t.unique_consecutive(d)
                    }
                };
                let got = unique(Some(dim as i64 - shape.len() as i64));
                let values = x.lanes(dim, |l| first.iter().map(|i| l[*i]).collect());
                assert_is(&got.0, dtype, &values);
                assert_near(&read(&got.1), &inverse, DType::I64);
                assert_near(&read(&got.2), &counts, DType::I64);

                let flat = Host::new(&[x.data.len()], x.data.clone());
                let (first, counts, inverse) = distinct(&flat, 0, sort);
                let got = unique(None);
                assert_near(
                    &read(&got.0),
                    &first.iter().map(|i| flat.data[*i]).collect::<Vec<_>>(),
                    dtype,
                );
                assert_is(&got.1, DType::I64, &Host::new(&shape, inverse));
                assert_near(&read(&got.2), &counts, DType::I64);
            }
        }
    }
}

#[test]
fn every_nan_is_distinct_and_zeros_are_not() {
    let x = Tensor::from_slice(&[f32::NAN, -0.0, 1.0, f32::NAN, 0.0], [5]);
    let (values, inverse, counts) = x.unique(None);
    assert_near(&read(&values), &[-0.0, 1.0, f64::NAN, f64::NAN], DType::F32);
    assert_near(&read(&inverse), &[2.0, 0.0, 1.0, 3.0, 0.0], DType::I64);
    assert_near(&read(&counts), &[2.0, 1.0, 1.0, 1.0], DType::I64);
    let (values, ..) = Tensor::zeros([0], DType::F32).unique(None);
    assert_eq!(values.shape().unwrap(), [0]);
    assert!(
        Tensor::zeros([3, 0], DType::F32)
            .unique(0)
            .0
            .error()
            .is_some()
    );
}
