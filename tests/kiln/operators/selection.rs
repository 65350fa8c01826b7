//! Elements chosen by masks, and index tensors in brackets.

use super::{DTYPES, Host, assert_is, assert_near, ints, read};
use kiln::{Combinations, DType, ErrorKind, Put, Spec, Tensor, compile};
use kiln_ir::fuzz::Rng;

#[test]
fn places_that_are_not_zero_come_in_order() {
    let mut rng = Rng::new(1);
    for shape in [&[][..], &[0], &[13], &[3, 5], &[2, 1, 4], &[2, 0, 3]] {
        for &dtype in DTYPES {
            let mut x = Host::ties(&mut rng, shape, dtype);
            x.data.iter_mut().for_each(|v| *v = v.abs());
            let t = x.tensor(dtype);
            let places: Vec<Vec<usize>> = x
                .indices()
                .into_iter()
                .filter(|at| x.at(at) != 0.0)
                .collect();
            let flat = places.iter().flatten().map(|i| *i as f64).collect();
            let expected = Host::new(&[places.len(), shape.len()], flat);
            assert_is(&t.nonzero(), DType::I64, &expected);
            assert_is(&t.argwhere(), DType::I64, &expected);
            let columns = t.nonzero_as_tuple();
            assert_eq!(columns.len(), shape.len().max(1));
            for (a, column) in columns.iter().enumerate().take(shape.len()) {
                let expected = places.iter().map(|at| at[a] as f64).collect::<Vec<_>>();
                assert_near(&read(column), &expected, DType::I64);
            }
        }
    }
}

#[test]
fn masks_broadcast_with_what_they_choose_from() {
    let mut rng = Rng::new(2);
    let x = Host::quarters(&mut rng, &[3, 1, 5]);
    let mask = Host::made(&[4, 1], || rng.below(2) as f64);
    let (t, m) = (x.tensor(DType::F16), mask.tensor(DType::Bool));
    let all = super::indices(&[3, 4, 5]);
    let chosen: Vec<&Vec<usize>> = all
        .iter()
        .filter(|at| mask.at(&[at[1], 0]) != 0.0)
        .collect();
    let values: Vec<f64> = chosen.iter().map(|at| x.at(&[at[0], 0, at[2]])).collect();
    let count = values.len();
    assert_is(
        &t.masked_select(&m),
        DType::F16,
        &Host::new(&[count], values),
    );

    let source = Host::quarters(&mut rng, &[count + 2]);
    let mut next = source.data.iter();
    let placed = |at: &Vec<usize>| match mask.at(&[at[1], 0]) != 0.0 {
        true => *next.next().unwrap(),
        false => x.at(&[at[0], 0, at[2]]),
    };
    let expected = Host::new(&[3, 4, 5], all.iter().map(placed).collect());
    assert_is(
        &t.masked_scatter(&m, source.tensor(DType::F16)),
        DType::F16,
        &expected,
    );
    let few = t.masked_scatter(&m, source.tensor(DType::F16).narrow(0, 0, count as i64 - 1));
    assert!(
        few.to_vec::<half::f16>().is_err(),
        "the source has too few elements"
    );
    let unmasked = t.masked_scatter(m.logical_and(m.logical_not()), few.narrow(0, 0, 0));
    assert_eq!(unmasked.shape().unwrap(), [3, 4, 5]);
}

#[test]
fn values_can_not_be_asked_for_while_compiling() {
    let chooses: [fn(&Tensor) -> Tensor; 4] = [
        |x| x.nonzero(),
        |x| x.masked_select(x.gt(0.0)),
        |x| x.unique(None).0,
        |x| x.i(x.gt(0.0)),
    ];
    for choose in chooses {
        let e = compile(Spec::new(DType::F32, [3]), |x| choose(&x));
        let e = e.expect_err("its shape depends on values");
        assert_eq!(e.kind(), ErrorKind::ReadWhileCompiling);
    }
}

#[test]
fn masks_and_indices_stand_in_brackets() {
    let mut rng = Rng::new(3);
    let x = Host::quarters(&mut rng, &[3, 4, 5]);
    let t = x.tensor(DType::F32);
    let rows = Tensor::from_slice(&[true, false, true], [3]);
    let columns = ints(&[2], &[-1, 2]);
    let got = t.i((&rows, .., &columns));
    let expected = [(0, 4), (2, 2)].iter().flat_map(|(i, k)| {
        let x = &x;
        (0..4).map(move |j| x.at(&[*i, j, *k]))
    });
    assert_is(&got, DType::F32, &Host::new(&[2, 4], expected.collect()));
    let wide = t.gt(0.0);
    let by_mask = t.i(&wide);
    assert_near(&read(&by_mask), &read(&t.masked_select(&wide)), DType::F32);
    let wrong = Tensor::from_slice(&[true, false], [2]);
    assert!(t.i(&wrong).error().is_some());
}

#[test]
fn index_put_places_broadcasts_and_accumulates() {
    let mut rng = Rng::new(4);
    let x = Host::quarters(&mut rng, &[3, 4, 5]);
    let t = x.tensor(DType::F32);
    let (i, j) = ([2i64, 0, -1], [1i64, 3, 1]);
    for accumulate in [false, true] {
        let values = Host::quarters(&mut rng, &[4, 3]);
        let mut expected = x.clone();
        for n in 0..3 {
            for a in 0..4 {
                // Indices on both sides of a whole dim: their dim comes first.
                let at = x.offset(&[i[n].rem_euclid(3) as usize, a, j[n] as usize]);
                let v = values.data[n * 4 % 12 + a];
                expected.data[at] = if accumulate { expected.data[at] + v } else { v };
            }
        }
        let values = Host::new(&[3, 4], values.data);
        let indices = (ints(&[3], &i), .., ints(&[3], &j));
        let options = Put::new().accumulate(accumulate);
        let got = t.index_put_with(indices, values.tensor(DType::F32), options);
        assert_is(&got, DType::F32, &expected);
    }
    // Adjacent indices stay where they are; the value is broadcast.
    let second = ints(&[2, 1], &[0, 3]);
    let third = ints(&[2], &[1, 4]);
    let one = Tensor::full([1], 9.0, DType::F32);
    let got = t.index_put((.., &second, &third), &one);
    let mut expected = x.clone();
    for at in x.indices() {
        if [0, 3].contains(&at[1]) && [1, 4].contains(&at[2]) {
            let o = x.offset(&at);
            expected.data[o] = 9.0;
        }
    }
    assert_is(&got, DType::F32, &expected);
    let mask = t.lt(0.0);
    let clipped = t.index_put(&mask, Tensor::full((), 0.0, DType::F32));
    assert_near(
        &read(&clipped),
        &read(&t.masked_fill(&mask, 0.0)),
        DType::F32,
    );
    let far = t.index_put(ints(&[1], &[3]), &one);
    assert!(far.to_vec::<f32>().is_err());
    assert!(
        t.index_put(&second, one.to_dtype(DType::F64))
            .error()
            .is_some()
    );
}

#[test]
fn combinations_come_in_order() {
    let x = ints(&[4], &[3, 1, 4, 1]);
    let rows = |r, again| x.combinations(Combinations::new(r).with_replacement(again));
    let pairs = [3., 1., 3., 4., 3., 1., 1., 4., 1., 1., 4., 1.];
    assert_is(
        &rows(2, false),
        DType::I64,
        &Host::new(&[6, 2], pairs.to_vec()),
    );
    assert_eq!(rows(2, true).shape().unwrap(), [10, 2]);
    assert_eq!(rows(3, true).shape().unwrap(), [20, 3]);
    assert_eq!(rows(5, false).shape().unwrap(), [0, 5]);
    assert_eq!(rows(0, false).shape().unwrap(), [0]);
    let doubles = ints(&[2], &[7, 8]).combinations(Combinations::new(2).with_replacement(true));
    assert_is(
        &doubles,
        DType::I64,
        &Host::new(&[3, 2], vec![7., 7., 7., 8., 8., 8.]),
    );
    assert!(rows(-1, false).error().is_some());
    let many = Tensor::arange(0, 1000, 1).combinations(9);
    assert!(many.error().is_some(), "too many to list");
}
