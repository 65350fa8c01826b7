//! Metrics against scikit-learn's values, which `metrics.py` writes.

use kiln_observe::metrics::{
    AUROC, Accuracy, Average, ConfusionMatrix, F1Score, JaccardIndex, MeanMetric, Perplexity,
    Precision, Recall, RunningMean,
};
use kiln_tensor::{DType, Result, Spec, Tensor, compile};
use serde_json::Value;

fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(all) => all.iter().flat_map(numbers).collect(),
        one => vec![one.as_f64().expect("a number")],
    }
}

#[track_caller]
fn check(name: &str, case: &Value, seen: Tensor) {
    let Some(wanted) = case.get(name) else {
        return;
    };
    let seen = seen
        .to_dtype(DType::F64)
        .flatten(())
        .to_vec::<f64>()
        .expect(name);
    let wanted = numbers(wanted);
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * b.abs().max(1.0);
    let same = seen.len() == wanted.len() && seen.iter().zip(&wanted).all(close);
    assert!(same, "{name}: {seen:?}, not {wanted:?}");
}

/// The batches of a case: scores, targets.
fn batches(case: &Value) -> Vec<(Tensor, Tensor)> {
    let classes = case["classes"].as_u64().expect("a number") as usize;
    let (scores, target) = (numbers(&case["scores"]), numbers(&case["target"]));
    let mut at = 0;
    let batch = |n: f64| {
        let n = n as usize;
        let scores: Vec<f32> = scores[at * classes..(at + n) * classes]
            .iter()
            .map(|x| *x as f32)
            .collect();
        let target: Vec<i64> = target[at..at + n].iter().map(|x| *x as i64).collect();
        at += n;
        (
            Tensor::from(scores).reshape([n, classes]),
            Tensor::from(target),
        )
    };
    numbers(&case["sizes"]).into_iter().map(batch).collect()
}

#[test]
fn values_are_those_of_scikit_learn() -> Result<()> {
    let cases: Value = serde_json::from_str(include_str!("metrics.json")).expect("JSON");
    for case in cases.as_array().expect("a list") {
        let classes = case["classes"].as_u64().expect("a number") as usize;
        let matrix = ConfusionMatrix::new(classes)?;
        let (accuracy, top2) = (Accuracy::new(classes)?, Accuracy::new(classes)?.top_k(2));
        let (binary, auroc, perplexity) = (AUROC::new(), AUROC::new(), Perplexity::new()?);
        for (scores, target) in batches(case) {
            matrix.update(&scores, &target)?;
            accuracy.update(&scores, &target)?;
            top2.update(&scores, &target)?;
            binary.update(scores.select(1, 0), target.eq(0))?;
            auroc.update(&scores, &target)?;
            perplexity.update(&scores, &target)?;
        }
        check("confusion", case, matrix.compute());
        check("accuracy", case, accuracy.compute());
        check("top2", case, top2.compute());
        check("auroc_binary", case, binary.compute());
        check("auroc", case, auroc.compute());
        check("perplexity", case, perplexity.compute());
        let averages = [
            (Average::Micro, "micro"),
            (Average::Macro, "macro"),
            (Average::Weighted, "weighted"),
            (Average::None, "none"),
        ];
        for (average, name) in averages {
            let precision = Precision::new(classes, average)?;
            let recall = Recall::new(classes, average)?;
            let f1 = F1Score::new(classes, average)?;
            let jaccard = JaccardIndex::new(classes, average)?;
            for (scores, target) in batches(case) {
                let preds = scores.argmax(1);
                precision.update(&preds, &target)?;
                recall.update(&scores, &target)?;
                f1.update(&preds, &target)?;
                jaccard.update(&scores, &target)?;
            }
            check(&format!("precision_{name}"), case, precision.compute());
            check(&format!("recall_{name}"), case, recall.compute());
            check(&format!("f1_{name}"), case, f1.compute());
            check(&format!("jaccard_{name}"), case, jaccard.compute());
            f1.reset()?;
            assert_eq!(f1.compute().sum(()).item::<f64>()?, 0.0);
        }
    }
    Ok(())
}

#[test]
fn elements_are_left_out_and_wrong_classes_are_errors() -> Result<()> {
    let iou = JaccardIndex::new(2, Average::Macro)?.ignore_index(255);
    // Maps [n, h, w], with scores [n, classes, h, w].
    let target = Tensor::from([[[0i64, 255], [1, 1]]]);
    let scores = Tensor::from([2.0f32, 9.0, 3.0, 0.0, 1.0, 0.0, 1.0, 1.0]).reshape([1, 2, 2, 2]);
    iou.update(&scores, &target)?;
    assert_eq!(iou.compute().item::<f64>()?, 0.5);
    let accuracy = Accuracy::new(2)?.ignore_index(255);
    accuracy.update(&scores, &target)?;
    assert_eq!(accuracy.compute().item::<f64>()?, 2.0 / 3.0);

    let binary = ConfusionMatrix::new(2)?;
    binary.update(Tensor::from([0.2f32, 0.7, 0.5]), Tensor::from([0i64, 1, 1]))?;
    assert_eq!(binary.compute().to_vec::<i64>()?, [1, 0, 1, 1]);

    for (preds, target) in [
        ([0i64, 3], [0i64, 1]),
        ([0, 1], [3, 0]),
        ([-1, 0], [0, 0]),
        ([0, 0], [0, -1]),
    ] {
        let matrix = ConfusionMatrix::new(3)?;
        let line = line!() + 1;
        matrix.update(Tensor::from(preds), Tensor::from(target))?;
        let e = matrix.compute().to_vec::<i64>().unwrap_err();
        assert!(e.to_string().contains("is not one of 3 classes"), "{e}");
        assert_eq!(e.loc().line(), line, "{e}");
    }
    let matrix = ConfusionMatrix::new(3)?;
    let e = matrix
        .update(
            Tensor::zeros([4, 2], DType::F32),
            Tensor::zeros([4], DType::I64),
        )
        .unwrap_err();
    assert!(e.message().contains("scores with 3 classes"), "{e}");
    assert!(
        Accuracy::new(3)?
            .top_k(4)
            .update(
                Tensor::zeros([4, 3], DType::F32),
                Tensor::zeros([4], DType::I64)
            )
            .is_err()
    );
    assert!(
        Perplexity::new()?
            .update(
                Tensor::zeros([4, 3], DType::F32),
                Tensor::zeros([3], DType::I64)
            )
            .is_err()
    );
    assert!(ConfusionMatrix::new(0).is_err() && RunningMean::new(0).is_err());
    Ok(())
}

#[test]
fn means_run_over_updates() -> Result<()> {
    let (mean, last) = (MeanMetric::new()?, RunningMean::new(2)?);
    assert!(mean.compute().item::<f64>()?.is_nan() && last.compute().item::<f64>()?.is_nan());
    assert!(AUROC::new().compute().item::<f64>()?.is_nan());
    let perplexity = Perplexity::new()?.ignore_index(-100);
    perplexity.update(
        Tensor::zeros([2, 3, 4], DType::F32),
        Tensor::from([[0i64, 3, -100], [1, -100, -100]]),
    )?;
    assert!((perplexity.compute().item::<f64>()? - 4.0).abs() < 1e-12);
    let mut seen = Vec::new();
    for x in [[1.0f32, 3.0], [4.0, 4.0], [8.0, 12.0]] {
        mean.update(Tensor::from(x))?;
        last.update(Tensor::from(x))?;
        seen.push(last.compute().item::<f64>()?);
    }
    assert_eq!(seen, [2.0, 3.0, 7.0]);
    assert_eq!(mean.compute().item::<f64>()?, 32.0 / 6.0);
    last.reset()?;
    last.update(Tensor::from(5.0f32))?;
    assert_eq!(last.compute().item::<f64>()?, 5.0);
    Ok(())
}

#[test]
fn an_update_is_part_of_a_compiled_step_and_runs_nothing_by_itself() -> Result<()> {
    let accuracy = Accuracy::new(3)?;
    let step = compile(
        (Spec::new(DType::F32, ("n", 3)), Spec::new(DType::I64, "n")),
        |(x, y)| {
            accuracy.update(&x, &y)?;
            Ok(x.sum(()))
        },
    )?;
    for _ in 0..3 {
        step.run((Tensor::eye(3, DType::F32), Tensor::from([0i64, 1, 0])))?;
    }
    assert_eq!(accuracy.compute().item::<f64>()?, 2.0 / 3.0);
    // Outside of compile, an update and its value are recorded only.
    let target = Tensor::from([0i64, 1, 0]);
    accuracy.update(Tensor::eye(3, DType::F32), target)?;
    let value = accuracy.compute();
    assert!(!value.is_realized());
    Ok(())
}
