//! The in-place names of cells, with PyTorch's values.

use kiln::{
    Combine, DType, Factors, Put, ScatterReduction, Tensor, Var, manual_seed, stack, with_seed,
};

fn square() -> Tensor {
    Tensor::arange(0, 9, 1).to_dtype(DType::F32).reshape([3, 3])
}

/// The value of a cell that held x, after a change.
fn after(x: &Tensor, change: impl FnOnce(&Var) -> kiln::Result<()>) -> Vec<f32> {
    let cell = Var::new(x).unwrap();
    change(&cell).unwrap();
    cell.get().to_vec::<f32>().unwrap()
}

#[test]
fn elements_are_put_by_index() {
    let x = square();
    let index = Tensor::from([[0i64, 0, 2], [0, 1, 2]]);
    let source = Tensor::from([[10.0f32, 20.0, 30.0], [40.0, 50.0, 60.0]]);
    let options = Combine::new(ScatterReduction::Sum).include_self(false);
    assert_eq!(
        after(&x, |w| w.scatter_reduce_(0, &index, &source, options)),
        [50.0, 20.0, 2.0, 3.0, 50.0, 5.0, 6.0, 7.0, 90.0]
    );
    let columns = Tensor::from([[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]]);
    let at = Tensor::from([0i64, 2]);
    assert_eq!(
        after(&x, |w| w.index_reduce_(
            1,
            &at,
            &columns,
            ScatterReduction::Prod
        )),
        [0.0, 1.0, 4.0, 9.0, 4.0, 20.0, 30.0, 7.0, 48.0]
    );
    let add = Put::new().accumulate(true);
    let (places, values) = (
        Tensor::from([0i64, -1, 0]),
        Tensor::from([1.0f32, 2.0, 3.0]),
    );
    assert_eq!(
        after(&x, |w| w.put_with_(&places, &values, add.clone())),
        [4.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 10.0]
    );
    assert_eq!(
        after(&x, |w| w
            .index_put_(([0, 2], [1, 1]), Tensor::from([100.0f32, 200.0]))),
        [0.0, 100.0, 2.0, 3.0, 4.0, 5.0, 6.0, 200.0, 8.0]
    );
    // A range, a list with a repetition and a mask.
    assert_eq!(
        after(&x, |w| w.index_put_with_(
            (1.., [0, 0]),
            Tensor::from([[1.0f32], [2.0]]),
            add.clone()
        )),
        [0.0, 1.0, 2.0, 5.0, 4.0, 5.0, 10.0, 7.0, 8.0]
    );
    assert_eq!(
        after(&x, |w| w.index_put_with_(
            x.gt(6),
            Tensor::from([0.5f32]),
            add
        )),
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.5, 8.5]
    );
    assert_eq!(
        after(&x, |w| w.index_add_scaled_(
            0,
            Tensor::from([0i64, 0]),
            x.i(1..),
            -1
        )),
        [-9.0, -10.0, -11.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    );
}

#[test]
fn products_are_added() {
    let (x, v) = (square(), Tensor::from([1.0f32, 2.0, 3.0]));
    let factors = Factors::new().beta(0.5).alpha(2);
    assert_eq!(
        after(&x, |w| w.addmm_with_(&x, &x, factors)),
        [30.0, 36.5, 43.0, 85.5, 110.0, 134.5, 141.0, 183.5, 226.0]
    );
    assert_eq!(after(&v, |w| w.addmv_(&x, &v)), [9.0, 28.0, 47.0]);
    assert_eq!(
        after(&x, |w| w.addr_with_(&v, &v, Factors::new().alpha(-1))),
        [-1.0, -1.0, -1.0, 1.0, 0.0, -1.0, 3.0, 1.0, -1.0]
    );
    let b = stack([x.clone(), &x + 1.0], 0);
    let batches = [
        15.0, 19.0, 23.0, 45.0, 58.0, 71.0, 75.0, 97.0, 119.0, 31.0, 38.0, 45.0, 70.0, 86.0, 102.0,
        109.0, 134.0, 159.0,
    ];
    assert_eq!(after(&b, |w| w.baddbmm_(&b, &b)), batches);
    // With a beta of 0, the old contents do not matter.
    let nan = Tensor::full([3, 3], f64::NAN, DType::F32);
    assert_eq!(
        after(&nan, |w| w.addbmm_with_(&b, &b, Factors::new().beta(0))),
        [45.0, 54.0, 63.0, 108.0, 135.0, 162.0, 171.0, 216.0, 261.0]
    );
    let row = Var::new(Tensor::zeros([1, 3], DType::F32)).unwrap();
    assert!(row.addmm_(&x, &x).is_err(), "the result is larger");
}

#[test]
fn diagonals_are_filled() {
    let tall = after(&Tensor::zeros([4, 3], DType::F32), |w| w.fill_diagonal_(5));
    let expected = [5.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0];
    assert_eq!(tall, expected);
    let cube = after(&Tensor::zeros([2, 2, 2], DType::F32), |w| {
        w.fill_diagonal_(5)
    });
    assert_eq!(cube, [5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0]);
    let empty = Tensor::zeros([0, 3], DType::F32);
    assert!(after(&empty, |w| w.fill_diagonal_(5)).is_empty());
    let cell = |shape: &[usize], dtype| Var::new(Tensor::zeros(shape, dtype)).unwrap();
    let message = |w: Var| w.fill_diagonal_(0.5).unwrap_err().to_string();
    assert!(message(cell(&[3], DType::F32)).contains("fewer than 2 dims"));
    assert!(message(cell(&[2, 2, 3], DType::F32)).contains("differ in size"));
    assert!(message(cell(&[2, 2], DType::I64)).contains("without loss"));
}

/// The share of a cell's numbers below a bound.
fn below(w: &Var, bound: f64) -> f64 {
    let hits = w.get().lt(bound).to_dtype(DType::F64);
    hits.mean(()).item::<f64>().unwrap()
}

/// Each share of 40,000 draws is within 4 deviations (at most 0.01) of its probability.
#[test]
fn draws_have_their_distributions() {
    for dtype in [DType::F32, DType::F64] {
        let w = Var::new(Tensor::zeros([200, 200], dtype)).unwrap();
        let near = |bound: f64, share: f64| {
            let got = below(&w, bound);
            assert!(
                (got - share).abs() < 0.01,
                "{dtype}: {got} below {bound}, not {share}"
            );
        };
        with_seed(3, || w.exponential_(2.0)).unwrap();
        near(0.0, 0.0);
        near(0.5, 1.0 - (-1.0f64).exp());
        near(1.5, 1.0 - (-3.0f64).exp());
        with_seed(4, || w.cauchy_(1.0, 2.0)).unwrap();
        near(1.0, 0.5);
        near(3.0, 0.75);
        near(-1.0, 0.25);
        with_seed(5, || w.log_normal_(0.5, 2.0)).unwrap();
        near(0.5f64.exp(), 0.5);
        near(2.5f64.exp(), 0.841_344_746);
        with_seed(6, || w.geometric_(0.25)).unwrap();
        near(1.0, 0.0);
        near(1.5, 0.25);
        near(2.5, 0.4375);
        with_seed(7, || {
            w.bernoulli_(Tensor::from([[0.2], [0.4]]).repeat([100, 1]))
        })
        .unwrap();
        near(0.5, 0.7);
    }
    manual_seed(1);
    let counts = Var::new(Tensor::zeros([50], DType::I64)).unwrap();
    counts.geometric_(0.9).unwrap();
    assert!(
        counts
            .get()
            .to_vec::<i64>()
            .unwrap()
            .iter()
            .all(|n| *n >= 1)
    );
}

#[test]
fn draws_say_what_they_can_not_do() {
    let w = Var::new(Tensor::ones([2], DType::F32)).unwrap();
    for wrong in [
        w.exponential_(0.0),
        w.exponential_(f64::NAN),
        w.cauchy_(0.0, -1.0),
        w.log_normal_(0.0, 0.0),
        w.geometric_(1.0),
        w.geometric_(0.0),
        w.bernoulli_(1.5),
    ] {
        let text = wrong.unwrap_err().to_string();
        assert!(text.contains("in_place.rs"), "{text}");
    }
    assert_eq!(w.get().to_vec::<f32>().unwrap(), [1.0; 2]);
    let whole = Var::new(Tensor::ones([2], DType::I64)).unwrap();
    assert!(whole.exponential_(1.0).is_err() && whole.cauchy_(0.0, 1.0).is_err());
}
