//! Training steps emitted as C and compared with the runtime.

use crate::cc::{self, Library};
use kiln::nn::optim::{AdamW, Optimizer};
use kiln::nn::{
    BatchNorm2d, Conv2d, Dropout, Flatten, Forward, Kernel, Linear, MaxPool2d, Module, ReLU,
    sequential,
};
use kiln::package::{Buffer, Builder, Package};
use kiln::{DType, Spec, Tensor, compile, with_seed};
use kiln_c99::{Export, Weights};
use std::fmt::Write as _;

const BATCH: usize = 5;
const SIDE: usize = 9;
const ENTRIES: &[(&str, usize)] = &[("forward", 3), ("train_step", 4)];

/// Returns a small image classifier and its training step.
fn package() -> Package {
    let model = sequential![
        Conv2d::new(2, 6, Kernel::new(3).padding(1)),
        BatchNorm2d::new(6),
        ReLU::new(),
        MaxPool2d::new(2),
        Conv2d::new(6, 9, Kernel::new(3).stride(2)),
        ReLU::new(),
        Flatten::new(),
        Linear::new(9, 4)
    ]
    .unwrap();
    let mut optimizer = Optimizer::new(model.parameters(), AdamW::new().lr(1e-2)).unwrap();
    let images = Spec::new(DType::F32, [BATCH, 2, SIDE, SIDE]);
    let labels = Spec::new(DType::I64, [BATCH]);
    let step = compile((images.clone(), labels), |(x, y)| {
        optimizer.zero_grad();
        let loss = model.call(&x).cross_entropy(&y);
        loss.backward()?;
        optimizer.step()?;
        kiln::Result::Ok(loss)
    });
    let step = step.unwrap();
    model.eval();
    let forward = compile(images, |x| model.call(&x)).unwrap();
    let bytes = Builder::new()
        .module("", &model)
        .optimizer("optimizer", &optimizer)
        .entry("forward", &forward)
        .inputs(["x"])
        .outputs(["scores"])
        .entry("train_step", &step)
        .inputs(["x", "y"])
        .outputs(["loss"])
        .to_bytes();
    Package::from_bytes(&bytes.unwrap()).unwrap()
}

/// Returns wrappers of entries, given their numbers of parameters. They share a state, which `call_begin` initialises.
pub fn shims(in_file: bool, entries: &[(&str, usize)]) -> String {
    let weights = if in_file { "p[0], " } else { "" };
    let pointer = |i: usize| format!("p[{}]", i + usize::from(in_file));
    let mut text = String::from(
        "static model_state state;\nint call_begin(void **p);\nlong arena_begin(void);\n",
    );
    let _ = writeln!(
        text,
        "int call_begin(void **p) {{ (void)p; model_begin({weights}&state); return 0; }}\n\
         long arena_begin(void) {{ return 64; }}"
    );
    for (name, params) in entries {
        let args: Vec<String> = (0..*params).map(pointer).collect();
        let _ = writeln!(
            text,
            "int call_{name}(void **p);\nlong arena_{name}(void);\n\
             int call_{name}(void **p) {{ return model_{name}({weights}&state, {}); }}\n\
             long arena_{name}(void) {{ return MODEL_{}_ARENA; }}",
            args.join(", "),
            name.to_ascii_uppercase()
        );
    }
    text
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks::<4>().0;
    words.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

pub fn bytes(t: &Tensor) -> Vec<u8> {
    t.to_bytes().unwrap()
}

/// Checks that training in C has the runtime's losses, but for rounding.
fn check_training(weights: Weights) {
    let package = package();
    let export = Export::new("model").entry("train_step").entry("forward");
    let sources = export.weights(weights).sources(&package).unwrap();
    let in_file = sources.files.iter().any(|(n, _)| n.ends_with(".bin"));
    let library = Library::new(&sources, "model", "-O2", &shims(in_file, ENTRIES));
    let (step, forward) = (
        package.entry("train_step").unwrap(),
        package.entry("forward").unwrap(),
    );
    let shape = [BATCH as i64, 2, SIDE as i64, SIDE as i64];
    let data: Vec<(Vec<u8>, Vec<u8>)> = (0..4)
        .map(|_| {
            let x = Tensor::randn([BATCH, 2, SIDE, SIDE], DType::F32);
            let y = Tensor::randint(0, 4, [BATCH]);
            (bytes(&x), bytes(&y))
        })
        .collect();
    let buffers = |(x, y): &(Vec<u8>, Vec<u8>)| {
        let y = Buffer::from_bytes(DType::I64, &[BATCH as i64], y);
        (
            Buffer::from_bytes(DType::F32, &shape, x).unwrap(),
            y.unwrap(),
        )
    };
    let mut first_losses = Vec::new();
    for round in 0..2 {
        library.call("begin", &[], &[]).unwrap();
        package.reset().unwrap();
        let mut losses = Vec::new();
        for batch in data.iter().cycle().take(16) {
            let (x, y) = buffers(batch);
            let expected = step.run([x, y]).unwrap()[0].to_vec::<f32>().unwrap()[0];
            let inputs = [batch.0.clone(), batch.1.clone()];
            let actual = floats(&library.call("train_step", &inputs, &[4]).unwrap()[0])[0];
            assert!(
                (actual - expected).abs() < 1e-4 * expected.abs().max(0.1),
                "{actual} {expected}"
            );
            losses.push(actual);
        }
        let total = |part: &[f32]| part.iter().sum::<f32>();
        let (early, late) = (total(&losses[..4]), total(&losses[12..]));
        assert!(late < 0.9 * early, "it doesn't learn: {losses:?}");
        // The classifier reads the trained weights.
        let (x, _) = buffers(&data[0]);
        let expected = forward.run([x]).unwrap()[0].to_vec::<f32>().unwrap();
        let actual = library.call("forward", &[data[0].0.clone()], &[BATCH * 16]);
        for (a, b) in floats(&actual.unwrap()[0]).iter().zip(&expected) {
            assert!((a - b).abs() < 1e-3 * b.abs().max(1.0), "{a} {b}");
        }
        // A second training has exactly the same losses.
        match round {
            0 => first_losses = losses,
            _ => assert_eq!(first_losses, losses),
        }
    }
}

#[test]
fn a_network_trains_in_c() {
    if cc::is_there() {
        with_seed(5, || [Weights::Arrays, Weights::File].map(check_training));
    }
}

#[test]
fn errors_leave_the_state_unchanged() {
    if !cc::is_there() {
        return;
    }
    with_seed(6, || {
        let package = package();
        let export = Export::new("model").entry("train_step").entry("forward");
        let sources = export.weights(Weights::Arrays).sources(&package).unwrap();
        let library = Library::new(&sources, "model", "-O1", &shims(false, ENTRIES));
        library.call("begin", &[], &[]).unwrap();
        let x = bytes(&Tensor::randn([BATCH, 2, SIDE, SIDE], DType::F32));
        let scores = || library.call("forward", std::slice::from_ref(&x), &[BATCH * 16]);
        let before = scores().unwrap();
        let labels: Vec<u8> = [0i64, 1, 2, 3, 9]
            .iter()
            .flat_map(|y| y.to_le_bytes())
            .collect();
        let error = library.call("train_step", &[x.clone(), labels], &[4]);
        let error = error.unwrap_err();
        assert!(error.contains("out of range"), "{error}");
        assert_eq!(scores().unwrap(), before);
    });
}

/// Noise and dropout equal the runtime's. The generator advances with each successful call, and restarts with the
/// state.
#[test]
fn random_numbers_equal_the_runtimes() {
    if !cc::is_there() {
        return;
    }
    const ROWS: usize = 7;
    let (package, x) = with_seed(7, || {
        let model = sequential![
            Linear::new(5, 33),
            ReLU::new(),
            Dropout::new(0.4),
            Linear::new(33, 3)
        ];
        let model = model.unwrap();
        let mut optimizer = Optimizer::new(model.parameters(), AdamW::new().lr(1e-2)).unwrap();
        let noise = compile(Spec::new(DType::F32, [3, 5]), |x: Tensor| {
            let (noise, bits) = (
                Tensor::randn([3, 5], DType::F32),
                Tensor::randint(0, 1000, [9]),
            );
            (x + noise, bits)
        });
        let specs = (
            Spec::new(DType::F32, [ROWS, 5]),
            Spec::new(DType::I64, [ROWS]),
        );
        let step = compile(specs, |(x, y)| {
            optimizer.zero_grad();
            let loss = model.call(&x).cross_entropy(&y);
            loss.backward()?;
            optimizer.step()?;
            kiln::Result::Ok(loss)
        });
        let archive = Builder::new()
            .module("", &model)
            .optimizer("optimizer", &optimizer)
            .entry("noise", &noise.unwrap())
            .inputs(["x"])
            .outputs(["y", "bits"])
            .entry("train_step", &step.unwrap())
            .inputs(["x", "y"])
            .outputs(["loss"])
            .to_bytes();
        let x = bytes(&Tensor::randn([ROWS, 5], DType::F32));
        (Package::from_bytes(&archive.unwrap()).unwrap(), x)
    });
    let export = Export::new("model").entry("noise").entry("train_step");
    let sources = export.weights(Weights::Arrays).sources(&package).unwrap();
    let shims = shims(false, &[("noise", 4), ("train_step", 4)]);
    let library = Library::new(&sources, "model", "-O2", &shims);
    library.call("begin", &[], &[]).unwrap();
    let labels = |y: [i64; ROWS]| y.iter().flat_map(|y| y.to_le_bytes()).collect::<Vec<u8>>();
    let valid = labels([0, 2, 1, 1, 0, 2, 2]);
    let (noise, step) = (
        package.entry("noise").unwrap(),
        package.entry("train_step").unwrap(),
    );
    let mut draws: Vec<Vec<u8>> = Vec::new();
    for round in 0..6 {
        let x_rows = Buffer::from_bytes(DType::F32, &[3, 5], &x[..60]).unwrap();
        let expected = noise.run([x_rows]).unwrap();
        let actual = library
            .call("noise", &[x[..60].to_vec()], &[60, 72])
            .unwrap();
        assert_eq!(actual[1], expected[1].to_bytes().unwrap(), "round {round}");
        for (a, b) in floats(&actual[0])
            .iter()
            .zip(expected[0].to_vec::<f32>().unwrap())
        {
            assert!((a - b).abs() < 1e-5 * b.abs().max(1.0), "{a} {b}");
        }
        assert!(!draws.contains(&actual[1]));
        draws.push(actual[1].clone());
        // A call that fails draws nothing.
        let invalid = [x.clone(), labels([0, 2, 1, 1, 0, 2, 3])];
        assert!(library.call("train_step", &invalid, &[4]).is_err());
        let arguments = [
            Buffer::from_bytes(DType::F32, &[ROWS as i64, 5], &x).unwrap(),
            Buffer::from_bytes(DType::I64, &[ROWS as i64], &valid).unwrap(),
        ];
        let expected = step.run(arguments).unwrap()[0].to_vec::<f32>().unwrap()[0];
        let actual = library
            .call("train_step", &[x.clone(), valid.clone()], &[4])
            .unwrap();
        let actual = floats(&actual[0])[0];
        assert!(
            (actual - expected).abs() < 1e-4 * expected.abs(),
            "{actual} {expected}"
        );
    }
    library.call("begin", &[], &[]).unwrap();
    let restarted = library
        .call("noise", &[x[..60].to_vec()], &[60, 72])
        .unwrap();
    assert_eq!(restarted[1], draws[0]);
}
