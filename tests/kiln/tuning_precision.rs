//! The approximations that a tuner may choose on a GPU; wrong ones are found.

use crate::matrix;
use crate::tuning::{ONCE, lowered_for_a_gpu, options, remember, store};
use kiln::tuning::{Mode, Outcome, Precision, Trial, Why};
use kiln::{CompileOptions, Compiled, Conv, DType, Device, Spec, Tensor, compile_with};
use kiln_codegen::{Approximation, Program};
use kiln_compiler::tune::measure;
use kiln_plan::Kernel;
use std::sync::Arc;

const SHAPES: [[usize; 2]; 4] = [[41, 210], [210, 37], [23, 63], [13, 207]];

/// A product with an epilogue, a softmax of its columns, and a convolution.
fn compiled(gpu: Device, options: &CompileOptions) -> Compiled<[Tensor; 4], [Tensor; 3]> {
    let specs = SHAPES.map(|s| Spec::new(DType::F32, s).on(gpu));
    let made = compile_with(&specs, options, |[x, w, image, filters]| {
        let y = x.matmul(&w).relu();
        let (image, filters) = (
            image.reshape([1, 23, 7, 9]),
            filters.reshape([13, 23, 3, 3]),
        );
        let z = image.conv2d_with(&filters, Conv::new().padding(1));
        [y.clone(), y.softmax(0), z]
    });
    made.unwrap()
}

fn results(made: &Compiled<[Tensor; 4], [Tensor; 3]>, gpu: Device) -> Vec<Vec<f32>> {
    let operands = SHAPES.map(|[rows, columns]| (matrix(rows, columns) * 0.05).to(gpu));
    let results = made.run(&operands).unwrap();
    results.iter().map(|t| t.to_vec().unwrap()).collect()
}

/// The approximation that a candidate uses, according to its name.
fn class(name: &str) -> Option<String> {
    Approximation::named(name).map(|a| a.to_string())
}

fn classes<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut classes: Vec<String> = names.filter_map(|name| class(name)).collect();
    classes.sort();
    classes.dedup();
    classes
}

/// The approximations of all candidates.
const FAST: [&str; 5] = ["fast math", "tf32", "tf32x3", "winograd_2", "winograd_4"];

#[test]
fn approximations_on_a_gpu_follow_the_precision() {
    let Some(gpu) = crate::cuda::device() else {
        return;
    };
    if !gpu.gpu().unwrap().is_emulated() {
        return;
    }
    let path = store("precision");
    let with = |precision| CompileOptions {
        precision,
        ..options(Mode::On, &path)
    };
    let mut all = Vec::new();
    for (precision, allowed) in [
        (Precision::Exact, &[][..]),
        (Precision::Default, &["tf32x3", "winograd_2"]),
        (Precision::Fast, &FAST),
    ] {
        let made = compiled(gpu, &with(precision));
        let choices = &made.explain().tuning.choices;
        assert_eq!(classes(choices.iter().flat_map(|c| &c.candidates)), allowed);
        // Without measurements no approximation is chosen.
        assert!(choices.iter().all(|c| class(&c.chosen).is_none()));
        all.clone_from(choices);
    }
    let exact = results(&compiled(gpu, &options(Mode::Off, &path)), gpu).concat();
    // The store records each approximation as the fastest in turn.
    for wanted in FAST {
        remember(&path, &all, |i, name| {
            let first = class(name).as_deref() == Some(wanted);
            let time = if first { 10 } else { 1000 };
            time + i as u64
        });
        for precision in [Precision::Exact, Precision::Default, Precision::Fast] {
            let made = compiled(gpu, &with(precision));
            let choices = &made.explain().tuning.choices;
            assert!(choices.iter().all(|c| c.why == Why::Store), "{choices:?}");
            let used = classes(choices.iter().map(|c| &c.chosen));
            let may = precision == Precision::Fast
                || precision == Precision::Default && ["tf32x3", "winograd_2"].contains(&wanted);
            assert_eq!(
                used,
                if may { vec![wanted] } else { vec![] },
                "{precision:?}"
            );
            // Sums of 210 products of numbers up to 0.05, and functions of them.
            let got = results(&made, gpu).concat();
            let off = got.iter().zip(&exact).map(|(x, e)| (x - e).abs());
            let off = off.fold(0f32, f32::max);
            assert!(off <= 210.0 * 0.0025 / 1000.0, "{wanted}: {off}");
            assert_eq!(off > 0.0, may, "{wanted}, {precision:?}");
        }
    }
}

/// The kernels of the program with all their candidates.
fn lowered(gpu: Device) -> Program {
    let made = compiled(gpu, &options(Mode::Off, &store("precision-checked")));
    lowered_for_a_gpu(&made)
}

#[test]
fn approximations_on_a_gpu_are_checked_and_wrong_ones_are_found() {
    let Some(gpu) = crate::cuda::device() else {
        return;
    };
    let mut program = lowered(gpu);
    let device = gpu.gpu().unwrap();
    let tried = |program: &Program| -> Vec<Trial> {
        let fast = Precision::Fast;
        let tasks = program.tasks.iter();
        let trials = tasks.flat_map(|task| measure(task, 0, fast, &ONCE, Some(&device)));
        trials.filter(|t| class(&t.name).is_some()).collect()
    };
    for task in &mut program.tasks {
        // Candidates without an approximation have a test of their own.
        let default = task.candidates[0].name();
        let candidates = &mut task.candidates;
        candidates.retain(|w| w.name() == default || w.approximation.is_some());
    }
    let timed = |t: &Trial| matches!(t.outcome, Outcome::Timed(_));
    let wrong = |t: &Trial| matches!(t.outcome, Outcome::Wrong(_));
    let pruned = |t: &Trial| matches!(t.outcome, Outcome::Pruned(_));
    // Every class of approximations has a candidate with this outcome; the cost model pruned all others.
    let all_are = |program: &Program, outcome: &dyn Fn(&Trial) -> bool| {
        let (are, others): (Vec<Trial>, Vec<Trial>) =
            tried(program).into_iter().partition(|t| outcome(t));
        assert_eq!(classes(are.iter().map(|t| &t.name)), FAST);
        others.iter().for_each(|t| assert!(pruned(t), "{t}"));
    };
    all_are(&program, &timed);
    // Factors off by a hundredth, and transposed tiles.
    for candidate in program.tasks.iter_mut().flat_map(|t| &mut t.candidates) {
        let (right, wrong) = match candidate.approximation {
            None => continue,
            Some(Approximation::FastMath(_)) => ("__expf(", "__expf(0.99f * "),
            Some(Approximation::Algorithm(_)) => ("raw = results[i][j]", "raw = results[j][i]"),
            Some(_) => ("split(*b.place(", "split(0.99f * *b.place("),
        };
        for step in &mut candidate.calls.steps {
            let Kernel::Cuda(kernel) = Arc::make_mut(&mut step.kernel) else {
                continue;
            };
            for part in [&mut kernel.text.scope, &mut kernel.text.body] {
                *part = part.replace(right, wrong);
            }
            *kernel = kernel.clone().named();
        }
    }
    all_are(&program, &wrong);
}
