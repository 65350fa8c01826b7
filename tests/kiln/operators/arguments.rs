//! Arguments out of range: those that PyTorch refuses are refused, those that it accepts are accepted.

use kiln::{
    Bags, BinaryCrossEntropy, CrossEntropy, DType, ErrorKind, GaussianNll, MultiMargin,
    Multinomial, Nll, Reduction, RunningStats, ScatterReduction, Tensor, keep,
};

fn floats(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len()])
}

/// The message of a data error.
#[track_caller]
fn data_error(t: &Tensor) -> String {
    let e = t.clone().to_dtype(DType::F64).to_vec::<f64>().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Data, "{e}");
    assert!(e.loc().file().ends_with("arguments.rs"), "{e}");
    e.message().to_string()
}

/// A function of an index.
type Indexed = (
    &'static str,
    fn(&Tensor, &Tensor) -> Tensor,
    &'static [DType],
);

#[test]
fn indices_have_the_dtypes_that_pytorch_takes() {
    use DType::{Bool, F32, I16, I32, I64, U8};
    const LONG: &[DType] = &[I64];
    const INT: &[DType] = &[I32, I64];
    const BYTE: &[DType] = &[U8, I64];
    let table: &[Indexed] = &[
        ("gather", |x, i| x.gather(1, i.reshape([1, 2])), INT),
        ("take", |x, i| x.take(i), LONG),
        (
            "take_along_dim",
            |x, i| x.take_along_dim(i.reshape([1, 2]), 1),
            LONG,
        ),
        ("index_select", |x, i| x.index_select(0, i), INT),
        ("scatter", |x, i| x.scatter(1, i.reshape([1, 2]), 0.0), INT),
        (
            "scatter_add",
            |x, i| x.scatter_add(1, i.reshape([1, 2]), x.narrow(0, 0, 1)),
            INT,
        ),
        (
            "scatter_reduce",
            |x, i| {
                let (i, src) = (i.reshape([1, 2]), x.narrow(0, 0, 1));
                x.scatter_reduce(1, &i, &src, ScatterReduction::Sum)
            },
            INT,
        ),
        ("index_add", |x, i| x.index_add_scaled(0, i, x, 1i64), INT),
        ("index_copy", |x, i| x.index_copy(0, i, x), LONG),
        ("index_fill", |x, i| x.index_fill(0, i, 7.0), LONG),
        (
            "index_reduce",
            |x, i| x.index_reduce(0, i, x, ScatterReduction::Prod),
            INT,
        ),
        ("put", |x, i| x.put(i, Tensor::ones([2], F32)), LONG),
        ("embedding", |x, i| x.embedding(i), INT),
        (
            "embedding_bag",
            |x, i| x.embedding_bag_with(i.reshape([1, 2]), Bags::new().mode(kiln::BagMode::Sum)),
            INT,
        ),
        (
            "nll_loss",
            |x, i| x.nll_loss_with(i, Nll::new().reduction(Reduction::Sum)),
            BYTE,
        ),
        (
            "cross_entropy",
            |x, i| x.cross_entropy_with(i, CrossEntropy::new().reduction(Reduction::Sum)),
            BYTE,
        ),
        (
            "multi_margin_loss",
            |x, i| x.multi_margin_loss_with(i, MultiMargin::new().reduction(Reduction::Sum)),
            LONG,
        ),
        (
            "multilabel_margin_loss",
            |x, i| {
                x.narrow(0, 0, 1)
                    .narrow(1, 0, 2)
                    .multilabel_margin_loss_with(i.reshape([1, 2]), Reduction::Sum)
            },
            LONG,
        ),
        ("one_hot", |_, i| i.one_hot(2), LONG),
    ];
    let x = Tensor::arange(0, 6, 1).to_dtype(F32).reshape([2, 3]);
    for (name, f, taken) in table {
        let wanted = f(&x, &Tensor::zeros([2], I64))
            .to_dtype(DType::F64)
            .to_vec::<f64>();
        let wanted = wanted.unwrap_or_else(|e| panic!("{name}: {e}"));
        for dtype in [Bool, U8, I16, I32, I64, F32] {
            // A float target of a cross-entropy is a tensor of probabilities.
            if (dtype, *name) == (F32, "cross_entropy") {
                continue;
            }
            let y = f(&x, &Tensor::zeros([2], dtype));
            assert_eq!(
                y.error().is_none(),
                taken.contains(&dtype),
                "{name} of {dtype}"
            );
            if y.error().is_none() {
                assert_eq!(
                    y.to_dtype(DType::F64).to_vec::<f64>().unwrap(),
                    wanted,
                    "{name} of {dtype}"
                );
            }
        }
    }
}

#[test]
fn a_binary_cross_entropy_outside_0_and_1_is_a_data_error() {
    let (half, one) = (floats(&[0.5, 0.5]), floats(&[1.0, 0.0]));
    let mean = |x: &Tensor, y: &Tensor| x.binary_cross_entropy(y);
    for v in [-0.1, 1.1, f32::NAN, f32::INFINITY] {
        let bad = floats(&[v, 0.5]);
        let text = data_error(&mean(&bad, &one));
        assert_eq!(
            text, "all elements of input should be between 0 and 1",
            "{v}"
        );
        let text = data_error(&mean(&half, &bad));
        assert_eq!(
            text, "all elements of target should be between 0 and 1",
            "{v}"
        );
        // Such a step gives no gradient either.
        let x = bad.requires_grad_(true);
        mean(&x, &one).backward().unwrap();
        assert!(x.grad().unwrap().to_vec::<f32>().is_err());
    }
    for v in [-0.0, 0.0, 1.0] {
        let edge = floats(&[v, 0.5]);
        assert!(mean(&edge, &one).item::<f32>().unwrap().is_finite());
        assert!(mean(&half, &edge).item::<f32>().unwrap().is_finite());
    }
    let none = Tensor::zeros([0, 3], DType::F32);
    let sum =
        none.binary_cross_entropy_with(&none, BinaryCrossEntropy::new().reduction(Reduction::Sum));
    assert_eq!(sum.item::<f32>().unwrap(), 0.0);
}

#[test]
fn weights_that_are_no_distribution_say_what_is_wrong_with_them() {
    let numbers = "the weights hold an infinity, a NaN or an element below 0";
    for weights in [
        [1.0, -1.0],
        [f32::NAN, 1.0],
        [f32::INFINITY, 1.0],
        [-1.0, -2.0],
    ] {
        for replacement in [true, false] {
            let drawn = floats(&weights).multinomial(Multinomial::new(1).replacement(replacement));
            assert_eq!(data_error(&drawn), numbers, "{weights:?}");
        }
    }
    let rows = Tensor::from([[1.0f32, 2.0], [0.0, 0.0]]);
    assert_eq!(
        data_error(&rows.multinomial(Multinomial::new(2).replacement(true))),
        "the sum of a row's weights is 0"
    );
    let drawn = floats(&[1.0, 0.0]).multinomial(2);
    assert_eq!(drawn.to_vec::<i64>().unwrap(), [0, 1]);
    let none = Tensor::ones([0, 3], DType::F32).multinomial(Multinomial::new(2).replacement(true));
    assert_eq!(none.shape().unwrap(), [0, 2]);
    assert!(none.to_vec::<i64>().unwrap().is_empty());
}

#[test]
fn probabilities_and_deviations_out_of_range_are_data_errors() {
    for v in [-0.1, 1.1, f32::NAN] {
        let text = data_error(&floats(&[v, 0.5]).bernoulli());
        assert_eq!(text, "all probabilities must lie between 0 and 1");
        assert!(
            floats(&[0.5])
                .bernoulli_with(f64::from(v))
                .error()
                .is_some()
        );
    }
    let mean = floats(&[0.0, 1.0]);
    for v in [-1.0, f32::NAN] {
        let text = data_error(&kiln::normal(&mean, floats(&[v, 1.0])));
        assert_eq!(text, "all deviations must be at least 0");
        assert!(kiln::normal(&mean, f64::from(v)).error().is_some());
    }
    assert_eq!(
        kiln::normal(&mean, 0.0).to_vec::<f32>().unwrap(),
        [0.0, 1.0]
    );
    let (one, minus) = (floats(&[1.0, 1.0]), floats(&[1.0, -1.0]));
    let loss = |var: &Tensor| one.gaussian_nll_loss_with(&one, var, GaussianNll::new().eps(0.0));
    assert_eq!(
        data_error(&loss(&minus)),
        "the variance has negative elements"
    );
    assert_eq!(loss(&one).item::<f32>().unwrap(), 0.0);
}

#[test]
fn logits_are_clamped_as_in_pytorch_beyond_a_half_too() {
    let x = Tensor::from_slice(&[-0.5, 0.0, 0.2, 0.5, 0.55, 0.8, 1.0, 2.0], [8]);
    let of = |p: f64| (p / (1.0 - p)).ln();
    let clamped = |eps: f64| x.logit_with(eps).to_vec::<f64>().unwrap();
    let same = |found: &[f64], wanted: &[f64]| {
        let near =
            |(a, b): (&f64, &f64)| a == b || (a - b).abs() < 1e-12 || a.is_nan() && b.is_nan();
        assert!(found.iter().zip(wanted).all(near), "{found:?} {wanted:?}");
    };
    let (low, high, inf) = (of(0.6), of(0.4), f64::INFINITY);
    same(&clamped(0.6), &[low, low, low, low, low, high, high, high]);
    same(&clamped(0.5), &[0.0; 8]);
    same(&clamped(1.0), &[inf, inf, inf, inf, inf, inf, -inf, -inf]);
    same(&clamped(2.0), &[f64::NAN; 8]);
    let plain = x.logit().to_vec::<f64>().unwrap();
    same(&clamped(-0.1), &plain);
    same(&clamped(f64::NAN), &plain);
}

#[test]
fn adaptive_pooling_takes_no_negative_sizes_and_none_at_all() {
    let x = Tensor::rand([1, 2, 5, 4], DType::F32);
    for n in [-1, -2] {
        assert!(x.adaptive_avg_pool2d([n, 2]).error().is_some());
        assert!(x.adaptive_max_pool2d(n).error().is_some());
        assert!(x.squeeze(0).adaptive_avg_pool1d(n).error().is_some());
        assert!(
            x.unsqueeze(0)
                .adaptive_max_pool3d([2, n, 2])
                .error()
                .is_some()
        );
    }
    for y in [x.adaptive_avg_pool2d([0, 3]), x.adaptive_max_pool2d([0, 3])] {
        assert_eq!(y.shape().unwrap(), [1, 2, 0, 3]);
        assert!(y.to_vec::<f32>().unwrap().is_empty());
    }
    let y = x.adaptive_max_pool2d([None, Some(2)]);
    assert_eq!(y.shape().unwrap(), [1, 2, 5, 2]);
}

#[test]
fn losses_with_margins_take_a_number_as_the_score_of_one_class() {
    let score = Tensor::scalar(0.5f32);
    let class = |c: i64| Tensor::scalar(c);
    for reduction in [Reduction::None, Reduction::Mean, Reduction::Sum] {
        let margin = |c: i64| {
            score.multi_margin_loss_with(class(c), MultiMargin::new().reduction(reduction))
        };
        assert_eq!(
            (margin(0).item::<f32>().unwrap(), margin(0).ndim()),
            (0.0, 0)
        );
        assert!(data_error(&margin(1)).contains("index 1 is outside 0..1"));
        let listed = |c: i64| score.multilabel_margin_loss_with(class(c), reduction);
        for c in [0, -1] {
            assert_eq!(
                (listed(c).item::<f32>().unwrap(), listed(c).ndim()),
                (0.0, 0)
            );
        }
        assert!(data_error(&listed(1)).contains("index 1 is outside 0..1"));
    }
    let none = Tensor::zeros([3, 0], DType::F32);
    let classes = Tensor::zeros([3], DType::I64);
    assert!(
        none.multi_margin_loss_with(&classes, MultiMargin::new().reduction(Reduction::Sum))
            .error()
            .is_some()
    );
}

#[test]
fn a_batch_norm_of_nothing_gives_nothing_and_updates_nothing() {
    for (shape, c) in [
        (&[0][..], 0),
        (&[0, 3], 3),
        (&[2, 3, 0], 3),
        (&[2, 0, 4], 0),
    ] {
        let x = Tensor::ones(shape, DType::F32);
        let running = |v: f64| kiln::Var::new(Tensor::full([c], v, DType::F32)).unwrap();
        for training in [false, true] {
            let (mean, var) = (running(5.0), running(7.0));
            let y = x.batch_norm_with(
                RunningStats::new()
                    .running_mean(&mean)
                    .running_var(&var)
                    .training(training),
            );
            assert_eq!(y.shape().unwrap(), shape);
            assert!(y.to_vec::<f32>().unwrap().is_empty());
            assert_eq!(mean.get().to_vec::<f32>().unwrap(), vec![5.0; c]);
            assert_eq!(var.get().to_vec::<f32>().unwrap(), vec![7.0; c]);
            let y = x.batch_norm_with(RunningStats::new().training(training));
            assert!(y.to_vec::<f32>().unwrap().is_empty());
        }
    }
    let x = Tensor::ones([2, 3], DType::F32);
    let y = x.batch_norm_with(RunningStats::new().training(true).eps(-1.0));
    assert!(y.error().unwrap().message().contains("eps"));
}

#[test]
fn dims_are_chosen_in_tensors_of_up_to_64_of_them() {
    for rank in [64, 65, 70] {
        let ones = vec![1usize; rank];
        let x = Tensor::zeros(&ones, DType::F32) + 1.0;
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0]);
        let y = &x + &Tensor::from([1.0f32, 2.0]);
        assert_eq!(
            (y.ndim(), y.to_vec::<f32>().unwrap()),
            (rank, vec![2.0, 3.0])
        );
        assert_eq!(y.sum(()).item::<f32>().unwrap(), 5.0);
        let chosen = [
            y.sum(0),
            y.mean([0, 1]),
            y.amax(-1),
            y.max(-1).0,
            y.argmin(0),
            y.std(keep(0)),
            y.logsumexp(0),
            y.flip(0),
        ];
        let refused = chosen.iter().filter(|t| t.error().is_some()).count();
        assert_eq!(refused, if rank > 64 { chosen.len() } else { 0 });
        assert_eq!(y.softmax(0).to_vec::<f32>().unwrap(), [1.0, 1.0]);
        let order: Vec<i64> = (0..rank as i64).rev().collect();
        let z = y.permute(order).unsqueeze(0).reshape([2]);
        assert_eq!(z.to_vec::<f32>().unwrap(), [2.0, 3.0]);
        let grown = Tensor::from([1.0f32]).reshape(ones.clone());
        assert_eq!(
            kiln::cat(&[&grown, &x], 0).to_vec::<f32>().unwrap(),
            [1.0, 1.0]
        );
    }
}
