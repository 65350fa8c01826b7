//! Products by cuBLASLt, which the tuner takes where they are faster. The emulated driver's stand-in for it takes the time
//! that the environment says.

use crate::cuda::device;
use crate::support::buffer;
use half::bf16;
use kiln_export::Builder;
use kiln_package::Options;
use kiln_plan::Kernel;
use kiln_tensor::tuning::{Choice, Why};
use kiln_tensor::{Compiled, DType, Device, Spec, Tensor, Var, compile, with_seed};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// The nanoseconds of a product by the library, unless a case says otherwise.
const BASE: f64 = 1e6;

/// Runs a case in a process of its own, with tuning on, a store, and a GPU whose times are believed. Returns what it
/// prints.
fn case(name: &str, store: &Path, environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let test = format!("cublaslt::{name}");
    command.args(["--exact", "--ignored", "--nocapture", &test]);
    let library = kiln_fake_cuda::library();
    command
        .env("KILN_CUBLASLT", library)
        .env("KILN_FAKE_CUDA_TIMED", "1000")
        .env("KILN_FAKE_CUBLASLT_TIME", BASE.to_string())
        .env("KILN_FAKE_CUDA_CAPABILITY", "80")
        .env("KILN_TUNE", "on")
        .env("KILN_TUNE_STORE", store)
        .envs(environment.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{name} {environment:?}: {text}{errors}");
    text
}

/// The number behind a word in a text.
fn number(text: &str, word: &str) -> f64 {
    let behind = text
        .split_once(word)
        .unwrap_or_else(|| panic!("no {word} in {text}"))
        .1;
    let end = behind
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(behind.len());
    behind[..end].parse().unwrap()
}

#[test]
fn a_library_is_taken_where_it_is_faster_with_the_work_behind_it() {
    if device().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let store = |name: &str| folder.path().join(name);
    let first = store("first");
    let text = case("taken", &first, &[]);
    // The times of the whole, by the library and by Kiln's fastest, whose product is fused with what follows.
    let [by_library, by_kiln] = ["by library ", "by kiln "].map(|word| number(&text, word));
    assert!(by_library < by_kiln, "{text}");
    case("assigned", &store("assigned"), &[]);
    case("bytes", &store("bytes"), &[]);
    case("rounded", &store("rounded"), &[("KILN_PRECISION", "fast")]);
    // A later process takes the library from the store, or does without.
    case("remembered", &first, &[("KILN_TUNE", "frozen")]);
    let absent = [("KILN_CUBLASLT", "/nowhere/lt.so"), ("KILN_TUNE", "frozen")];
    case("forgone", &first, &absent);
    case("forgone", &first, &[("KILN_TUNE_CUBLASLT", "0")]);
    case(
        "forgone",
        &store("absent"),
        &[("KILN_CUBLASLT", "/nowhere/lt.so")],
    );
    case("alike", &store("alike"), &[("KILN_TUNE", "deterministic")]);
    // A product that is faster than the fused kernel, but not together with the work behind it.
    let behind = by_library - BASE;
    let slower = by_kiln - behind / 2.0;
    assert!(0.0 < behind && slower < by_kiln);
    let slower = slower.round().to_string();
    case(
        "left",
        &store("left"),
        &[("KILN_FAKE_CUBLASLT_TIME", &slower)],
    );
    // A product that is just fast enough.
    let faster = (by_kiln - 1.1 * behind).round().to_string();
    case(
        "won",
        &store("won"),
        &[("KILN_FAKE_CUBLASLT_TIME", &faster)],
    );
}

type Product = Compiled<Tensor, Tensor>;

const ROWS: usize = 37;
const COLUMNS: usize = 24;
const TERMS: usize = 16;

fn weight(gpu: Device) -> Var {
    let w = with_seed(1, || Tensor::rand([COLUMNS, TERMS], DType::F32) - 0.5);
    Var::new(w.to_dtype(DType::BF16).to(gpu)).unwrap()
}

/// A product, and one with work behind it.
fn products(gpu: Device) -> [Product; 2] {
    let spec = || Spec::new(DType::BF16, [ROWS, TERMS]).on(gpu);
    let w = weight(gpu);
    let plain = compile(spec(), |x| x.matmul(w.get().transpose(0, 1)));
    let fused = compile(spec(), |x| {
        let y = x.matmul(w.get().transpose(0, 1));
        y.gelu().sin().tanh() + 1.0
    });
    [plain.unwrap(), fused.unwrap()]
}

fn choice(of: &Product) -> Arc<Choice> {
    let choices = &of.explain().tuning.choices;
    let found = choices.iter().find(|c| c.key.starts_with("matmul"));
    found
        .unwrap_or_else(|| panic!("{:?}", of.explain().tuning))
        .clone()
}

fn is_library(name: &str) -> bool {
    name.starts_with("cublaslt 13.0.2 #")
}

fn operand() -> Tensor {
    let x = with_seed(2, || Tensor::rand([ROWS, TERMS], DType::F32) - 0.5);
    x.to_dtype(DType::BF16)
}

/// Asserts that a result for [`operand`] is that of the CPU in f32.
fn is_right(got: &[f32], is_fused: bool, gpu: Device) {
    let w = weight(gpu).get().to(Device::Cpu).to_dtype(DType::F32);
    let y = operand().to_dtype(DType::F32).matmul(w.transpose(0, 1));
    let right = if is_fused {
        y.gelu().sin().tanh() + 1.0
    } else {
        y
    };
    let right = right.to_vec::<f32>().unwrap();
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 0.01 * b.abs().max(0.1);
    assert_eq!(got.len(), right.len());
    assert!(got.iter().zip(&right).all(near), "{got:?}\n{right:?}");
}

/// Asserts that a compiled function is right, and that its plan has a kernel of the library or none.
fn check(of: &Product, is_fused: bool, by_library: bool, gpu: Device) {
    // Launch by launch, and as a graph.
    for _ in 0..3 {
        let got = of.run(operand().to(gpu)).unwrap().to(Device::Cpu);
        let got = got.to_dtype(DType::F32).to_vec::<f32>().unwrap();
        is_right(&got, is_fused, gpu);
    }
    let mut kernels = of.plan().kernels.iter();
    let found = kernels.any(|k| matches!(**k, Kernel::Library(_)));
    assert_eq!(found, by_library, "{}", choice(of));
}

/// The time of the fastest of the library's candidates, or of Kiln's, in nanoseconds.
fn fastest(choice: &Choice, of_library: bool) -> u128 {
    let trials = choice
        .trials
        .iter()
        .filter(|t| is_library(&t.name) == of_library);
    let times = trials.filter_map(|t| Some(t.time()?.as_nanos()));
    times.min().unwrap_or_else(|| panic!("{choice}"))
}

#[test]
#[ignore = "run by another test"]
fn taken() {
    let gpu = device().unwrap();
    let products = products(gpu);
    for (product, is_fused) in products.iter().zip([false, true]) {
        let choice = choice(product);
        assert!(
            is_library(&choice.chosen) && choice.why == Why::Measured,
            "{choice}"
        );
        let tried = choice.trials.iter().filter(|t| is_library(&t.name));
        let right = tried.clone().filter(|t| t.time().is_some());
        assert_eq!([tried.count(), right.count()], [2, 2], "{choice}");
        check(product, is_fused, true, gpu);
        // The record says what packages have.
        let own = choice.in_packages.clone().unwrap();
        assert!(!is_library(&own) && choice.to_string().contains(&format!("in packages {own}")));
        let bytes = Builder::new().entry("product", product).to_bytes().unwrap();
        let package = Options::new().gpu(0).open_bytes(&bytes).unwrap();
        let entry = package.entry("product").unwrap();
        let got = entry.run([buffer(&operand())]).unwrap();
        let got = got[0].to_vec::<bf16>().unwrap();
        is_right(
            &got.iter().map(|x| x.to_f32()).collect::<Vec<f32>>(),
            is_fused,
            gpu,
        );
    }
    let choice = choice(&products[1]);
    let [by_library, by_kiln] = [true, false].map(|library| fastest(&choice, library));
    println!("by library {by_library} by kiln {by_kiln}");
}

#[test]
#[ignore = "run by another test"]
fn remembered() {
    let gpu = device().unwrap();
    for (product, is_fused) in products(gpu).iter().zip([false, true]) {
        let choice = choice(product);
        assert!(
            is_library(&choice.chosen) && choice.why == Why::Store,
            "{choice}"
        );
        check(product, is_fused, true, gpu);
    }
}

#[test]
#[ignore = "run by another test"]
fn forgone() {
    let gpu = device().unwrap();
    for (product, is_fused) in products(gpu).iter().zip([false, true]) {
        let choice = choice(product);
        assert!(
            !choice.candidates.iter().any(|name| is_library(name)),
            "{choice}"
        );
        assert!(
            choice.in_packages.is_none() && choice.why != Why::Missing,
            "{choice}"
        );
        check(product, is_fused, false, gpu);
    }
}

/// A library can't be kept from writing, so its results take no memory over; those of the work behind them do.
#[test]
#[ignore = "run by another test"]
fn assigned() {
    let gpu = device().unwrap();
    let w = weight(gpu);
    let cell = || Var::new(Tensor::zeros([ROWS, COLUMNS], DType::BF16).to(gpu)).unwrap();
    let (last, sum) = (cell(), cell());
    // Twice as many terms, which are the same twice.
    let long = Var::new(w.get().repeat([1, 2])).unwrap();
    let spec = |terms| Spec::new(DType::BF16, [ROWS, terms]).on(gpu);
    let step = compile((spec(TERMS), spec(2 * TERMS)), |(x, y)| {
        last.assign(x.matmul(w.get().transpose(0, 1)))?;
        sum.assign(sum.get() + y.matmul(long.get().transpose(0, 1)))?;
        kiln_tensor::Result::Ok(x.sum(()))
    });
    let step = step.unwrap();
    let plan = step.plan();
    let written_by_library = |buffer| {
        plan.run.iter().any(|s| {
            let kernel = &plan.kernels[s.kernel as usize];
            matches!(**kernel, Kernel::Library(_)) && s.args.get(2) == Some(&buffer)
        })
    };
    let outputs = plan.outputs.iter().filter(|o| !o.shape.is_empty());
    let outputs = outputs.map(|o| (written_by_library(o.buffer), o.donor.is_some()));
    let mut outputs: Vec<(bool, bool)> = outputs.collect();
    outputs.sort_unstable();
    assert_eq!(outputs, [(false, true), (true, false)]);
    let values = |of: &Var| {
        let x = of.get().to(Device::Cpu).to_dtype(DType::F32);
        x.to_vec::<f32>().unwrap()
    };
    for steps in 1..4 {
        let x = operand();
        step.run((x.to(gpu), x.repeat([1, 2]).to(gpu))).unwrap();
        is_right(&values(&last), false, gpu);
        let sums = values(&sum);
        let one: Vec<f32> = sums.iter().map(|x| x / (2 * steps) as f32).collect();
        is_right(&one, false, gpu);
    }
}

/// Products of bytes are summed in i32.
#[test]
#[ignore = "run by another test"]
fn bytes() {
    let gpu = device().unwrap();
    let numbers = |seed, rows| {
        let x = with_seed(seed, || Tensor::rand([rows, TERMS], DType::F32));
        ((x - 0.5) * 255.0).to_dtype(DType::I8)
    };
    let (x, w) = (numbers(1, ROWS), numbers(2, COLUMNS));
    let product = |x: &Tensor, w: &Tensor| {
        let [x, w] = [x, w].map(|x| x.to_dtype(DType::I32));
        x.matmul(w.transpose(0, 1))
    };
    let held = Var::new(w.to(gpu)).unwrap();
    let spec = Spec::new(DType::I8, [ROWS, TERMS]).on(gpu);
    let compiled = compile(spec, |x| product(&x, &held.get())).unwrap();
    let choice = choice(&compiled);
    assert!(is_library(&choice.chosen), "{choice}");
    let got = compiled.run(x.to(gpu)).unwrap().to_vec::<i32>().unwrap();
    assert_eq!(got, product(&x, &w).to_vec::<i32>().unwrap());
}

/// Under `fast`, f32 may be rounded to TF32.
#[test]
#[ignore = "run by another test"]
fn rounded() {
    let gpu = device().unwrap();
    let w = weight(gpu).get().to_dtype(DType::F32);
    let w = Var::new(&w).unwrap();
    let spec = Spec::new(DType::F32, [ROWS, TERMS]).on(gpu);
    let compiled = compile(spec, |x| x.matmul(w.get().transpose(0, 1))).unwrap();
    let choice = choice(&compiled);
    for name in ["cublaslt 13.0.2 #0", "tf32: cublaslt 13.0.2 #0"] {
        let trial = choice.trials.iter().find(|t| t.name == name);
        assert!(trial.is_some_and(|t| t.time().is_some()), "{choice}");
    }
    let got = compiled
        .run(operand().to_dtype(DType::F32).to(gpu))
        .unwrap();
    is_right(&got.to(Device::Cpu).to_vec::<f32>().unwrap(), false, gpu);
}

/// Under `deterministic`, what is chosen gives the default's bits.
#[test]
#[ignore = "run by another test"]
fn alike() {
    let gpu = device().unwrap();
    for product in products(gpu) {
        let choice = choice(&product);
        let chosen = choice.trials.iter().find(|t| t.name == choice.chosen);
        assert!(chosen.unwrap().same_bits, "{choice}");
    }
}

#[test]
#[ignore = "run by another test"]
fn left() {
    let gpu = device().unwrap();
    let [_, fused] = products(gpu);
    let choice = choice(&fused);
    assert!(
        choice
            .trials
            .iter()
            .any(|t| is_library(&t.name) && t.time().is_some()),
        "{choice}"
    );
    check(&fused, true, false, gpu);
}

#[test]
#[ignore = "run by another test"]
fn won() {
    let gpu = device().unwrap();
    let [_, fused] = products(gpu);
    check(&fused, true, true, gpu);
}
