//! The loss of sequences that are not aligned with their labels: PyTorch's values.

use crate::support::*;
use kiln_nn::*;
use kiln_tensor::{
    Ctc, DType, Grad, GradCheck, Reduction, Spec, Tensor, Var, compile, grad, grad_with,
    gradcheck_with,
};

/// `[7, 3, 5]` in f64.
fn logits() -> Tensor {
    let values: Vec<f64> = (0..105)
        .map(|i| (i * 37 % 23) as f64 / 11.0 - 1.0)
        .collect();
    Tensor::from_slice(&values, [7, 3, 5])
}

fn targets() -> Tensor {
    Tensor::from([[1i64, 2, 2], [3, 1, 4], [4, 4, 0]])
}

fn lengths(numbers: [i64; 3]) -> Tensor {
    Tensor::from(numbers)
}

fn none() -> Ctc {
    Ctc::new().reduction(Reduction::None)
}

const LOSSES: [f64; 3] = [6.816580210202013, 3.739773119082338, 11.727425426329583];

#[test]
fn pytorchs_values() {
    let x = logits().log_softmax(2);
    let (steps, labels) = (lengths([7, 4, 6]), lengths([3, 2, 0]));
    let inputs = (&x, targets(), &steps, &labels);
    let loss = |options: Ctc| values(&CTCLoss::with(options).unwrap().call(inputs.clone()));
    assert_close(&loss(none()), &LOSSES, 1e-12);
    assert_close(
        &values(&CTCLoss::new().call(inputs.clone())),
        &[5.289835129757141],
        1e-12,
    );
    assert_close(
        &loss(Ctc::new().reduction(Reduction::Sum)),
        &[22.283778755613934],
        1e-12,
    );

    // All targets in a vector, and no target at all.
    let vector = Tensor::from([1i64, 2, 2, 3, 1]);
    assert_close(
        &values(&x.ctc_loss_with(&vector, &steps, &labels, none())),
        &LOSSES,
        1e-12,
    );
    let empty = Tensor::zeros([3, 0], DType::I64);
    let wanted = [13.55449148, 8.94558078, 11.72742543];
    let nothing = lengths([0, 0, 0]);
    assert_close(
        &values(&x.ctc_loss_with(&empty, &steps, &nothing, none())),
        &wanted,
        1e-8,
    );
    let empty = Tensor::zeros([0], DType::I64);
    assert_close(
        &values(&x.ctc_loss_with(&empty, &steps, &nothing, none())),
        &wanted,
        1e-8,
    );

    // Another blank; other dtypes.
    let other = Tensor::from([[1i32, 2, 2], [3, 1, 0], [0, 0, 3]]);
    let wanted = [6.240563740086862, 3.3791988325144793, 6.857286403252339];
    let three = lengths([3, 3, 2]).to_dtype(DType::I32);
    let blank = values(&x.ctc_loss_with(&other, &steps, &three, none().blank(4)));
    assert_close(&blank, &wanted, 1e-12);
    let single = x
        .to_dtype(DType::F32)
        .ctc_loss_with(targets(), &steps, &labels, none());
    assert_eq!(single.dtype(), DType::F32);
    assert_close(&values(&single), &LOSSES, 1e-5);
    let half = x
        .to_dtype(DType::BF16)
        .ctc_loss_with(targets(), &steps, &labels, none());
    assert_eq!(half.dtype(), DType::BF16);
    assert_close(&values(&half), &LOSSES, 1e-2);

    // One sequence.
    let one = x.select(1, 0).ctc_loss_with(
        Tensor::from([1i64, 2, 2]),
        Tensor::from(7i64),
        Tensor::from(3i64),
        none(),
    );
    assert_eq!(one.shape().unwrap(), [0usize; 0]);
    assert_close(&values(&one), &LOSSES[..1], 1e-12);
    let one = x.select(1, 0).ctc_loss(
        Tensor::from([1i64, 2, 2]),
        Tensor::from([7i64]),
        Tensor::from([3i64]),
    );
    assert_close(&values(&one), &[LOSSES[0] / 3.0], 1e-12);

    // No sequences, and no steps.
    let empty = x.narrow(1, 0, 0).ctc_loss_with(
        targets().narrow(0, 0, 0),
        steps.narrow(0, 0, 0),
        labels.narrow(0, 0, 0),
        none(),
    );
    assert_eq!(empty.shape().unwrap(), [0]);
    let inf = f64::INFINITY;
    assert_eq!(
        values(&x.ctc_loss_with(targets(), &nothing, &labels, none())),
        [inf, inf, 0.0]
    );
    let stepless = x
        .narrow(0, 0, 0)
        .ctc_loss_with(targets(), &nothing, &labels, none());
    assert_eq!(values(&stepless), [inf, inf, 0.0]);
}

#[test]
fn gradients_are_pytorchs_behind_a_log_softmax_and_those_of_differences() {
    let (steps, labels) = (lengths([7, 4, 6]), lengths([3, 2, 0]));
    let x = Var::parameter(logits()).unwrap();
    let loss = x.get().log_softmax(2).ctc_loss(targets(), &steps, &labels);
    let g = values(&grad(&loss, &x).unwrap());
    let first = [
        -0.010835626899442133,
        -0.06464593290183834,
        0.012281343654460996,
        0.043851486047221284,
        0.019348730099598182,
        0.007667513849246677,
        0.041751202828234475,
        0.018422015481691496,
        -0.09686382730856993,
        0.02902309514939728,
        -0.3099470850603107,
        0.08350240565646905,
    ];
    assert_close(&g[..12], &first, 1e-12);
    assert_close(
        &[g.iter().map(|g| g.abs()).sum()],
        &[4.960753694905572],
        1e-12,
    );

    // Also of inputs that are not a distribution, and second derivatives.
    let small = logits().narrow(0, 0, 4);
    let f = |x: Tensor| x.ctc_loss_with(targets(), lengths([4, 3, 2]), &labels, none());
    let bounds = || GradCheck::new().atol(1e-7).rtol(1e-5);
    gradcheck_with(f, &small, bounds()).unwrap();
    let slope = |x: Tensor| {
        let x = if x.requires_grad() {
            x
        } else {
            x.requires_grad_(true)
        };
        grad_with(f(x.clone()).sum(()), &x, Grad::new().create_graph(true))
    };
    gradcheck_with(slope, &small, bounds()).unwrap();
}

#[test]
fn a_target_that_no_path_leads_to() {
    // Two equal labels need a blank between them: four steps for [1, 2, 2].
    let (steps, labels) = (lengths([3, 4, 1]), lengths([3, 2, 2]));
    let x = Var::parameter(logits()).unwrap();
    let loss = |options: Ctc| {
        x.get()
            .log_softmax(2)
            .ctc_loss_with(targets(), &steps, &labels, options)
    };
    let inf = f64::INFINITY;
    let all = values(&loss(none()));
    assert_eq!((all[0], all[2]), (inf, inf));
    assert_close(&all[1..2], &LOSSES[1..2], 1e-12);
    let zeroed = loss(none().zero_infinity(true));
    assert_close(&values(&zeroed), &[0.0, LOSSES[1], 0.0], 1e-12);
    let g = values(&grad(zeroed.sum(()), &x).unwrap());
    assert!(g.iter().all(|g| g.is_finite()));
    let of_sequence = |n: usize| (0..105).filter(move |i| i / 5 % 3 == n);
    assert!(of_sequence(0).chain(of_sequence(2)).all(|i| g[i] == 0.0));
    assert!(of_sequence(1).take(20).any(|i| g[i] != 0.0));
}

#[test]
fn compiled_for_any_length_and_batch() {
    let spec = (
        Spec::new(DType::F64, ("t", "n", 5)),
        Spec::new(DType::I64, ("n", 3)),
        Spec::new(DType::I64, "n"),
        Spec::new(DType::I64, "n"),
    );
    let f = compile(
        spec,
        |(x, y, steps, labels): (Tensor, Tensor, Tensor, Tensor)| {
            x.log_softmax(2).ctc_loss_with(y, steps, labels, none())
        },
    );
    let f = f.unwrap();
    let y = f
        .run((logits(), targets(), lengths([7, 4, 6]), lengths([3, 2, 0])))
        .unwrap();
    assert_close(&values(&y), &LOSSES, 1e-12);
}

#[test]
fn what_does_not_fit_is_named() {
    let x = logits().log_softmax(2);
    let (steps, labels) = (lengths([7, 4, 6]), lengths([3, 2, 0]));
    let error = |x: &Tensor, y: Tensor, steps: &Tensor, labels: &Tensor, options: Ctc| {
        let e = CTCLoss::with(options)
            .unwrap()
            .call((x, y, steps, labels))
            .to_vec::<f64>()
            .unwrap_err();
        let text = e.to_string();
        assert!(
            text.contains("ctc_loss") && text.contains("tests/nn/ctc.rs"),
            "{text}"
        );
        text
    };
    let cases = [
        (
            error(&x, targets(), &lengths([8, 4, 6]), &labels, none()),
            "input_lengths must lie between 0 and the number of steps",
        ),
        (
            error(&x, targets(), &lengths([-1, 4, 6]), &labels, none()),
            "input_lengths must lie between 0 and the number of steps",
        ),
        (
            error(&x, targets(), &steps, &lengths([4, 2, 0]), none()),
            "target_lengths must lie between 0 and the number of targets",
        ),
        (
            error(&x, Tensor::from([1i64, 2]), &steps, &labels, none()),
            "the targets are 5 by their lengths, not i64[2]",
        ),
        (
            error(
                &x,
                Tensor::from([1i64]),
                &steps,
                &lengths([3, -2, 0]),
                none(),
            ),
            "target_lengths must not be negative, but one is -2",
        ),
        (
            error(&x, targets() + 3, &steps, &labels, none()),
            "5 is outside 0..5",
        ),
        (
            error(&x, targets(), &steps, &labels, none().blank(5)),
            "the blank must be one of 5 classes, not 5",
        ),
        (
            error(&x, targets().to_dtype(DType::F64), &steps, &labels, none()),
            "targets must be integers, not f64[3, 3]",
        ),
        (
            error(&x, targets().narrow(0, 0, 2), &steps, &labels, none()),
            "the targets must be [n, s] or a vector",
        ),
        (
            error(&x, targets(), &steps.narrow(0, 0, 2), &labels, none()),
            "input_lengths must hold one number for each sequence of f64[7, 3, 5], not i64[2]",
        ),
        (
            error(
                &x.select(0, 0).select(0, 0),
                targets(),
                &steps,
                &labels,
                none(),
            ),
            "the log probabilities must be [t, n, c] or [t, c], not f64[5]",
        ),
    ];
    for (text, wanted) in cases {
        assert!(text.contains(wanted), "{text}\nlacks {wanted}");
    }
}
