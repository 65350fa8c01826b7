//! Losses against their definitions, element by element.

use kiln_tensor::{
    CosineEmbedding, DType, GaussianNll, HingeEmbedding, MultiLabelSoftMargin, MultiMargin,
    PoissonNll, Reduction, Tensor, TripletMargin, TripletMarginWithDistance,
};

fn f64s(values: &[f64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape)
}

fn close(t: &Tensor, expected: &[f64]) {
    let values = t.to_dtype(DType::F64).to_vec::<f64>().unwrap();
    assert_eq!(values.len(), expected.len(), "{values:?}");
    for (a, b) in values.iter().zip(expected) {
        assert!(
            (a - b).abs() < 1e-12 * b.abs().max(1.0),
            "{values:?} is not {expected:?}"
        );
    }
}

const ALL: [Reduction; 3] = [Reduction::None, Reduction::Mean, Reduction::Sum];

/// Checks a loss of this many elements under every reduction.
fn check(elements: &[f64], loss: impl Fn(Reduction) -> Tensor) {
    for reduction in ALL {
        let sum: f64 = elements.iter().sum();
        let expected = match reduction {
            Reduction::None => elements.to_vec(),
            Reduction::Mean => vec![sum / elements.len() as f64],
            Reduction::Sum => vec![sum],
        };
        close(&loss(reduction), &expected);
    }
}

#[test]
fn multi_margin() {
    let x: [f64; 6] = [0.3, -1.0, 0.8, 2.0, 0.0, 1.5];
    let (classes, weights) = ([2i64, 0], [0.5, 2.0, 3.0]);
    let target = Tensor::from_slice(&classes, [2]);
    for (p, margin) in [(1, 1.0), (2, 0.75)] {
        for weighted in [false, true] {
            let of = |i: usize| -> f64 {
                let y = classes[i] as usize;
                let w = if weighted { weights[y] } else { 1.0 };
                let others = (0..3).filter(|j| *j != y);
                let gap = |j: usize| (margin - x[3 * i + y] + x[3 * i + j]).max(0.0).powi(p);
                others.map(gap).sum::<f64>() * w / 3.0
            };
            let weight = f64s(&weights, &[3]);
            let weight = weighted.then_some(&weight);
            check(&[of(0), of(1)], |r| {
                f64s(&x, &[2, 3]).multi_margin_loss_with(
                    &target,
                    MultiMargin::new()
                        .p(p as i64)
                        .margin(margin)
                        .weight(weight)
                        .reduction(r),
                )
            });
            let one = f64s(&x[..3], &[3]);
            let loss = one.multi_margin_loss_with(
                Tensor::scalar(2i64),
                MultiMargin::new()
                    .p(p as i64)
                    .margin(margin)
                    .weight(weight)
                    .reduction(ALL[0]),
            );
            assert_eq!(loss.ndim(), 0);
            close(&loss, &[of(0)]);
        }
    }
    let x = f64s(&x, &[2, 3]);
    for bad in [
        x.multi_margin_loss_with(&target, MultiMargin::new().p(3).reduction(ALL[0])),
        x.multi_margin_loss_with(
            Tensor::from_slice(&[1i64], [1]),
            MultiMargin::new().reduction(ALL[0]),
        ),
        x.multi_margin_loss_with(&x, MultiMargin::new().reduction(ALL[0])),
        x.multi_margin_loss_with(
            &target,
            MultiMargin::new()
                .weight(f64s(&[1.0], &[1]))
                .reduction(ALL[0]),
        ),
    ] {
        assert!(bad.error().is_some());
    }
    let far = x.multi_margin_loss_with(
        Tensor::from_slice(&[1i64, 3], [2]),
        MultiMargin::new().reduction(ALL[1]),
    );
    assert!(far.item::<f64>().is_err());
}

#[test]
fn multilabel_margin() {
    // The example of PyTorch's documentation, and a list without an end.
    let x = f64s(&[0.1, 0.2, 0.4, 0.8], &[1, 4]);
    let target = Tensor::from_slice(&[3i64, 0, -1, 1], [1, 4]);
    check(&[0.85], |r| x.multilabel_margin_loss_with(&target, r));
    let flat = x.flatten(());
    let full = Tensor::from_slice(&[0i64, 1, 2, 3], [4]);
    close(&flat.multilabel_margin_loss_with(&full, ALL[0]), &[0.0]);
    let none = Tensor::from_slice(&[-1i64, 1, 2, 3], [4]);
    close(&flat.multilabel_margin_loss_with(&none, ALL[0]), &[0.0]);
    let twice = Tensor::from_slice(&[1i64, 1, -1, 9], [4]);
    let gaps = (1.0 - 0.2 + 0.1) + (1.0 - 0.2 + 0.4) + (1.0 - 0.2 + 0.8);
    close(
        &flat.multilabel_margin_loss_with(&twice, ALL[0]),
        &[gaps / 2.0],
    );
    let outside = Tensor::from_slice(&[4i64, -1, 0, 0], [4]);
    assert!(
        flat.multilabel_margin_loss_with(&outside, ALL[1])
            .item::<f64>()
            .is_err()
    );
}

#[test]
fn multilabel_soft_margin() {
    let (x, y, w) = ([0.5, -2.0, 700.0, -0.1], [1.0, 0.0, 0.0, 1.0], [2.0, 3.0]);
    let of = |i: usize| -> f64 {
        let one = |k: usize| {
            let log = |s: f64| -(s.min(0.0) - (-s.abs()).exp().ln_1p());
            w[k % 2] * (y[k] * log(x[k]) + (1.0 - y[k]) * log(-x[k]))
        };
        (one(2 * i) + one(2 * i + 1)) / 2.0
    };
    check(&[of(0), of(1)], |r| {
        let weight = f64s(&w, &[2]);
        f64s(&x, &[2, 2]).multilabel_soft_margin_loss_with(
            f64s(&y, &[2, 2]),
            MultiLabelSoftMargin::new().weight(&weight).reduction(r),
        )
    });
}

#[test]
fn embeddings() {
    let x = [0.5, -3.0, 0.25, 2.0];
    let y = [1.0, -1.0, -1.0, 0.0];
    let of = [0.5, 4.0, 0.75, 2.0];
    check(&of, |r| {
        f64s(&x, &[4]).hinge_embedding_loss_with(f64s(&y, &[4]), HingeEmbedding::new().reduction(r))
    });
    let (a, b) = (
        f64s(&[3.0, 4.0, 1.0, 0.0], &[2, 2]),
        f64s(&[4.0, 3.0, 1.0, 1.0], &[2, 2]),
    );
    let cosine = [24.0 / 25.0, 0.5f64.sqrt()];
    let target = Tensor::from_slice(&[1i64, -1], [2]);
    check(&[1.0 - cosine[0], cosine[1] - 0.5], |r| {
        a.cosine_embedding_loss_with(&b, &target, CosineEmbedding::new().margin(0.5).reduction(r))
    });
    let one = a.select(0, 0).cosine_embedding_loss_with(
        b.select(0, 0),
        Tensor::scalar(1i64),
        CosineEmbedding::new().reduction(ALL[1]),
    );
    close(&one, &[1.0 - cosine[0]]);
    assert!(
        a.cosine_embedding_loss_with(
            &b,
            Tensor::scalar(1i64),
            CosineEmbedding::new().reduction(ALL[1])
        )
        .error()
        .is_some()
    );
}

#[test]
fn triplets() {
    let [a, p, n] = [[0.0, 0.0], [3.0, 4.0], [0.0, 4.5]].map(|v| f64s(&v, &[1, 2]));
    let loss = |swap: bool, r| {
        a.triplet_margin_loss_with(
            &p,
            &n,
            TripletMargin::new().eps(0.0).swap(swap).reduction(r),
        )
    };
    check(&[1.5], |r| loss(false, r));
    check(&[1.0 + 5.0 - 9.25f64.sqrt()], |r| loss(true, r));
    let far = a.triplet_margin_loss_with(
        &p,
        &n,
        TripletMargin::new().p(1.0).eps(0.0).reduction(ALL[0]),
    );
    close(&far, &[1.0 + 7.0 - 4.5]);
    let own = |x: &Tensor, y: &Tensor| x.sub(y).abs().amax(-1);
    close(
        &a.triplet_margin_with_distance_loss_with(
            &p,
            &n,
            own,
            TripletMarginWithDistance::new().reduction(ALL[2]),
        ),
        &[0.5],
    );
    assert!(
        a.triplet_margin_loss_with(&p, &n, TripletMargin::new().margin(0.0).reduction(ALL[1]))
            .error()
            .is_some()
    );
    assert!(
        a.triplet_margin_loss_with(&p, n.select(0, 0), TripletMargin::new().reduction(ALL[1]))
            .error()
            .is_some()
    );
}

#[test]
fn likelihoods() {
    let (x, t): ([f64; 3], [f64; 3]) = ([0.5, -1.0, 2.0], [0.0, 1.0, 5.0]);
    let stirling = |t: f64| match t > 1.0 {
        true => t * t.ln() - t + 0.5 * (std::f64::consts::TAU * t).ln(),
        false => 0.0,
    };
    for full in [false, true] {
        let more = |t: f64| if full { stirling(t) } else { 0.0 };
        let of: Vec<f64> = (0..3)
            .map(|i| x[i].exp() - t[i] * x[i] + more(t[i]))
            .collect();
        check(&of, |r| {
            f64s(&x, &[3])
                .poisson_nll_loss_with(f64s(&t, &[3]), PoissonNll::new().full(full).reduction(r))
        });
        let rates = x.map(f64::abs);
        let of: Vec<f64> = (0..3)
            .map(|i| rates[i] - t[i] * (rates[i] + 0.5).ln() + more(t[i]))
            .collect();
        check(&of, |r| {
            f64s(&rates, &[3]).poisson_nll_loss_with(
                f64s(&t, &[3]),
                PoissonNll::new()
                    .log_input(false)
                    .full(full)
                    .eps(0.5)
                    .reduction(r),
            )
        });
        let var: [f64; 3] = [0.25, 1e-12, 4.0];
        let constant = if full {
            0.5 * std::f64::consts::TAU.ln()
        } else {
            0.0
        };
        let of: Vec<f64> = (0..3)
            .map(|i| {
                let v: f64 = var[i].max(1e-3);
                0.5 * (v.ln() + (x[i] - t[i]).powi(2) / v) + constant
            })
            .collect();
        check(&of, |r| {
            f64s(&x, &[3]).gaussian_nll_loss_with(
                f64s(&t, &[3]),
                f64s(&var, &[3]),
                GaussianNll::new().full(full).eps(1e-3).reduction(r),
            )
        });
    }
    let x = Tensor::ones([2, 3], DType::F64);
    for shape in [&[2][..], &[2, 1], &[2, 3]] {
        let var = Tensor::full(shape, 2.0, DType::F64);
        let loss = x.gaussian_nll_loss_with(&x, &var, GaussianNll::new().reduction(ALL[0]));
        assert_eq!(loss.shape().unwrap(), [2, 3]);
        close(&loss, &[0.5 * 2f64.ln(); 6]);
    }
    let wrong = Tensor::ones([3], DType::F64);
    assert!(
        x.gaussian_nll_loss_with(&x, &wrong, GaussianNll::new().reduction(ALL[0]))
            .error()
            .is_some()
    );
}
