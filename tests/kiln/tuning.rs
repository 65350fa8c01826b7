//! Choosing algorithms by measurement: the results are right for every choice.

use crate::{is_alone, matrix};
use kiln::tuning::{Choice, Mode, Outcome, Precision, Settings, Store, Trial, Why};
use kiln::{
    ArrayView, ArrayViewMut, CompileOptions, Compiled, Conv, CudaGrid, CustomOp, DType, Device,
    Layout, Program, Result, Spec, Tensor, Var, cache_stats, compile_with, keep, tuning,
};
use kiln_base::{Gpu, Machine};
use kiln_codegen::{Body, Candidate, Task};
use kiln_compiler::tune::{Effort, Record, measure};
use kiln_plan::Kernel;
use kiln_runtime::{Buffer, Executable};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The path of a store that no other test uses.
pub fn store(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("kiln-tuning-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder.join("tune.jsonl")
}

pub fn options(mode: Mode, store: &Path) -> CompileOptions {
    CompileOptions {
        tune: Settings {
            mode,
            store: Some(Arc::from(store)),
            patience: Duration::from_secs(4),
            ..Settings::default()
        },
        ..CompileOptions::default()
    }
}

/// Asserts that two slices agree to a fraction of their largest element.
#[track_caller]
fn assert_close(a: &[f32], b: &[f32], part: f32) {
    assert_eq!(a.len(), b.len());
    let scale = b.iter().fold(0f32, |m, x| m.max(x.abs()));
    let near = |(x, y): (&f32, &f32)| (x - y).abs() <= part * scale;
    assert!(a.iter().zip(b).all(near), "{a:?}\n{b:?}");
}

/// A network of a convolution with an epilogue, another convolution, and a product, for this number of images.
fn network(images: usize, options: &CompileOptions) -> Result<Compiled<Tensor, Tensor>> {
    let w = Var::new(&(Tensor::rand([6, 3, 3, 3], DType::F32) - 0.5))?;
    let depthwise = Var::new(&(Tensor::rand([6, 1, 3, 3], DType::F32) - 0.5))?;
    let head = Var::new(&(Tensor::rand([6, 10], DType::F32) - 0.5))?;
    compile_with(Spec::new(DType::F32, [images, 3, 17, 13]), options, |x| {
        let y = x.conv2d_with(w.get(), Conv::new().padding(1)).relu();
        let y = y
            .conv2d_with(depthwise.get(), Conv::new().padding(1).groups(6))
            .sigmoid();
        y.mean([2, 3]).matmul(head.get())
    })
}

fn image() -> Tensor {
    kiln::with_seed(5, || Tensor::rand([2, 3, 17, 13], DType::F32))
}

fn run(network: &Compiled<Tensor, Tensor>) -> Vec<f32> {
    network.run(image()).unwrap().to_vec().unwrap()
}

fn seeded(options: &CompileOptions) -> Compiled<Tensor, Tensor> {
    kiln::with_seed(3, || network(2, options)).unwrap()
}

#[test]
fn tuned_programs_are_right_and_say_what_they_use() {
    let store = store("network");
    let plain = run(&seeded(&options(Mode::Off, &store)));
    let on = options(Mode::On, &store);
    let tuned = seeded(&on);
    assert_close(&run(&tuned), &plain, 1e-4);
    let report = &tuned.explain().tuning;
    assert!(!report.choices.is_empty());
    assert_eq!(report.faults().count(), 0, "{report}");
    for choice in &report.choices {
        assert_eq!(choice.why, Why::Measured);
        let chosen = choice.trials.iter().find(|t| t.name == choice.chosen);
        assert!(matches!(chosen.unwrap().outcome, Outcome::Timed(_)));
    }
    let text = tuned.explain().to_string();
    assert!(
        text.contains("measured now") && text.contains("tuning: on"),
        "{text}"
    );
    assert!(tuned.explain().to_html().contains("measured now"));
    // Every record is in the file, under a key that holds the sizes.
    let keys: Vec<String> = Store::new(&store)
        .records()
        .into_iter()
        .map(|r| r.key)
        .filter(|key| !key.starts_with("layouts ")) // times that the choice for the network follows from
        .collect();
    assert_eq!(keys.len(), report.choices.len());
    assert!(
        keys.iter().any(|k| k.starts_with("conv f32 2 x 1:3->6 ")),
        "{keys:?}"
    );
    let again = seeded(&on);
    assert!(
        again
            .explain()
            .tuning
            .choices
            .iter()
            .all(|c| c.why == Why::Store)
    );
    assert_eq!(run(&again), run(&tuned), "one store gives one program");
}

#[test]
fn deterministic_choices_change_no_bit() {
    let store = store("deterministic");
    let plain = run(&seeded(&options(Mode::Off, &store)));
    // The result does not depend on the mode that filled the store.
    for mode in [Mode::On, Mode::Deterministic] {
        seeded(&options(mode, &store));
        assert_eq!(run(&seeded(&options(Mode::Deterministic, &store))), plain);
    }
}

#[test]
fn a_frozen_store_is_only_read() {
    let store = store("frozen");
    let frozen = seeded(&options(Mode::Frozen, &store));
    let missing: Vec<&str> = frozen.explain().tuning.missing().collect();
    assert!(
        missing.iter().any(|key| key.starts_with("conv f32")),
        "{missing:?}"
    );
    assert!(!store.exists());
    assert!(
        frozen
            .explain()
            .to_string()
            .contains("not in the store: conv")
    );
    seeded(&options(Mode::On, &store));
    let frozen = seeded(&options(Mode::Frozen, &store));
    assert_eq!(frozen.explain().tuning.missing().count(), 0);
}

#[test]
fn what_is_too_large_is_not_tried_and_not_remembered() {
    let store = store("large");
    let large = Spec::new(DType::F32, [80_000_000]);
    let program = compile_with(large, &options(Mode::On, &store), |x| x.exp() + 1).unwrap();
    let choices = &program.explain().tuning.choices;
    assert!(!choices.is_empty());
    assert!(
        choices.iter().all(|c| c.why == Why::TooLarge),
        "{choices:?}"
    );
    assert!(!store.exists());
}

#[test]
fn precision_says_which_algorithms_are_candidates() {
    let store = store("precision");
    let names = |precision, exact| -> Vec<String> {
        let options = CompileOptions {
            precision,
            exact,
            ..options(Mode::Frozen, &store)
        };
        let choices = seeded(&options).explain().tuning.choices.clone();
        let conv = choices.iter().find(|c| c.key.contains("1:3->6"));
        conv.map_or_else(Vec::new, |c| c.candidates.clone())
    };
    let has = |list: &[String], name: &str| list.iter().any(|n| n == name);
    let [exact, default, fast] = [Precision::Exact, Precision::Default, Precision::Fast]
        .map(|precision| names(precision, false));
    assert!(
        !has(&exact, "winograd_2") && !has(&exact, "winograd_4"),
        "{exact:?}"
    );
    assert!(!has(&default, "winograd_4"), "{default:?}");
    // The legal candidates grow with the allowed approximations.
    assert!(exact.len() <= default.len() && default.len() <= fast.len());
    assert!(exact.iter().all(|n| has(&default, n)) && default.iter().all(|n| has(&fast, n)));
    assert_eq!(
        names(Precision::Fast, true),
        exact,
        "`exact` is the same as before"
    );
}

#[test]
fn a_filter_of_many_taps_may_be_computed_by_transforms() {
    kiln::manual_seed(5);
    let store = store("taps");
    let w = Var::new(Tensor::randn([4, 3, 300], DType::F32)).unwrap();
    let x = Tensor::randn([2, 3, 1000], DType::F32);
    let compiled = |mode, precision| {
        let options = CompileOptions {
            precision,
            // Transform algorithms need images with channels first.
            layout: Layout::ChannelsFirst,
            ..options(mode, &store)
        };
        let spec = Spec::new(DType::F32, [2, 3, 1000]);
        compile_with(spec, &options, |x| {
            x.conv1d_with(w.get(), Conv::new().padding(150)).relu()
        })
        .unwrap()
    };
    let exact = compiled(Mode::On, Precision::Exact);
    let candidates = |c: &Program| c.explain().tuning.choices[0].candidates.clone();
    assert!(!candidates(&exact).contains(&"fft".into()));
    let transformed = compiled(Mode::On, Precision::Default);
    assert!(candidates(&transformed).contains(&"fft".into()));
    let [want, got] = [&exact, &transformed].map(|c| c.run(&x).unwrap().to_vec::<f32>().unwrap());
    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-3;
    assert!(want.iter().zip(&got).all(close));
}

#[test]
fn sizes_left_open_are_tuned_once_and_run_at_every_size() {
    let store = store("open");
    let w = matrix(37, 11);
    let on = options(Mode::On, &store);
    let spec = Spec::new(DType::F32, ("n", 37));
    let product = compile_with(spec, &on, |x| x.matmul(&w).relu()).unwrap();
    assert_eq!(product.explain().tuning.measured().count(), 1);
    for n in [2, 3, 64, 1000] {
        let x = matrix(n, 37);
        let got = product.run(&x).unwrap().to_vec::<f32>().unwrap();
        assert_close(&got, &x.matmul(&w).relu().to_vec::<f32>().unwrap(), 1e-4);
    }
}

#[test]
fn every_way_to_run_a_fused_kernel_is_right() {
    type Build = fn(&Tensor) -> Tensor;
    let programs: [(Build, [usize; 2]); 8] = [
        (|x| x.softmax(1), [67, 1031]),
        (|x| x.layer_norm([13]), [7001, 13]),
        (|x| x.exp().sum([0]), [1031, 67]),
        (|x| (x * 2.0).exp() + x.argmax(keep(1)), [67, 1031]),
        (|x| x.sin() * x - 1.0, [1, 70_001]),
        (|x| x.transpose(0, 1) + 1.0, [263, 1001]),
        // Large enough for stores that bypass the cache; both ends are not aligned to cache lines.
        (|x| x.sin() * x - 1.0, [1, 2_100_003]),
        (|x| x.softmax(1), [2049, 1031]),
    ];
    let mut names: Vec<String> = Vec::new();
    for (build, shape) in programs {
        let options = options(Mode::Off, &store("variants"));
        let made = compile_with(Spec::new(DType::F32, shape), &options, |x| build(&x)).unwrap();
        let mut values = matrix(shape[0], shape[1]).to_vec::<f32>().unwrap();
        (values[5], values[77]) = (f32::NAN, f32::INFINITY);
        let x = Buffer::from_slice(&values, &shape.map(|d| d as i64)).unwrap();
        let stages = made.explain().stages.clone().unwrap();
        let options = kiln_codegen::Options {
            machine: stages.program.machine,
            candidates: true,
            ..Default::default()
        };
        let program = kiln_codegen::lower(&stages.optimized, &options).unwrap();
        for task in &program.tasks {
            let streams = |name: &str| matches!(name, "streamed" | "cached");
            let kernel = |candidate: &Candidate| candidate.calls.steps[0].kernel.clone();
            let (default, others) = task.candidates.split_first().unwrap();
            let large = others.iter().any(|candidate| streams(&candidate.name()));
            for candidate in others {
                let name = candidate.name();
                if large && !streams(&name) {
                    continue; // the smaller programs have it too
                }
                let mut plan = made.plan().clone();
                let same = plan.kernels.iter().position(|k| *k == kernel(default));
                plan.kernels[same.unwrap()] = kernel(candidate);
                let executable = Executable::new(plan).unwrap();
                let x = std::slice::from_ref(&x);
                let checked = kiln_compiler::verify(&stages, &executable, x).unwrap();
                assert!(checked.is_right(), "{name}: {checked}");
                names.push(name.clone());
            }
        }
    }
    names.sort();
    names.dedup();
    let all = [
        "cached",
        "one_part_a_thread",
        "one_thread",
        "streamed",
        "tile_128",
        "tile_256",
        "tile_512",
        "turned",
    ];
    assert_eq!(names, all);
}

#[test]
fn what_is_fused_and_how_sums_are_cut_are_choices() {
    let on = options(Mode::On, &store("fusion"));
    let make = |options: &CompileOptions| {
        let spec = Spec::new(DType::F32, [1040, 263]);
        compile_with(spec, options, |x| x.exp().sum([0])).unwrap()
    };
    let tuned = make(&on);
    let choices = &tuned.explain().tuning.choices;
    let fusion = choices.iter().find(|c| c.key.starts_with("fusion "));
    let fusion = fusion.unwrap();
    assert_eq!(
        fusion.candidates,
        [
            "by rule",
            "reduce 2 in 1",
            "reduce 2 in 8",
            "reduce 2 in 32",
            "reduce 2 in 128",
            "exp 1 apart"
        ]
    );
    assert!(fusion.faults().next().is_none(), "{fusion}");
    let text = tuned.explain().to_string();
    assert!(text.contains(&format!("  fused {fusion}")), "{text}");
    let x = matrix(1040, 263);
    let expected = x.exp().sum([0]).to_vec::<f32>().unwrap();
    assert_close(
        &tuned.run(&x).unwrap().to_vec::<f32>().unwrap(),
        &expected,
        1e-5,
    );
    let again = make(&on);
    assert_eq!(again.plan(), tuned.plan(), "one store gives one program");
    // A region whose best measured schedule is not legal for it gets its schedule by rule, and reports that.
    let file = Store::new(on.tune.store.as_ref().unwrap().to_path_buf());
    let mut record = file.get(&fusion.key).unwrap();
    record.trials.push(Trial {
        name: "reduce 2 in 7".into(),
        workspace: 0,
        same_bits: true,
        predicted: None,
        outcome: Outcome::Timed(vec![1]),
    });
    file.put(record).unwrap();
    let text = make(&on).explain().to_string();
    assert!(
        text.contains("fused by rule (the default; what is chosen"),
        "{text}"
    );
}

#[test]
fn a_convolution_is_timed_with_what_makes_its_images() {
    let on = options(Mode::On, &store("images"));
    let shapes = [[2, 24, 17, 13], [2, 24, 1, 1], [40, 24, 1, 1]];
    let specs = shapes.map(|s| Spec::new(DType::F32, s));
    let tuned = compile_with(&specs, &on, |[x, y, w]| (x * y).relu().conv2d(&w));
    let tuned = tuned.unwrap();
    assert_eq!(tuned.explain().kernels_run(), 1, "{}", tuned.explain());
    let choices = &tuned.explain().tuning.choices;
    let conv = choices.iter().find(|c| c.key.starts_with("conv f32 2 x "));
    let conv = conv.unwrap();
    assert!(!conv.trials.is_empty(), "{conv}");
    assert!(
        choices.iter().all(|c| c.faults().next().is_none()),
        "{conv}"
    );
    let inputs = shapes.map(|s| Tensor::randn(s, DType::F32));
    assert!(tuned.verify(&inputs).unwrap().is_right());
}

#[test]
fn layouts_follow_from_what_convolutions_were_measured_to_take() {
    let on = options(Mode::On, &store("layouts"));
    let made = seeded(&on);
    let choices = &made.explain().tuning.choices;
    let has = |key: &str| choices.iter().any(|c| c.key.starts_with(key));
    assert!(has("conv f32 2 x 1:3->6 ") && has("conv f32 channels last 2 x 1:3->6 "));
    let layouts = choices.iter().find(|c| c.key.starts_with("network "));
    let line = format!("layouts {}", layouts.unwrap());
    // Channels last everywhere may be the measured choice.
    let other = ["measured ", "channels_last "]
        .iter()
        .any(|name| line.contains(name));
    assert!(line.contains("by rule") && other, "{line}");
    assert!(made.explain().to_string().contains(&line));
    assert!(made.explain().to_html().contains(&line));
    assert_eq!(made.explain().layout.convolutions, 2);
    // Nine images are measured, ten are not.
    let measured = |images| {
        let made = kiln::with_seed(3, || network(images, &on)).unwrap();
        made.explain().tuning.measured().count()
    };
    assert!(measured(9) > 0);
    assert_eq!(measured(10), 0);
    // If the layout is given, only that one is measured.
    let first = CompileOptions {
        layout: Layout::ChannelsFirst,
        ..options(Mode::On, &store("layouts-first"))
    };
    let first = seeded(&first);
    let choices = &first.explain().tuning.choices;
    assert!(!choices.iter().any(|c| c.key.contains("channels last")));
    assert_close(&run(&made), &run(&first), 1e-4);
}

/// x + 1, with alternative kernels of which two are right.
static NEXT: LazyLock<CustomOp> = LazyLock::new(|| {
    let add = |by: f32| {
        move |inputs: &[ArrayView<'_>], output: &mut ArrayViewMut<'_>| {
            let x = inputs[0].as_slice::<f32>()?;
            output.write(&x.iter().map(|x| x + by).collect::<Vec<f32>>())
        }
    };
    let make = || {
        CustomOp::new("test::next", |inputs| Ok(inputs[0].clone()), add(1.0))?
            .alternative("same", add(1.0))?
            .alternative("near", add(1.0 + 3e-7))?
            .alternative("wrong", add(1.01))?
            .alternative("fails", |_, _| Err("out of order".into()))?
            .alternative("panics", |_, _| panic!("at once"))?
            .alternative("hangs", |_, _| {
                loop {
                    std::thread::park();
                }
            })
    };
    make().unwrap()
});

#[test]
fn custom_ops_bring_candidates_and_bad_ones_never_win() {
    let store = store("custom");
    let x = matrix(5, 7);
    let make = |mode| {
        let spec = Spec::new(DType::F32, [5, 7]);
        compile_with(spec, &options(mode, &store), |x| NEXT.call(x)).unwrap()
    };
    let expected: Vec<f32> = x.to_vec::<f32>().unwrap().iter().map(|x| x + 1.0).collect();
    let tuned = make(Mode::On);
    assert_close(
        &tuned.run(&x).unwrap().to_vec::<f32>().unwrap(),
        &expected,
        1e-6,
    );
    let choice = &tuned.explain().tuning.choices[0];
    assert!(
        ["default", "same", "near"].contains(&&choice.chosen[..]),
        "{choice}"
    );
    let faults: Vec<&str> = choice.faults().map(|t| &t.name[..]).collect();
    assert_eq!(faults, ["wrong", "fails", "panics", "hangs"]);
    insta::assert_snapshot!(
        choice.faults().map(|t| format!("{t}\n")).collect::<String>(),
        @r"
    wrong is wrong: element 0 is 1.7267191410064697, not 1.716719150543213
    fails failed: test::next: out of order
    panics failed: test::next: its kernel panicked: at once
    hangs did not answer for 4000 ms
    "
    );
    // The result equals the operator's own kernel bit for bit.
    let same = make(Mode::Deterministic);
    assert!(["default", "same"].contains(&&same.explain().tuning.choices[0].chosen[..]));
    assert_eq!(same.run(&x).unwrap().to_vec::<f32>().unwrap(), expected);
    assert_eq!(make(Mode::Off).plan(), make(Mode::Off).plan());
    // A name stands for one kernel only.
    let twice = kiln_base::custom::register_alternative("test::next", "same", |_, _| Ok(()));
    assert!(twice.unwrap_err().contains("can't have another kernel"));
}

#[test]
fn other_lengths_are_rarely_other_keys() {
    let store = store("lengths");
    let on = options(Mode::On, &store);
    let w = matrix(16, 24);
    let mut measured = 0;
    for n in 129..=256 {
        let spec = Spec::new(DType::F32, [n, 16]);
        let product = compile_with(spec, &on, |x| x.matmul(&w)).unwrap();
        measured += product.explain().tuning.measured().count();
    }
    assert_eq!(measured, 4, "a key a quarter octave");
    assert_eq!(Store::new(&store).records().len(), 4);
}

/// Settings of the process, in a process of its own.
#[test]
fn settings_of_the_process() {
    let (path, file) = ("tuning::settings_of_the_process", store("process"));
    let variables = [
        ("KILN_TUNE", "frozen"),
        ("KILN_TUNE_STORE", file.to_str().unwrap()),
        ("KILN_PRECISION", "fast"),
    ];
    if !is_alone(path, &variables) {
        return;
    }
    assert_eq!(tuning::mode(), Mode::Frozen);
    assert_eq!(CompileOptions::default().precision, Precision::Fast);
    let compiled = |f: &dyn Fn()| {
        let before = cache_stats().compiled;
        f();
        cache_stats().compiled - before
    };
    let product = || {
        let x = matrix(40, 50);
        let y = x.matmul(x.transpose(0, 1)).to_vec::<f32>();
        drop(y.unwrap());
    };
    assert_eq!(compiled(&product), 1);
    let store = tuning::store_path().unwrap();
    assert!(!store.exists(), "frozen");
    // Another mode makes another program.
    tuning::set_mode(Mode::On);
    assert_eq!([compiled(&product), compiled(&product)], [1, 0]);
    assert_eq!(Store::new(&store).records().len(), 1);
    kiln::backends::cudnn::set_benchmark(false);
    assert_eq!(tuning::mode(), Mode::Off);
    kiln::set_precision(Precision::Exact);
    assert_eq!([compiled(&product), compiled(&product)], [1, 0]);
    tuning::set_mode(Mode::Frozen);
    kiln::set_precision(Precision::Fast);
    assert_eq!(compiled(&product), 0, "the first is still there");
}

#[test]
fn on_an_emulated_gpu_nothing_is_timed_and_further_kernels_run() {
    let Some(gpu) = crate::cuda::device() else {
        return;
    };
    let source = |by: i32| {
        format!(
            "__device__ void add(const float* x, float* y, long long n) {{
                long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
                if (i < n) y[i] = x[i] + {by};
            }}"
        )
    };
    let grid = |_: &[&[usize]], output: &[usize]| CudaGrid::points(output.iter().product());
    let op = CustomOp::new("test::add_there", |x| Ok(x[0].clone()), |_, _| Ok(()));
    let op = op.unwrap().cuda(&source(1), "add", grid).unwrap();
    let op = op
        .cuda_alternative("other", &source(2), "add", grid)
        .unwrap();
    let spec = Spec::new(DType::F32, [5, 7]).on(gpu);
    let on = options(Mode::On, &store("gpu"));
    let made = compile_with(spec, &on, |x| op.call(x)).unwrap();
    let device = gpu.gpu().unwrap();
    let choice = &made.explain().tuning.choices[0];
    assert_eq!(choice.candidates, ["default", "other"]);
    assert_eq!(
        choice.why == Why::Emulated,
        device.is_emulated(),
        "{choice}"
    );
    assert_eq!(choice.chosen, "default", "the other one is wrong");
    let mut plan = made.plan().clone();
    let Kernel::Custom(call) = Arc::make_mut(&mut plan.kernels[0]) else {
        panic!("{plan:?}");
    };
    call.kernel = Some("other".into());
    let x = Buffer::from_slice(&[0f32; 35], &[5, 7]).unwrap();
    let other = Executable::on_gpu(plan, &device).unwrap();
    let y = other.run_shared(&[x.to_gpu(&device).unwrap()]).unwrap();
    assert_eq!(y[0].to_vec::<f32>().unwrap(), [2.0; 35]);
}

#[test]
fn a_setting_that_cannot_be_read_is_an_error() {
    if !is_alone(
        "tuning::a_setting_that_cannot_be_read_is_an_error",
        &[("KILN_TUNE", "onn")],
    ) {
        return;
    }
    let e = (matrix(2, 3) + 1.0).to_vec::<f32>().unwrap_err();
    let text = "KILN_TUNE=onn: \"onn\" is not one of off, on, frozen, deterministic";
    assert!(e.to_string().contains(text), "{e}");
}

/// A product with an epilogue, a softmax of its rows, and sums of its columns.
fn on_a_gpu(gpu: Device, options: &CompileOptions) -> Compiled<[Tensor; 3], [Tensor; 2]> {
    let specs = [[5, 2000], [2000, 33], [1, 33]];
    let specs = specs.map(|s: [usize; 2]| Spec::new(DType::F32, s).on(gpu));
    let made = compile_with(&specs, options, |[x, w, b]| {
        let y = (x.matmul(&w) + &b).relu();
        [y.softmax(1), (&y * 0.01).exp().sum([0])]
    });
    made.unwrap()
}

fn operands(gpu: Device) -> [Tensor; 3] {
    let [x, w] = [matrix(5, 2000), matrix(2000, 33)];
    [x * 0.05, w * 0.05, matrix(1, 33)].map(|t| t.to(gpu))
}

fn results(made: &Compiled<[Tensor; 3], [Tensor; 2]>, gpu: Device) -> Vec<Vec<f32>> {
    let results = made.run(operands(gpu)).unwrap();
    results.iter().map(|t| t.to_vec().unwrap()).collect()
}

/// Writes made-up times for the choices' candidates, by their number and name, into a store.
pub fn remember(path: &Path, choices: &[Arc<Choice>], time: impl Fn(usize, &str) -> u64) {
    let file = Store::new(path);
    for choice in choices {
        let trial = |(i, name): (usize, &String)| Trial {
            name: name.clone(),
            workspace: 0,
            same_bits: false,
            predicted: None,
            outcome: Outcome::Timed(vec![time(i, name)]),
        };
        let trials = choice.candidates.iter().enumerate().map(trial);
        let record = Record::new(choice.key.clone(), trials.collect());
        file.put(record).unwrap();
    }
}

#[test]
fn what_the_store_says_of_a_gpu_is_used() {
    let Some(gpu) = crate::cuda::device() else {
        return;
    };
    if !gpu.gpu().unwrap().is_emulated() {
        return;
    }
    let path = store("ways");
    let off = on_a_gpu(gpu, &options(Mode::Off, &path));
    assert!(off.explain().tuning.choices.is_empty());
    let expected = results(&off, gpu);
    let on = options(Mode::On, &path);
    let default = on_a_gpu(gpu, &on);
    assert_eq!(default.plan(), off.plan());
    let choices = default.explain().tuning.choices.clone();
    assert!(choices.len() >= 2, "{choices:?}");
    assert!(choices.iter().all(|c| c.why == Why::Emulated));
    let most = choices.iter().map(|c| c.candidates.len()).max().unwrap();
    for candidate in 0..most {
        remember(&path, &choices, |i, _| match i == candidate {
            true => 10,
            false => 20 + i as u64,
        });
        let tuned = on_a_gpu(gpu, &on);
        for choice in &tuned.explain().tuning.choices {
            let wanted = choice
                .candidates
                .get(candidate)
                .unwrap_or(&choice.candidates[0]);
            assert_eq!((&choice.chosen, &choice.why), (wanted, &Why::Store));
        }
        for (got, expected) in results(&tuned, gpu).iter().zip(&expected) {
            assert_close(got, expected, 1e-5);
        }
        let text = tuned.explain().to_string();
        assert!(
            text.contains("fma tile=") && text.contains("threads a row"),
            "{text}"
        );
        if candidate > 0 {
            assert_ne!(tuned.plan(), off.plan());
        }
    }
    // With a memory budget, the defaults are used.
    let budget = CompileOptions {
        memory_budget: Some(1 << 30),
        ..on
    };
    assert!(on_a_gpu(gpu, &budget).explain().tuning.choices.is_empty());
}

/// Each candidate runs once, with patience for a slow emulated GPU.
pub const ONCE: Effort = Effort {
    min_rounds: 1,
    max_rounds: 1,
    time: Duration::ZERO,
    burst: Duration::ZERO,
    patience: Duration::from_secs(300),
};

/// The program of a compiled function for a GPU, with all candidates for its launches.
pub fn lowered_for_a_gpu(made: &Program) -> kiln_codegen::Program {
    let graph = &made.explain().stages.as_ref().unwrap().optimized;
    let lowering = kiln_codegen::Options {
        machine: Machine::Gpu(Gpu::H100),
        candidates: true,
        ..Default::default()
    };
    kiln_codegen::lower(graph, &lowering).unwrap()
}

#[test]
fn every_way_on_a_gpu_is_checked_and_wrong_ones_are_found() {
    let Some(gpu) = crate::cuda::device() else {
        return;
    };
    let options = options(Mode::Off, &store("ways-checked"));
    let device = gpu.gpu().unwrap();
    let tried = |task: &Task| measure(task, 0, Precision::Default, &ONCE, Some(&device));
    let every_way_is_right = |made: &Program| {
        let program = lowered_for_a_gpu(made);
        let mut trials = 0;
        for trial in program.tasks.iter().flat_map(tried) {
            let right = matches!(trial.outcome, Outcome::Timed(_) | Outcome::Pruned(_));
            assert!(right, "{trial}");
            assert!(trial.time().is_none_or(|t| t.as_nanos() > 0), "{trial}");
            trials += 1;
        }
        assert!(trials > 3, "{trials}");
        program
    };
    // With a bias, sums of products of f16 are in f32.
    let halves = [vec![40, 300], vec![33, 300], vec![33]];
    let halves = halves.map(|shape: Vec<usize>| Spec::new(DType::F16, shape).on(gpu));
    let linear = compile_with(&halves, &options, |[x, w, b]| x.linear_with(w, &b));
    every_way_is_right(&linear.unwrap());
    let mut program = every_way_is_right(&on_a_gpu(gpu, &options));
    let is_product = |t: &&mut Task| matches!(t.work.body, Body::MatMul(_));
    let product = program.tasks.iter_mut().find(is_product).unwrap();
    for candidate in &mut product.candidates[1..] {
        let Kernel::Cuda(kernel) = Arc::make_mut(&mut candidate.calls.steps[0].kernel) else {
            panic!("{} is for a GPU", candidate.name())
        };
        let (right, wrong) = (
            "multiply_add(x[i][s], y[j][s], ",
            "multiply_add(x[i][s], y[j][s] * Elem(0.99), ",
        );
        assert!(kernel.text.scope.contains(right));
        kernel.text.scope = kernel.text.scope.replace(right, wrong);
        *kernel = kernel.clone().named();
    }
    let trials = tried(product);
    let (default, others) = trials.split_first().unwrap();
    assert!(matches!(default.outcome, Outcome::Timed(_)), "{default}");
    let wrong = |t: &&Trial| matches!(t.outcome, Outcome::Wrong(_));
    assert!(others.iter().filter(wrong).count() > 1);
    for trial in others {
        assert!(trial.time().is_none(), "{trial}");
    }
}
