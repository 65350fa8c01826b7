//! Elements written by index.

use super::{Host, assert_is, assert_near, ints, read};
use kiln::{Combine, DType, Diagonal, Put, ScatterReduction, Tensor};
use kiln_ir::fuzz::Rng;

/// An index of this shape below `bound`.
fn index(rng: &mut Rng, shape: &[usize], bound: usize) -> Host {
    Host::made(shape, || rng.below(bound) as f64)
}

/// x with each source element that the index covers combined into its destination.
fn scattered(
    x: &Host,
    dim: usize,
    index: &Host,
    src: &Host,
    mut combine: impl FnMut(f64, f64, usize) -> f64,
) -> Host {
    let mut out = x.clone();
    for at in index.indices() {
        let mut to = at.clone();
        to[dim] = index.at(&at) as usize;
        let to = x.offset(&to);
        out.data[to] = combine(out.data[to], src.at(&at), to);
    }
    out
}

/// The operands of a scatter: x, an index smaller than it off the dim, a source larger than the index.
fn operands(rng: &mut Rng, dim: usize) -> (Host, Host, Host) {
    let x = Host::quarters(rng, &[4, 3, 5]);
    let mut shape = [3, 3, 4];
    shape[dim] = 7; // more than there are places, so that some are hit twice
    let index = index(rng, &shape, x.shape[dim]);
    let src = Host::quarters(rng, &[8, 8, 8]);
    (x, index, src)
}

#[test]
fn scatter_overwrites_in_order_and_adds() {
    let mut rng = Rng::new(1);
    for dim in 0..3 {
        let (x, index, src) = operands(&mut rng, dim);
        let d = dim as i64 - 3;
        let i = index.tensor(DType::I64);
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let (t, s) = (x.tensor(dtype), src.tensor(dtype));
            let last = scattered(&x, dim, &index, &src, |_, new, _| new);
            assert_is(&t.scatter(d, &i, &s), dtype, &last);
            let sum = scattered(&x, dim, &index, &src, |old, new, _| old + new);
            assert_is(&t.scatter_add(d, &i, &s), dtype, &sum);
            let number = scattered(&x, dim, &index, &src, |_, _, _| 2.5);
            assert_is(&t.scatter(d, &i, 2.5), dtype, &number);
            let twice = t.scatter_reduce(d, &i, 2.0, ScatterReduction::Prod);
            let product = scattered(&x, dim, &index, &src, |old, _, _| old * 2.0);
            assert_is(&twice, dtype, &product);
        }
    }
}

#[test]
fn reductions_with_and_without_what_is_there() {
    use ScatterReduction::*;
    let mut rng = Rng::new(2);
    for dim in 0..3 {
        let (x, index, src) = operands(&mut rng, dim);
        let (t, i) = (x.tensor(DType::F64), index.tensor(DType::I64));
        let s = src.tensor(DType::F64);
        for reduce in [Sum, Prod, Mean, Amax, Amin] {
            for include_self in [true, false] {
                let mut seen = vec![include_self as i64 as f64; x.data.len()];
                let mut expected = scattered(&x, dim, &index, &src, |old, new, to| {
                    seen[to] += 1.0;
                    if seen[to] == 1.0 {
                        return new;
                    }
                    match reduce {
                        Sum | Mean => old + new,
                        Prod => old * new,
                        Amax => old.max(new),
                        Amin => old.min(new),
                    }
                });
                if reduce == Mean {
                    let counts = expected.data.iter_mut().zip(&seen);
                    counts.for_each(|(v, n)| *v /= n.max(1.0));
                }
                let got = t.scatter_reduce(
                    dim as i64,
                    &i,
                    &s,
                    Combine::new(reduce).include_self(include_self),
                );
                assert_is(&got, DType::F64, &expected);
            }
        }
    }
}

#[test]
fn integers_and_bools_combine_as_pytorch_does() {
    let index = ints(&[4], &[0, 0, 1, 1]);
    let mean = ints(&[3], &[-7, 5, 9]).scatter_reduce(
        0,
        &index,
        ints(&[4], &[2, 1, -4, 3]),
        Combine::new(ScatterReduction::Mean).include_self(false),
    );
    assert_near(&read(&mean), &[1.0, -1.0, 9.0], DType::I64);
    let x = Tensor::from_slice(&[false, true], [2]);
    let src = Tensor::from_slice(&[false, true, false, false], [4]);
    let any = x.scatter_add(0, &index, &src);
    assert_is(&any, DType::Bool, &Host::new(&[2], vec![1.0, 1.0]));
    let all = x.scatter_reduce(
        0,
        &index,
        &src,
        Combine::new(ScatterReduction::Prod).include_self(false),
    );
    assert_is(&all, DType::Bool, &Host::new(&[2], vec![0.0, 0.0]));
    let nan = Tensor::from_slice(&[1.0f32, 2.0], [2]).scatter_reduce(
        0,
        ints(&[3], &[0, 0, 1]),
        Tensor::from_slice(&[f32::NAN, 3.0, -0.0], [3]),
        ScatterReduction::Amax,
    );
    assert_near(&read(&nan), &[f64::NAN, 2.0], DType::F32);
}

#[test]
fn an_empty_index_changes_nothing_whatever_its_shape() {
    let x = Host::quarters(&mut Rng::new(3), &[2, 3]);
    let t = x.tensor(DType::F32);
    let none = Tensor::zeros([0], DType::F32);
    assert_is(&t.scatter(0, &none, 1.0), DType::F32, &x);
    assert_is(&t.scatter_add(1, &none, &t), DType::F32, &x);
    assert_eq!(t.gather(1, &none).shape().unwrap(), [0]);
    let far = t.scatter(0, ints(&[1, 1], &[2]), 1.0);
    assert!(far.to_vec::<f32>().is_err());
    let negative = t.scatter(0, ints(&[1, 1], &[-1]), 1.0);
    assert!(
        negative.to_vec::<f32>().is_err(),
        "only brackets count from the end"
    );
}

#[test]
fn slices_of_a_dim_are_added_copied_and_reduced() {
    let mut rng = Rng::new(4);
    for dim in 0..2 {
        let x = Host::quarters(&mut rng, &[5, 3]);
        let places = index(&mut rng, &[4], x.shape[dim]);
        let mut shape = x.shape.clone();
        shape[dim] = 4;
        let src = Host::quarters(&mut rng, &shape);
        let wide = super::indices(&shape);
        let wide = Host::new(&shape, wide.iter().map(|at| places.data[at[dim]]).collect());
        let (t, s, d) = (x.tensor(DType::F32), src.tensor(DType::F32), dim as i64);
        let i = places.tensor(DType::I32);
        let added = scattered(&x, dim, &wide, &src, |old, new, _| old - 2.0 * new);
        assert_is(&t.index_add_scaled(d, &i, &s, -2i64), DType::F32, &added);
        let copied = scattered(&x, dim, &wide, &src, |_, new, _| new);
        let long = i.to_dtype(DType::I64);
        assert_is(&t.index_copy(d, &long, &s), DType::F32, &copied);
        let most = scattered(&x, dim, &wide, &src, |old, new, _| old.max(new));
        let got = t.index_reduce(d, &i, &s, ScatterReduction::Amax);
        assert_is(&got, DType::F32, &most);
        let narrow = s.narrow(1 - d, 0, 2);
        assert!(t.index_add_scaled(d, &i, &narrow, 1i64).error().is_some());
    }
    let whole = ints(&[2], &[1, 2]);
    let half = whole.index_add_scaled(0, ints(&[1], &[0]), ints(&[1], &[1]), 0.5);
    assert!(half.error().is_some(), "half of an integer is none");
    let number =
        Tensor::scalar(1.5f32).index_add_scaled(0, ints(&[1], &[0]), Tensor::scalar(2.0f32), 1i64);
    assert_is(&number, DType::F32, &Host::new(&[], vec![3.5]));
}

#[test]
fn put_counts_over_the_flattened_elements() {
    let x = Host::quarters(&mut Rng::new(5), &[2, 3]);
    let t = x.tensor(DType::F32);
    let (i, s) = (ints(&[2, 2], &[-1, 1, 5, 1]), [1.0f32, 2.0, 4.0, 8.0]);
    let s = Tensor::from_slice(&s, [4]);
    let mut set = x.clone();
    (set.data[5], set.data[1]) = (4.0, 8.0);
    assert_is(&t.put(&i, &s), DType::F32, &set);
    let mut sum = x.clone();
    sum.data[5] += 5.0;
    sum.data[1] += 10.0;
    assert_is(
        &t.put_with(&i, &s, Put::new().accumulate(true)),
        DType::F32,
        &sum,
    );
    assert!(
        t.put_with(&i, s.narrow(0, 0, 3), Put::new().accumulate(true))
            .error()
            .is_some()
    );
    assert!(
        t.put(ints(&[1], &[6]), s.narrow(0, 0, 1))
            .to_vec::<f32>()
            .is_err()
    );
}

#[test]
fn a_scattered_diagonal_is_the_diagonal() {
    let mut rng = Rng::new(6);
    let x = Host::quarters(&mut rng, &[3, 2, 5]).tensor(DType::F32);
    for offset in [-3, -2, -1, 0, 1, 2, 4, 7] {
        for (a, b) in [(0, 2), (2, 0), (1, 2), (-3, -2)] {
            let shape = x
                .diagonal_with(Diagonal::new().offset(offset).dim1(a).dim2(b))
                .shape()
                .unwrap();
            let src = Host::quarters(&mut rng, &shape);
            let y = x.diagonal_scatter_with(
                src.tensor(DType::F32),
                Diagonal::new().offset(offset).dim1(a).dim2(b),
            );
            assert_is(
                &y.diagonal_with(Diagonal::new().offset(offset).dim1(a).dim2(b)),
                DType::F32,
                &src,
            );
            // All other elements are unchanged: with the old diagonal restored, the result is x.
            let back = y.diagonal_scatter_with(
                x.diagonal_with(Diagonal::new().offset(offset).dim1(a).dim2(b)),
                Diagonal::new().offset(offset).dim1(a).dim2(b),
            );
            assert_near(&read(&back), &read(&x), DType::F32);
        }
    }
    assert!(x.diagonal_scatter(&x).error().is_some());
}
