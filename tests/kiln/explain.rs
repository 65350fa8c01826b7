//! What the compiler says it did.

use crate::{matrix, vector};
use kiln::{CompileOptions, DType, Spec, Tensor, Var, compile, compile_with, memory};

/// Times and lines of this file left out.
fn shown(text: &str) -> String {
    let lines = text.lines().map(|l| match l.find(" at ") {
        Some(at) => &l[..at],
        None => l,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn passes_kernels_and_memory_are_explained() {
    let weight = Var::new(&Tensor::ones([4, 2, 3, 3], DType::F32)).unwrap();
    let mean = Var::new(&vector(&[0.0; 4])).unwrap();
    let variance = Var::new(&vector(&[1.0; 4])).unwrap();
    let f = compile(&[Spec::fixed(DType::F32, [2, 2, 6, 6])], |x| {
        let y = x[0].conv2d(&weight.get(), None, [1, 1], [1, 1], [1, 1], 1);
        let y = y.batch_norm(Some(&mean), Some(&variance), None, None, false, 0.1, 1e-5);
        y.relu().mean([2, 3], false).softmax(1)
    })
    .unwrap();
    insta::assert_snapshot!(shown(&f.explain().to_string()));
}

#[test]
fn exact_leaves_rounding_alone() {
    let weight = Var::new(&Tensor::ones([4, 2, 3, 3], DType::F32)).unwrap();
    let mean = Var::new(&vector(&[0.0; 4])).unwrap();
    let variance = Var::new(&vector(&[1.0; 4])).unwrap();
    let options = CompileOptions {
        exact: true,
        ..CompileOptions::default()
    };
    let f = compile_with(&[Spec::fixed(DType::F32, [2, 2, 6, 6])], &options, |x| {
        let y = x[0].conv2d(&weight.get(), None, [1, 1], [1, 1], [1, 1], 1);
        y.batch_norm(Some(&mean), Some(&variance), None, None, false, 0.1, 1e-5)
    })
    .unwrap();
    assert_eq!(f.explain().folded(), 0);
}

#[test]
fn peak_and_lower_bound_are_known_before_the_run() {
    let f = compile(&[Spec::new(DType::F32, ["n".into(), 64.into()])], |x| {
        let mut y = x[0].clone();
        for i in 0..4 {
            y = y.matmul(&matrix(64, 64)).relu() * (1.0 + i as f64);
        }
        y
    })
    .unwrap();
    let report = f.executable().memory(&[100]).unwrap();
    assert!(report.peak >= report.lower_bound && report.lower_bound > 0);
    assert_eq!(report.outputs, 100 * 64 * 4);
    // A chain needs two intermediates at a time, however long it is.
    assert!(report.peak <= 2 * 100 * 64 * 4 + 128, "{report:?}");
    assert_eq!(f.executable().stats().runs, 0);
}

#[test]
fn a_memory_limit_is_an_error_and_not_the_end() {
    let x = Tensor::zeros([1 << 22], DType::F32) + 1.0;
    // Everything else in this process allocates too, so only an impossible size is asked for.
    let huge = Tensor::zeros([1 << 40], DType::F32) + x.sum([0], false);
    assert!(huge.realize().is_err());
    assert_eq!(x.sum([0], false).item::<f32>().unwrap(), (1 << 22) as f32);
    assert!(memory::stats().peak > 0);
}
